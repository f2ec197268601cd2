//! Equality of answers.

use num_traits::Signed;

use super::evaluate::{Point, close, evaluate};
use super::expr::{Constant, Expr, Function, Number};
use super::normal::{self, normal};
use super::number::{self, Rational};
use super::parse::UNNAMED;
use super::work::WorkBudget;
use super::{matrix, relation, set};

/// The maximum number of steps of a comparison, which take a few hundred milliseconds at worst.
const MAX_STEPS: u32 = 1_000_000;
/// The number of points at which expressions with variables are compared.
const SAMPLE_POINTS: u64 = 12;
/// The minimum number of these points at which both expressions must be defined.
const MIN_DEFINED_POINTS: usize = 3;
/// The maximum number of elements of collections that are compared regardless of order. Larger ones are equal only if they are identical.
const MAX_ELEMENTS: usize = 200;

#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// The number of decimal places to which two numbers are rounded before they are compared, if one of them is decimal.
    pub(super) precision: u32,
    /// `true` if the names of variables matter and sets differ from tuples.
    pub(super) strict: bool,
    /// `true` if an inequality may answer a truth that is a set.
    pub(super) relation_for_set: bool,
}

/// Returns `true` if an answer equals the truth. The comparison is not symmetric: `2x = 1` answers `1`, but `1` does not answer `2x = 1`.
/// If the left-hand side of the truth only consists of names, as in `x = 1`, the right-hand side alone is an answer. If `rules.strict` is
/// `false`, or if the only variable of one side is the unnamed one, the variables of the answer are first renamed to those of the truth.
/// Returns `false` if the work is exhausted, unless both are identical.
pub(super) fn equal(truth: &Expr, answer: &Expr, rules: Rules) -> bool {
    let comparer = Comparer { rules, work: WorkBudget::new(MAX_STEPS) };
    let same = if rules.strict && truth.symbols() != [UNNAMED] && answer.symbols() != [UNNAMED] {
        comparer.same_answers(truth, answer)
    } else {
        comparer.same_answers(truth, &renamed(truth, answer))
    };
    truth == answer || (same && !comparer.work.is_exhausted())
}

/// Returns the answer with its variables renamed to the variables of the truth, in order of appearance. If the answer and the truth have
/// different numbers of variables, or one of them has text, the answer is returned unchanged.
fn renamed(truth: &Expr, answer: &Expr) -> Expr {
    let (to, from) = (truth.symbols(), answer.symbols());
    if to.len() != from.len() || to.iter().chain(&from).any(|name| is_text(name)) {
        return answer.clone();
    }
    rename(answer, &from, &to)
}

/// Returns `true` if the name of a symbol is a word or several words, not the name of a variable.
fn is_text(name: &str) -> bool {
    !name.contains(['\\', '_']) && name.chars().filter(|c| c.is_alphabetic()).count() > 1
}

fn rename(expr: &Expr, from: &[&str], to: &[&str]) -> Expr {
    match expr {
        Expr::Symbol(name) => {
            let new = from.iter().position(|old| old == name).and_then(|at| to.get(at));
            Expr::Symbol((*new.unwrap_or(&name.as_str())).to_owned())
        }
        other => other.map(&mut |part| rename(part, from, to)),
    }
}

pub(super) struct Comparer {
    pub(super) rules: Rules,
    pub(super) work: WorkBudget,
}

impl Comparer {
    /// Returns `true` if an answer equals the truth; both may be elements of collections. Returns `false` once the work is exhausted.
    pub(super) fn same_answers(&self, truth: &Expr, answer: &Expr) -> bool {
        if self.work.spend(1).is_none() {
            return false;
        }
        if let Some(same) = self.same_assignments(truth, answer) {
            return same;
        }
        let (truth, answer) = relation::strip_names(truth, answer);
        truth == answer || self.same_relations(&truth, &answer) || self.same_values(&truth, &answer)
    }

