//! From tokens to a tree.
//!
//! The grammar of answers: `list := relation (',' relation)*`, `relation := join (op join)*`, `join := sum (∪ sum)*`,
//! `sum := product (± product)*`, `product := unary (* unary)*`, `unary := -? factor+`. A product without a sign binds tighter than a
//! division. Text after a value is its unit and left out.

mod atom;
mod environment;
mod group;

use super::expr::{Comparison, Expr, Function, Relation, SetOperation};
use super::token::{self, Token};

/// How deep an answer may nest, and how many tokens it may have: what bounds the stack and the work.
const MAX_DEPTH: usize = 48;
const MAX_TOKENS: usize = 3000;

/// Reads an answer; `None` if it is none.
pub(super) fn parse(text: &str, thousands: bool) -> Option<Expr> {
    if let Some(words) = prose(text) {
        return Some(Expr::Symbol(words));
    }
    let tokens = token::tokens(text, thousands)?;
    if tokens.is_empty() || tokens.len() > MAX_TOKENS {
        return None;
    }
    let mut parser = Parser { tokens, at: 0, depth: 0, bars: 0, colon_divides: true };
    let expr = parser.list()?;
    (parser.at == parser.tokens.len()).then(|| expand(expr))
}

/// The words of an answer that is made of words alone, at least two of them.
fn prose(text: &str) -> Option<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let word = |word: &&str| {
        let letters = word.trim_end_matches([',', '.', ';', '!']);
        !letters.is_empty() && letters.chars().all(|c| c.is_alphabetic() || "'-’".contains(c))
    };
    let long =
        words.iter().filter(|word| word.chars().count() > 2 && !is_conjunction(word)).count();
    let named = text.chars().all(|c| c.is_alphabetic());
    let all = words.len() > 1 && long > 0 && words.iter().all(word) && !named;
    all.then(|| words.join(" ").trim_end_matches('.').to_owned())
}

