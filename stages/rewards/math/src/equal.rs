//! Equality of answers.

use num_traits::Signed;

use super::evaluate::{Point, close, evaluate};
use super::expr::{Constant, Expr, Function, Number};
use super::normal::{self, normal};
use super::number::{self, Rational};
use super::parse::UNNAMED;
use super::work::Work;
use super::{matrix, relation, set};

/// The maximum number of steps of a comparison: a few hundred milliseconds at worst.
const STEPS: u32 = 1_000_000;
/// The number of points at which expressions with variables are compared, and the number of points at which both must be defined.
const POINTS: u64 = 12;
const DEFINED: usize = 3;
/// The maximum number of elements of collections that are compared pairwise.
const MAX_ELEMENTS: usize = 200;

/// The options of a comparison.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// The number of decimal places to which numbers with a decimal point are rounded before they are compared.
    pub(super) precision: u32,
    /// `true` if the names of variables matter and sets differ from tuples.
    pub(super) strict: bool,
    /// `true` if a relation may answer a truth that is a set.
    pub(super) relation_for_set: bool,
}

/// Returns `true` if an answer equals the truth. The comparison is not symmetric: `1` answers `x = 1`, but does not answer `x + y = 1`.
pub(super) fn equal(truth: &Expr, answer: &Expr, rules: Rules) -> bool {
    let comparer = Comparer { rules, work: Work::steps(STEPS) };
    let same = match rules.strict && truth.symbols() != [UNNAMED] && answer.symbols() != [UNNAMED] {
        true => comparer.answers(truth, answer),
        false => comparer.answers(truth, &renamed(truth, answer)),
    };
    truth == answer || (same && !comparer.work.is_exhausted())
}

