//! Sets of real numbers.

use super::equal::Comparer;
use super::evaluate::{Point, evaluate_real, infinity};
use super::expr::{Comparison, Conjunction, Expr, Interval, Relation, SetOperation};
use super::relation;

/// Returns `true` if an answer is a set of numbers, or a pair that may be an open interval.
pub(super) fn is_set(expr: &Expr) -> bool {
    is_interval(expr)
        || matches!(expr, Expr::Set(_))
        || matches!(expr, Expr::Tuple(ends) if ends.len() == 2)
}

/// Returns `true` if an answer is a set that does not list its elements.
pub(super) fn is_interval(expr: &Expr) -> bool {
    matches!(expr, Expr::Interval(_) | Expr::Join(..) | Expr::Solutions(_) | Expr::Domain(_))
}

/// Returns `true` if two answers are the same set of real numbers, or the same subset of another domain, such as the integers. Returns
/// `false` if they differ or if that cannot be decided.
pub(super) fn same(comparer: &Comparer, truth: &Expr, answer: &Expr) -> bool {
    let ((truth_domain, truth), (answer_domain, answer)) = (restricted(truth), restricted(answer));
    if truth_domain != answer_domain {
        return false;
    }
    let both = pieces(comparer, truth).zip(pieces(comparer, answer));
    both.is_some_and(|(truth, answer)| {
        truth.len() == answer.len()
            && truth.iter().zip(&answer).all(|(truth, answer)| truth.same(comparer, answer))
    })
}

/// Splits `D \cap S`, where D is a set of numbers such as the integers, into the letter of D and S. The letter is `None` if D is the real
/// numbers. Returns `None` and the whole set for any other set.
fn restricted(set: &Expr) -> (Option<char>, &Expr) {
    match set {
        Expr::Join(SetOperation::Intersection, parts) => match parts.as_slice() {
            [Expr::Domain(domain), set] => (Some(*domain).filter(|domain| *domain != 'R'), set),
            _ => (None, set),
        },
        _ => (None, set),
    }
}

/// A point at which membership in a set may change, with its exact expression if that is known.
#[derive(Clone, Debug)]
struct Bound {
    value: f64,
    exact: Option<Expr>,
}

/// A connected part of a set.
#[derive(Clone, Debug)]
struct Piece {
    low: Bound,
    high: Bound,
    low_closed: bool,
    high_closed: bool,
}

impl Piece {
    fn same(&self, comparer: &Comparer, other: &Self) -> bool {
        self.low_closed == other.low_closed
            && self.high_closed == other.high_closed
            && self.low.same(comparer, &other.low)
            && self.high.same(comparer, &other.high)
    }
}

impl Bound {
    fn of(expr: &Expr) -> Option<Self> {
        let value = evaluate_real(expr, &Point::seeded(0))?;
        Some(Self { value, exact: Some(expr.clone()) })
    }

    fn infinite(value: f64) -> Self {
        Self { value, exact: None }
    }

    fn near(&self, other: &Self) -> bool {
        (self.value - other.value).abs() <= 1e-9 * (1.0 + self.value.abs())
    }

    fn same(&self, comparer: &Comparer, other: &Self) -> bool {
        if self.value.is_infinite() || other.value.is_infinite() {
            return self.value == other.value;
        }
        match (&self.exact, &other.exact) {
            (Some(left), Some(right)) => comparer.same_scalars(left, right),
            _ => (self.value - other.value).abs() <= 1e-6 * (1.0 + self.value.abs()),
        }
    }
}

/// Returns the connected parts of a set in ascending order. Returns `None` if `set` is not a set of reals, or if the points at which
/// membership may change cannot be determined.
fn pieces(comparer: &Comparer, set: &Expr) -> Option<Vec<Piece>> {
    let set = with_variable(set);
    let mut bounds = bounds(comparer, &set)?;
    bounds.sort_by(|left, right| {
        left.value.total_cmp(&right.value).then(left.exact.is_none().cmp(&right.exact.is_none()))
    });
    bounds.retain(|bound| bound.value.is_finite());
    merge(&mut bounds);
    let inside = |x: f64| contains(comparer, &set, x);
    Some(assemble(&bounds, inside))
}

