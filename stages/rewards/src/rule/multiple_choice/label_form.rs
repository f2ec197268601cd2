//! The forms of labels: letters, numbers and Roman numerals.

use std::sync::LazyLock;

use regex::Regex;

use crate::rule::regex;

/// The letters that are labels if a question has no list of choices. The range covers common benchmarks.
const LETTERS: std::ops::RangeInclusive<char> = 'A'..='J';
/// The Roman numerals that are labels if a question has no list of choices.
const NUMERALS: [&str; 10] = ["i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x"];
/// The largest number that is a label if a question has no list of choices.
const MAX_NUMBER: u32 = 10;

/// The form of the labels of a question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LabelForm {
    #[default]
    Letters,
    Numbers,
    Numerals,
}

impl LabelForm {
    /// Returns the form of a label; letters for a single letter other than a lower-case `i`, `v` and `x`.
    pub(super) fn of(label: &str) -> Self {
        match label {
            _ if is_number(label) => Self::Numbers,
            _ if label.len() > 1 || ["i", "v", "x"].contains(&label) => Self::Numerals,
            _ => Self::Letters,
        }
    }

    /// Returns the form of the labels of a list of choices.
    pub(super) fn of_all<'a>(labels: impl Iterator<Item = &'a str> + Clone) -> Self {
        let is_numeral = |label: &str| label.chars().all(|c| "ivxIVX".contains(c));
        if labels.clone().any(is_number) {
            Self::Numbers
        } else if labels.clone().any(|label| label.len() > 1) && labels.clone().all(is_numeral) {
            Self::Numerals
        } else {
            Self::Letters
        }
    }

    /// Returns a label in the spelling in which equal labels are equal.
    pub(super) fn spelled(self, label: &str) -> String {
        match self {
            Self::Letters => label.to_ascii_uppercase(),
            Self::Numbers | Self::Numerals => label.to_ascii_lowercase(),
        }
    }

    /// Returns the expression for a statement such as `the answer is B`, whose only group is the label.
    pub(super) fn stated(self) -> &'static Regex {
        match self {
            Self::Letters => &STATED,
            Self::Numbers => &STATED_NUMBER,
            Self::Numerals => &STATED_NUMERAL,
        }
    }

    /// Returns the expression for a mention such as `option B`, whose only group is the label.
    pub(super) fn mentioned(self) -> &'static Regex {
        match self {
            Self::Letters => &MENTIONED,
            Self::Numbers => &MENTIONED_NUMBER,
            Self::Numerals => &MENTIONED_NUMERAL,
        }
    }

    /// Returns `true` for a [spelled](Self::spelled) label that is in the range of a question without a list of choices.
    pub(super) fn contains(self, spelled: &str) -> bool {
        match self {
            Self::Letters => {
                spelled.len() == 1 && spelled.chars().all(|letter| LETTERS.contains(&letter))
            }
            Self::Numbers => spelled.parse().is_ok_and(|number: u32| number <= MAX_NUMBER),
            Self::Numerals => NUMERALS.contains(&spelled),
        }
    }
}

fn is_number(label: &str) -> bool {
    label.starts_with(|c: char| c.is_ascii_digit())
}

/// Markup that may occur between the word `answer` and the label.
const OPENING: &str =
    r#"(?:[\s*_$`"'“‘(\[{]|\\[(\[]|\\left\s*[(\[]|\\(?:text|math|bold|boxed|mbox)[a-z]*[\s{])*"#;

fn stated(label: &str) -> Regex {
    regex(&format!(
        r"(?i)\b(?:answer|option|choice)(?:[*_\s]*\sis\b\s*[:：]?|[*_\s]*[:：]){OPENING}(?:(?:the\s+)?(?:option|choice)\b{OPENING})?({label})\b[^a-z'’]?"
    ))
}

fn mentioned(label: &str) -> Regex {
    regex(&format!(r"(?i)\b(?:answer|option|choice){OPENING}({label})\b[^a-z'’]?"))
}

const LETTER: &str = "[a-z]";
const NUMBER: &str = "[0-9]{1,2}";
const NUMERAL: &str = "[ivx]{1,4}";

/// A statement such as `the answer is B`.
static STATED: LazyLock<Regex> = LazyLock::new(|| stated(LETTER));
static STATED_NUMBER: LazyLock<Regex> = LazyLock::new(|| stated(NUMBER));
static STATED_NUMERAL: LazyLock<Regex> = LazyLock::new(|| stated(NUMERAL));
/// A mention such as `option B`.
static MENTIONED: LazyLock<Regex> = LazyLock::new(|| mentioned(LETTER));
static MENTIONED_NUMBER: LazyLock<Regex> = LazyLock::new(|| mentioned(NUMBER));
static MENTIONED_NUMERAL: LazyLock<Regex> = LazyLock::new(|| mentioned(NUMERAL));
