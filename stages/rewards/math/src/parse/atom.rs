//! Values: numbers, variables, constants, functions.

use super::super::expr::{Constant, Expr, Function};
use super::super::token::Token;
use super::function::function;
use super::operator::is_operator;
use super::{Parser, number};

impl Parser {
    /// Returns `true` if a factor can begin here, which multiplies the preceding value.
    pub(super) fn starts_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Number(_)) => true,
            Some(Token::Char(character)) => match character {
                '[' => !self.closes_interval(),
                '(' => !self.starts_membership(),
                '{' => true,
                '|' => self.bars == 0,
                other => other.is_alphabetic(),
            },
            Some(Token::Command(name)) => match construct(name) {
                // The same command may also close an absolute value.
                Some(Construct::Bars(close)) if close == name => self.bars == 0,
                Some(_) => true,
                None => {
                    function(name).is_some()
                        || is_symbol(name)
                        || name.starts_with("mathbb:")
                        || name.starts_with("begin:")
                }
            },
            _ => false,
        }
    }

    /// Returns `true` if the set of a variable follows in parentheses, as in `k\pi \ (k \in \mathbb{Z})`. It is an item of its own.
    pub(super) fn starts_membership(&self) -> bool {
        let rest = self.tokens.get(self.at..).unwrap_or_default();
        matches!(rest, [Token::Char('('), Token::Char(name), Token::Command(is_in), ..]
            if name.is_alphabetic() && is_in == "in")
    }

    pub(super) fn atom(&mut self) -> Option<Expr> {
        self.nested(|parser| match parser.take()? {
            Token::Number(digits) => parser.numeral(&digits),
            Token::Char(character) => parser.character(character),
            Token::Command(name) => parser.command(&name),
            Token::Text(words) => Some(Expr::Symbol(words)),
            Token::Unit => None,
        })
    }

    /// Parses a number. If the subscript is an integer from 0 to 36, it is the base of the number.
    fn numeral(&mut self, digits: &str) -> Option<Expr> {
        let begin = self.at;
        if self.accept('_')
            && let Some(base) = self.argument()
            && let Some(base) =
                base.number().and_then(|base| super::super::number::whole(&base.value, 36))
            && let Ok(base) = u32::try_from(base)
        {
            return Some(Expr::Based(digits.to_owned(), base));
        }
        self.at = begin;
        number(digits)
    }

    fn character(&mut self, character: char) -> Option<Expr> {
        match character {
            '(' | '[' | '{' | ']' => self.group(character),
            '|' => self.absolute("|"),
            'e' if !self.is('_') => Some(Expr::Constant(Constant::E)),
            'i' if !self.is('_') => Some(Expr::Constant(Constant::I)),
            letter if letter.is_alphabetic() => self.symbol(letter.to_string()),
            _ => None,
        }
    }

    /// Parses a variable with its subscript and primes. A name of at most three bytes that begins with `f`, `g` or `h`, in either case, is
    /// a function if a parenthesis follows.
    fn symbol(&mut self, mut name: String) -> Option<Expr> {
        if self.accept('_') {
            name = format!("{name}_{}", self.subscript()?);
        }
        while self.accept('\'') || self.accept_command("prime") {
            name.push('\'');
        }
        let function = name.starts_with(['f', 'g', 'h', 'F', 'G', 'H']) && name.len() <= 3;
        if !(function && self.is('(')) {
            return Some(Expr::Symbol(name));
        }
        self.at += 1;
        let arguments = self.arguments(')')?;
        Some(Expr::apply(Function::Named(name), arguments))
    }

    /// Parses a subscript after `_` and returns its tokens as one word. Returns `None` if there is no token or a brace is not closed.
    fn subscript(&mut self) -> Option<String> {
        if !self.accept('{') {
            return self.take().map(|token| spelled(&token));
        }
        let (mut name, mut depth) = (String::new(), 1_usize);
        loop {
            let token = self.take()?;
            match token {
                Token::Char('{') => depth += 1,
                Token::Char('}') => depth -= 1,
                ref other => name.push_str(&spelled(other)),
            }
            if depth == 0 {
                return Some(name);
            }
        }
    }

    fn command(&mut self, name: &str) -> Option<Expr> {
        if let Some(domain) = name.strip_prefix("mathbb:") {
            return domain.chars().next().map(Expr::Domain);
        }
        if let Some(environment) = name.strip_prefix("begin:") {
            return self.environment(environment);
        }
        match construct(name) {
            Some(Construct::Fraction) => Some(self.argument()?.over(self.argument()?)),
            Some(Construct::Binomial) => {
                Some(Expr::apply(Function::Binomial, vec![self.argument()?, self.argument()?]))
            }
            Some(Construct::Root) => self.root(),
            Some(Construct::Constant(constant)) => Some(Expr::Constant(constant)),
            Some(Construct::EmptySet) => Some(Expr::Set(Vec::new())),
            Some(Construct::Decoration) => self.argument(),
            Some(Construct::Braces) => self.braces(),
            Some(Construct::Bars(close)) => self.absolute(close),
            Some(Construct::Floor) => self.rounded("rfloor", Function::Floor),
            Some(Construct::Ceil) => self.rounded("rceil", Function::Ceil),
            Some(Construct::Angles) => self.angles(),
            Some(Construct::Operator) => self.operator(name),
            None => match function(name) {
                Some(function) => self.applied(function),
                None if is_symbol(name) => self.symbol(format!("\\{name}")),
                None => None,
            },
        }
    }

    fn root(&mut self) -> Option<Expr> {
        let degree = if self.accept('[') {
            let degree = self.sum()?;
            self.accept(']').then_some(degree)?
        } else {
            Expr::integer(2)
        };
        Some(self.argument()?.root(degree))
    }

    fn absolute(&mut self, close: &str) -> Option<Expr> {
        let inner = self.bracketed(self.bars + 1, Self::sum)?;
        let closed = if close == "|" && self.is('|') {
            self.accept('|')
        } else {
            self.accept_command(close)
        };
        closed.then(|| Expr::apply(Function::Abs, vec![inner]))
    }

    fn rounded(&mut self, close: &str, function: Function) -> Option<Expr> {
        let inner = self.bracketed(0, Self::sum)?;
        self.accept_command(close).then(|| Expr::apply(function, vec![inner]))
    }
}