/// Returns the answer with its variables renamed to those of the truth, in order of appearance.
fn renamed(truth: &Expr, answer: &Expr) -> Expr {
    let (to, from) = (truth.symbols(), answer.symbols());
    if to.len() != from.len() {
        return answer.clone();
    }
    rename(answer, &from, &to)
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

/// The options of a comparison and its remaining work.
pub(super) struct Comparer {
    pub(super) rules: Rules,
    pub(super) work: Work,
}

impl Comparer {
    /// Returns `true` if an answer, or a part of one, equals the truth.
    pub(super) fn answers(&self, truth: &Expr, answer: &Expr) -> bool {
        if self.work.spend(1).is_none() {
            return false;
        }
        let (truth, answer) = relation::unwrapped(truth, answer);
        truth == answer || self.relations(&truth, &answer) || self.values(&truth, &answer)
    }

    // Compares relations in three ways. Two relations may be the same as written. Otherwise, inequalities are compared by the sets of their
    // solutions, which requires the same variables. Finally, an inequality in the truth may be answered by a set, and with
    // `relation_for_set` also the other way round.
    fn relations(&self, truth: &Expr, answer: &Expr) -> bool {
        if let (Expr::Relation(truth), Expr::Relation(answer)) = (truth, answer)
            && relation::same(self, truth, answer)
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
            let variables = truth.symbols() == answer.symbols();
            return variables && set::same(self, &inequalities[0], &answers[0]);
        }
        set::is_set(answer) && inequalities.iter().any(|truth| set::same(self, truth, answer))
    }

    // The kind of collection of the truth decides whether order matters. A tuple keeps its order, a list of answers does not, and in strict
    // mode a set and a tuple are never equal. Everything that is not a collection is compared as an interval, a matrix or a scalar.
    fn values(&self, truth: &Expr, answer: &Expr) -> bool {
        match (truth, answer) {
            (Expr::Relation(_), _) | (_, Expr::Relation(_)) => false,
            (Expr::Tuple(truth), Expr::Tuple(answer) | Expr::List(answer)) => {
                self.ordered(truth, answer)
            }
            (Expr::Tuple(truth), Expr::Set(answer)) => {
                !self.rules.strict && self.ordered(truth, answer)
            }
            (Expr::Set(truth), Expr::Tuple(answer)) => {
                !self.rules.strict && self.unordered(truth, answer)
            }
            (Expr::List(truth), Expr::Tuple(answer)) => self.unordered(truth, answer),
            (Expr::List(_) | Expr::Set(_), _) | (_, Expr::List(_) | Expr::Set(_))
                if elements(truth).is_some() && elements(answer).is_some() =>
            {
                let (truth, answer) = (elements(truth), elements(answer));
                truth.zip(answer).is_some_and(|(truth, answer)| self.unordered(truth, answer))
            }
            _ if set::is_interval(truth) || set::is_interval(answer) => {
                set::same(self, truth, answer)
            }
            _ => self.matrices(truth, answer).unwrap_or_else(|| self.scalars(truth, answer)),
        }
    }

    fn ordered(&self, truth: &[Expr], answer: &[Expr]) -> bool {
        truth.len() == answer.len()
            && truth.iter().zip(answer).all(|(truth, answer)| self.answers(truth, answer))
    }

    /// Returns `true` if both have the same elements, regardless of order and repetition.
    fn unordered(&self, truth: &[Expr], answer: &[Expr]) -> bool {
        if truth.len().max(answer.len()) > MAX_ELEMENTS {
            return truth == answer;
        }
        let (truth, answer) = (self.distinct(truth), self.distinct(answer));
        let mut left: Vec<&Expr> = answer;
        truth.len() == left.len()
            && truth.iter().all(|truth| {
                let found = left.iter().position(|answer| self.answers(truth, answer));
                found.map(|at| left.remove(at)).is_some()
            })
    }

    fn distinct<'a>(&self, elements: &'a [Expr]) -> Vec<&'a Expr> {
        let mut distinct: Vec<&Expr> = Vec::with_capacity(elements.len());
        for element in elements {
            if !distinct
                .iter()
                .any(|other| self.answers(other, element) && self.answers(element, other))
            {
                distinct.push(element);
            }
        }
        distinct
    }

    fn matrices(&self, truth: &Expr, answer: &Expr) -> Option<bool> {
        match (matrix::matrix(truth), matrix::matrix(answer)) {
            (None, None) => None,
            (Some(truth), Some(answer)) => Some(
                truth.len() == answer.len()
                    && truth.iter().zip(&answer).all(|(truth, answer)| self.ordered(truth, answer)),
            ),
            (Some(only), None) => Some(
                matches!(only.as_slice(), [row] if row.len() == 1 && self.scalars(&row[0], answer)),
            ),
            (None, Some(only)) => Some(
                matches!(only.as_slice(), [row] if row.len() == 1 && self.scalars(truth, &row[0])),
            ),
        }
    }

    /// Returns `true` if two expressions have the same value wherever they are defined.
    ///
    /// The tests go from certain and cheap to approximate: the same word or digits; equality after rounding, which alone decides if a side
    /// is a decimal number; the normal forms, which decide if both exist; and finally the values at several points.
    pub(super) fn scalars(&self, truth: &Expr, answer: &Expr) -> bool {
        if same_words(truth, answer) || same_digits(truth, answer) {
            return true;
        }
        if let Some(same) = self.rounded(truth, answer) {
            return same;
        }
        match self.exact(truth, answer) {
            Some(same) => same,
            None => self.sampled(truth, answer),
        }
    }

    /// Compares after rounding, if one side is a number with a decimal point. Returns `None` otherwise.
    fn rounded(&self, truth: &Expr, answer: &Expr) -> Option<bool> {
        if !(is_decimal(truth) || is_decimal(answer)) {
            return None;
        }
        let same = |truth: &Rational, answer: &Rational| {
            number::same_rounded(truth, answer, self.rules.precision)
        };
        Some(same(&self.number(truth)?, &self.number(answer)?))
    }

    /// Returns the value of an expression without variables: exact if possible, otherwise as precise as floating point.
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

    fn exact(&self, truth: &Expr, answer: &Expr) -> Option<bool> {
        normal(truth, &self.work)?.same(&normal(answer, &self.work)?, &self.work)
    }

    /// Compares the values at several points. A logarithm without a base is tried as natural and as decimal.
    fn sampled(&self, truth: &Expr, answer: &Expr) -> bool {
        let bare = |part: &Expr| matches!(part, Expr::Apply(Function::Log, _));
        let bases: &[f64] = if truth.any(&bare) || answer.any(&bare) {
            &[std::f64::consts::E, 10.0]
        } else {
            &[std::f64::consts::E]
        };
        bases.iter().any(|base| self.agree(truth, answer, *base).unwrap_or(false))
    }

    fn agree(&self, truth: &Expr, answer: &Expr, log_base: f64) -> Option<bool> {
        let constant = is_constant(truth) && is_constant(answer);
        let cost = truth.size() + answer.size();
        let mut defined = 0;
        for seed in 0..if constant { 1 } else { POINTS } {
            self.work.spend(cost)?;
            let point = Point { log_base, ..Point::seeded(seed) };
            match (evaluate(truth, &point), evaluate(answer, &point)) {
                (Some(truth), Some(answer)) if close(truth, answer) => defined += 1,
                (None, None) => {}
                _ => return Some(false),
            }
        }
        Some(defined >= if constant { 1 } else { DEFINED })
    }
}

/// Returns the elements of a list or a set. A single value is its own element.
fn elements(expr: &Expr) -> Option<&[Expr]> {
    match expr {
        Expr::List(items) | Expr::Set(items) => Some(items),
        Expr::Interval(_) | Expr::Join(..) | Expr::Domain(_) | Expr::Solutions(_) => None,
        other => Some(std::slice::from_ref(other)),
    }
}

/// Returns `true` if an expression is a number written with a decimal point, or a percentage of one.
fn is_decimal(expr: &Expr) -> bool {
    matches!(expr, Expr::Number(Number { decimal: true, .. }))
}

fn is_constant(expr: &Expr) -> bool {
    !expr.any(&|part| matches!(part, Expr::Symbol(_) | Expr::Apply(Function::Named(_), _)))
}

/// Returns `true` if one side is a number in a base, the other a bare number, and both have the same digits.
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

/// Returns `true` if two answers are the same word. Case is ignored, except for single letters, which are variables.
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

/// Returns the letters of a word, which may have been written as text or parsed as a product of variables.
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
