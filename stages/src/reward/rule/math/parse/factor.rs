//! Products without a sign, and what is written after values: powers, factorials, units, percent signs.

use super::super::expr::{Expr, Function};
use super::super::number::{Rational, integer};
use super::super::token::Token;
use super::{Parser, number};

impl Parser {
    /// Factors side by side, and what is written after them: a percent sign, a unit, a full stop at the end.
    pub(super) fn factors(&mut self) -> Option<Expr> {
        let mut factors = vec![self.mixed()?];
        loop {
            match self.peek() {
                Some(Token::Text(_) | Token::Unit) => self.unit(),
                Some(Token::Char('%')) => {
                    self.at += 1;
                    factors.push(Expr::rational(Rational::new(1.into(), 100.into())));
                }
                Some(Token::Char('.')) if self.at + 1 == self.tokens.len() => self.at += 1,
                _ if self.starts_factor() => factors.push(self.mixed()?),
                _ => return Some(Expr::product(factors)),
            }
        }
    }

    /// A unit and its power, and a further one after a slash.
    fn unit(&mut self) {
        self.at += 1;
        if self.accept('^') {
            let _ = self.argument();
        }
        let per = matches!(
            self.tokens.get(self.at..self.at + 2),
            Some([Token::Char('/'), Token::Unit | Token::Text(_)])
        );
        self.at += usize::from(per);
    }

    /// A factor; a whole number before a proper fraction is added to it.
    fn mixed(&mut self) -> Option<Expr> {
        let whole =
            matches!(self.peek(), Some(Token::Number(digits)) if !digits.contains(['.', 'E']));
        let value = self.postfix()?;
        if !whole {
            return Some(value);
        }
        let Some(fraction) = self.proper_fraction() else { return Some(value) };
        Some(Expr::sum(vec![value, fraction]))
    }

    /// `\frac{1}{2}` or `1/2` right after a whole number.
    fn proper_fraction(&mut self) -> Option<Expr> {
        let begin = self.at;
        let read = |parser: &mut Self| match parser.take()? {
            Token::Command(name) if name == "frac" || name == "dfrac" || name == "tfrac" => {
                Some((parser.argument()?, parser.argument()?))
            }
            Token::Number(above) if parser.accept('/') => match parser.take()? {
                Token::Number(below) => Some((number(&above)?, number(&below)?)),
                _ => None,
            },
            _ => None,
        };
        let fraction = read(self).and_then(|(above, below)| {
            let proper = {
                let (above, below) = (above.number()?, below.number()?);
                let whole = above.value.is_integer() && below.value.is_integer();
                let positive = above.value > integer(0);
                whole && positive && above.value < below.value
            };
            proper.then(|| above.over(below))
        });
        if fraction.is_none() {
            self.at = begin;
        }
        fraction
    }

    /// A value with powers, factorials, primes and degrees after it.
    pub(super) fn postfix(&mut self) -> Option<Expr> {
        let mut base = self.atom()?;
        loop {
            if self.accept('!') {
                base = Expr::apply(Function::Factorial, vec![base]);
            } else if self.accept('°') {
                // Degrees are what angles are counted in.
            } else if self.accept('^') {
                base = self.raised(base)?;
            } else {
                return Some(base);
            }
        }
    }

    fn raised(&mut self, base: Expr) -> Option<Expr> {
        if self.degrees() {
            return Some(base);
        }
        if let Expr::Symbol(name) = &base
            && let Some(mark) = self.mark()
        {
            return Some(Expr::Symbol(format!("{name}{mark}")));
        }
        if self.transposes(matches!(base, Expr::Matrix(_))) {
            return Some(Expr::apply(Function::Transpose, vec![base]));
        }
        Some(base.power(self.exponent()?))
    }

    /// `^*` and its like, which make another name of a name.
    fn mark(&mut self) -> Option<char> {
        let begin = self.at;
        let braced = self.accept('{');
        let star = self.accept('*') || self.accept_command("ast") || self.accept_command("star");
        let found = match star {
            true => Some('*'),
            false => self.accept_command("dagger").then_some('†'),
        };
        if found.is_some() && (!braced || self.accept('}')) {
            return found;
        }
        self.at = begin;
        None
    }

    /// `^\top` and its like; a plain T only after a matrix.
    fn transposes(&mut self, matrix: bool) -> bool {
        let begin = self.at;
        let braced = self.accept('{');
        let found = (matrix && self.accept('T'))
            || self.accept_command("top")
            || self.accept_command("intercal");
        if found && (!braced || self.accept('}')) {
            return true;
        }
        self.at = begin;
        false
    }

    /// `^\circ` and its like.
    fn degrees(&mut self) -> bool {
        let begin = self.at;
        let braced = self.accept('{');
        let found =
            self.accept_command("circ") || self.accept('°') || self.accept_command("circle");
        if found && (!braced || self.accept('}')) {
            return true;
        }
        self.at = begin;
        false
    }

    pub(super) fn exponent(&mut self) -> Option<Expr> {
        self.nested(|parser| {
            if parser.accept('-') {
                return parser.exponent().map(Expr::negate);
            }
            if parser.accept('+') {
                return parser.exponent();
            }
            if parser.is('{') {
                return parser.argument();
            }
            let base = parser.atom()?;
            if parser.accept('^') { Some(base.power(parser.exponent()?)) } else { Some(base) }
        })
    }
}
