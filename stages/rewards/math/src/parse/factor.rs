//! Products without an operator, and suffixes of values: powers, factorials, units, percent signs.

use super::super::expr::{Constant, Expr, Function};
use super::super::number::{Rational, integer};
use super::super::token::Token;
use super::{Parser, number};

/// Joins a number and the number after it, without an operator between them.
fn side_by_side(number: Expr, next: Expr) -> Expr {
    let mut numbers = match number {
        Expr::Adjacent(numbers) => numbers,
        number => vec![number],
    };
    numbers.push(next);
    Expr::Adjacent(numbers)
}

impl Parser {
    /// Parses adjacent factors and their suffixes: a percent sign, a unit, a period at the end.
    ///
    /// Numbers side by side, as in `1 2` and `5 ft 3 in`, are no product.
    pub(super) fn factors(&mut self) -> Option<Expr> {
        let (first, mut bare) = self.factor()?;
        let mut factors = vec![first];
        loop {
            match self.peek() {
                Some(Token::Text(_) | Token::Unit) => self.unit(),
                Some(Token::Char('%')) => {
                    self.at += 1;
                    factors.push(Expr::rational(Rational::new(1.into(), 100.into())));
                }
                Some(Token::Char('.')) if self.at + 1 == self.tokens.len() => self.at += 1,
                _ if self.starts_factor() => {
                    let beside = if bare && self.starts_number() { factors.pop() } else { None };
                    let factor;
                    (factor, bare) = self.factor()?;
                    factors.push(match beside {
                        Some(number) => side_by_side(number, factor),
                        None => factor,
                    });
                    bare |= matches!(factors.last(), Some(Expr::Adjacent(_)));
                }
                _ => return Some(Expr::product(factors)),
            }
        }
    }

    /// Parses a factor. Returns `true` with it if it is a number as written, without a power or another suffix.
    fn factor(&mut self) -> Option<(Expr, bool)> {
        let begin = self.at;
        let factor = self.mixed()?;
        let written = &self.tokens[begin..self.at];
        let bare = matches!(written.first(), Some(Token::Number(_)))
            && matches!(factor, Expr::Number(_))
            && !written.contains(&Token::Char('^'));
        Some((factor, bare))
    }

    /// Returns `true` if a number follows, also within braces.
    fn starts_number(&self) -> bool {
        let mut rest = self.tokens.iter().skip(self.at);
        matches!(rest.find(|token| **token != Token::Char('{')), Some(Token::Number(_)))
    }

    /// Skips a unit, its power, and the operator before a further unit.
    fn unit(&mut self) {
        self.at += 1;
        if self.accept('^') {
            let _ = self.argument();
        }
        let joined = match self.tokens.get(self.at..self.at + 2) {
            Some([Token::Char('/'), Token::Text(_)]) => true,
            Some([operator, unit]) => operator.joins_units() && unit.is_unit(),
            _ => false,
        };
        self.at += usize::from(joined);
    }

    /// Parses a factor. An integer before a proper fraction is a mixed number.
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

    /// Parses `\frac{1}{2}` or `1/2` directly after an integer. Returns `None` and consumes nothing if no fraction between 0 and 1 follows.
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

    /// Parses a value with its powers, factorials and degree signs.
    pub(super) fn postfix(&mut self) -> Option<Expr> {
        let mut base = self.atom()?;
        loop {
            if self.accept('!') {
                self.wrap()?;
                base = Expr::apply(Function::Factorial, vec![base]);
            } else if self.accept('°') {
                base = self.in_degrees(base);
            } else if self.accept('^') {
                self.wrap()?;
                base = self.raised(base)?;
            } else {
                return Some(base);
            }
        }
    }

    /// Converts degrees to radians within the argument of a trigonometric function. Elsewhere, degrees are a unit, which is ignored.
    fn in_degrees(&self, angle: Expr) -> Expr {
        if !self.angle {
            return angle;
        }
        let half_turn = Expr::integer(180);
        Expr::product(vec![angle, Expr::Constant(Constant::Pi).over(half_turn)])
    }

    fn raised(&mut self, base: Expr) -> Option<Expr> {
        if self.degrees() {
            return Some(self.in_degrees(base));
        }
        if let Expr::Symbol(name) = &base
            && let Some(mark) = self.mark()
        {
            return Some(Expr::Symbol(format!("{name}{mark}")));
        }
        if self.transposes(matches!(base, Expr::Matrix(_))) {
            return Some(Expr::apply(Function::Transpose, vec![base]));
        }
        if matches!(base, Expr::Number(_)) && self.ordinal() {
            return Some(base);
        }
        Some(base.power(self.exponent()?))
    }

    /// Consumes the ending of an ordinal number after `^`, such as `{th}` or `{\text{th}}`, which does not change the value. Returns `true`
    /// if there was one.
    fn ordinal(&mut self) -> bool {
        const ENDINGS: [&str; 4] = ["st", "nd", "rd", "th"];
        self.maybe_braced(|parser, braced| match parser.take()? {
            Token::Text(text) => ENDINGS.contains(&text.as_str()).then_some(()),
            Token::Char(first) if braced => {
                let Token::Char(second) = parser.take()? else { return None };
                ENDINGS.iter().find(|ending| ending.chars().eq([first, second])).map(drop)
            }
            _ => None,
        })
        .is_some()
    }

    /// Consumes `*`, `\dagger` or a similar mark after `^`, which is part of a name, and returns the character for it. Returns `None` and
    /// consumes nothing if no mark follows.
    fn mark(&mut self) -> Option<char> {
        self.maybe_braced(|parser, _| {
            if parser.accept('*') || parser.accept_command("ast") || parser.accept_command("star") {
                return Some('*');
            }
            parser.accept_command("dagger").then_some('†')
        })
    }

    /// Consumes `\top` or a similar mark of a transpose after `^`, and returns `true` if there was one. A plain T is a transpose only after
    /// a matrix.
    fn transposes(&mut self, matrix: bool) -> bool {
        self.maybe_braced(|parser, _| {
            let found = (matrix && parser.accept('T'))
                || parser.accept_command("top")
                || parser.accept_command("intercal");
            found.then_some(())
        })
        .is_some()
    }

    /// Consumes `\circ` or a similar degree sign after `^`, and returns `true` if there was one.
    fn degrees(&mut self) -> bool {
        self.maybe_braced(|parser, _| {
            let found = parser.accept_command("circ")
                || parser.accept('°')
                || parser.accept_command("circle");
            found.then_some(())
        })
        .is_some()
    }

    /// Applies a rule to what follows, also within braces, and passes `true` to it if there are braces. Returns `None` and consumes nothing
    /// if the rule does not apply or a brace is not closed.
    fn maybe_braced<T>(&mut self, rule: impl FnOnce(&mut Self, bool) -> Option<T>) -> Option<T> {
        let begin = self.at;
        let braced = self.accept('{');
        let found = rule(self, braced).filter(|_| !braced || self.accept('}'));
        if found.is_none() {
            self.at = begin;
        }
        found
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