    /// Compares the values of a truth that names at least two of them, as `p = 3, q = 4` and `(p, q) = (3, 4)` do. An answer with the same
    /// names may have any order. A tuple or list without names must have the order of the truth, except that a list may have any order if
    /// the names only differ in their subscripts, as those of several solutions do. Returns `None` for any other truth or answer.
    fn same_assignments(&self, truth: &Expr, answer: &Expr) -> Option<bool> {
        let named = relation::assignments(truth)?;
        if let Some(answers) = relation::assignments(answer) {
            let value = |name: &str| Some(answers.iter().find(|(other, _)| *other == name)?.1);
            let values: Option<Vec<&Expr>> = named.iter().map(|(name, _)| value(name)).collect();
            let values = values.filter(|values| values.len() == answers.len())?;
            return Some(
                named.iter().zip(values).all(|((_, truth), value)| self.same_answers(truth, value)),
            );
        }
        let (values, is_tuple) = match answer {
            Expr::Tuple(values) => (values, true),
            Expr::List(values) | Expr::Set(values) => (values, false),
            _ => return None,
        };
        if values.iter().any(|value| matches!(value, Expr::Relation(_))) {
            return None;
        }
        let stem = |name: &str| name.split(['_', '\'']).next().unwrap_or_default().to_owned();
        let siblings = named.windows(2).all(|pair| stem(pair[0].0) == stem(pair[1].0));
        let truths: Vec<Expr> = named.into_iter().map(|(_, value)| value.clone()).collect();
        Some(if is_tuple || !siblings {
            !matches!(answer, Expr::Set(_)) && self.same_ordered(&truths, values)
        } else {
            self.same_unordered(&truths, values)
        })
    }

    // Compares relations in three ways. Two relations may be the same as written. Otherwise, inequalities are compared by the sets of their
    // solutions, which requires the same variables. Finally, an inequality in the truth may be answered by a set and, with
    // `relation_for_set`, a set in the truth by an inequality.
    fn same_relations(&self, truth: &Expr, answer: &Expr) -> bool {
        if let (Expr::Relation(truth), Expr::Relation(answer)) = (truth, answer)
            && relation::are_equivalent(self, truth, answer)
        {
            return true;
        }
        let inequalities = relation::inequalities(truth);
        if inequalities.is_empty() {
            return self.rules.relation_for_set
                && set::is_set(truth)
                && relation::inequalities(answer)
                    .iter()
                    .any(|answer| set::same(self, truth, answer));
        }
        let answers = relation::inequalities(answer);
        if !answers.is_empty() {
            let variables = truth.symbols() == answer.symbols()
                && set::unknown_values(truth) == set::unknown_values(answer);
            return variables
                && set::same(self, self.meaning(&inequalities), self.meaning(&answers));
        }
        set::is_set(answer) && inequalities.iter().any(|truth| set::same(self, truth, answer))
    }

