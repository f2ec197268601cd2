//! Numbers and arithmetic in plain text.

use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::{Candidate, Content};
use crate::regex;

/// Returns numbers and arithmetic that the text announces as the answer. A value before an equality sign is left out, except after "final
/// answer ... is".
pub(super) fn announced(text: &str) -> Vec<Candidate> {
    let mut found = Vec::new();
    for (pattern, priority) in ANNOUNCED.iter() {
        let end = |captures: &Captures<'_>| captures.get(0).map_or(0, |all| all.end());
        let all = pattern.captures_iter(text).filter(|captures| {
            *priority < 100 || !text[end(captures)..].trim_start().starts_with('=')
        });
        found.extend(all.filter_map(|captures| candidate(&captures, *priority)));
    }
    found
}

/// Returns all numbers and arithmetic in a text, with the priority 300.
pub(super) fn anywhere(text: &str) -> Vec<Candidate> {
    let all = [&*ARITHMETIC, &*NUMBER].into_iter().flat_map(|pattern| pattern.captures_iter(text));
    all.filter_map(|captures| candidate(&captures, 300)).collect()
}

/// A number with groups of three digits, with a decimal point or comma, or without either; optionally with a percent sign.
const VALUE: &str = r"(?:(?P<grouped>-?[1-9][0-9]{0,2}(?:[ ,\u{a0}\u{2009}\u{202f}][0-9]{3})+)(?P<after_groups>\.[0-9]+)?|(?P<whole>-?[0-9]+)(?P<point>[.,][0-9]+(?:\.{3}|…)?)?|(?P<fraction>-?\.[0-9]+))(?P<percent>\s*(?:%|[Pp]ercent(?:age)?|[Pp]ct))?";
/// Digits and operators that begin with a digit, optionally after a sign or parenthesis.
const TERM: &str = r"(?P<term>-?\(?-?[0-9][0-9.\s+*×/^()÷-]*[+*×/^()÷-][0-9.\s+*×/^()÷-]+\)?)";
/// The start of the text, a blank or an equality sign, optionally with a mark of bold text.
const BEFORE: &str = r"(?:^|\s|=)(?:\*\*)?";
/// An optional mark of bold text, and the end of the text, a blank or punctuation.
const AFTER: &str = r"(?:\*\*)?(?:[.,:\s)$]|$)";
/// An optional currency sign.
const CURRENCY: &str = "[$€£¥₹₽₪₩₫฿₡₢₣₤₦₧₨₭₮₱₲₴₵₸₺₼₾₿]?";

static ARITHMETIC: LazyLock<Regex> = LazyLock::new(|| regex(&format!("{BEFORE}{TERM}{AFTER}")));
static NUMBER: LazyLock<Regex> = LazyLock::new(|| regex(&format!("{BEFORE}{CURRENCY}{VALUE}")));
static ANNOUNCED: LazyLock<Vec<(Regex, i32)>> = LazyLock::new(|| {
    let value = format!("(?:{BEFORE}{TERM}{AFTER}|{BEFORE}{CURRENCY}{VALUE})");
    let after_answer = format!(r"(?:.{{0,100}}=\s*|.{{0,50}}?){value}");
    [
        (format!(r"(?i:final answer is):?\s*{value}\.?\s?I hope"), 0),
        (format!(r"(?i:final answer).{{0,100}}?\s+is:?{value}"), 50),
        (format!(r"(?i:answer):{after_answer}"), 100),
        (format!(r"(?i:answer){after_answer}"), 200),
    ]
    .map(|(pattern, priority)| (regex(&format!("(?s){pattern}")), priority))
    .into()
});

fn candidate(captures: &Captures<'_>, priority: i32) -> Option<Candidate> {
    let group = |name: &str| captures.name(name).map(|found| found.as_str());
    let all = captures.get(0)?;
    let text = match (group("term"), group("grouped"), group("whole"), group("fraction")) {
        (Some(term), ..) => term.replace('\n', " "),
        (_, Some(grouped), ..) => {
            let digits: String =
                grouped.chars().filter(|c| c.is_ascii_digit() || *c == '-').collect();
            digits + group("after_groups").unwrap_or("")
        }
        (.., Some(whole), _) => whole.to_owned() + &group("point").unwrap_or("").replace(',', "."),
        (.., Some(fraction)) => fraction.to_owned(),
        _ => return None,
    };
    let content = Content::Plain(text, group("percent").is_some());
    let inner =
        ["term", "grouped", "whole", "fraction"].iter().find_map(|name| captures.name(name))?;
    Some(Candidate { priority, span: (inner.start(), all.end()), content })
}
