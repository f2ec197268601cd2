//! Limits, sums, products and integrals. They are not computed but compared by their parts: bounds and body.

use super::super::expr::{Constant, Expr, Function};
use super::super::token::Token;
use super::Parser;
use super::atom::is_symbol;

/// A lower bound such as `k = 1`, `x \to 0` or `0`, with the variable on its left side.
struct Lower {
    variable: Option<Expr>,
    value: Expr,
}

/// The commands of operators with a body.
const OPERATORS: [&str; 7] = ["lim", "sum", "prod", "int", "iint", "iiint", "oint"];

/// Returns `true` for the command of a limit, sum, product or integral.
pub(super) fn is_operator(name: &str) -> bool {
    OPERATORS.contains(&name)
}

impl Parser {
    /// Parses a limit, sum, product or integral after its command. The bounds may be in either order.
    ///
    /// The name of the variable of a limit, a sum, a product or a definite integral does not matter: within the body, it is replaced by a
    /// name that only depends on how deeply operators are nested in the body. It is kept if it occurs in the index of another name, as `k`
    /// in `a_k`.
    pub(super) fn operator(&mut self, name: &str) -> Option<Expr> {
        let is_integral = name.ends_with("int");
        let (mut lower, mut upper) = (None, None);
        loop {
            if self.accept('^') {
                upper.replace(finite(&self.exponent()?)).is_none().then_some(())?;
            } else if self.accept('_') {
                lower.replace(self.lower()?).is_none().then_some(())?;
            } else {
                break;
            }
        }
        let mut body = if is_integral { self.integrand()? } else { self.product()? };
        if let Some(Lower { variable, .. }) = &mut lower {
            let definite = name == "int" && variable.is_none() && upper.is_some();
            let bound = if definite { differential(&body) } else { variable.clone() };
            if let Some(bound) = bound.filter(|bound| is_replaceable(bound, &body)) {
                let name = format!("bound:{}", 1 + height(&body));
                body = replaced(&body, &bound, &named(&name, vec![Expr::Constant(Constant::E)]));
                *variable = None;
            }
        }
        let lower = lower.map(|Lower { variable, value }| {
            named("lower", variable.into_iter().chain([value]).collect())
        });
        let upper = upper.map(|upper| named("upper", vec![upper]));
        Some(named(name, lower.into_iter().chain(upper).chain([body]).collect()))
    }

    fn lower(&mut self) -> Option<Lower> {
        if !self.accept('{') {
            return Some(Lower { variable: None, value: finite(&self.atom()?) });
        }
        let first = self.sum()?;
        let arrow =
            self.accept_command("to") || self.accept_command("rightarrow") || self.accept('=');
        let lower = if arrow {
            Lower { variable: Some(first), value: finite(&self.sum()?) }
        } else {
            Lower { variable: None, value: finite(&first) }
        };
        self.accept('}').then_some(lower)
    }

    /// Parses the body of an integral: the terms up to the first one with a differential or, if there is none, one term.
    fn integrand(&mut self) -> Option<Expr> {
        let outer = std::mem::replace(&mut self.integrand, true);
        let body = self.terms_to_differential();
        self.integrand = outer;
        body
    }

    fn terms_to_differential(&mut self) -> Option<Expr> {
        let first = self.product()?;
        let after_first = self.at;
        let mut terms = vec![first.clone()];
        while terms.last().is_some_and(|term| differential(term).is_none()) {
            let negative = self.is('-');
            if !negative && !self.is('+') {
                self.at = after_first;
                return Some(first);
            }
            self.at += 1;
            // Nested integrals without differentials parse the same terms repeatedly.
            self.wrap()?;
            let term = self.product()?;
            terms.push(if negative { term.negate() } else { term });
        }
        Some(Expr::sum(terms))
    }

    /// Returns `true` within an integral if a differential such as `dx` follows.
    pub(super) fn starts_differential(&self) -> bool {
        let variable = match self.tokens.get(self.at + 1) {
            Some(Token::Char(letter)) => letter.is_alphabetic(),
            Some(Token::Command(name)) => is_symbol(name),
            _ => false,
        };
        self.integrand && self.is('d') && variable
    }
}

fn named(name: &str, parts: Vec<Expr>) -> Expr {
    Expr::apply(Function::Named(name.to_owned()), parts)
}

/// Replaces infinities in a bound by a named function, because an infinity has no value at the points of a comparison.
fn finite(bound: &Expr) -> Expr {
    match bound {
        Expr::Constant(Constant::Infinity) => named("infinity", vec![Expr::Constant(Constant::E)]),
        other => other.map(&mut finite),
    }
}

/// Returns the variable of the first differential of a term or a sum: `x` for `x^2 d x`.
fn differential(body: &Expr) -> Option<Expr> {
    match body {
        Expr::Sum(terms) => terms.iter().find_map(differential),
        Expr::Product(factors) => factors.windows(2).find_map(|pair| match pair {
            [Expr::Symbol(d), variable @ Expr::Symbol(_)] if d == "d" => Some(variable.clone()),
            _ => None,
        }),
        _ => None,
    }
}

/// Returns `true` if an expression is a variable that does not occur in the index of another name in the body, as `k` in `a_k`.
fn is_replaceable(variable: &Expr, body: &Expr) -> bool {
    let name = match variable {
        Expr::Symbol(name) => name.as_str(),
        Expr::Constant(Constant::I) => "i",
        Expr::Constant(Constant::E) => "e",
        _ => return false,
    };
    let is_index = |part: &Expr| match part {
        Expr::Symbol(other) | Expr::Apply(Function::Named(other), _) => {
            other != name && other.split_once('_').is_some_and(|(_, index)| index.contains(name))
        }
        _ => false,
    };
    !body.any(&is_index)
}

fn replaced(expr: &Expr, from: &Expr, to: &Expr) -> Expr {
    if expr == from { to.clone() } else { expr.map(&mut |part| replaced(part, from, to)) }
}

/// Returns the number of operators that are nested in each other.
fn height(expr: &Expr) -> usize {
    let below = expr.children().into_iter().map(height).max().unwrap_or(0);
    let operator = matches!(expr, Expr::Apply(Function::Named(name), _) if is_operator(name));
    below + usize::from(operator)
}
