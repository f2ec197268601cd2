//! Functions and operators, and their arguments.

use super::super::expr::{Constant, Expr, Function};
use super::super::token::Token;
use super::Parser;

impl Parser {
    /// Parses the power, base and arguments of a function. The power -1 means the inverse function for `sin`, `cos`, `tan` and `cot`.
    pub(super) fn applied(&mut self, function: Function) -> Option<Expr> {
        let mut power = None;
        let mut base = None;
        for _ in 0..2 {
            if self.accept('^') {
                power = Some(self.exponent()?);
            } else if self.accept('_') {
                base = Some(self.argument()?);
            }
        }
        let outer = self.angle;
        self.angle |= takes_angle(&function);
        let arguments = self.function_arguments();
        self.angle = outer;
        let arguments = arguments?;
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

    /// Parses arguments in parentheses or braces, or else the product that follows, up to the next function.
    fn function_arguments(&mut self) -> Option<Vec<Expr>> {
        if self.accept('(') {
            return self.arguments(')');
        }
        if self.is('{') {
            return Some(vec![self.argument()?]);
        }
        let negative = self.accept('-');
        let mut factors = vec![self.postfix()?];
        while self.starts_factor() && !self.starts_function() && !self.starts_differential() {
            factors.push(self.postfix()?);
        }
        let product = Expr::product(factors);
        Some(vec![if negative { product.negate() } else { product }])
    }

    fn starts_function(&self) -> bool {
        matches!(self.peek(), Some(Token::Command(name)) if function(name).is_some())
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

/// Returns the function that a command names, and `None` for any other command.
pub(super) fn function(name: &str) -> Option<Function> {
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

fn takes_angle(function: &Function) -> bool {
    use Function::{Cos, Cot, Csc, Sec, Sin, Tan};
    matches!(function, Sin | Cos | Tan | Cot | Sec | Csc)
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