    /// Returns the more likely of the [meanings](relation::inequalities) of inequalities. If there are two, this is the union, or the
    /// intersection if the union is all real numbers, as for `x > 1, x < 2`.
    ///
    /// # Panics
    /// If `meanings` is empty.
    fn meaning<'a>(&self, meanings: &'a [Expr]) -> &'a Expr {
        match meanings {
            [union, intersection] if set::same(self, union, &Expr::Domain('R')) => intersection,
            _ => &meanings[0],
        }
    }

    // The kind of collection of the truth decides whether order matters. A tuple keeps its order, a list of answers does not, and in strict
    // mode a set and a tuple are never equal. Everything that is not a collection is compared as an interval, a matrix or a scalar.
    fn same_values(&self, truth: &Expr, answer: &Expr) -> bool {
        match (truth, answer) {
            (Expr::Relation(_), _) | (_, Expr::Relation(_)) => false,
            (Expr::Tuple(truth), Expr::Tuple(answer) | Expr::List(answer)) => {
                self.same_ordered(truth, answer)
            }
            (Expr::Tuple(truth), Expr::Set(answer)) => {
                !self.rules.strict && self.same_ordered(truth, answer)
            }
            (Expr::Set(truth), Expr::Tuple(answer)) => {
                !self.rules.strict && self.same_unordered(truth, answer)
            }
            (Expr::List(truth), Expr::Tuple(answer)) => self.same_unordered(truth, answer),
            (Expr::List(_) | Expr::Set(_), _) | (_, Expr::List(_) | Expr::Set(_))
                if elements(truth).is_some() && elements(answer).is_some() =>
            {
                let (truth, answer) = (elements(truth), elements(answer));
                truth.zip(answer).is_some_and(|(truth, answer)| self.same_unordered(truth, answer))
            }
            (Expr::Image(..), Expr::Image(..)) => self.same_images(truth, answer),
            _ if set::is_interval(truth) || set::is_interval(answer) => {
                set::same(self, truth, answer)
            }
            _ => self
                .same_matrices(truth, answer)
                .unwrap_or_else(|| self.same_scalars(truth, answer)),
        }
    }

    /// Returns `true` if two sets such as `{2k + 1 | k > 3}` have the same values and conditions. The name of a variable does not matter if
    /// there is only one.
    fn same_images(&self, truth: &Expr, answer: &Expr) -> bool {
        let one_variable = truth.symbols().len() == 1 && answer.symbols().len() == 1;
        let answer = if one_variable { &renamed(truth, answer) } else { answer };
        let mut parts = truth.children().into_iter().zip(answer.children());
        parts.all(|(truth, answer)| self.same_answers(truth, answer))
    }

    fn same_ordered(&self, truth: &[Expr], answer: &[Expr]) -> bool {
        truth.len() == answer.len()
            && truth.iter().zip(answer).all(|(truth, answer)| self.same_answers(truth, answer))
    }

    /// Returns `true` if both have the same elements, regardless of order and repetition.
    fn same_unordered(&self, truth: &[Expr], answer: &[Expr]) -> bool {
        if truth.len().max(answer.len()) > MAX_ELEMENTS {
            return truth == answer;
        }
        let (truth, answer) = (self.distinct(truth), self.distinct(answer));
        let mut left: Vec<&Expr> = answer;
        truth.len() == left.len()
            && truth.iter().all(|truth| {
                let found = left.iter().position(|answer| self.same_answers(truth, answer));
                found.map(|at| left.remove(at)).is_some()
            })
    }

    fn distinct<'a>(&self, elements: &'a [Expr]) -> Vec<&'a Expr> {
        let mut distinct: Vec<&Expr> = Vec::with_capacity(elements.len());
        for element in elements {
            if !distinct
                .iter()
                .any(|other| self.same_answers(other, element) && self.same_answers(element, other))
            {
                distinct.push(element);
            }
        }
        distinct
    }

    fn same_matrices(&self, truth: &Expr, answer: &Expr) -> Option<bool> {
        match (matrix::matrix(truth), matrix::matrix(answer)) {
            (None, None) => None,
            (Some(truth), Some(answer)) => Some(
                truth.len() == answer.len()
                    && truth
                        .iter()
                        .zip(&answer)
                        .all(|(truth, answer)| self.same_ordered(truth, answer)),
            ),
            (Some(only), None) => Some(
                matches!(only.as_slice(), [row] if row.len() == 1 && self.same_scalars(&row[0], answer)),
            ),
            (None, Some(only)) => Some(
                matches!(only.as_slice(), [row] if row.len() == 1 && self.same_scalars(truth, &row[0])),
            ),
        }
    }

    /// Returns `true` if two expressions have the same value wherever they are defined.
    ///
    /// The tests go from certain and cheap to approximate. The same words or digits are equal. If one of the two is a decimal number and
    /// both have a real value, only equality after rounding counts. If both have a normal form, the normal forms decide. Otherwise the
    /// values at several points are compared.
    pub(super) fn same_scalars(&self, truth: &Expr, answer: &Expr) -> bool {
        if same_words(truth, answer) || same_digits(truth, answer) {
            return true;
        }
        if let Some(same) = self.same_rounded(truth, answer) {
            return same;
        }
        match self.same_exactly(truth, answer) {
            Some(same) => same,
            None => self.same_at_points(truth, answer),
        }
    }

    /// Compares after rounding if `truth` or `answer` is a decimal number, as [`is_decimal`] defines it. Returns `None` if neither of them
    /// is, or if one of them has no real value.
    fn same_rounded(&self, truth: &Expr, answer: &Expr) -> Option<bool> {
        if !(is_decimal(truth) || is_decimal(answer)) {
            return None;
        }
        let same = |truth: &Rational, answer: &Rational| {
            number::same_rounded(truth, answer, self.rules.precision)
        };
        Some(same(&self.number(truth)?, &self.number(answer)?))
    }

    /// Returns the value of an expression: exact if possible, otherwise as precise as floating point. Returns `None` if the value depends
    /// on a variable, is not real or not finite, or if the work is exhausted.
    fn number(&self, expr: &Expr) -> Option<Rational> {
        if let Some(exact) = normal::rational(expr, &self.work) {
            return Some(exact);
        }
        if !is_constant(expr) {
            return None;
        }
        self.work.spend(expr.size())?;
        let value = evaluate(expr, &Point::seeded(0)).filter(|value| value.im == 0.0)?;
        number::from_f64(value.re)
    }

    fn same_exactly(&self, truth: &Expr, answer: &Expr) -> Option<bool> {
        normal(truth, &self.work)?.same(&normal(answer, &self.work)?, &self.work)
    }

    /// Compares the values at several points. A logarithm without a base is tried as natural and as decimal.
    fn same_at_points(&self, truth: &Expr, answer: &Expr) -> bool {
        let bare = |part: &Expr| matches!(part, Expr::Apply(Function::Log, _));
        let bases: &[f64] = if truth.any(&bare) || answer.any(&bare) {
            &[std::f64::consts::E, 10.0]
        } else {
            &[std::f64::consts::E]
        };
        bases.iter().any(|base| self.agree_at_points(truth, answer, *base).unwrap_or(false))
    }

    fn agree_at_points(&self, truth: &Expr, answer: &Expr, log_base: f64) -> Option<bool> {
        let constant = is_constant(truth) && is_constant(answer);
        let cost = truth.size() + answer.size();
        let mut defined = 0;
        for seed in 0..if constant { 1 } else { SAMPLE_POINTS } {
            self.work.spend(cost)?;
            let point = Point { log_base, ..Point::seeded(seed) };
            match (evaluate(truth, &point), evaluate(answer, &point)) {
                (Some(truth), Some(answer)) if close(truth, answer) => defined += 1,
                (None, None) => {}
                _ => return Some(false),
            }
        }
        Some(defined >= if constant { 1 } else { MIN_DEFINED_POINTS })
    }
}

