//! Extraction of the answer from a text.
//!
//! Every place that may contain the answer is a candidate with a priority. In descending order of preference, these are an announced final
//! answer, boxes and other markers, the text after the word `answer`, and any formula or number. Within a priority the last candidate wins;
//! if it cannot be parsed, the next one is tried. The priorities are those of Math-Verify (Kydlíček, 2025,
//! <https://github.com/huggingface/Math-Verify>).

pub(crate) mod boxes;
mod environment;
mod marker;
mod plain;

use serde::{Deserialize, Serialize};

use super::definition::definition;
use super::expr::{Comparison, Expr, Relation};
use super::parse::parse;
use super::relation;
use crate::choice;

use boxes::Boxes;

/// The number of bytes at the end of a text in which the answer is searched.
const TAIL: usize = 64 * 1024;

/// A notation of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// LaTeX between dollars or in a box.
    Latex,
    /// Numbers and arithmetic in plain text.
    Expr,
}

/// The places to search.
#[derive(Clone, Debug)]
pub(super) struct Places<'a> {
    pub(super) targets: &'a [Target],
    /// The priority of boxes and other markers; if negative, boxes are ignored.
    pub(super) boxed: i32,
    /// `true` if `####`, `<answer>` and lines that begin with `Answer:` are markers.
    pub(super) markers: bool,
    /// `true` if answers without a marker count.
    pub(super) unmarked: bool,
}

/// The text of a candidate.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// Formulas that make up one answer, each as written; the flag is `true` if a percent sign follows.
    Formulas(Vec<(String, bool)>),
    /// The last box and the nearby boxes that belong to it.
    Boxes(String),
    /// A line after a marker.
    Line(String),
    /// A number or arithmetic; the flag is `true` if a percent sign follows.
    Plain(String, bool),
}

/// A place that may contain the answer.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) priority: i32,
    /// The byte range in the text.
    pub(super) span: (usize, usize),
    pub(super) content: Content,
}

/// A parsed answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// The possible meanings. There are several if, for example, a comma may either group digits or separate values.
    pub(super) readings: Vec<Expr>,
    /// The meanings without the left-hand sides of several boxes (`y_1 = \boxed{2}`); empty if there are no left-hand sides.
    pub(super) unnamed: Vec<Expr>,
    /// The answer as written, without blanks.
    pub(super) text: String,
}

impl Answer {
    /// Returns the possible meanings for a comparison with `truth`. Left-hand sides of boxes only count if the truth has the same ones.
    pub(super) fn readings_for(&self, truth: &Expr) -> impl Iterator<Item = &Expr> {
        let same_names = self.readings.iter().any(|answer| relation::same_names(truth, answer));
        self.readings.iter().chain(self.unnamed.iter().filter(move |_| !same_names))
    }
}

/// Returns the answer of a text; empty if there is none.
///
/// Candidates are tried by priority and, within a priority, from the last to the first. A number within a formula that could not be parsed
/// is skipped, because it is only a part of that answer. The returned text is the first one that is not empty, even if a later candidate
/// provides the meanings.
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
            return Answer { text: first, ..answer };
        }
        if matches!(candidate.content, Content::Formulas(_)) {
            failed.push(candidate.span);
        }
    }
    Answer { text: first, ..Answer::default() }
}

/// The maximum number of candidates that are parsed.
const MAX_TRIED: usize = 100;

/// Parses a text that consists of an answer only, as most ground truths do. A comma in it may be a decimal comma.
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
        Content::Formulas(formulas) => formulas_together(formulas),
        Content::Boxes(text) => match Boxes::last(text) {
            Some(boxes) => named(&boxes, read_one(&boxes.bare(), false)),
            None => read_one(text, false),
        },
        Content::Line(line) if marker::is_sentence(line) => Answer::default(),
        Content::Line(line) => read_one(&without_boxes(line), false),
        Content::Plain(text, percent) => read_one(text, *percent),
    }
}

