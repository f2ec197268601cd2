//! The contents of brackets: groups, tuples, intervals, sets.

use super::super::expr::{Expr, Function, Interval, SetOperation};
use super::super::matrix;
use super::super::token::Token;
use super::Parser;
use super::finish::joined;

impl Parser {
    /// Parses the argument of a command: the contents of braces, one digit, or one other value such as a letter, a command or a group.
    pub(super) fn argument(&mut self) -> Option<Expr> {
        if self.accept('{') {
            return self.in_braces();
        }
        if let Some(Token::Number(digits)) = self.peek()
            && let Some(first) = digits.chars().next()
            && first.is_ascii_digit()
        {
            let (digit, rest) = (first.to_string(), digits[1..].to_owned());
            // Both parts remain, so that the same tokens can be parsed again.
            if !rest.is_empty() {
                self.tokens[self.at] = Token::Number(digit.clone());
                self.tokens.insert(self.at + 1, Token::Number(rest));
            }
            self.at += 1;
            return super::number(&digit);
        }
        self.atom()
    }

    /// Parses the rest of a `{...}` that only groups.
    fn in_braces(&mut self) -> Option<Expr> {
        if self.accept('}') {
            return Some(Expr::Symbol(String::new()));
        }
        let inner = self.bracketed(0, Self::list)?;
        self.accept('}').then_some(inner)
    }

    /// Parses values separated by commas or semicolons, up to the bracket `close`.
    pub(super) fn arguments(&mut self, close: char) -> Option<Vec<Expr>> {
        let items = self.bracketed(0, Self::bracket_items)?;
        self.accept(close).then_some(items)
    }

    pub(super) fn group(&mut self, open: char) -> Option<Expr> {
        if open == '{' {
            return self.in_braces();
        }
        let items = self.bracketed(0, Self::bracket_items)?;
        let close = match self.take()? {
            Token::Char(close @ (')' | ']' | '[')) => close,
            _ => return None,
        };
        if open == ']' || close == '[' {
            return turned(items, open == '[', close == ']');
        }
        bracketed(items, open == '[', close == ']')
    }

    /// Returns `true` if a `[` is the end of an interval such as `[1, 2[`, because no value follows it.
    pub(super) fn closes_interval(&self) -> bool {
        match self.tokens.get(self.at + 1) {
            None => true,
            Some(Token::Char(next)) => ",;.)]}".contains(*next),
            Some(Token::Command(name)) => {
                ["cup", "cap", "setminus", "backslash", "}", "rbrace", "\\"]
                    .contains(&name.as_str())
            }
            Some(_) => false,
        }
    }

    /// Parses the rest of `\{...\}`: elements, or elements with a condition.
    pub(super) fn braces(&mut self) -> Option<Expr> {
        let divides = std::mem::replace(&mut self.colon_divides, false);
        let set = self.bracketed(1, Self::set);
        self.colon_divides = divides;
        set
    }

    fn set(&mut self) -> Option<Expr> {
        if self.close_braces() {
            return Some(Expr::Set(Vec::new()));
        }
        let items = self.bracket_items()?;
        if self.close_braces() {
            return Some(Expr::Set(items));
        }
        let such_that = self.accept('|') || self.accept_command("mid") || self.accept(':');
        if !such_that {
            return None;
        }
        let condition = joined(self.items()?);
        self.close_braces().then(|| such_that_set(items, condition))
    }

    fn close_braces(&mut self) -> bool {
        self.accept_command("}") || self.accept_command("rbrace")
    }

    /// Parses the rest of `\langle...\rangle`.
    pub(super) fn angles(&mut self) -> Option<Expr> {
        let items = self.bracketed(0, Self::bracket_items)?;
        self.accept_command("rangle").then_some(Expr::Tuple(items))
    }
}

/// Returns the set of `items` for which a condition holds. In `\{x \in D \mid ...\}`, the only item is the set D.
fn such_that_set(mut items: Vec<Expr>, condition: Expr) -> Expr {
    let condition = Box::new(condition);
    match items.pop() {
        Some(Expr::Symbol(_) | Expr::Domain('R')) if items.is_empty() => Expr::Solutions(condition),
        Some(Expr::Domain(domain)) if items.is_empty() => {
            let parts = vec![Expr::Domain(domain), Expr::Solutions(condition)];
            Expr::Join(SetOperation::Intersection, parts)
        }
        Some(only) if items.is_empty() => Expr::Image(Box::new(only), condition),
        last => {
            items.extend(last);
            Expr::Image(Box::new(Expr::Tuple(items)), condition)
        }
    }
}

/// Returns the interval within brackets of which at least one is turned outward, as in `]1, 2]`. Such an end is open. Returns `None` unless
/// there are two values.
fn turned(items: Vec<Expr>, low_closed: bool, high_closed: bool) -> Option<Expr> {
    let [low, high] = <[Expr; 2]>::try_from(items).ok()?;
    Some(Expr::Interval(Box::new(Interval { low, high, low_closed, high_closed })))
}

/// Interprets bracketed values: a single value is itself, two values are an interval unless both brackets are round, and anything else is a
/// tuple.
fn bracketed(mut items: Vec<Expr>, low_closed: bool, high_closed: bool) -> Option<Expr> {
    match (items.pop()?, items.len()) {
        (only, 0) => Some(only),
        (high, 1) if low_closed || high_closed => {
            let low = items.pop()?;
            Some(Expr::Interval(Box::new(Interval { low, high, low_closed, high_closed })))
        }
        (last, _) => {
            items.push(last);
            Some(Expr::Tuple(items))
        }
    }
}

/// Returns the determinant of a matrix. It stays symbolic if the matrix is not square or has more than 5 rows.
pub(super) fn determinant(rows: Vec<Vec<Expr>>) -> Expr {
    let computed = matrix::determinant(&rows);
    computed.unwrap_or_else(|| Expr::apply(Function::Det, vec![Expr::Matrix(rows)]))
}
