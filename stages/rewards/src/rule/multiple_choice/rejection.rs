//! Labels that a response rejects, such as `not B` and `B is wrong`.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use crate::rule::regex;

/// The number of bytes before and after a label that are searched. A limit keeps the time linear in the length of a response.
const WINDOW: usize = 96;

/// A label with the markup around it.
const LABEL: &str = r"(?:options?\s+|choices?\s+)?[(*_`]*(?:[a-z]|[0-9]{1,2}|[ivx]{1,4})\b[)*_`]*";
const MARKUP_BEFORE: &str = r"[\s*_`(\[$\x22'“‘{:]*";
const MARKUP_AFTER: &str = r"[)\]}*_`$\x22'”’]*";

const NEGATION: &str = r"(?:\b(?:not|cannot|never|neither|nor)|n['’]t)";
const ELIMINATION: &str =
    r"\b(?:rule[sd]?\s+out|ruling\s+out|(?:eliminat|exclud|reject)(?:e|es|ed|ing|s)?)";
const PREFERENCE: &str = r"\b(?:rather\s+than|instead\s+of|(?:choos|chose|pick|prefer|select)[a-z]*\b[^.;\n]{0,30}\bover)";
/// Words between a negation and the label that it rejects.
const LINKS: &str = r"(?:\s+(?:be|the|an?|answers?|options?|choices?|choose|pick|select)\b)*";
/// Predicates of a label that is not the answer.
const WRONG: &str =
    r"(?:wrong|incorrect|false|invalid|inaccurate|ruled\s+out|eliminated|excluded|rejected)";

/// Text that ends before a label that it rejects: the only label, or one after `or` or `nor` in a list.
static BEFORE: LazyLock<Regex> = LazyLock::new(|| {
    let or = r",?\s*\b(?:or|nor)\b";
    regex(&format!(
        r"(?i)(?:{NEGATION}|{ELIMINATION}|{PREFERENCE}){LINKS}(?:(?:[\s:]*{LABEL}\s*(?:{or}|,))*[\s:]*{LABEL}\s*{or})?{MARKUP_BEFORE}$"
    ))
});
/// Text that ends before a label in the middle of a list of labels that a negation may reject.
static NEGATED_LIST: LazyLock<Regex> = LazyLock::new(|| {
    regex(&format!(r"(?i){NEGATION}{LINKS}(?:[\s:]*{LABEL}\s*,)+{MARKUP_BEFORE}$"))
});
/// The rest of a list that a negation rejects. Without `or`, a label after a comma may begin a new clause: `not A, B is right`.
static NEGATED_REST: LazyLock<Regex> = LazyLock::new(|| {
    regex(&format!(
        r"(?i)^{MARKUP_AFTER}(?:\s*,\s*{LABEL})*\s*,?\s*\b(?:or|nor)\s+(?:[*_`(]*{LABEL})"
    ))
});
/// Text that ends before a label after the first in a list of labels that are eliminated.
static ELIMINATED_LIST: LazyLock<Regex> = LazyLock::new(|| {
    regex(&format!(
        r"(?i){ELIMINATION}{LINKS}(?:[\s:]*{LABEL}\s*(?:,?\s*(?:\b(?:and|or)\b|&)|,))+{MARKUP_BEFORE}$"
    ))
});
/// The rest of a list of labels that are eliminated, or the end of its clause. A verb would begin a new clause: `rule out A, and B is right`.
static ELIMINATED_REST: LazyLock<Regex> = LazyLock::new(|| {
    regex(&format!(
        r"(?i)^{MARKUP_AFTER}(?:(?:\s*,\s*{LABEL})*\s*,?\s*(?:\b(?:and|or|nor)\b|&)\s+{LABEL}|\s*[.,;:!?)]|\s*$|\s+(?:because|since|as|for|from|by|due|immediately)\b)"
    ))
});

/// Text that begins after a label and negates its predicate (`not`, `cannot`) or rejects it (`wrong`).
static AFTER: LazyLock<Regex> = LazyLock::new(|| {
    let further_labels = format!(r"(?:(?:\s*,\s*(?:(?:and|or)\s+)?|\s+(?:and|or|&)\s+){LABEL})+");
    regex(&format!(
        r"(?ix)^ {MARKUP_AFTER}
          (?: (?: (?:{further_labels})? \s+(?:are|were|can\s+be) | \s+(?:is|was|seems|would\s+be|must\s+be|can\s+be) )
              (?: \s+(?:[a-z]+ly|also|thus|all|both) )?
              (?: (?<not>n['’]t\b|\s+not\b) | (?<wrong>\s+{WRONG}\b) )
            | (?:{further_labels})? (?<cannot>\s+can(?:not|\s+not|['’]t)\s+be\b)
            | (?<mark>\s*(?:[:–—(]|\s-\s)[\s*_(]*(?:wrong|incorrect)\b) )"
    ))
});
/// A second negation after `not`.
static DOUBLE: LazyLock<Regex> =
    LazyLock::new(|| regex(&format!(r"(?i)^\s+(?:{WRONG}|only|just)\b")));
/// A predicate after `not` that is about the answer and not about the choice.
static JUDGEMENT: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)^(?:\s+(?:(?:the|an?)\s+)?(?:right|correct|true|valid|answer|possible)\b|\s*[.,;!]|\s*$)",
    )
});

/// The strength with which a text rejects a label, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rejection {
    None,
    /// A statement about the choice: `B is not a city`. It may also be the reason for the choice.
    Property,
    /// A statement that the choice is wrong: `B is wrong`, `B is not correct`. It answers a question for the wrong choice.
    Wrong,
    /// A statement about the answer: `not B`, `B cannot be right`.
    Explicit,
}

impl Rejection {
    /// Returns the rejection of the label at this position. In the answer to a negative question, such as `Which is not a city?`,
    /// statements after a label do not reject it.
    pub(super) fn of(answer: &str, label: &Range<usize>, negative_question: bool) -> Self {
        let before = answer.floor_char_boundary(label.start.saturating_sub(WINDOW));
        let after = answer.floor_char_boundary(answer.len().min(label.end + WINDOW));
        let (before, after) = (&answer[before..label.start], &answer[label.end..after]);
        if is_rejected_before(before, after) {
            Self::Explicit
        } else if negative_question {
            Self::None
        } else {
            Self::by_text_after(after)
        }
    }

    fn by_text_after(after: &str) -> Self {
        let Some(found) = AFTER.captures(after) else { return Self::None };
        let Some(negation) = found.name("not").or_else(|| found.name("cannot")) else {
            return Self::Wrong;
        };
        let predicate = &after[negation.end()..];
        if DOUBLE.is_match(predicate) {
            Self::None
        } else if !JUDGEMENT.is_match(predicate) {
            Self::Property
        } else if found.name("cannot").is_some() {
            Self::Explicit
        } else {
            Self::Wrong
        }
    }
}

fn is_rejected_before(before: &str, after: &str) -> bool {
    BEFORE.is_match(before)
        || (NEGATED_LIST.is_match(before) && NEGATED_REST.is_match(after))
        || (ELIMINATED_LIST.is_match(before) && ELIMINATED_REST.is_match(after))
}
