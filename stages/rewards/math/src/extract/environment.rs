//! Formulas between dollars or brackets, and fractions such as `\frac{1}{2}` without delimiters.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;

use super::{Candidate, Content, boxes};
use crate::regex;

/// A formula, by byte offsets in the text. `begin` and `end` include the delimiters and a percent sign after the formula; `content` is the
/// range without them. `percent` is `true` if there is such a sign.
#[derive(Clone, Debug)]
struct Formula {
    begin: usize,
    end: usize,
    content: (usize, usize),
    percent: bool,
}

impl Formula {
    fn content<'a>(&self, text: &'a str) -> &'a str {
        &text[self.content.0..self.content.1]
    }

    /// Returns `true` if the formula `next`, which follows this one, is part of the same answer.
    fn joins(&self, text: &str, next: &Self) -> bool {
        let Some(between) = text.get(self.end..next.begin) else { return false };
        BETWEEN.is_match(between)
            || boxes::continue_enumeration(self.content(text), between, next.content(text))
    }
}

/// The maximum number of bytes of a formula.
const MAX_LENGTH: usize = 10_000;

/// The maximum number of formulas of an answer.
const MAX_JOINED: usize = 6;

/// Returns a candidate for each formula that contains `\boxed{`, and one for the text that [`Content::Boxes`] describes. Formulas that make
/// up one answer are one candidate.
pub(super) fn boxed(text: &str, priority: i32) -> Vec<Candidate> {
    let has_box = |formula: &Formula| formula.content(text).contains("\\boxed{");
    let mut found: Vec<Candidate> = joined(text, &scan(text, has_box))
        .iter()
        .map(|run| candidate(text, run, priority))
        .collect();
    if let Some(begin) = boxes::begin(text) {
        let last_brace = text.rfind('}').filter(|brace| *brace > begin);
        let end = last_brace.map_or(text.len(), |brace| brace + 1);
        let content = Content::Boxes(text[begin..end].to_owned());
        found.push(Candidate { priority, span: (begin, end), content });
    }
    found
}

/// Returns formulas that the text announces as the answer. After each `answer`, this is the first formula, if at most 50 characters are
/// between them. After each `final answer`, it is the first nearby formula that directly follows the word `is`.
pub(super) fn announced(text: &str) -> Vec<Candidate> {
    let runs = joined(text, &scan(text, |_| true));
    let mut found = Vec::new();
    for anchor in ANSWER.find_iter(text) {
        let colon = text[anchor.end()..].starts_with(':');
        let from = anchor.end() + usize::from(colon);
        let Some(run) = runs.iter().find(|run| run[0].begin >= from) else { continue };
        let between = text[from..run[0].begin].chars().count();
        if between <= 50 {
            found.push(candidate(text, run, if colon { 100 } else { 200 }));
        }
    }
    for anchor in FINAL_ANSWER.find_iter(text) {
        let is = |run: &&Vec<Formula>| {
            let between = text.get(anchor.end()..run[0].begin).unwrap_or("");
            between.len() < 500 && IS.is_match(between) && between.chars().count() <= 110
        };
        let after = runs.iter().skip_while(|run| run[0].begin < anchor.end());
        if let Some(run) = after.take(8).find(is) {
            let end = run.last().map_or(0, |formula| formula.end);
            let is_followed_by_hope = I_HOPE.is_match(&text[end..]);
            found.push(candidate(text, run, if is_followed_by_hope { 0 } else { 50 }));
        }
    }
    found
}

/// Returns all formulas of a text, with the priority 300. Formulas that make up one answer are one candidate.
pub(super) fn anywhere(text: &str) -> Vec<Candidate> {
    joined(text, &scan(text, |_| true)).iter().map(|run| candidate(text, run, 300)).collect()
}

static ANSWER: LazyLock<Regex> = LazyLock::new(|| regex("(?i)answer"));
static FINAL_ANSWER: LazyLock<Regex> = LazyLock::new(|| regex("(?i)final answer"));
static IS: LazyLock<Regex> = LazyLock::new(|| regex(r"(?is)^.{0,100}?\sis:?\s*$"));
static I_HOPE: LazyLock<Regex> = LazyLock::new(|| regex(r"^\.?\s?I hope"));
static PERCENT: LazyLock<Regex> =
    LazyLock::new(|| regex(r"^\s*(?:\\?%|[Pp]ercent(?:age)?|[Pp]ct)"));
static BETWEEN: LazyLock<Regex> = LazyLock::new(|| regex(r"^\s*(?:,?\s?and|,?\s?or|,)\s*$"));
static FRACTION: LazyLock<Regex> =
    LazyLock::new(|| regex(r"^-?\\frac\{-?[0-9]+(?:[.,][0-9]+)?\}\{-?[0-9]+(?:[.,][0-9]+)?\}"));

fn candidate(text: &str, run: &[Formula], priority: i32) -> Candidate {
    let formula = |formula: &Formula| (formula.content(text).to_owned(), formula.percent);
    let span = (
        run.first().map_or(0, |formula| formula.begin),
        run.last().map_or(0, |formula| formula.end),
    );
    Candidate { priority, span, content: Content::Formulas(run.iter().map(formula).collect()) }
}