/// Returns the contents of the boxes of a text, or the text itself if it has no boxes.
fn without_boxes(text: &str) -> String {
    Boxes::all(text).map_or_else(|| text.to_owned(), |boxes| boxes.bare())
}

fn formulas_together(formulas: &[(String, bool)]) -> Answer {
    let one = |(formula, percent): &(String, bool)| read_one(&without_boxes(formula), *percent);
    let bare = together(formulas.iter().map(one).collect());
    let boxes: Option<Vec<Boxes>> = formulas
        .iter()
        .map(|(formula, percent)| Boxes::all(formula).filter(|_| !percent))
        .collect();
    match boxes {
        Some(boxes) => named(&Boxes::joined(boxes), bare),
        None => bare,
    }
}

/// Returns the answer of several boxes with their left-hand sides. `bare` is the answer without them.
fn named(boxes: &Boxes, bare: Answer) -> Answer {
    let readings = boxes.equations().map(|equations| read_one(&equations, false).readings);
    match readings {
        Some(readings) if !readings.is_empty() => {
            Answer { readings, unnamed: bare.readings, text: bare.text }
        }
        _ => bare,
    }
}

fn read_one(text: &str, percent: bool) -> Answer {
    let text = text.trim();
    let grouped = parse(text, true);
    let separated = parse(text, false).filter(|separated| Some(separated) != grouped.as_ref());
    let mut readings: Vec<Expr> = grouped.into_iter().chain(separated).collect();
    readings.extend(defined(text));
    if readings.is_empty() {
        readings.extend(last_side(text).and_then(|side| parse(side, true)));
    }
    if let Some((letter, choice)) = choice::labelled(text) {
        readings.push(Expr::Symbol(letter.to_string()));
        readings.extend(parse(choice, true));
    }
    if percent {
        readings =
            readings.into_iter().map(|reading| Expr::product(vec![reading, hundredth()])).collect();
    }
    let text = text.chars().filter(|character| !character.is_whitespace()).collect();
    Answer { readings, text, ..Answer::default() }
}

/// Parses an equation whose left-hand side is a name that the grammar does not cover or parses as a product.
fn defined(text: &str) -> Option<Expr> {
    let (name, value) = definition(text)?;
    let value = match parse(value, true)? {
        Expr::Relation(relation) if relation.is_equation() => relation.last_side().clone(),
        Expr::Relation(_) => return None,
        value => value,
    };
    let rest = vec![(Comparison::Equal, value)];
    Some(Expr::Relation(Box::new(Relation { first: Expr::Symbol(name), rest })))
}

fn hundredth() -> Expr {
    Expr::integer(1).over(Expr::integer(100))
}

/// Returns the text after the last of several equality signs.
fn last_side(text: &str) -> Option<&str> {
    if text.contains([',', ';']) {
        return None;
    }
    let sign = |(at, _): &(usize, &str)| !text[..*at].ends_with(['<', '>', '!', '\\']);
    let signs: Vec<usize> = text.match_indices('=').filter(sign).map(|(at, _)| at).collect();
    (signs.len() > 1).then(|| signs.last().map(|at| &text[at + 1..]))?
}

/// Combines several formulas into one list. Returns the first alone if not all of them can be parsed.
fn together(mut answers: Vec<Answer>) -> Answer {
    if answers.len() > 1 && answers.iter().all(|answer| !answer.readings.is_empty()) {
        let text = answers.iter().map(|answer| answer.text.as_str()).collect::<Vec<_>>().join(",");
        let items = answers.into_iter().filter_map(|answer| answer.readings.into_iter().next());
        let flat = items.flat_map(|item| match item {
            Expr::List(items) | Expr::Set(items) => items,
            other => vec![other],
        });
        return Answer { readings: vec![Expr::List(flat.collect())], text, ..Answer::default() };
    }
    if answers.is_empty() { Answer::default() } else { answers.swap_remove(0) }
}
