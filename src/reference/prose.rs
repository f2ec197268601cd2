//! Splits the documentation of a key into its meaning, default, range, and the names of other frameworks.

/// The parts of a key's documentation. The comments in `src/recipe/raw/` have this form.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Prose {
    sentences: Vec<String>,
    /// The range: a sentence, or the end of a sentence.
    range: Option<String>,
    /// The default in words.
    pub(super) default: Option<String>,
    /// The name of verl's key, without backticks.
    pub(super) verl: Option<String>,
    /// The name of TRL's setting, without backticks.
    pub(super) trl: Option<String>,
}

impl Prose {
    pub(super) fn parse(text: &str) -> Self {
        let text = plain(text);
        let (text, peers) = split_peers(&text);
        let mut prose =
            Self { verl: peer_key(peers, "verl"), trl: peer_key(peers, "TRL"), ..Self::default() };
        sentences(text).for_each(|sentence| prose.add(sentence));
        prose
    }

    fn add(&mut self, sentence: &str) {
        if let Some(default) = sentence.strip_prefix("Default: ") {
            self.default = Some(default.trim_end_matches('.').to_owned());
            return;
        }
        let sentence = match sentence.split_once("; default ") {
            // A default in the middle of a sentence stays.
            Some((before, after)) if !after.trim_end_matches('.').contains("; ") => {
                format!("{before}.")
            }
            _ => sentence.to_owned(),
        };
        let (sentence, range) = without_range(&sentence);
        self.range = range.map(lower_first).or_else(|| self.range.take());
        self.sentences.extend((!sentence.is_empty()).then_some(sentence));
    }

    /// Returns the meaning, and the range: `known` if it is `Some`, and otherwise the range in the text. If `known` replaces a range of the
    /// text that refers to other keys, the meaning ends with that range.
    pub(super) fn meaning_with(&self, known: Option<String>) -> (String, Option<String>) {
        let mut meaning = self.sentences.join(" ");
        let refers = self
            .range
            .as_ref()
            .filter(|range| range.split('`').skip(1).step_by(2).any(|code| code.contains('.')));
        if let (Some(_), Some(range)) = (&known, refers) {
            meaning = format!("{meaning} {}.", upper_first(range));
        }
        (meaning, known.or_else(|| self.range.clone()))
    }
}

/// Returns the meaning of a section from its documentation, without its default and the names of other frameworks.
pub(super) fn about(text: &str) -> String {
    Prose::parse(text).sentences.join(" ")
}

/// Replaces the links in a documentation text by their labels, because their targets are items of the code.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(end) = rest.find("](") {
        let start = rest[..end].rfind('[').unwrap_or(end);
        let after = rest[end..].find(')').map_or(rest.len(), |close| end + close + 1);
        plain.push_str(&rest[..start]);
        plain.push_str(rest[..end].get(start + 1..).unwrap_or_default());
        rest = &rest[after..];
    }
    plain.push_str(rest);
    plain.replace("[`", "`").replace("`]", "`")
}

/// Splits off the names of other frameworks at the end of a text: `(verl: ...; TRL: ...)`. The second part is empty if there are none.
fn split_peers(text: &str) -> (&str, &str) {
    let opened =
        ["(verl: ", "(TRL: ", "(prime-rl: "].iter().filter_map(|open| text.rfind(open)).min();
    let Some(at) = opened.filter(|_| text.ends_with(')')) else { return (text, "") };
    (text[..at].trim_end(), &text[at + 1..text.len() - 1])
}

/// Returns the name of a framework's key from a list such as ``verl: `a`; TRL: `b` ``.
fn peer_key(peers: &str, framework: &str) -> Option<String> {
    let (_, after) = peers.split_once(&format!("{framework}: `"))?;
    after.split('`').next().map(str::to_owned)
}

/// Splits a text after each full stop that is followed by a space and a capital letter or code.
fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let starts = |rest: &str| rest.starts_with(|c: char| c.is_uppercase() || c == '`');
    let mut rest = text.trim();
    std::iter::from_fn(move || {
        let stops = rest.match_indices(". ").map(|(at, _)| at);
        let end = stops.into_iter().find(|at| starts(&rest[at + 2..]));
        let (sentence, after) = rest.split_at(end.map_or(rest.len(), |at| at + 1));
        rest = after.trim_start();
        (!sentence.is_empty()).then_some(sentence)
    })
}

/// The words with which a range begins, at the start of a sentence or after a comma or semicolon.
const RANGE_STARTS: [&str; 8] =
    ["from ", "at least ", "at most ", "above ", "in (", "in [", "positive", "a finite number"];

/// Maximum length of a range in bytes. A longer text that begins in the same way is an explanation.
const MAX_RANGE_LENGTH: usize = 60;

/// Splits a range off the end of a sentence. The rest is empty if the sentence is only a range.
fn without_range(sentence: &str) -> (String, Option<&str>) {
    let bare = sentence.trim_end_matches('.');
    let is_range = |text: &str| {
        let text = lower_first(text);
        RANGE_STARTS.iter().any(|start| text.starts_with(start)) && text.len() <= MAX_RANGE_LENGTH
    };
    if is_range(bare) {
        return (String::new(), Some(bare));
    }
    let splits = bare.match_indices([',', ';']).map(|(at, _)| (&bare[..at], bare[at + 1..].trim()));
    match splits.into_iter().find(|(_, after)| is_range(after)) {
        Some((before, range)) => (format!("{before}."), Some(range)),
        None => (sentence.to_owned(), None),
    }
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

fn upper_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_text_are_found() {
        let prose = Prose::parse(
            "Number of [rows](crate::Rows). From 0.5 to `data.n`; default 1. `-1` is all. (verl: `data.rows`; TRL: `rows`)",
        );
        assert_eq!(prose.verl.as_deref(), Some("data.rows"));
        assert_eq!(prose.trl.as_deref(), Some("rows"));
        let all = "Number of rows. `-1` is all.".to_owned();
        assert_eq!(
            prose.meaning_with(None),
            (all.clone(), Some("from 0.5 to `data.n`".to_owned()))
        );
        let known = Some("from 0.5 to 9".to_owned());
        let meaning = format!("{all} From 0.5 to `data.n`.");
        assert_eq!(prose.meaning_with(known.clone()), (meaning, known));
        let prose = Prose::parse("The seed. Default: that of the run.");
        assert_eq!(prose.default.as_deref(), Some("that of the run"));
        assert_eq!(plain("One of [`a`], in [0, 1)."), "One of `a`, in [0, 1).");
    }
}
