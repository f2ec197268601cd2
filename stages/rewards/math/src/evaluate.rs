//! Numeric evaluation of expressions, at points that a seed and the names of the variables determine.
//!
//! Two expressions that agree at several such points are considered equal; this is the fallback for expressions without a normal form. Odd
//! roots of negative numbers are real; all other powers and functions have their principal values.

use num_complex::Complex64;
use num_traits::ToPrimitive;

use super::expr::{Constant, Expr, Function};
use super::number;

#[derive(Clone, Copy, Debug)]
pub(super) struct Point<'a> {
    /// The seed of the values of variables. Odd seeds make some of the values negative.
    pub(super) seed: u64,
    /// The base of logarithms without an explicit base.
    pub(super) log_base: f64,
    /// The name and the value of the variable whose value does not come from `seed`, if any.
    pub(super) given: Option<(&'a str, f64)>,
}

impl Point<'_> {
    /// Returns the point of a seed, with natural logarithms and without a given variable.
    pub(super) fn seeded(seed: u64) -> Self {
        Self { seed, log_base: std::f64::consts::E, given: None }
    }
}

/// Returns the value of an expression. Returns `None` if the value is undefined, not finite or cannot be computed, or if the expression is
/// not a number, such as a set.
pub(super) fn evaluate(expr: &Expr, point: &Point<'_>) -> Option<Complex64> {
    let value = match expr {
        Expr::Number(number) => real(number::to_f64(&number.value)),
        Expr::Based(digits, base) => real(number::to_f64(&number::based(digits, *base)?)),
        Expr::Symbol(name) => real(variable(name, point)),
        Expr::Constant(constant) => named(*constant)?,
        Expr::Sum(terms) => all(terms, point)?.into_iter().sum(),
        Expr::Product(factors) => all(factors, point)?.into_iter().map(tidy).product(),
        Expr::Power(base, exponent) => power(base, exponent, point)?,
        Expr::Apply(function, arguments) => apply(function, arguments, point)?,
        Expr::Adjacent(_) | Expr::Ratio(_) => {
            let (name, arguments) = expr.unknown_function()?;
            unknown(name, &all(arguments, point)?, point)
        }
        _ => return None,
    };
    let value = tidy(value);
    (value.re.is_finite() && value.im.is_finite()).then_some(value)
}

/// Returns the real value of an expression, or an infinity for an expression that [`infinity`] accepts. Returns `None` for any other
/// expression whose value is undefined, infinite or not real.
pub(super) fn evaluate_real(expr: &Expr, point: &Point<'_>) -> Option<f64> {
    if let Some(infinite) = infinity(expr) {
        return Some(infinite);
    }
    let value = evaluate(expr, point)?;
    (value.im.abs() <= 1e-9 * value.re.abs().max(1.0)).then_some(value.re)
}

/// Returns positive or negative infinity for `\infty` and for a number times `\infty`, with the sign of the number. Returns `None` for any
/// other expression.
pub(super) fn infinity(expr: &Expr) -> Option<f64> {
    match expr {
        Expr::Constant(Constant::Infinity) => Some(f64::INFINITY),
        Expr::Product(factors) => match factors.as_slice() {
            [Expr::Number(sign), Expr::Constant(Constant::Infinity)] => {
                Some(f64::INFINITY.copysign(number::to_f64(&sign.value)))
            }
            _ => None,
        },
        _ => None,
    }
}

/// Returns `true` if two values are equal up to rounding: a tolerance of 1e-12 plus 1e-9 times the larger magnitude.
pub(super) fn close(left: Complex64, right: Complex64) -> bool {
    (left - right).norm() <= 1e-12 + 1e-9 * left.norm().max(right.norm())
}

fn real(value: f64) -> Complex64 {
    Complex64::new(value, 0.0)
}

/// Removes an imaginary part that results from rounding and would select the wrong branch of a root.
fn tidy(value: Complex64) -> Complex64 {
    if value.im.abs() <= 1e-14 * value.re.abs() { real(value.re) } else { value }
}

fn all(parts: &[Expr], point: &Point<'_>) -> Option<Vec<Complex64>> {
    parts.iter().map(|part| evaluate(part, point)).collect()
}

fn named(constant: Constant) -> Option<Complex64> {
    Some(match constant {
        Constant::Pi => real(std::f64::consts::PI),
        Constant::E => real(std::f64::consts::E),
        Constant::I => Complex64::I,
        Constant::Infinity => return None,
    })
}

/// Returns the value that the point gives to a variable. If the point gives none, the name and the seed determine a value that is no simple
/// fraction, with a magnitude from 0.2 to 2.8.
fn variable(name: &str, point: &Point<'_>) -> f64 {
    if let Some((_, value)) = point.given.filter(|(given, _)| *given == name) {
        return value;
    }
    let bits = hash(name, point.seed);
    let size = 0.2 + 2.6 * fraction(bits);
    if point.seed % 2 == 1 && bits & 1 == 1 { -size } else { size }
}

