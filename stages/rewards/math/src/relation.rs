//! Equations and inequalities.

use num_traits::Signed;

use super::equal::Comparer;
use super::expr::{Comparison, Expr, Relation, SetOperation};
use super::normal::normal;
use super::number;

/// Half the number of points at which solutions are searched. The outermost points are at about ±220,000.
const GRID: i32 = 1300;

/// Removes the left-hand side of an equation if the other expression is not an equation.
///
/// A chain `x = a = b` whose left-hand side only names something becomes `x = b`. If only the answer is an equation, its last side is
/// compared with the truth. If only the truth is an equation, and its left-hand side only names something, its last side is compared with
/// the answer.
pub(super) fn strip_names(truth: &Expr, answer: &Expr) -> (Expr, Expr) {
    let (truth_equation, answer_equation) = (is_equation(truth), is_equation(answer));
    let (truth_names, answer_names) = (is_assignment(truth), is_assignment(answer));
    let short = |expr: &Expr, named: bool| match expr {
        Expr::Relation(relation) if named => first_and_last(relation),
        other => other.clone(),
    };
    if answer_equation && !truth_equation {
        return (truth.clone(), last_side(answer).clone());
    }
    if truth_names && !answer_equation {
        return (last_side(truth).clone(), answer.clone());
    }
    (short(truth, truth_names), short(answer, answer_names))
}

/// Returns `true` if an expression is an equation or a chain of equations.
fn is_equation(expr: &Expr) -> bool {
    matches!(expr, Expr::Relation(relation) if relation.is_equation())
}

/// Returns `true` if an expression is an equation whose left-hand side only names something.
fn is_assignment(expr: &Expr) -> bool {
    is_equation(expr) && matches!(expr, Expr::Relation(relation) if only_names(&relation.first))
}

fn only_names(expr: &Expr) -> bool {
    match expr {
        Expr::Symbol(_) | Expr::Constant(_) => true,
        Expr::Power(base, exponent) => only_names(base) && **exponent == Expr::integer(-1),
        other => {
            let parts = other.children();
            !parts.is_empty() && parts.into_iter().all(only_names)
        }
    }
}

fn last_side(expr: &Expr) -> &Expr {
    match expr {
        Expr::Relation(relation) => relation.last_side(),
        other => other,
    }
}

fn first_and_last(relation: &Relation) -> Expr {
    let rest = relation.rest.last().cloned().into_iter().collect();
    Expr::Relation(Box::new(Relation { first: relation.first.clone(), rest }))
}

/// Returns the names and the values of a list of equations such as `p = 3, q = 4`, or of an equation of tuples such as `(p, q) = (3, 4)`.
/// Returns `None` if there are fewer than two names, if they are not all different, or for any other expression.
pub(super) fn assignments(expr: &Expr) -> Option<Vec<(&str, &Expr)>> {
    fn assigned<'a>(name: &'a Expr, value: &'a Expr) -> Option<(&'a str, &'a Expr)> {
        match name {
            Expr::Symbol(name) if !name.is_empty() => Some((name, value)),
            _ => None,
        }
    }
    let found: Vec<(&str, &Expr)> = match expr {
        Expr::List(items) => items
            .iter()
            .map(|item| match item {
                Expr::Relation(relation) if relation.is_equation() => {
                    assigned(&relation.first, relation.last_side())
                }
                _ => None,
            })
            .collect::<Option<_>>()?,
        Expr::Relation(relation) if relation.is_equation() => {
            match (&relation.first, relation.last_side()) {
                (Expr::Tuple(names), Expr::Tuple(values)) if names.len() == values.len() => names
                    .iter()
                    .zip(values)
                    .map(|(name, value)| assigned(name, value))
                    .collect::<Option<_>>()?,
                _ => return None,
            }
        }
        _ => return None,
    };
    let names: std::collections::BTreeSet<&str> = found.iter().map(|(name, _)| *name).collect();
    (found.len() > 1 && names.len() == found.len()).then_some(found)
}

/// Returns `true` if both expressions are lists of equations and have the same left-hand sides, in any order.
pub(super) fn same_names(truth: &Expr, answer: &Expr) -> bool {
    let (truth, answer) = (names(truth), names(answer));
    truth.len() == answer.len()
        && !truth.is_empty()
        && truth.iter().all(|name| answer.contains(name))
}

/// Returns the left-hand sides of a list of equations; empty for anything else.
fn names(expr: &Expr) -> Vec<Expr> {
    let Expr::List(items) = expr else { return Vec::new() };
    let name = |item: &'_ Expr| match item {
        Expr::Relation(relation) if relation.is_equation() => Some(relation.first.clone()),
        _ => None,
    };
    items.iter().map(name).collect::<Option<_>>().unwrap_or_default()
}

