//! The interpretation of lists of values and of double signs.

use super::super::expr::{Comparison, Conjunction, Expr, Relation};

/// Returns a single item as it is, `x = 1, 2` as an equation with two values, and everything else as a list.
pub(super) fn joined(mut items: Vec<Expr>) -> Expr {
    if items.len() == 1
        && let Some(only) = items.pop()
    {
        return only;
    }
    let (Some(Expr::Relation(relation)), Some(others)) = (items.first(), items.get(1..)) else {
        return Expr::List(items);
    };
    let bare = others.iter().all(|other| !matches!(other, Expr::Relation(_)));
    let [(Comparison::Equal, value)] = relation.rest.as_slice() else { return Expr::List(items) };
    if !bare {
        return Expr::List(items);
    }
    let values = std::iter::once(value).chain(others).cloned().collect();
    let rest = vec![(Comparison::Equal, Expr::List(values))];
    Expr::Relation(Box::new(Relation { first: relation.first.clone(), rest }))
}

/// Joins at least two inequalities about the same variable by `and` or `or`. Returns any other items unchanged.
pub(super) fn conditions(word: Conjunction, items: Vec<Expr>) -> Vec<Expr> {
    let is_inequality =
        |item: &Expr| matches!(item, Expr::Relation(relation) if !relation.is_equation());
    let symbols = items.first().map(Expr::symbols).unwrap_or_default();
    let same = symbols.len() == 1 && items.iter().all(|item| item.symbols() == symbols);
    if items.len() > 1 && same && items.iter().all(is_inequality) {
        return vec![Expr::Conditions(word, items)];
    }
    items
}

/// Builds a relation that ends before the first approximation. If the relation begins with an approximation, `x \approx 2` for a variable
/// becomes an equation, and any other left side is returned alone.
pub(super) fn exact(first: Expr, mut rest: Vec<(Comparison, Expr)>) -> Expr {
    let about = rest.iter().position(|(comparison, _)| *comparison == Comparison::Approximate);
    if let Some(about) = about {
        if about > 0 {
            rest.truncate(about);
        } else if matches!(first, Expr::Symbol(_)) {
            rest[0].0 = Comparison::Equal;
        } else {
            return first;
        }
    }
    Expr::Relation(Box::new(Relation { first, rest }))
}

/// Replaces an expression with a double sign by both of its values, and flattens lists within lists.
pub(super) fn expand(expr: Expr) -> Expr {
    match expr {
        Expr::List(items) => {
            let mut flat = Vec::with_capacity(items.len());
            for item in items {
                match expand(item) {
                    Expr::List(inner) => flat.extend(inner),
                    other => flat.push(other),
                }
            }
            Expr::List(flat)
        }
        Expr::Set(items) => match expand(Expr::List(items)) {
            Expr::List(items) => Expr::Set(items),
            other => other,
        },
        Expr::Relation(mut relation) => {
            relation.rest =
                relation.rest.into_iter().map(|(op, side)| (op, expand(side))).collect();
            Expr::Relation(relation)
        }
        signed if signed.any(&|part| matches!(part, Expr::Sign(_))) => {
            Expr::List(vec![signed_as(&signed, true), signed_as(&signed, false)])
        }
        other => other,
    }
}

fn signed_as(expr: &Expr, first: bool) -> Expr {
    match expr {
        Expr::Sign(plus) => Expr::integer(if *plus == first { 1 } else { -1 }),
        other => other.map(&mut |part| signed_as(part, first)),
    }
}
