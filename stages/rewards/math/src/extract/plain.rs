//! Numbers and arithmetic in plain text.

use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::{Candidate, Content};
use crate::regex;

/// Returns numbers and arithmetic that the text announces as the answer. A value before an equality sign is left out, except after "final
/// answer ... is".
pub(super) fn announced(text: &str) -> Vec<Candidate> {
    let text = &without_markup(text);
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
    let text = &without_markup(text);
    let all = [&*ARITHMETIC, &*NUMBER].into_iter().flat_map(|pattern| pattern.captures_iter(text));
    all.filter_map(|captures| candidate(&captures, 300)).collect()
}

/// A number with groups of three digits, with a decimal point or comma, or without either; optionally with a percent sign.
const VALUE: &str = r"(?:(?P<grouped>[-−]?[1-9][0-9]{0,2}(?:[ ,\u{a0}\u{2009}\u{202f}][0-9]{3})+)(?P<after_groups>\.[0-9]+)?|(?P<whole>[-−]?[0-9]+)(?P<point>[.,][0-9]+(?:\.{3}|…)?)?|(?P<fraction>[-−]?\.[0-9]+))(?P<percent>\s*(?:%|[Pp]ercent(?:age)?|[Pp]ct))?";
/// Digits and operators that begin with a digit, optionally after a sign or parenthesis, and end with a digit or parenthesis. A period is
/// part of it only before a digit.
const TERM: &str = r"(?P<term>[-−]?\(?[-−]?[0-9](?:[0-9 \t\r\n+*×/^()÷−-]|\.[0-9])*[+*×/^()÷−-](?:[0-9 \t\r\n+*×/^()÷−-]|\.[0-9])*(?:[0-9)]|\.[0-9]))";
/// The start of the text, a blank, an equality sign or a colon that is not between digits.
const BEFORE: &str = r"(?:^|\s|=|[^0-9]:)";
/// The end of the text, a blank or punctuation.
const AFTER: &str = r"(?:[.,:\s)$]|$)";
/// An optional currency sign.
const CURRENCY: &str = r"(?P<currency>(?:US|AU|CA|HK|NZ)?\\?\$|[€£¥₹₽₪₩₫฿₡₢₣₤₦₧₨₭₮₱₲₴₵₸₺₼₾₿])?";

/// The character that replaces markup. It is a blank, but terms do not contain it.
const MASK: &str = "\u{b}";

/// Marks of emphasis, code, quotations and approximation.
static MARKUP: LazyLock<Regex> = LazyLock::new(|| regex("[*]{1,3}|_{1,3}|`+|[\"“”~≈]"));
/// The start of a number or of a parenthesis.
static OPERAND: LazyLock<Regex> = LazyLock::new(|| regex(r"^\s*-?(?:\.?[0-9]|\()"));
/// A number in parentheses that directly follows `is`.
static PARENTHESIZED: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)\bis:?\s*(\()[-−]?[$€£]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+|/[0-9]+)?%?(\))(?:[.\s]|$)",
    )
});

/// Replaces markup by blanks of the same length, so that byte offsets remain.
fn without_markup(text: &str) -> String {
    let mut masked: Vec<(usize, usize)> = MARKUP
        .find_iter(text)
        .filter(|mark| is_markup(&text[..mark.start()], mark.as_str(), &text[mark.end()..]))
        .map(|mark| (mark.start(), mark.end()))
        .collect();
    for captures in PARENTHESIZED.captures_iter(text) {
        masked.extend(
            [1, 2].into_iter().filter_map(|at| captures.get(at)).map(|p| (p.start(), p.end())),
        );
    }
    masked.sort_unstable();
    let mut bare = String::with_capacity(text.len());
    let mut at = 0;
    for (begin, end) in masked {
        bare.push_str(&text[at..begin]);
        bare.push_str(&MASK.repeat(end - begin));
        at = end;
    }
    bare.push_str(&text[at..]);
    bare
}

/// Returns `true` if a mark between two texts is markup. Otherwise it is an operator, as in `2*3`, or part of a name, as in `x_1`.
fn is_markup(before: &str, mark: &str, after: &str) -> bool {
    let (last, first) = (before.chars().next_back(), after.chars().next());
    let is_value = |c: char| c.is_alphanumeric() || "(){}\\".contains(c);
    let is_glued = last.is_some_and(is_value) && first.is_some_and(is_value);
    match mark.as_bytes()[0] {
        b'`' | b'"' => true,
        b'_' => !is_glued,
        b'*' => {
            let is_blank = |c: Option<char>| c.is_none_or(|c| c.is_whitespace());
            let is_between = before
                .trim_end_matches([' ', '\t'])
                .ends_with(|c: char| c.is_ascii_digit() || c == ')')
                && OPERAND.is_match(after);
            let is_operator = is_between && is_blank(last) == is_blank(first);
            !(is_glued || is_operator)
        }
        _ if mark == "~" || mark == "≈" => {
            !before.trim_end().ends_with(|c: char| c.is_ascii_digit())
        }
        _ => true,
    }
}

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
                grouped.chars().filter(|c| c.is_ascii_digit() || "-−".contains(*c)).collect();
            digits + group("after_groups").unwrap_or("")
        }
        (.., Some(whole), _) => whole.to_owned() + &group("point").unwrap_or("").replace(',', "."),
        (.., Some(fraction)) => fraction.to_owned(),
        _ => return None,
    };
    // The escaped sign is kept as a unit, and a minus sign is ASCII in all further steps.
    let is_dollar = captures.name("currency").is_some_and(|sign| sign.as_str().ends_with("\\$"));
    let text = if is_dollar { format!("\\${text}") } else { text }.replace('−', "-");
    let content = Content::Plain(text, group("percent").is_some());
    let inner =
        ["term", "grouped", "whole", "fraction"].iter().find_map(|name| captures.name(name))?;
    Some(Candidate { priority, span: (inner.start(), all.end()), content })
}