/// The syntax of a value that begins with a command.
#[derive(Clone, Copy)]
enum Construct {
    Fraction,
    Binomial,
    Root,
    Constant(Constant),
    EmptySet,
    /// A mark of its argument that does not change the value.
    Decoration,
    Braces,
    /// An absolute value, up to the command of this name.
    Bars(&'static str),
    Floor,
    Ceil,
    Angles,
    /// A limit, sum, product or integral.
    Operator,
}

/// Returns the syntax of the value that a command begins. Returns `None` for functions, variables, environments, sets of numbers, and
/// commands that begin no value.
fn construct(name: &str) -> Option<Construct> {
    Some(match name {
        "frac" | "dfrac" | "tfrac" => Construct::Fraction,
        "binom" | "dbinom" | "tbinom" => Construct::Binomial,
        "sqrt" => Construct::Root,
        "pi" => Construct::Constant(Constant::Pi),
        "infty" => Construct::Constant(Constant::Infinity),
        "imath" => Construct::Constant(Constant::I),
        "exponentialE" => Construct::Constant(Constant::E),
        "emptyset" | "varnothing" => Construct::EmptySet,
        "boxed" | "fbox" | "overline" | "bar" | "vec" | "hat" | "tilde" | "underline"
        | "widehat" | "overrightarrow" | "mathop" => Construct::Decoration,
        "lbrace" | "{" => Construct::Braces,
        "|" => Construct::Bars("|"),
        "lVert" => Construct::Bars("rVert"),
        "Vert" => Construct::Bars("Vert"),
        "lvert" => Construct::Bars("rvert"),
        "vert" => Construct::Bars("vert"),
        "lfloor" => Construct::Floor,
        "lceil" => Construct::Ceil,
        "langle" => Construct::Angles,
        _ if is_operator(name) => Construct::Operator,
        _ => return None,
    })
}

/// Returns `true` for commands that are names of variables, such as Greek letters except `\pi`.
pub(super) fn is_symbol(name: &str) -> bool {
    const NAMES: [&str; 50] = [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "varepsilon",
        "zeta",
        "eta",
        "theta",
        "vartheta",
        "iota",
        "kappa",
        "lambda",
        "mu",
        "nu",
        "xi",
        "rho",
        "varrho",
        "sigma",
        "varsigma",
        "tau",
        "upsilon",
        "phi",
        "varphi",
        "chi",
        "psi",
        "omega",
        "Gamma",
        "Delta",
        "Theta",
        "Lambda",
        "Xi",
        "Pi",
        "Sigma",
        "Upsilon",
        "Phi",
        "Psi",
        "Omega",
        "ell",
        "hbar",
        "partial",
        "nabla",
        "angle",
        "triangle",
        "square",
        "star",
        "bigstar",
        "aleph",
        "wp",
        "jmath",
    ];
    NAMES.contains(&name)
}

fn spelled(token: &Token) -> String {
    match token {
        Token::Number(text) | Token::Text(text) => text.clone(),
        Token::Command(name) => format!("\\{name}"),
        Token::Char(character) => character.to_string(),
        Token::Unit => String::new(),
    }
}