/// Returns `true` if two relations are equivalent. Relations with `>` or `≥` and without `<` or `≤` are first reversed: `a > b` becomes
/// `b < a`. The operators must then be the same. In addition, the sides must agree or, if there is one operator, the differences of the
/// sides must be proportional, with a positive factor for inequalities.
pub(super) fn are_equivalent(comparer: &Comparer, truth: &Relation, answer: &Relation) -> bool {
    let (truth, answer) = (ascending(truth), ascending(answer));
    if sides_agree(comparer, &truth, &answer) {
        return true;
    }
    match (truth.rest.as_slice(), answer.rest.as_slice()) {
        ([(truth_op, truth_side)], [(answer_op, answer_side)]) if truth_op == answer_op => {
            let truth_gap = truth.first.clone().minus(truth_side.clone());
            let answer_gap = answer.first.clone().minus(answer_side.clone());
            proportional(comparer, &truth_gap, &answer_gap, *truth_op)
        }
        _ => false,
    }
}

/// Returns the relation in the opposite order, such as `b < a` for `a > b`, if it contains falling comparisons and no rising ones. Returns
/// any other relation unchanged.
fn ascending(relation: &Relation) -> Relation {
    let flipped = |comparison: Comparison| match comparison {
        Comparison::Greater => Comparison::Less,
        Comparison::GreaterEqual => Comparison::LessEqual,
        other => other,
    };
    let falls = relation.rest.iter().any(|(op, _)| flipped(*op) != *op);
    let rises =
        relation.rest.iter().any(|(op, _)| matches!(op, Comparison::Less | Comparison::LessEqual));
    let Some((_, end)) = relation.rest.last() else { return relation.clone() };
    if !falls || rises {
        return relation.clone();
    }
    let mut sides: Vec<&Expr> = vec![&relation.first];
    sides.extend(relation.rest.iter().map(|(_, side)| side));
    let ops = relation.rest.iter().rev().map(|(op, _)| flipped(*op));
    let others = sides.into_iter().rev().skip(1).cloned();
    Relation { first: end.clone(), rest: ops.zip(others).collect() }
}

fn sides_agree(comparer: &Comparer, truth: &Relation, answer: &Relation) -> bool {
    truth.rest.len() == answer.rest.len()
        && comparer.same_answers(&truth.first, &answer.first)
        && truth.rest.iter().zip(&answer.rest).all(|((op, truth), (other, answer))| {
            op == other && comparer.same_answers(truth, answer)
        })
}

/// Returns `true` if two differences are equal up to a factor that preserves their relation to zero: a positive factor for inequalities,
/// and any factor for equations and for `\neq`. If no such factor can be computed, the differences must have equal values or, for equations
/// and `\neq`, opposite values.
fn proportional(comparer: &Comparer, truth: &Expr, answer: &Expr, op: Comparison) -> bool {
    let work = &comparer.work;
    let ratio = || normal(truth, work)?.ratio(&normal(answer, work)?, work);
    match ratio() {
        Some(ratio) => ratio.is_positive() || matches!(op, Comparison::Equal | Comparison::Unequal),
        None if matches!(op, Comparison::Equal | Comparison::Unequal) => {
            comparer.same_scalars(truth, answer)
                || comparer.same_scalars(truth, &answer.clone().negate())
        }
        None => comparer.same_scalars(truth, answer),
    }
}

/// Returns the possible meanings of inequalities as sets. One inequality means its solutions, and inequalities with `and` or `or` mean the
/// intersection or the union of their solutions. A list of up to 16 inequalities has two meanings: the union of their solutions, and the
/// intersection. Returns an empty list for any other expression.
pub(super) fn inequalities(expr: &Expr) -> Vec<Expr> {
    let bounds = |expr: &Expr| matches!(expr, Expr::Relation(relation) if !is_equation(expr) && !relation.rest.is_empty());
    let solutions = |expr: &Expr| Expr::Solutions(Box::new(expr.clone()));
    match expr {
        Expr::List(items) if items.iter().all(bounds) && items.len() <= 16 => {
            [SetOperation::Union, SetOperation::Intersection]
                .map(|operation| Expr::Join(operation, items.iter().map(solutions).collect()))
                .into()
        }
        Expr::Conditions(word, parts) if parts.len() <= 16 => {
            vec![Expr::Join(word.set_operation(), parts.iter().map(solutions).collect())]
        }
        other if bounds(other) => vec![solutions(other)],
        _ => Vec::new(),
    }
}

