//! Extraction of the answer from a text.
//!
//! Every part of the text that may be the answer is a candidate with a priority; smaller numbers are preferred. The priority is 0 for "the
//! final answer is ... I hope", 50 for "the final answer is", 100 for `answer:`, 200 for the word `answer`, and 300 for any other formula
//! or number. The priority of boxes and other markers is an option and 0 by default. Within a priority, candidates are tried from the last
//! to the first until one can be parsed. The priorities are those of Math-Verify (Kydlíček, 2025,
//! <https://github.com/huggingface/Math-Verify>).

pub(crate) mod boxes;
mod environment;
mod marker;
mod plain;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::definition::definition;
use super::expr::{Comparison, Expr, Relation};
use super::parse::parse;
use super::{relation, units};
use crate::choice;

use boxes::Boxes;
pub(super) use marker::last_tag;

/// The number of bytes at the end of a text that are searched for the answer.
const MAX_SEARCHED_BYTES: usize = 64 * 1024;

/// A notation in which answers are searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// LaTeX in a box or between delimiters such as `$...$`, `\(...\)` and `\[...\]`, and fractions of numbers such as `\frac{1}{2}`
    /// without delimiters.
    Latex,
    /// Numbers and arithmetic in plain text.
    Expr,
}

#[derive(Clone, Debug)]
pub(super) struct SearchOptions<'a> {
    /// The notations in which formulas and numbers are searched.
    pub(super) targets: &'a [Target],
    /// The priority of boxes and other markers. If it is negative, boxes are ignored, and the other markers have the priority 0.
    pub(super) boxed: i32,
    /// `true` if `####`, `<answer>`, `Answer:` and `A:` mark answers.
    pub(super) markers: bool,
    /// `true` if every candidate counts. Otherwise, candidates are dropped if their priority is a larger number than both 50 and the
    /// priority of boxes.
    pub(super) unmarked: bool,
}

/// The text of a candidate.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// Formulas that make up one answer, each as written; the flag is `true` if a percent sign follows.
    Formulas(Vec<(String, bool)>),
    /// The text from the first box, or from the name before it, to the last closing brace or, without one, to the end. The answer is the
    /// last box of this text, with the boxes that belong to it.
    Boxes(String),
    /// The text after a marker, or a whole ground truth.
    Line(String),
    /// A number or arithmetic; the flag is `true` if a percent sign follows.
    Plain(String, bool),
}

/// A part of a text that may be the answer.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// Smaller numbers are preferred.
    pub(super) priority: i32,
    /// The byte range in the searched text.
    pub(super) span: (usize, usize),
    pub(super) content: Content,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// The possible meanings. There are several if, for example, a comma may either group digits or separate values.
    pub(super) readings: Vec<Expr>,
    /// The meanings without the left-hand sides of several boxes (`y_1 = \boxed{2}`); empty if there are no left-hand sides.
    pub(super) unnamed: Vec<Expr>,
    /// The integer before a percent sign; `None` unless the answer is a percentage.
    pub(super) percentage: Option<Expr>,
    /// The answer as written, without blanks.
    pub(super) text: String,
    /// The names of the units of the answer.
    pub(super) units: BTreeSet<&'static str>,
}

impl Answer {
    /// Returns `true` if the units of the answers [differ](units::differ), as those of `5 cm` and `5 km`.
    pub(super) fn differs_in_units(&self, other: &Self) -> bool {
        units::differ(&self.units, &other.units)
    }

    /// Returns the possible meanings for a comparison with `truth`. The meanings without left-hand sides are included unless the truth has
    /// the same left-hand sides as the answer.
    pub(super) fn readings_for(&self, truth: &Expr) -> impl Iterator<Item = &Expr> {
        let same_names = self.readings.iter().any(|answer| relation::same_names(truth, answer));
        self.readings.iter().chain(self.unnamed.iter().filter(move |_| !same_names))
    }
}

/// Returns the answer within the last 64 KiB of a text, or an empty answer if there is none.
///
/// At most [`MAX_TRIED`] candidates are tried, by priority and, within a priority, from the last to the first. A number within a formula or
/// arithmetic without blanks that could not be parsed is skipped, because the number is only a part of the answer. [`Answer::text`] is the
/// first text that is not empty, even if a later candidate provides the readings.
pub(super) fn extract(text: &str, options: &SearchOptions<'_>) -> Answer {
    let text = tail(text);
    let mut candidates = candidates(text, options);
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
        let answer = parse_content(&candidate.content);
        if first.is_empty() {
            first.clone_from(&answer.text);
        }
        if !answer.readings.is_empty() {
            return Answer { text: first, ..answer };
        }
        let is_term = matches!(&candidate.content, Content::Plain(term, _) if has_operator(term));
        if is_term || matches!(candidate.content, Content::Formulas(_)) {
            failed.push(candidate.span);
        }
    }
    Answer { text: first, ..Answer::default() }
}