/// Merges bounds at the same point into one, preferably one with an exact expression.
fn merge(bounds: &mut Vec<Bound>) {
    bounds.dedup_by(|next, kept| {
        let near = next.near(kept);
        if near && kept.exact.is_none() {
            kept.clone_from(next);
        }
        near
    });
}

/// Determines the connected parts of a set from the points at which membership may change.
///
/// Membership is constant between two neighboring bounds, so it is enough to test each bound and one point in each gap. A part opens at the
/// first tested point that belongs to the set and closes at the first that does not. An end is closed if its bound belongs to the set.
fn assemble(bounds: &[Bound], inside: impl Fn(f64) -> bool) -> Vec<Piece> {
    let mut found = Vec::new();
    let mut open: Option<(Bound, bool)> = None;
    let mut before = Bound::infinite(f64::NEG_INFINITY);
    let between = |low: f64, high: f64| match (low.is_finite(), high.is_finite()) {
        (true, true) => f64::midpoint(low, high),
        (true, false) => low + 1.0 + low.abs(),
        (false, true) => high - 1.0 - high.abs(),
        (false, false) => 0.123,
    };
    let end = Bound::infinite(f64::INFINITY);
    for bound in bounds.iter().chain([&end]) {
        let gap = inside(between(before.value, bound.value));
        if gap && open.is_none() {
            open = Some((before.clone(), false));
        } else if !gap && let Some((low, low_closed)) = open.take() {
            found.push(Piece { low, high: before.clone(), low_closed, high_closed: true });
        }
        let at = bound.value.is_finite() && inside(bound.value);
        if !at && let Some((low, low_closed)) = open.take() {
            found.push(Piece { low, high: bound.clone(), low_closed, high_closed: false });
        } else if at && open.is_none() {
            open = Some((bound.clone(), true));
        }
        before = bound.clone();
    }
    found
}

fn bounds(comparer: &Comparer, set: &Expr) -> Option<Vec<Bound>> {
    match set {
        Expr::Interval(interval) => {
            Some(vec![Bound::of(&interval.low)?, Bound::of(&interval.high)?])
        }
        Expr::Tuple(ends) if ends.len() == 2 => ends.iter().map(Bound::of).collect(),
        Expr::Set(elements) | Expr::List(elements) => elements.iter().map(Bound::of).collect(),
        Expr::Domain('R') => Some(Vec::new()),
        Expr::Join(_, parts) => {
            let mut all = Vec::new();
            for part in parts {
                all.extend(bounds(comparer, part)?);
            }
            (all.len() <= 2000).then_some(all)
        }
        Expr::Solutions(condition) => match condition.as_ref() {
            Expr::Relation(relation) => solved(comparer, relation),
            Expr::List(all) | Expr::Conditions(_, all) => {
                let parts: Option<Vec<Vec<Bound>>> = all
                    .iter()
                    .map(|part| bounds(comparer, &Expr::Solutions(Box::new(part.clone()))))
                    .collect();
                Some(parts?.concat())
            }
            Expr::Domain('R') => Some(Vec::new()),
            _ => None,
        },
        Expr::Relation(_) | Expr::Matrix(_) | Expr::Domain(_) | Expr::Tuple(_) => None,
        value => Bound::of(value).map(|bound| vec![bound]),
    }
}

/// Returns the points at which neighboring sides of a relation in one variable meet or become undefined. `None` if there is not exactly one
/// variable, or there are more than 500 points.
fn solved(comparer: &Comparer, relation: &Relation) -> Option<Vec<Bound>> {
    let whole = Expr::Relation(Box::new(relation.clone()));
    let [name] = whole.symbols()[..] else { return None };
    let sides: Vec<&Expr> = whole.children();
    let mut found = Vec::new();
    for pair in sides.windows(2) {
        let cost = pair[0].size() + pair[1].size();
        let gap = |x: f64| {
            comparer.work.spend(cost)?;
            let point = Point { given: Some((name, x)), ..Point::seeded(0) };
            Some(evaluate_real(pair[0], &point)? - evaluate_real(pair[1], &point)?)
        };
        found.extend(relation::sign_changes(&gap));
    }
    (found.len() <= 500).then(|| {
        found
            .into_iter()
            .map(|value| Bound { value, exact: relation::exact_nearby(value) })
            .collect()
    })
}