/// Returns the elements of a list or a set. A single value is its own element. `None` for a set that does not list its elements, such as an
/// interval.
fn elements(expr: &Expr) -> Option<&[Expr]> {
    match expr {
        Expr::List(items) | Expr::Set(items) => Some(items),
        Expr::Interval(_)
        | Expr::Join(..)
        | Expr::Domain(_)
        | Expr::Solutions(_)
        | Expr::Image(..) => None,
        other => Some(std::slice::from_ref(other)),
    }
}

/// Returns `true` if an expression is a number that was written with a decimal point or an exponent, or was computed from such a number.
fn is_decimal(expr: &Expr) -> bool {
    matches!(expr, Expr::Number(Number { decimal: true, .. }))
}

fn is_constant(expr: &Expr) -> bool {
    !expr.any(&|part| matches!(part, Expr::Symbol(_)) || part.unknown_function().is_some())
}

/// Returns `true` if one expression is a number in a base, the other a number without a base, sign or decimal point, and both have the same
/// digits.
fn same_digits(truth: &Expr, answer: &Expr) -> bool {
    let written = |expr: &Expr| match expr {
        Expr::Based(digits, _) => number::decimal(digits),
        Expr::Number(number) if !number.decimal && !number.value.is_negative() => {
            Some(number.value.clone())
        }
        _ => None,
    };
    let one = matches!(truth, Expr::Based(..)) != matches!(answer, Expr::Based(..));
    one && written(truth).is_some() && written(truth) == written(answer)
}

/// Returns `true` if two answers are the same word and at least one of them is a symbol. Case is ignored if the word has several letters or
/// one of the answers is a constant. It matters for any other single letter, which is a variable.
fn same_words(truth: &Expr, answer: &Expr) -> bool {
    let (Some(truth_word), Some(answer_word)) = (word(truth), word(answer)) else { return false };
    let written = |expr: &Expr| matches!(expr, Expr::Symbol(_));
    if !(written(truth) || written(answer)) || truth_word.is_empty() {
        return false;
    }
    let constant = matches!(truth, Expr::Constant(_)) || matches!(answer, Expr::Constant(_));
    if truth_word.chars().count() > 1 || constant {
        return truth_word.to_lowercase() == answer_word.to_lowercase();
    }
    truth_word == answer_word
}

/// Returns the letters of a word, which may have been written as text or parsed as a product of variables. Returns `None` for any other
/// expression.
fn word(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Symbol(name) => {
            Some(name.chars().filter(|c| !c.is_whitespace() && *c != '\'').collect())
        }
        Expr::Constant(Constant::E) => Some("e".to_owned()),
        Expr::Constant(Constant::I) => Some("i".to_owned()),
        Expr::Product(factors) => factors.iter().map(word).collect(),
        Expr::Apply(Function::Named(name), arguments) => {
            let inner: Option<String> = arguments.iter().map(word).collect();
            inner.map(|inner| format!("{name}{inner}"))
        }
        _ => None,
    }
}