/// Returns `true` for a term without blanks that has an operator between its numbers. `18))` has none.
fn has_operator(term: &str) -> bool {
    let inside = term.trim_matches(['(', ')']).trim_start_matches(['-', '−']);
    !term.contains(char::is_whitespace) && inside.contains(|c: char| "+*×/^()÷−-".contains(c))
}

/// The maximum number of candidates that are parsed.
const MAX_TRIED: usize = 100;

/// Parses a text that consists of an answer only, as most ground truths do. A comma in it may be a decimal comma.
pub(super) fn parse_whole(text: &str) -> Answer {
    let mut answer = parse_content(&Content::Line(text.to_owned()));
    let number = plain::anywhere(text.trim())
        .into_iter()
        .find(|number| number.span == (0, text.trim().len()));
    if let Some(number) = number {
        answer.readings.extend(parse_content(&number.content).readings);
    }
    answer
}

fn tail(text: &str) -> &str {
    let mut begin = text.len().saturating_sub(MAX_SEARCHED_BYTES);
    while !text.is_char_boundary(begin) {
        begin += 1;
    }
    &text[begin..]
}

fn candidates(text: &str, options: &SearchOptions<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    if options.boxed >= 0 && options.targets.contains(&Target::Latex) {
        found.extend(environment::boxed(text, options.boxed));
    }
    if options.markers {
        found.extend(marker::marked(text, options.boxed.max(0)));
    }
    if options.targets.contains(&Target::Latex) {
        found.extend(environment::announced(text));
    }
    if options.targets.contains(&Target::Expr) {
        found.extend(plain::announced(text));
    }
    if !options.unmarked {
        found.retain(|candidate| candidate.priority <= options.boxed.max(50));
        return found;
    }
    if options.targets.contains(&Target::Latex) {
        found.extend(environment::anywhere(text));
    }
    if options.targets.contains(&Target::Expr) {
        found.extend(plain::anywhere(text));
    }
    found
}

fn parse_content(content: &Content) -> Answer {
    match content {
        Content::Formulas(formulas) => parse_formulas(formulas),
        Content::Boxes(text) => match Boxes::last(text) {
            Some(boxes) => with_left_sides(&boxes, parse_text(&boxes.bare(), false)),
            None => parse_text(text, false),
        },
        Content::Line(line) if marker::is_sentence(line) => Answer::default(),
        Content::Line(line) => parse_text(&without_boxes(line), false),
        Content::Plain(text, percent) => parse_text(text, *percent),
    }
}

/// Returns the contents of the boxes of a text, or the text itself if it has no boxes.
fn without_boxes(text: &str) -> String {
    Boxes::all(text).map_or_else(|| text.to_owned(), |boxes| boxes.bare())
}

fn parse_formulas(formulas: &[(String, bool)]) -> Answer {
    let one = |(formula, percent): &(String, bool)| parse_text(&without_boxes(formula), *percent);
    let bare = combine(formulas.iter().map(one).collect());
    let boxes: Option<Vec<Boxes>> = formulas
        .iter()
        .map(|(formula, percent)| Boxes::all(formula).filter(|_| !percent))
        .collect();
    match boxes {
        Some(boxes) => with_left_sides(&Boxes::joined(boxes), bare),
        None => bare,
    }
}

/// Returns the answer of several boxes with their left-hand sides. Returns `bare`, the answer without left-hand sides, if the boxes do not
/// have different left-hand sides or the equations cannot be parsed.
fn with_left_sides(boxes: &Boxes, bare: Answer) -> Answer {
    let readings = boxes.equations().map(|equations| parse_text(&equations, false).readings);
    match readings {
        Some(readings) if !readings.is_empty() => {
            Answer { readings, unnamed: bare.readings, ..bare }
        }
        _ => bare,
    }
}

