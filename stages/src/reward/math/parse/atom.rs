//! Values: numbers, variables, constants, functions.

use super::super::expr::{Constant, Expr, Function};
use super::super::token::Token;
use super::{Parser, number};

impl Parser {
    /// Whether a factor can begin here, so that what comes before it is multiplied by it.
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

    /// A number, in a base if it has a subscript.
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

    /// A variable with its subscript and primes; a function of that name if arguments follow one that is usually one.
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

    /// The tokens of a subscript as one word.
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
        self.bars += 1;
        let inner = self.sum();
        self.bars -= 1;
        let closed = if close == "|" && self.is('|') {
            self.accept('|')
        } else {
            self.accept_command(close)
        };
        closed.then(|| inner.map(|inner| Expr::apply(Function::Abs, vec![inner])))?
    }

    fn rounded(&mut self, close: &str, function: Function) -> Option<Expr> {
        let bars = std::mem::take(&mut self.bars);
        let inner = self.sum()?;
        self.bars = bars;
        self.accept_command(close).then(|| Expr::apply(function, vec![inner]))
    }

    /// A function, its power and its argument.
    fn applied(&mut self, function: Function) -> Option<Expr> {
        let mut power = None;
        let mut base = None;
        for _ in 0..2 {
            if self.accept('^') {
                power = Some(self.exponent()?);
            } else if self.accept('_') {
                base = Some(self.argument()?);
            }
        }
        let arguments = self.function_arguments()?;
        let inverse = power.as_ref().is_some_and(|power| *power == Expr::integer(-1));
        if inverse && let Some(inverse) = inverse_of(&function) {
            return Some(Expr::apply(inverse, arguments));
        }
        let applied = apply(function, base, arguments)?;
        Some(match power {
            Some(power) => applied.power(power),
            None => applied,
        })
    }

    /// What is in parentheses, or the product that follows.
    fn function_arguments(&mut self) -> Option<Vec<Expr>> {
        if self.accept('(') {
            return self.arguments(')');
        }
        if self.is('{') {
            return Some(vec![self.argument()?]);
        }
        let negative = self.accept('-');
        let mut factors = vec![self.postfix()?];
        while self.starts_factor() && !self.starts_function() {
            factors.push(self.postfix()?);
        }
        let product = Expr::product(factors);
        Some(vec![if negative { product.negate() } else { product }])
    }

    fn starts_function(&self) -> bool {
        matches!(self.peek(), Some(Token::Command(name)) if function(name).is_some())
    }

    /// A sum, a limit, an integral: compared by its parts, never computed.
    fn operator(&mut self, name: &str) -> Option<Expr> {
        let mut parts = Vec::new();
        for _ in 0..2 {
            if self.accept('^') {
                parts
                    .push(Expr::apply(Function::Named("upper".to_owned()), vec![self.exponent()?]));
            } else if self.accept('_') {
                parts.push(Expr::apply(Function::Named("lower".to_owned()), vec![self.bound()?]));
            }
        }
        parts.push(self.product()?);
        Some(Expr::apply(Function::Named(name.to_owned()), parts))
    }

    /// What stands under an operator, `k = 1` or `x \to 0`: both sides as a product of their own.
    fn bound(&mut self) -> Option<Expr> {
        if !self.accept('{') {
            return self.atom();
        }
        let left = self.sum()?;
        let arrow =
            self.accept_command("to") || self.accept_command("rightarrow") || self.accept('=');
        let right = if arrow { self.sum()? } else { Expr::integer(0) };
        self.accept('}')
            .then(|| Expr::apply(Function::Named("bound".to_owned()), vec![left, right]))
    }
}

fn apply(function: Function, base: Option<Expr>, arguments: Vec<Expr>) -> Option<Expr> {
    let several = matches!(function, Function::Max | Function::Min | Function::Gcd | Function::Lcm);
    if !several && arguments.len() != 1 {
        return None;
    }
    Some(match (&function, base) {
        (Function::Log, Some(base)) => {
            Expr::apply(Function::Ln, arguments).over(Expr::apply(Function::Ln, vec![base]))
        }
        (Function::Named(name), None) if name == "exp" => {
            Expr::Constant(Constant::E).power(arguments.into_iter().next()?)
        }
        (Function::Named(name), None) if name == "lg" => Expr::apply(Function::Ln, arguments)
            .over(Expr::apply(Function::Ln, vec![Expr::integer(10)])),
        _ => Expr::apply(function, arguments),
    })
}

fn function(name: &str) -> Option<Function> {
    Some(match name {
        "sin" => Function::Sin,
        "cos" => Function::Cos,
        "tan" | "tg" => Function::Tan,
        "cot" | "ctg" => Function::Cot,
        "sec" => Function::Sec,
        "csc" | "cosec" => Function::Csc,
        "arcsin" | "asin" => Function::Asin,
        "arccos" | "acos" => Function::Acos,
        "arctan" | "atan" | "arctg" => Function::Atan,
        "arccot" => Function::Acot,
        "sinh" => Function::Sinh,
        "cosh" => Function::Cosh,
        "tanh" => Function::Tanh,
        "ln" => Function::Ln,
        "log" => Function::Log,
        "exp" | "lg" | "Re" | "Im" | "arg" | "deg" | "dim" | "ker" | "tr" | "rank" => {
            Function::Named(name.to_owned())
        }
        "gcd" => Function::Gcd,
        "lcm" => Function::Lcm,
        "max" => Function::Max,
        "min" => Function::Min,
        "floor" => Function::Floor,
        "ceil" => Function::Ceil,
        "det" => Function::Det,
        _ => return None,
    })
}

fn inverse_of(function: &Function) -> Option<Function> {
    Some(match function {
        Function::Sin => Function::Asin,
        Function::Cos => Function::Acos,
        Function::Tan => Function::Atan,
        Function::Cot => Function::Acot,
        _ => return None,
    })
}

/// Commands that can begin a factor.
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

/// Greek letters and other commands that stand for variables.
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
