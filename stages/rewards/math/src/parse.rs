//! The parser of answers: from tokens to a syntax tree.
//!
//! The grammar is `list := relation (',' relation)*`, `relation := join (op join)*`, `join := sum (∪ sum)*`, `sum := ratio (± ratio)*`,
//! `ratio := product (: product)*`, `product := unary (* unary)*`, `unary := -? factor+`. A product without an operator binds more
//! tightly than a division. Text after a value is its unit and is ignored.

mod atom;
mod environment;
mod factor;
mod finish;
mod function;
mod group;
mod operator;

use super::expr::{Comparison, Conjunction, Expr, Function, SetOperation};
use super::token::{self, AND, OR, Token};

use finish::{conditions, exact, expand, joined};

/// The maximum nesting depth of an answer, which bounds the stack.
const MAX_DEPTH: usize = 48;
/// The maximum number of tokens of an answer, which bounds the work.
const MAX_TOKENS: usize = 3000;
/// The maximum number of suffixes and operators that put the value before them one level deeper, such as `!` and `\cup`.
const MAX_WRAPS: usize = 200;

/// The name of the variable that replaces the missing left side of a comparison such as `\geq 5`.
pub(super) const UNNAMED: &str = "";

/// Parses an answer. A text that consists only of two or more words becomes a symbol. Returns `None` if the text is not an answer or
/// exceeds a limit on size or depth. `1,234` is one number if `thousands` is `true`, and two numbers otherwise.
pub(super) fn parse(text: &str, thousands: bool) -> Option<Expr> {
    if let Some(words) = prose(text) {
        return Some(Expr::Symbol(words));
    }
    let tokens = token::tokens(text, thousands)?;
    if tokens.is_empty() || tokens.len() > MAX_TOKENS {
        return None;
    }
    let mut parser = Parser {
        tokens,
        at: 0,
        depth: 0,
        bars: 0,
        wraps: 0,
        angle: false,
        colon_divides: true,
        integrand: false,
    };
    let expr = parser.list()?;
    (parser.at == parser.tokens.len()).then(|| expand(expr))
}