/// Groups up to [`MAX_JOINED`] neighboring formulas that have only `and`, `or` or a comma between them, or whose boxes are one enumeration.
fn joined(text: &str, formulas: &[Formula]) -> Vec<Vec<Formula>> {
    let mut runs: Vec<Vec<Formula>> = Vec::new();
    for formula in formulas {
        let joins = runs.last().is_some_and(|run| {
            run.len() < MAX_JOINED && run.last().is_some_and(|last| last.joins(text, formula))
        });
        match runs.last_mut().filter(|_| joins) {
            Some(run) => run.push(formula.clone()),
            None => runs.push(vec![formula.clone()]),
        }
    }
    runs
}

/// Returns all formulas that satisfy `wanted`, from left to right. If a formula does not satisfy `wanted`, the search continues within the
/// formula.
fn scan(text: &str, wanted: impl Fn(&Formula) -> bool) -> Vec<Formula> {
    let mut found = Vec::new();
    let mut closes = Closes { text, next: BTreeMap::new() };
    let mut at = 0;
    while let Some(offset) = text[at..].find(['$', '\\', '[', '-']) {
        let begin = at + offset;
        let formula = formula_at(&mut closes, begin).filter(&wanted);
        at = match formula {
            Some(mut formula) => {
                if let Some(percent) = PERCENT.find(&text[formula.end..]) {
                    formula.percent = true;
                    formula.end += percent.end();
                }
                let end = formula.end;
                found.push(formula);
                end
            }
            None => begin + 1,
        };
    }
    found
}

/// The positions of closing delimiters. Each position is searched only once, which keeps the search linear.
struct Closes<'a> {
    text: &'a str,
    next: BTreeMap<&'static str, Option<usize>>,
}

impl Closes<'_> {
    fn after(&mut self, close: &'static str, from: usize) -> Option<usize> {
        match self.next.get(close) {
            Some(None) => return None,
            Some(Some(at)) if *at >= from => return Some(*at),
            _ => {}
        }
        let at = self.text[from..].find(close).map(|offset| from + offset);
        self.next.insert(close, at);
        at
    }
}

fn formula_at(closes: &mut Closes<'_>, begin: usize) -> Option<Formula> {
    let text = closes.text;
    let (rest, before) = (&text[begin..], text[..begin].chars().next_back());
    if rest.starts_with('[') {
        return bracketed(text, begin, before);
    }
    if let Some(fraction) = FRACTION.find(rest) {
        let span = (begin, begin + fraction.end());
        return Some(Formula { begin: span.0, end: span.1, content: span, percent: false });
    }
    if before == Some('\\') {
        return None;
    }
    if rest.starts_with("$$")
        && let Some(formula) = delimited(closes, begin, "$$", "$$", true)
    {
        return Some(formula);
    }
    if rest.starts_with("\\[") {
        return delimited(closes, begin, "\\[", "\\]", true);
    }
    if rest.starts_with("\\(") {
        return delimited(closes, begin, "\\(", "\\)", false);
    }
    let inline = rest.starts_with('$') && !before.is_some_and(|before| before.is_ascii_digit());
    inline.then(|| delimited(closes, begin, "$", "$", false))?
}

/// Parses a formula between two delimiters. The formula must be on one line unless `lines` is `true`, as for displayed formulas. Returns
/// `None` if there is no closing delimiter within [`MAX_LENGTH`] bytes, or if the formula begins with `$`.
fn delimited(
    closes: &mut Closes<'_>,
    begin: usize,
    open: &str,
    close: &'static str,
    lines: bool,
) -> Option<Formula> {
    let text = closes.text;
    let from = begin + open.len();
    let first = text[from..].chars().next()?;
    if first == '$' || (first == '\n' && !lines) {
        return None;
    }
    let mut at = from + first.len_utf8();
    loop {
        let end = closes.after(close, at).filter(|end| end - from <= MAX_LENGTH)?;
        let within = &text[from..end];
        if !lines && within.contains('\n') {
            return None;
        }
        if !within.ends_with('\\') {
            return Some(Formula {
                begin,
                end: end + close.len(),
                content: (from, end),
                percent: false,
            });
        }
        at = end + close.len();
    }
}

/// Parses `[...]` between blanks, including its brackets: an interval, or a formula that lost its backslashes.
fn bracketed(text: &str, begin: usize, before: Option<char>) -> Option<Formula> {
    if !before.is_some_and(char::is_whitespace) {
        return None;
    }
    let near = text.as_bytes()[begin + 1..].iter().take(MAX_LENGTH);
    let length = near.into_iter().position(|byte| b"][\n".contains(byte))?;
    let end = begin + 1 + length + 1;
    let closed = length > 0 && text[begin + 1 + length..].starts_with(']');
    let blank = text[end.min(text.len())..].starts_with(char::is_whitespace);
    (closed && blank).then_some(Formula { begin, end, content: (begin, end), percent: false })
}
