//! Normalization of texts that are compared.

use std::sync::LazyLock;

use regex::Regex;

use super::regex;

static ARTICLES: LazyLock<Regex> = LazyLock::new(|| regex(r"\b(a|an|the)\b"));

/// The differences to ignore when texts are compared. Surrounding and repeated blanks are always ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NormalForm {
    pub(super) ignore_case: bool,
    pub(super) ignore_punctuation: bool,
    pub(super) ignore_articles: bool,
    pub(super) ignore_blanks: bool,
}

/// SQuAD's normalization: lower case, no ASCII punctuation, no articles, runs of blanks as one.
pub(super) const SQUAD: NormalForm = NormalForm {
    ignore_case: true,
    ignore_punctuation: true,
    ignore_articles: true,
    ignore_blanks: false,
};

impl NormalForm {
    /// Returns the normalized text. Runs of blanks become one space, or nothing with `ignore_blanks`.
    pub(super) fn of(self, text: &str) -> String {
        let mut text = if self.ignore_case { text.to_lowercase() } else { text.to_owned() };
        if self.ignore_punctuation {
            text.retain(|c| !c.is_ascii_punctuation());
        }
        if self.ignore_articles {
            text = ARTICLES.replace_all(&text, " ").into_owned();
        }
        let words: Vec<&str> = words(&text).collect();
        words.join(if self.ignore_blanks { "" } else { " " })
    }
}

/// Returns the words of a text, split as by Python's `str.split`.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let blank = |c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c);
    text.split(blank).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squad_leaves_out_case_punctuation_and_articles() {
        assert_eq!(SQUAD.of("  The U.S.A., an  answer\n(a)"), "usa answer");
        assert_eq!(SQUAD.of("Theatre & Anna"), "theatre anna");
        let blanks = NormalForm { ignore_blanks: true, ..NormalForm::default() };
        assert_eq!(blanks.of(" (x, Y) "), "(x,Y)");
        assert_eq!(NormalForm::default().of(" The\t X "), "The X");
    }
}