/// Returns the FNV-1a hash of the name and the seed, with a final mix of the bits.
fn hash(name: &str, seed: u64) -> u64 {
    let bytes = name.bytes().chain(seed.to_le_bytes());
    let sum = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (sum ^ (sum >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 33)
}

fn fraction(bits: u64) -> f64 {
    (bits >> 11).to_f64().unwrap_or(0.5) / (1_u64 << 53).to_f64().unwrap_or(1.0)
}

fn power(base: &Expr, exponent: &Expr, point: &Point<'_>) -> Option<Complex64> {
    let value = evaluate(base, point)?;
    if let Expr::Number(exponent) = exponent {
        if exponent.value.is_integer() {
            return exponent.value.to_integer().to_i32().map(|exponent| value.powi(exponent));
        }
        let odd = exponent.value.denom() % 2_u32 == 1_u32.into();
        if odd && value.im == 0.0 && value.re < 0.0 {
            let size = (-value.re).powf(number::to_f64(&exponent.value));
            let negative = exponent.value.numer() % 2_u32 != 0_u32.into();
            return Some(real(if negative { -size } else { size }));
        }
    }
    let exponent = evaluate(exponent, point)?;
    if value.im == 0.0 && value.re >= 0.0 && exponent.im == 0.0 {
        return Some(real(value.re.powf(exponent.re)));
    }
    if matches!(base, Expr::Constant(Constant::E)) {
        return Some(exponent.exp());
    }
    Some(value.powc(exponent))
}

fn apply(function: &Function, arguments: &[Expr], point: &Point<'_>) -> Option<Complex64> {
    let values = all(arguments, point)?;
    let first = *values.first()?;
    Some(match function {
        Function::Named(name) => unknown(name, &values, point),
        Function::Binomial
        | Function::Mod
        | Function::Gcd
        | Function::Lcm
        | Function::Max
        | Function::Min => real(of_reals(function, &values)?),
        Function::Abs => real(first.norm()),
        Function::Floor => real(whole_nearby(first)?.floor()),
        Function::Ceil => real(whole_nearby(first)?.ceil()),
        Function::Factorial => real(factorial(first)?),
        Function::Ln => logarithm(first)?,
        Function::Log => logarithm(first)? / point.log_base.ln(),
        Function::Sin => first.sin(),
        Function::Cos => first.cos(),
        Function::Tan => quotient(first.sin(), first.cos())?,
        Function::Cot => quotient(first.cos(), first.sin())?,
        Function::Sec => quotient(real(1.0), first.cos())?,
        Function::Csc => quotient(real(1.0), first.sin())?,
        Function::Asin => first.asin(),
        Function::Acos => first.acos(),
        Function::Atan => first.atan(),
        Function::Acot => quotient(real(1.0), first)?.atan(),
        Function::Sinh => first.sinh(),
        Function::Cosh => first.cosh(),
        Function::Tanh => first.tanh(),
        Function::Transpose => unknown("transpose", &values, point),
        Function::Det => return None,
    })
}

fn quotient(above: Complex64, below: Complex64) -> Option<Complex64> {
    (below.norm() > 1e-13).then(|| above / below)
}

fn logarithm(value: Complex64) -> Option<Complex64> {
    (value.norm() > 0.0).then(|| value.ln())
}

/// Returns a value if it is real, and rounds it if it is an integer up to rounding errors.
fn whole_nearby(value: Complex64) -> Option<f64> {
    let near = value.re.round();
    (value.im == 0.0).then(|| if (value.re - near).abs() < 1e-9 { near } else { value.re })
}

fn factorial(value: Complex64) -> Option<f64> {
    (value.im == 0.0).then(|| statrs::function::gamma::gamma(value.re + 1.0))
}

fn of_reals(function: &Function, values: &[Complex64]) -> Option<f64> {
    let reals: Vec<f64> =
        values.iter().map(|value| (value.im == 0.0).then_some(value.re)).collect::<Option<_>>()?;
    let pair = || Some((*reals.first()?, *reals.get(1)?));
    match function {
        Function::Max => reals.into_iter().reduce(f64::max),
        Function::Min => reals.into_iter().reduce(f64::min),
        Function::Mod => {
            pair().filter(|(_, by)| *by != 0.0).map(|(value, by)| value - by * (value / by).floor())
        }
        Function::Binomial => {
            let (from, chosen) = pair()?;
            let (top, left) = (factorial(real(from))?, factorial(real(from - chosen))?);
            Some(top / factorial(real(chosen))? / left)
        }
        Function::Gcd => reals.into_iter().reduce(gcd),
        Function::Lcm => {
            reals.into_iter().reduce(|left, right| (left * right).abs() / gcd(left, right))
        }
        _ => None,
    }
}

/// Returns the greatest common divisor by Euclid's algorithm. For numbers that are not integers, the algorithm may not end; the result is
/// NaN after 2000 steps.
fn gcd(left: f64, right: f64) -> f64 {
    let (mut left, mut right) = (left.abs(), right.abs());
    for _ in 0..2000 {
        if right < 1e-9 {
            return left;
        }
        (left, right) = (right, left % right);
    }
    f64::NAN
}

/// Returns the value of an unknown function: a smooth function of the arguments, which the name and the seed of the point determine.
fn unknown(name: &str, values: &[Complex64], point: &Point<'_>) -> Complex64 {
    let weights = (0_u64..).map(|place| 0.3 + fraction(hash(name, point.seed ^ (place << 40))));
    let mixed: Complex64 = values.iter().zip(weights).map(|(value, weight)| value * weight).sum();
    let shift = fraction(hash(name, point.seed.wrapping_add(977)));
    (mixed * 0.7 + shift).sin() + mixed * 0.3 + shift
}
