//! Which part of a text is its answer.
//!
//! Every place that may be the answer is a candidate with a priority: what the text says is its final answer, boxes and other
//! markers, what follows the word `answer`, and last any formula or number. Within a priority the last one wins; one that cannot be
//! read gives way to the next. The priorities are those of Math-Verify (Kydlíček, 2025, <https://github.com/huggingface/Math-Verify>).

pub(super) mod boxes;
mod environment;
mod marker;
mod plain;

use serde::{Deserialize, Serialize};

use super::expr::Expr;
use super::parse::parse;

/// Bytes at the end of a text in which its answer is looked for.
const TAIL: usize = 64 * 1024;

/// What an answer may be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// LaTeX between dollars or in a box.
    Latex,
    /// Numbers and arithmetic in plain text.
    Expr,
}

/// Where to look.
#[derive(Clone, Debug)]
pub(super) struct Places<'a> {
    pub(super) targets: &'a [Target],
    /// Priority of boxes and other markers; negative if they are none.
    pub(super) boxed: i32,
    /// Whether `####`, `<answer>` and lines that begin with `Answer:` are markers.
    pub(super) markers: bool,
    /// Whether anything but a marker counts.
    pub(super) unmarked: bool,
}

/// What is read of a candidate.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// Formulas that are one answer together, each as written, and whether a percent sign follows it.
    Formulas(Vec<(String, bool)>),
    /// The last box and those close to it.
    Boxes(String),
    /// A line after a marker.
    Line(String),
    /// A number or arithmetic, and whether a percent sign follows it.
    Plain(String, bool),
}

/// A place that may be the answer.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) priority: i32,
    /// Bytes of the text.
    pub(super) span: (usize, usize),
    pub(super) content: Content,
}

/// An answer as it can be compared.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// What it can mean: more than one where a comma may group digits or separate values.
    pub(super) readings: Vec<Expr>,
    /// As it was written, blanks aside.
    pub(super) text: String,
}

/// The answer of a text; empty if there is none.
pub(super) fn extract(text: &str, places: &Places<'_>) -> Answer {
    let text = tail(text);
    let mut candidates = candidates(text, places);
    candidates.sort_by_key(|candidate| {
        (candidate.priority, std::cmp::Reverse(candidate.span.1), candidate.span.0)
    });
    let mut failed: Vec<(usize, usize)> = Vec::new();
    let mut first = String::new();
    for candidate in candidates.iter().take(MAX_TRIED) {
        let plain = matches!(candidate.content, Content::Plain(..));
        if plain && failed.iter().any(|span| candidate.span.0 < span.1 && span.0 < candidate.span.1)
        {
            continue;
        }
        let answer = read(&candidate.content);
        if first.is_empty() {
            first.clone_from(&answer.text);
        }
        if !answer.readings.is_empty() {
            return Answer { readings: answer.readings, text: first };
        }
        if matches!(candidate.content, Content::Formulas(_)) {
            failed.push(candidate.span);
        }
    }
    Answer { readings: Vec::new(), text: first }
}

/// Candidates that are tried to be read, at most.
const MAX_TRIED: usize = 100;

/// A text that is an answer by itself, as ground truths mostly are. A comma in it may be a decimal one.
pub(super) fn whole(text: &str) -> Answer {
    let mut answer = read(&Content::Line(text.to_owned()));
    let number = plain::anywhere(text.trim())
        .into_iter()
        .find(|number| number.span == (0, text.trim().len()));
    if let Some(number) = number {
        answer.readings.extend(read(&number.content).readings);
    }
    answer
}

fn tail(text: &str) -> &str {
    let mut begin = text.len().saturating_sub(TAIL);
    while !text.is_char_boundary(begin) {
        begin += 1;
    }
    &text[begin..]
}

fn candidates(text: &str, places: &Places<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    if places.boxed >= 0 && places.targets.contains(&Target::Latex) {
        found.extend(environment::boxed(text, places.boxed));
    }
    if places.markers {
        found.extend(marker::marked(text, places.boxed.max(0)));
    }
    if places.targets.contains(&Target::Latex) {
        found.extend(environment::announced(text));
    }
    if places.targets.contains(&Target::Expr) {
        found.extend(plain::announced(text));
    }
    if !places.unmarked {
        found.retain(|candidate| candidate.priority <= places.boxed.max(50));
        return found;
    }
    if places.targets.contains(&Target::Latex) {
        found.extend(environment::anywhere(text));
    }
    if places.targets.contains(&Target::Expr) {
        found.extend(plain::anywhere(text));
    }
    found
}

fn read(content: &Content) -> Answer {
    match content {
        Content::Formulas(formulas) => {
            let all =
                formulas.iter().map(|(formula, percent)| read_one(&boxes::all(formula), *percent));
            together(all.collect())
        }
        Content::Boxes(text) => read_one(&boxes::last(text), false),
        Content::Line(line) if marker::is_sentence(line) => Answer::default(),
        Content::Line(line) => read_one(&boxes::all(line), false),
        Content::Plain(text, percent) => read_one(text, *percent),
    }
}

fn read_one(text: &str, percent: bool) -> Answer {
    let text = text.trim();
    let grouped = parse(text, true);
    let separated = parse(text, false).filter(|separated| Some(separated) != grouped.as_ref());
    let mut readings: Vec<Expr> = grouped.into_iter().chain(separated).collect();
    if readings.is_empty() {
        readings.extend(last_side(text).and_then(|side| parse(side, true)));
    }
    if percent {
        readings =
            readings.into_iter().map(|reading| Expr::product(vec![reading, hundredth()])).collect();
    }
    let text = text.chars().filter(|character| !character.is_whitespace()).collect();
    Answer { readings, text }
}

fn hundredth() -> Expr {
    Expr::integer(1).over(Expr::integer(100))
}

/// What follows the last of several equality signs.
fn last_side(text: &str) -> Option<&str> {
    if text.contains([',', ';']) {
        return None;
    }
    let sign = |(at, _): &(usize, &str)| !text[..*at].ends_with(['<', '>', '!', '\\']);
    let signs: Vec<usize> = text.match_indices('=').filter(sign).map(|(at, _)| at).collect();
    (signs.len() > 1).then(|| signs.last().map(|at| &text[at + 1..]))?
}

/// Several formulas as one list; the first alone if not all can be read.
fn together(mut answers: Vec<Answer>) -> Answer {
    if answers.len() > 1 && answers.iter().all(|answer| !answer.readings.is_empty()) {
        let text = answers.iter().map(|answer| answer.text.as_str()).collect::<Vec<_>>().join(",");
        let items = answers.into_iter().filter_map(|answer| answer.readings.into_iter().next());
        let flat = items.flat_map(|item| match item {
            Expr::List(items) | Expr::Set(items) => items,
            other => vec![other],
        });
        return Answer { readings: vec![Expr::List(flat.collect())], text };
    }
    if answers.is_empty() { Answer::default() } else { answers.swap_remove(0) }
}