fn contains(comparer: &Comparer, set: &Expr, x: f64) -> bool {
    let at = |expr: &Expr| evaluate_real(expr, &Point::seeded(0));
    let equals =
        |expr: &Expr| at(expr).is_some_and(|value| relation::holds(Comparison::Equal, value, x));
    if comparer.work.spend(set.size()).is_none() {
        return false;
    }
    match set {
        Expr::Interval(interval) => within(interval, x),
        Expr::Tuple(ends) => match ends.as_slice() {
            [low, high] => at(low).zip(at(high)).is_some_and(|(low, high)| {
                let above = relation::holds(Comparison::Less, low, x);
                above && relation::holds(Comparison::Less, x, high)
            }),
            _ => false,
        },
        Expr::Set(elements) | Expr::List(elements) => elements.iter().any(equals),
        Expr::Domain(_) => true,
        Expr::Join(operation, parts) => {
            let mut inside = parts.iter().map(|part| contains(comparer, part, x));
            match operation {
                SetOperation::Union => inside.any(|inside| inside),
                SetOperation::Intersection => inside.all(|inside| inside),
                SetOperation::Difference => {
                    inside.next() == Some(true) && !inside.any(|inside| inside)
                }
            }
        }
        Expr::Solutions(condition) => satisfied(condition, x),
        value => equals(value),
    }
}

fn within(interval: &Interval, x: f64) -> bool {
    let end = |expr: &Expr| infinity(expr).or_else(|| evaluate_real(expr, &Point::seeded(0)));
    let (Some(low), Some(high)) = (end(&interval.low), end(&interval.high)) else { return false };
    let comparison = |closed: bool| if closed { Comparison::LessEqual } else { Comparison::Less };
    let above =
        low == f64::NEG_INFINITY || relation::holds(comparison(interval.low_closed), low, x);
    let below = high == f64::INFINITY || relation::holds(comparison(interval.high_closed), x, high);
    above && below
}

/// Returns `true` if a condition holds for the value `x` of its only variable.
fn satisfied(condition: &Expr, x: f64) -> bool {
    match condition {
        Expr::List(all) | Expr::Conditions(Conjunction::And, all) => {
            all.iter().all(|part| satisfied(part, x))
        }
        Expr::Domain('R') => true,
        Expr::Conditions(Conjunction::Or, any) => any.iter().any(|part| satisfied(part, x)),
        Expr::Relation(relation) => {
            let symbols = condition.symbols();
            let given = symbols.first().map(|name| (*name, x));
            let point = Point { given, ..Point::seeded(0) };
            let mut left = evaluate_real(&relation.first, &point);
            relation.rest.iter().all(|(comparison, side)| {
                let right = evaluate_real(side, &point);
                let holds =
                    left.zip(right).is_some_and(|(l, r)| relation::holds(*comparison, l, r));
                left = right;
                holds
            })
        }
        _ => false,
    }
}

/// Returns the values of unknown functions, such as `f(x)`, each of which counts as a variable.
pub(super) fn unknown_values(expr: &Expr) -> Vec<&Expr> {
    match expr.unknown_function() {
        Some(_) => vec![expr],
        None => expr.children().into_iter().flat_map(unknown_values).collect(),
    }
}

/// Replaces the value of an unknown function, such as `f(x)`, by a variable.
fn with_variable(set: &Expr) -> Expr {
    match set.unknown_function() {
        Some((name, _)) => Expr::Symbol(name.to_owned()),
        None => set.map(&mut with_variable),
    }
}