/// Returns the text of an answer that consists only of two or more words. Returns `None` for any other text, and if no word other than
/// `and` and `or` has more than two letters.
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
    /// The number of values that were put one level deeper.
    wraps: usize,
    /// The number of open absolute values within the innermost bracket, or 1 in `\{...\}`, where a bar means "such that". If it is not 0, a
    /// bar after a value does not begin a factor.
    bars: usize,
    /// `true` within the argument of a trigonometric function, where a degree sign means a factor of π / 180. Elsewhere degrees are a unit.
    angle: bool,
    /// `true` if a colon is a division, `false` if it means "such that".
    colon_divides: bool,
    /// `true` within an integral, where `dx` ends the argument of a function.
    integrand: bool,
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

    /// Applies a rule one level deeper. Returns `None` beyond [`MAX_DEPTH`].
    fn nested<T>(&mut self, rule: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth >= MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let found = rule(self);
        self.depth -= 1;
        found
    }

    /// Counts a value that is put one level deeper. Returns `None` if there are too many.
    fn wrap(&mut self) -> Option<()> {
        self.wraps += 1;
        (self.wraps <= MAX_WRAPS).then_some(())
    }

    /// Applies a rule one level deeper, with the given value of `bars`. The outer value is restored even if the rule fails.
    fn bracketed<T>(
        &mut self,
        bars: usize,
        rule: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<T> {
        let outer = std::mem::replace(&mut self.bars, bars);
        let found = self.nested(rule);
        self.bars = outer;
        found
    }

    /// Parses answers separated by semicolons. If there are semicolons, several values between two of them become a tuple.
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

    /// Parses the contents of brackets: relations separated by commas or semicolons, without distinction.
    fn bracket_items(&mut self) -> Option<Vec<Expr>> {
        let mut items = self.items()?;
        while self.accept(';') {
            if !self.ends() {
                items.extend(self.items()?);
            }
        }
        Some(items)
    }

    /// Parses relations separated by commas, `and` or `or`. Repeated commas, ellipses and periods between the relations are skipped. The
    /// set of a variable in parentheses needs no comma. Inequalities with `and`, or with `or`, become one item.
    fn items(&mut self) -> Option<Vec<Expr>> {
        let (mut and, mut or) = (false, false);
        while self.accept(',') || self.accept(AND) || self.accept(OR) {}
        let mut items = vec![self.relation()?];
        loop {
            let before = self.at;
            loop {
                if self.accept(AND) {
                    and = true;
                } else if self.accept(OR) {
                    or = true;
                } else if !(self.accept(',') || self.skip_words() || self.accept('.')) {
                    break;
                }
            }
            let is_last = before == self.at && !self.starts_membership();
            if self.ends() || self.is(';') || is_last {
                return Some(match (and, or) {
                    (true, false) => conditions(Conjunction::And, items),
                    (false, true) => conditions(Conjunction::Or, items),
                    _ => items,
                });
            }
            items.push(self.relation()?);
        }
    }

    /// Skips an ellipsis. Returns `true` if there was one.
    fn skip_words(&mut self) -> bool {
        let between = self.accept_command("ldots") || self.accept_command("dots");
        between || self.accept_command("cdots")
    }

    /// Returns `true` if nothing more can follow in a list.
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
            let omitted = parser.at;
            let first = match parser.comparison() {
                Some(Comparison::Equal | Comparison::Approximate) => parser.join()?,
                // A comparison without its left side, such as `\geq 5`, is about an unnamed variable.
                Some(_) => {
                    parser.at = omitted;
                    Expr::Symbol(UNNAMED.to_owned())
                }
                None => parser.join()?,
            };
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

    /// Skips `\pmod{n}` after a value. The modulus does not change the value.
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
            self.wrap()?;
            let right = self.sum()?;
            left = Expr::Join(operation, vec![left, right]);
        }
    }

    fn sum(&mut self) -> Option<Expr> {
        self.nested(|parser| {
            let mut terms = vec![parser.ratio()?];
            loop {
                let next = if parser.accept('+') {
                    parser.ratio()?
                } else if parser.accept('-') {
                    parser.ratio()?.negate()
                } else if parser.accept_command("pm") {
                    Expr::product(vec![Expr::Sign(true), parser.ratio()?])
                } else if parser.accept_command("mp") {
                    Expr::product(vec![Expr::Sign(false), parser.ratio()?])
                } else {
                    return Some(Expr::sum(terms));
                };
                terms.push(next);
            }
        })
    }

    /// Parses products separated by colons. The ratio of two values is their quotient.
    fn ratio(&mut self) -> Option<Expr> {
        let first = self.product()?;
        let mut quotients = Vec::new();
        while self.colon_divides && self.accept(':') {
            let next = self.product()?;
            quotients.push((first.clone(), next));
        }
        Some(match quotients.len() {
            0 => first,
            1 => quotients.pop().map(|(first, next)| first.over(next))?,
            _ => {
                let quotients = quotients.into_iter().map(|(first, next)| next.over(first));
                Expr::Ratio(quotients.collect())
            }
        })
    }

    fn product(&mut self) -> Option<Expr> {
        let mut left = self.unary()?;
        loop {
            if self.accept('*') || self.accept_command("cdot") || self.accept_command("times") {
                left = Expr::product(vec![left, self.unary()?]);
            } else if self.accept('/') || self.accept_command("div") || self.accept_command("over")
            {
                left = left.over(self.unary()?);
            } else if self.accept_command("mod") || self.accept_command("bmod") {
                self.wrap()?;
                left = Expr::apply(Function::Mod, vec![left, self.unary()?]);
            } else if self.accept_command("choose") {
                self.wrap()?;
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
}

/// Converts the digits of a number token to a number. Returns `None` if the value exceeds the limits of exact numbers.
fn number(digits: &str) -> Option<Expr> {
    let value = token::value(digits)?;
    Some(Expr::Number(super::expr::Number { value, decimal: digits.contains(['.', 'E']) }))
}
