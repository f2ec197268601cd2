//! Whether two answers are the same.

use num_traits::Signed;

use super::evaluate::{Point, close, evaluate};
use super::expr::{Constant, Expr, Function, Number};
use super::normal::{self, normal};
use super::number::{self, Rational};
use super::work::Work;
use super::{matrix, relation, set};

/// Steps that a comparison may take: some hundred milliseconds at worst.
const STEPS: u32 = 1_000_000;
/// Points at which expressions with variables are compared, and how many of them must be defined.
const POINTS: u64 = 12;
const DEFINED: usize = 3;
/// Elements of collections that are compared pairwise, at most.
const MAX_ELEMENTS: usize = 200;

/// What counts as equal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Decimal places to which numbers with a decimal point are rounded before they are compared.
    pub(super) precision: u32,
    /// Whether the names of variables matter, and whether sets differ from tuples.
    pub(super) strict: bool,
    /// Whether a relation may answer a truth that is a set.
    pub(super) relation_for_set: bool,
}

/// Compares an answer to the truth. Not symmetric: `x = 1` may be answered by `1`, `x + y = 1` may not.
pub(super) fn equal(truth: &Expr, answer: &Expr, rules: Rules) -> bool {
    let comparer = Comparer { rules, work: Work::steps(STEPS) };
    let same = match rules.strict {
        true => comparer.answers(truth, answer),
        false => comparer.answers(truth, &renamed(truth, answer)),
    };
    truth == answer || (same && !comparer.work.is_exhausted())
}

/// The answer with its variables called as those of the truth, in order of appearance.
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

/// Rules and the work that is left.
pub(super) struct Comparer {
    pub(super) rules: Rules,
    pub(super) work: Work,
}

impl Comparer {
    /// Whether an answer, or a part of one, is that of the truth.
    pub(super) fn answers(&self, truth: &Expr, answer: &Expr) -> bool {
        if self.work.spend(1).is_none() {
            return false;
        }
        let (truth, answer) = relation::unwrapped(truth, answer);
        truth == answer || self.relations(&truth, &answer) || self.values(&truth, &answer)
    }

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

    /// Whether every element of one is in the other and the other way round, twice or once.
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

    /// Whether two expressions have the same value wherever they have one.
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

    /// Equality after rounding, where one side is a number with a decimal point.
    fn rounded(&self, truth: &Expr, answer: &Expr) -> Option<bool> {
        if !(is_decimal(truth) || is_decimal(answer)) {
            return None;
        }
        let same = |truth: &Rational, answer: &Rational| {
            number::same_rounded(truth, answer, self.rules.precision)
        };
        Some(same(&self.number(truth)?, &self.number(answer)?))
    }

    /// The value of an expression without variables: exact, or as near as floating point comes.
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

    /// Equality at several points.
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

/// The elements of a list or a set; a single value is its own element.
fn elements(expr: &Expr) -> Option<&[Expr]> {
    match expr {
        Expr::List(items) | Expr::Set(items) => Some(items),
        Expr::Interval(_) | Expr::Join(..) | Expr::Domain(_) | Expr::Solutions(_) => None,
        other => Some(std::slice::from_ref(other)),
    }
}

/// Whether an expression is a number written with a decimal point, or a percentage of one.
fn is_decimal(expr: &Expr) -> bool {
    matches!(expr, Expr::Number(Number { decimal: true, .. }))
}

fn is_constant(expr: &Expr) -> bool {
    !expr.any(&|part| matches!(part, Expr::Symbol(_) | Expr::Apply(Function::Named(_), _)))
}

/// Whether a number in a base and a bare number have the same digits, or two numbers in the same base the same value.
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

/// Whether two answers are the same words, whatever their case; single letters are variables and have one.
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

/// The letters of a word, whether it was written as text or read as a product of variables.
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
