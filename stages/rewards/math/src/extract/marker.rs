//! Markers before answers: `####`, `<answer>`, `Answer:`, `A:`.

use super::super::names::FUNCTIONS;
use super::super::units;
use super::{Candidate, Content, boxes};

/// Returns the contents of the last `<answer>` tag, and the rest of the line after the last occurrence of each other marker.
pub(super) fn marked(text: &str, priority: i32) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    found.extend(tagged(text, priority));
    found.extend(hashes(text).and_then(|at| answer_after(text, at, priority)));
    for marker in ["answer:", "Answer:", "ANSWER:", "A:"] {
        let marks = |at: &usize| !is_part_of_word(&text[..*at], marker);
        let at = text.rmatch_indices(marker).map(|(at, _)| at).find(marks);
        found.extend(at.and_then(|at| answer_after(text, at + marker.len(), priority)));
    }
    found
}

fn tagged(text: &str, priority: i32) -> Option<Candidate> {
    let (begin, end) = last_tag(text)?;
    let content = Content::Line(text[begin..end].to_owned());
    Some(Candidate { priority, span: (begin, end), content })
}

/// Returns the byte range of the contents of the last complete pair of `<answer>` and `</answer>`. A tag without its counterpart, such as
/// one that a sentence mentions, is ignored.
pub(crate) fn last_tag(text: &str) -> Option<(usize, usize)> {
    let last_end = text.rfind("</answer>")?;
    let begin = text[..last_end].rfind("<answer>")? + "<answer>".len();
    Some((begin, begin + text[begin..].find("</answer>")?))
}

/// A line with `####`.
struct Heading<'a> {
    /// The end of the last `####` of the line.
    mark: usize,
    /// The end of the line.
    end: usize,
    /// The text after the mark, without markup.
    content: &'a str,
}

impl Heading<'_> {
    /// Returns the number that is the content, also before a parenthesis as in `1)`.
    fn number(&self) -> Option<u32> {
        let digits = self.content.trim_end_matches(')');
        digits.starts_with(|c: char| c.is_ascii_digit()).then(|| digits.parse().ok())?
    }

    /// Returns `true` for a title, such as `Step 2`: a word of three or more letters that is not the name of a function, and that ends
    /// before a blank or a colon.
    fn is_title(&self) -> bool {
        let end = self.content.find(|c: char| !c.is_alphabetic()).unwrap_or(self.content.len());
        let (word, rest) = self.content.split_at(end);
        word.chars().count() > 2
            && (rest.is_empty() || rest.starts_with(|c: char| c.is_whitespace() || c == ':'))
            && !self.content.contains(['\\', '$', '='])
            && !FUNCTIONS.contains(&word)
    }
}

/// Returns the lines with `####` before other text.
fn headings(text: &str) -> Vec<Heading<'_>> {
    let mut found = Vec::new();
    let mut begin = 0;
    for line in text.split_inclusive('\n') {
        let end = begin + line.trim_end_matches(['\n', '\r']).len();
        // Marks at the end of the line close a heading.
        let searched = line.trim_end_matches(|c: char| c == '#' || c.is_whitespace());
        if let Some(mark) = searched.rfind("####").map(|at| begin + at + "####".len()) {
            let is_escaped = text[..mark]
                .trim_end_matches('#')
                .ends_with(|c: char| c.is_alphanumeric() || c == '\\');
            let content = trimmed(&text[mark..end]);
            if !(content.is_empty() || is_escaped) {
                found.push(Heading { mark, end, content });
            }
        }
        begin += line.len();
    }
    found
}

/// Returns the end of the last `####` that marks an answer. Any other `####` begins a heading of Markdown.
///
/// A `####` before a number, a formula or a single letter marks an answer if the text has no box or if its line is the last one. It does
/// not if numbers follow and it is the title of a section, such as `Step 2`, or its number: 1, then 2, and so on. A 1 is the number of a
/// section only if it begins the text, or if a title or the number 2 follows in a later line with `####`. Words are an answer only in the
/// last line of a text without boxes.
fn hashes(text: &str) -> Option<usize> {
    let text = text.trim_end();
    let has_box = boxes::begin(text).is_some();
    let last_digit = text.rfind(|c: char| c.is_ascii_digit()).unwrap_or(0);
    let headings = headings(text);
    let last_title = headings.iter().rposition(Heading::is_title).unwrap_or(0);
    let last_two = headings.iter().rposition(|heading| heading.number() == Some(2)).unwrap_or(0);
    let mut next_section = 1_u32;
    let mut last = None;
    for (index, heading) in headings.iter().enumerate() {
        let is_first = || {
            index == 0
                && text[..heading.mark]
                    .trim_end_matches('#')
                    .trim_end_matches(['*', '_'])
                    .trim()
                    .is_empty()
        };
        let is_section = heading.number() == Some(next_section)
            && (next_section > 1 || index < last_title.max(last_two) || is_first());
        next_section += u32::from(is_section);
        let is_last = heading.end == text.len();
        let marks = if is_value(heading.content) {
            let numbers_follow = heading.end <= last_digit;
            is_last || !(has_box || (numbers_follow && (is_section || heading.is_title())))
        } else {
            is_last && !has_box
        };
        if marks {
            last = Some(heading.mark);
        }
    }
    last
}