/// Returns `true` if a comparison of two real numbers holds, up to rounding.
pub(super) fn holds(comparison: Comparison, left: f64, right: f64) -> bool {
    let size = 1.0 + left.abs().max(right.abs());
    let same = left == right || (size.is_finite() && (left - right).abs() <= 1e-7 * size);
    match comparison {
        Comparison::Equal | Comparison::Approximate => same,
        Comparison::Unequal => !same,
        Comparison::Less => !same && left < right,
        Comparison::LessEqual => same || left < right,
        Comparison::Greater => !same && left > right,
        Comparison::GreaterEqual => same || left > right,
    }
}

/// Returns the points at which the difference of two sides changes sign, touches zero, or becomes defined or undefined.
///
/// They are found on a grid that is fine near zero and coarse far away, and refined by bisection. Touching points do not change the sign;
/// they are searched wherever the magnitude has a local minimum on the grid.
pub(super) fn sign_changes(gap: &impl Fn(f64) -> Option<f64>) -> Vec<f64> {
    let steps = GRID;
    let point_at = |step: i32| (f64::from(step) * 0.01 + 0.001_234).sinh();
    let mut found = Vec::new();
    let mut values = [None, gap(point_at(-steps)), gap(point_at(1 - steps))];
    for step in 1 - steps..steps {
        values = [values[1], values[2], gap(point_at(step + 1))];
        let (low, high) = (point_at(step), point_at(step + 1));
        match (values[1], values[2]) {
            (Some(left), Some(right)) if left == 0.0 || (left < 0.0) != (right < 0.0) => {
                found.extend(crossings(low, high, gap));
            }
            (left, right) if left.is_some() != right.is_some() => {
                found.push(bisect(low, high, |x| gap(x).is_some() == left.is_some()));
            }
            _ => {}
        }
        if let [Some(before), Some(middle), Some(after)] = values
            && middle.abs() <= before.abs().min(after.abs())
        {
            found.extend(near_zero(point_at(step - 1), high, gap));
        }
    }
    found
}

/// Returns the points between `low` and `high` at which `gap` changes its sign, or becomes defined or undefined.
///
/// The interval is divided into `PARTS` equal parts. At most one point is found in each part, where the ends of the part differ. If none is
/// found, which happens when `gap` is zero at `low`, the result is `high`.
fn crossings(low: f64, high: f64, gap: &impl Fn(f64) -> Option<f64>) -> Vec<f64> {
    const PARTS: u32 = 16;
    let at = |part: u32| low + (high - low) * f64::from(part) / f64::from(PARTS);
    let is_negative = |x: f64| gap(x).map(|value| value < 0.0);
    let mut found = Vec::new();
    let mut left = is_negative(low);
    for part in 0..PARTS {
        let right = is_negative(at(part + 1));
        if left != right {
            found.push(bisect(at(part), at(part + 1), |x| is_negative(x) == left));
        }
        left = right;
    }
    // A zero at an end of the interval does not change the sign.
    if found.is_empty() { vec![high] } else { found }
}

/// Returns the point between `low` and `high` up to which `holds` returns `true`. `holds` must return `true` for `low` and `false` for
/// `high`.
fn bisect(mut low: f64, mut high: f64, holds: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..70 {
        let middle = f64::midpoint(low, high);
        if holds(middle) { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// Returns the points between `low` and `high` at which a value with equal signs at both ends reaches zero: none, the point at which it
/// touches zero, or the two points at which it crosses zero.
fn near_zero(low: f64, high: f64, gap: &impl Fn(f64) -> Option<f64>) -> Vec<f64> {
    let Some(sign) =
        gap(low).map(f64::signum).filter(|sign| gap(high).map(f64::signum) == Some(*sign))
    else {
        return Vec::new();
    };
    let size = |x: f64| gap(x).map_or(f64::INFINITY, |value| sign * value);
    let (mut left, mut right) = (low, high);
    for _ in 0..90 {
        let third = (right - left) / 3.0;
        if size(left + third) <= size(right - third) { right -= third } else { left += third }
    }
    let lowest = f64::midpoint(left, right);
    match size(lowest) {
        touching if touching.abs() < 1e-9 => vec![lowest],
        crossing if crossing < 0.0 => {
            let mut points = crossings(low, lowest, gap);
            points.extend(crossings(lowest, high, gap));
            points
        }
        _ => Vec::new(),
    }
}

/// Returns the integer that a number equals up to rounding, if any.
pub(super) fn exact_nearby(value: f64) -> Option<Expr> {
    let near = value.round();
    let whole = (value - near).abs() <= 1e-9 * (1.0 + near.abs());
    whole.then(|| number::from_f64(near).map(Expr::rational))?
}