fn is_conjunction(word: &str) -> bool {
    ["and", "or", "and,", "or,"].contains(&word)
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    /// How many absolute values are open: the next bar closes the innermost.
    bars: usize,
    /// Whether a colon divides, or says `such that`.
    colon_divides: bool,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn take(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    fn is(&self, character: char) -> bool {
        self.peek() == Some(&Token::Char(character))
    }

    fn is_command(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Command(found)) if found == name)
    }

    fn accept(&mut self, character: char) -> bool {
        let found = self.is(character);
        self.at += usize::from(found);
        found
    }

    fn accept_command(&mut self, name: &str) -> bool {
        let found = self.is_command(name);
        self.at += usize::from(found);
        found
    }

    /// Runs a rule one level deeper.
    fn nested<T>(&mut self, rule: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth >= MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let found = rule(self);
        self.depth -= 1;
        found
    }

    /// Answers separated by semicolons; several values between two of these belong together.
    fn list(&mut self) -> Option<Expr> {
        let mut groups = vec![self.items()?];
        while self.accept(';') {
            if self.peek().is_some() {
                groups.push(self.items()?);
            }
        }
        if groups.len() == 1 {
            return groups.pop().map(joined);
        }
        let together = |mut items: Vec<Expr>| match items.pop() {
            Some(only) if items.is_empty() => only,
            Some(last) => {
                items.push(last);
                Expr::Tuple(items)
            }
            None => Expr::Tuple(items),
        };
        Some(Expr::List(groups.into_iter().map(together).collect()))
    }

    /// Relations separated by commas.
    fn items(&mut self) -> Option<Vec<Expr>> {
        while self.accept(',') {}
        let mut items = vec![self.relation()?];
        loop {
            let before = self.at;
            while self.accept(',') || self.skip_words() || self.accept('.') {}
            if self.ends() || self.is(';') {
                return Some(items);
            }
            if before == self.at {
                return Some(items);
            }
            items.push(self.relation()?);
        }
    }

    /// Steps over commands that say that what follows is a consequence or a comment.
    fn skip_words(&mut self) -> bool {
        let between = self.accept_command("ldots") || self.accept_command("dots");
        between || self.accept_command("cdots")
    }

    /// Whether nothing more can follow in a list.
    fn ends(&self) -> bool {
        match self.peek() {
            None => true,
            Some(Token::Char(character)) => matches!(character, ')' | ']' | '}' | '|'),
            Some(Token::Command(name)) => {
                matches!(name.as_str(), "}" | "rangle" | "rbrace" | "mid" | "\\")
                    || name.starts_with("end:")
            }
            Some(_) => false,
        }
    }

    fn comparison(&mut self) -> Option<Comparison> {
        let found = match self.peek()? {
            Token::Char('=' | '≡') => Comparison::Equal,
            Token::Char('<') => Comparison::Less,
            Token::Char('>') => Comparison::Greater,
            Token::Command(name) => match name.as_str() {
                "lt" => Comparison::Less,
                "gt" => Comparison::Greater,
                "le" | "leq" | "leqslant" | "leqq" => Comparison::LessEqual,
                "ge" | "geq" | "geqslant" | "geqq" => Comparison::GreaterEqual,
                "ne" | "neq" => Comparison::Unequal,
                "approx" | "simeq" | "sim" => Comparison::Approximate,
                "equiv" => Comparison::Equal,
                _ => return None,
            },
            _ => return None,
        };
        self.at += 1;
        Some(found)
    }

    fn relation(&mut self) -> Option<Expr> {
        self.nested(|parser| {
            let first = parser.join()?;
            if parser.accept_command("in") || parser.accept_command("to") {
                return parser.join();
            }
            let mut rest = Vec::new();
            while let Some(comparison) = parser.comparison() {
                rest.push((comparison, parser.join()?));
                parser.modulus();
            }
            parser.modulus();
            if rest.is_empty() {
                return Some(first);
            }
            Some(exact(first, rest))
        })
    }

    /// `(mod n)` after a value says in which ring it is meant, and is left out.
    fn modulus(&mut self) {
        if self.accept_command("pmod") {
            let _ = self.argument();
        }
    }

    fn join(&mut self) -> Option<Expr> {
        let mut left = self.sum()?;
        loop {
            let operation = match self.peek() {
                Some(Token::Command(name)) => match name.as_str() {
                    "cup" | "bigcup" => SetOperation::Union,
                    "cap" | "bigcap" => SetOperation::Intersection,
                    "setminus" | "backslash" => SetOperation::Difference,
                    _ => return Some(left),
                },
                _ => return Some(left),
            };
            self.at += 1;
            let right = self.sum()?;
            left = Expr::Join(operation, vec![left, right]);
        }
    }

    fn sum(&mut self) -> Option<Expr> {
        self.nested(|parser| {
            let mut terms = vec![parser.product()?];
            loop {
                let next = if parser.accept('+') {
                    parser.product()?
                } else if parser.accept('-') {
                    parser.product()?.negate()
                } else if parser.accept_command("pm") {
                    Expr::product(vec![Expr::Sign(true), parser.product()?])
                } else if parser.accept_command("mp") {
                    Expr::product(vec![Expr::Sign(false), parser.product()?])
                } else {
                    return Some(Expr::sum(terms));
                };
                terms.push(next);
            }
        })
    }

    fn product(&mut self) -> Option<Expr> {
        let mut left = self.unary()?;
        loop {
            if self.accept('*') || self.accept_command("cdot") || self.accept_command("times") {
                left = Expr::product(vec![left, self.unary()?]);
            } else if self.accept('/')
                || (self.colon_divides && self.accept(':'))
                || self.accept_command("div")
                || self.accept_command("over")
            {
                left = left.over(self.unary()?);
            } else if self.accept_command("mod") || self.accept_command("bmod") {
                left = Expr::apply(Function::Mod, vec![left, self.unary()?]);
            } else if self.accept_command("choose") {
                left = Expr::apply(Function::Binomial, vec![left, self.unary()?]);
            } else {
                return Some(left);
            }
        }
    }

    fn unary(&mut self) -> Option<Expr> {
        self.nested(|parser| {
            if parser.accept('-') {
                return parser.unary().map(Expr::negate);
            }
            if parser.accept('+') {
                return parser.unary();
            }
            for (name, sign) in [("pm", true), ("mp", false)] {
                if parser.accept_command(name) {
                    return Some(Expr::product(vec![Expr::Sign(sign), parser.unary()?]));
                }
            }
            parser.factors()
        })
    }

    /// Factors side by side, and what is written after them: a percent sign, a unit, a full stop at the end.
    fn factors(&mut self) -> Option<Expr> {
        let mut factors = vec![self.mixed()?];
        loop {
            match self.peek() {
                Some(Token::Text(_) | Token::Unit) => self.unit(),
                Some(Token::Char('%')) => {
                    self.at += 1;
                    factors
                        .push(Expr::rational(super::number::Rational::new(1.into(), 100.into())));
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
                let positive = above.value > super::number::integer(0);
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
    fn postfix(&mut self) -> Option<Expr> {
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
        if self.transposes(matches!(base, Expr::Matrix(_))) {
            return Some(Expr::apply(Function::Transpose, vec![base]));
        }
        Some(base.power(self.exponent()?))
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

    fn exponent(&mut self) -> Option<Expr> {
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

/// The value of a number token as a leaf.
fn number(digits: &str) -> Option<Expr> {
    let value = token::value(digits)?;
    Some(Expr::Number(super::expr::Number { value, decimal: digits.contains(['.', 'E']) }))
}

/// One item is itself; `x = 1, 2` is x with two values; everything else is a list.
fn joined(mut items: Vec<Expr>) -> Expr {
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

/// A relation without the values that merely approximate the one before them.
fn exact(first: Expr, mut rest: Vec<(Comparison, Expr)>) -> Expr {
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

/// Both values of what has a double sign; lists within lists become one.
fn expand(expr: Expr) -> Expr {
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
