//! Labels that a response rejects, such as `not B` and `B is wrong`.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use crate::rule::regex;

/// The number of bytes before and after a label that are searched. A limit keeps the time linear in the length of a response.
const WINDOW: usize = 96;

/// A label with the markup around it.
const LABEL: &str = r"(?:options?\s+|choices?\s+)?[(*_`]*(?:[a-z]|[0-9]{1,2}|[ivx]{1,4})\b[)*_`]*";

/// Text that ends before a label that it rejects.
static BEFORE: LazyLock<Regex> = LazyLock::new(|| {
    let words = "be|is|the|an?|answers?|options?|choices?|choose|pick|select|correct|right";
    regex(&format!(
        r"(?ix)(?: \b(?:not | cannot | never | neither | nor | rule[sd]?\s+out | ruling\s+out | rather\s+than | instead\s+of | over
            | (?:eliminat|exclud|reject)(?:e|es|ed|ing|s)? ) | n['’]t )
          (?: \s+(?:{words})\b )*
          (?: [\s:]* {LABEL} \s* (?:,\s*)? (?:or|nor)\b )*
          [\s*_`(\[$\x22'“‘{{:]* $"
    ))
});

/// Text that begins after a label that it rejects. The group is a second negation.
static AFTER: LazyLock<Regex> = LazyLock::new(|| {
    let more = format!(r"(?:(?:\s*,\s*(?:(?:and|or)\s+)?|\s+(?:and|or|&)\s+){LABEL})+");
    let wrong =
        "wrong|incorrect|false|invalid|inaccurate|ruled\\s+out|eliminated|excluded|rejected";
    regex(&format!(
        r"(?ix)^ [)\]}}*_`$\x22'”’]*
          (?: (?: (?:{more})? \s+(?:are|were|can\s+be) | \s+(?:is|was|seems|would\s+be|must\s+be|can\s+be) )
              (?: \s+(?:[a-z]+ly|also|thus|all|both) )?
              (?: (?:n['’]t|\s+not)\b (\s+(?:{wrong}|only|just))? | \s+(?:{wrong})\b )
            | (?:{more})? \s+can(?:not|\s+not|['’]t)\s+be\b (\s+(?:{wrong}))?
            | \s*(?:[:–—(]|\s-\s)[\s*_(]*(?:wrong|incorrect)\b )"
    ))
});

/// Returns `true` if an answer rejects the label at this position.
pub(super) fn is_rejected(answer: &str, label: &Range<usize>) -> bool {
    let before = answer.floor_char_boundary(label.start.saturating_sub(WINDOW));
    let after = answer.floor_char_boundary(answer.len().min(label.end + WINDOW));
    BEFORE.is_match(&answer[before..label.start]) || is_rejected_by(&answer[label.end..after])
}

/// Returns `true` if the text after a label rejects it.
fn is_rejected_by(after: &str) -> bool {
    let found = AFTER.captures(after);
    found.is_some_and(|found| found.get(1).or_else(|| found.get(2)).is_none())
}