/// Returns `true` if a text has a digit, `\`, `$` or `=`, or letters but no words.
fn is_value(text: &str) -> bool {
    let mut words = text.split(|c: char| !c.is_alphabetic());
    text.contains(|c: char| c.is_ascii_digit() || "\\$=".contains(c))
        || words.all(|word| word.chars().count() <= 1)
}

/// Returns `true` if the text before a marker shows that it is part of something else. This is so if a letter, a digit or a backslash
/// directly precedes it, and for `A:` also if a word of the same line does, as in `Team A: 3`.
fn is_part_of_word(before: &str, marker: &str) -> bool {
    let is_glued = before.ends_with(|c: char| c.is_alphanumeric() || c == '\\');
    let is_name =
        || before.trim_end_matches([' ', '\t', '\u{a0}', '*', '_']).ends_with(char::is_alphabetic);
    is_glued || (marker == "A:" && is_name())
}

/// Returns the line without surrounding blanks and marks of emphasis and without final periods.
fn trimmed(line: &str) -> &str {
    let is_markup = |c: char| c.is_whitespace() || "*_`".contains(c);
    line.trim_matches(is_markup).trim_end_matches('.').trim_end_matches(is_markup)
}

/// Returns the formula of a line that is one formula between delimiters such as `$...$`. Returns any other line unchanged.
fn without_delimiters(line: &str) -> &str {
    let pairs = [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")];
    let inside = pairs.iter().find_map(|(open, close)| {
        let inside = line.strip_prefix(open)?.strip_suffix(close)?;
        (!inside.contains(open) && !inside.contains(close) && !inside.ends_with('\\'))
            .then_some(inside)
    });
    inside.map_or(line, |inside| inside.trim().trim_end_matches('.'))
}

/// Returns the rest of the line at a byte offset without markup. A bracket before a single character is also removed. Returns `None` if
/// nothing remains.
fn answer_after(text: &str, begin: usize, priority: i32) -> Option<Candidate> {
    let line = text[begin..].lines().next()?;
    let content = trimmed(line);
    let content = content.strip_prefix(['(', '[']).filter(|_| content.len() < 3).unwrap_or(content);
    let span = (begin, begin + line.len());
    let content = Content::Line(without_delimiters(content).to_owned());
    (!trimmed(line).is_empty()).then_some(Candidate { priority, span, content })
}

/// Returns `true` if a line has a digit, `\`, `$` or `=`, and also words that are not part of the mathematics. Such a line contains an
/// answer, but is not an answer.
pub(super) fn is_sentence(line: &str) -> bool {
    let bare = without_commands(line);
    let words: Vec<&str> =
        bare.split(|c: char| !c.is_alphabetic()).filter(|word| word.chars().count() > 2).collect();
    let known = |word: &&str| {
        let lower = word.to_lowercase();
        // Capital letters name points, as in `\angle ABC`.
        let points = word.len() <= 5 && word.chars().all(char::is_uppercase);
        points
            || units::is_unit(&lower)
            || units::is_letter_unit(word)
            || KNOWN.contains(&lower.as_str())
    };
    let symbols = line.contains(|c: char| c.is_ascii_digit() || "\\$=".contains(c));
    symbols && words.iter().any(|word| !known(word))
}

/// Words of more than two letters that are part of the mathematics.
const KNOWN: &[&str] = &[
    "and",
    "sin",
    "cos",
    "tan",
    "cot",
    "sec",
    "csc",
    "log",
    "exp",
    "sqrt",
    "max",
    "min",
    "mod",
    "gcd",
    "lcm",
    "arcsin",
    "arccos",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
    "percent",
    "pct",
    "inf",
    "infinity",
    "percentage",
];

/// Returns the text without commands and without the contents of text commands.
fn without_commands(line: &str) -> String {
    let mut bare = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('\\') {
        bare.push_str(&rest[..at]);
        bare.push(' ');
        let after = &rest[at + 1..];
        let name = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let words = after[..name].starts_with("text")
            || ["begin", "end", "mbox", "operatorname", "color"].contains(&&after[..name]);
        let skipped = if words { after[name..].find('}').unwrap_or(0) } else { 0 };
        rest = &after[name + skipped..];
        if name == 0 {
            let mut characters = rest.chars();
            characters.next();
            rest = characters.as_str();
        }
    }
    bare.push_str(rest);
    bare
}
