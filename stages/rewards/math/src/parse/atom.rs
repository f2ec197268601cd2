//! Values: numbers, variables, constants, functions.

use super::super::expr::{Constant, Expr, Function};
use super::super::token::Token;
use super::function::function;
use super::{Parser, number};

impl Parser {
    /// Returns `true` if a factor can begin here, which multiplies the preceding value.
    pub(super) fn starts_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Number(_)) => true,
            Some(Token::Char(character)) => match character {
                '(' | '[' | '{' => true,
                '|' => self.bars == 0,
                other => other.is_alphabetic(),
            },
            Some(Token::Command(name)) => starts(name),
            _ => false,
        }
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
            '(' | '[' | '{' => self.group(character),
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
        match name {
            "frac" | "dfrac" | "tfrac" => Some(self.argument()?.over(self.argument()?)),
            "binom" | "dbinom" | "tbinom" => {
                Some(Expr::apply(Function::Binomial, vec![self.argument()?, self.argument()?]))
            }
            "sqrt" => self.root(),
            "pi" => Some(Expr::Constant(Constant::Pi)),
            "infty" => Some(Expr::Constant(Constant::Infinity)),
            "imath" => Some(Expr::Constant(Constant::I)),
            "exponentialE" => Some(Expr::Constant(Constant::E)),
            "emptyset" | "varnothing" => Some(Expr::Set(Vec::new())),
            "boxed" | "fbox" | "overline" | "bar" | "vec" | "hat" | "tilde" | "underline"
            | "widehat" | "overrightarrow" | "mathop" | "color" => self.argument(),
            "lbrace" | "{" => self.braces(),
            "|" | "lVert" | "Vert" => self.absolute(if name == "lVert" { "rVert" } else { name }),
            "lvert" | "vert" => self.absolute(if name == "lvert" { "rvert" } else { name }),
            "lfloor" => self.rounded("rfloor", Function::Floor),
            "lceil" => self.rounded("rceil", Function::Ceil),
            "langle" => self.angles(),
            "lim" | "sum" | "int" | "prod" | "iint" | "oint" => self.operator(name),
            _ => match function(name) {
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

/// Returns `true` if the command can begin a factor.
fn starts(name: &str) -> bool {
    function(name).is_some()
        || is_symbol(name)
        || name.starts_with("mathbb:")
        || name.starts_with("begin:")
        || matches!(
            name,
            "frac"
                | "dfrac"
                | "tfrac"
                | "binom"
                | "dbinom"
                | "tbinom"
                | "sqrt"
                | "pi"
                | "infty"
                | "boxed"
                | "overline"
                | "bar"
                | "vec"
                | "hat"
                | "lbrace"
                | "{"
                | "lvert"
                | "lfloor"
                | "lceil"
                | "langle"
                | "emptyset"
                | "varnothing"
                | "sum"
                | "int"
                | "prod"
                | "lim"
                | "imath"
                | "mathop"
        )
}

/// Returns `true` for Greek letters and other commands that are names of variables.
fn is_symbol(name: &str) -> bool {
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