fn parse_text(text: &str, percent: bool) -> Answer {
    let text = text.trim();
    let grouped = parse(text, true);
    let separated = parse(text, false).filter(|separated| Some(separated) != grouped.as_ref());
    let mut readings: Vec<Expr> = grouped.into_iter().chain(separated).collect();
    readings.extend(parse_definition(text));
    if readings.is_empty() {
        readings.extend(last_side(text).and_then(|side| parse(side, true)));
    }
    if let Some((letter, choice)) = choice::labelled(text) {
        readings.push(Expr::Symbol(letter.to_string()));
        readings.extend(parse(choice, true));
    }
    if is_word(text) {
        readings.push(Expr::Symbol(text.to_owned()));
    }
    if percent {
        readings =
            readings.into_iter().map(|reading| Expr::product(vec![reading, hundredth()])).collect();
    }
    let units = units::distinct(text);
    let is_integer = |value: &Expr| value.number().is_some_and(|number| number.value.is_integer());
    let percentage = if percent { Some(text) } else { before_percent(text) };
    let percentage = percentage.and_then(|value| parse(value, true)).filter(is_integer);
    Answer { readings, percentage, text: without_blanks(text), units, ..Answer::default() }
}

/// Returns the text before a percent sign at the end. Returns `None` if there is no such sign.
fn before_percent(text: &str) -> Option<&str> {
    let text = text.trim_end_matches(['.', '$']);
    let sign = ["\\%", "%", "percent"].iter().find_map(|sign| text.strip_suffix(sign))?;
    Some(sign.trim_matches(|c: char| c.is_whitespace() || c == '$'))
}

/// Returns `true` if a text is a word, such as `Yes` or `paris`, rather than a product of variables: it has a vowel, its letters are not in
/// alphabetical order as those of `abcd` are, and only its first letter or all letters may be capital. Of words with fewer than four
/// letters, only some common answers count.
fn is_word(text: &str) -> bool {
    const SHORT: [&str; 10] = ["no", "yes", "odd", "one", "two", "six", "ten", "all", "any", "red"];
    let lower = text.to_ascii_lowercase();
    if !text.bytes().all(|c| c.is_ascii_alphabetic()) || text.len() > 40 {
        return false;
    }
    let rest_is_lower = text.bytes().skip(1).all(|c| c.is_ascii_lowercase());
    let is_upper = text.bytes().all(|c| c.is_ascii_uppercase());
    let is_ordered = lower.as_bytes().is_sorted();
    let is_long = lower.len() > 3 && lower.contains(['a', 'e', 'i', 'o', 'u', 'y']) && !is_ordered;
    (rest_is_lower || is_upper) && (is_long || SHORT.contains(&lower.as_str()))
}

/// Removes the blanks that are not needed to tell words and numbers apart, as in `a + b`. All others become a single blank, as in `1 2`,
/// `1 1/2`, `1, 234` and `no solution`.
fn without_blanks(text: &str) -> String {
    let mut bare = String::with_capacity(text.len());
    for part in text.split_whitespace() {
        let (before, after) = (bare.chars().next_back(), part.chars().next());
        let apart = before.zip(after).is_some_and(|(before, after)| {
            let is_point = |c: char| c == '.' || c == ',';
            let joined = |c: char| c.is_alphanumeric() || is_point(c);
            joined(before)
                && joined(after)
                && (!(is_point(before) || is_point(after))
                    || before.is_numeric()
                    || after.is_numeric())
        });
        if apart {
            bare.push(' ');
        }
        bare.push_str(part);
    }
    bare
}

/// Parses an equation whose left-hand side is a name that the grammar does not cover or parses as a product. Returns `None` for any other
/// text.
fn parse_definition(text: &str) -> Option<Expr> {
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

/// Returns the text after the last equality sign. Returns `None` if there are fewer than two such signs, or if the text has commas or
/// semicolons.
fn last_side(text: &str) -> Option<&str> {
    if text.contains([',', ';']) {
        return None;
    }
    let sign = |(at, _): &(usize, &str)| !text[..*at].ends_with(['<', '>', '!', '\\']);
    let signs: Vec<usize> = text.match_indices('=').filter(sign).map(|(at, _)| at).collect();
    (signs.len() > 1).then(|| signs.last().map(|at| &text[at + 1..]))?
}

/// Combines the answers of several formulas into one list. Returns the first answer alone if it is the only one or if a formula cannot be
/// parsed, and an empty answer if there are no answers.
fn combine(mut answers: Vec<Answer>) -> Answer {
    if answers.len() > 1 && answers.iter().all(|answer| !answer.readings.is_empty()) {
        let text = answers.iter().map(|answer| answer.text.as_str()).collect::<Vec<_>>().join(",");
        let units = answers.iter().flat_map(|answer| &answer.units).copied().collect();
        let items = answers.into_iter().filter_map(|answer| answer.readings.into_iter().next());
        let flat = items.flat_map(|item| match item {
            Expr::List(items) | Expr::Set(items) => items,
            other => vec![other],
        });
        let readings = vec![Expr::List(flat.collect())];
        return Answer { readings, text, units, ..Answer::default() };
    }
    if answers.is_empty() { Answer::default() } else { answers.swap_remove(0) }
}
