//! The normal form of expressions: quotients of polynomials.
//!
//! The coefficients are rational. The unknowns are the variables, π, e, i and the square roots of primes. With the rules `i² = -1` and
//! `√p² = p`, an expression is zero if and only if its numerator has no terms; no other relation between the unknowns is assumed. (The
//! independence of π and e is not proven, but no counterexample is known.) All other expressions have no normal form.

use std::collections::BTreeMap;

use num_traits::{One, Signed, ToPrimitive, Zero};

use super::expr::{Constant, Expr, Function};
use super::number::{self, Rational};
use super::work::WorkBudget;

/// The maximum number of terms of a polynomial.
const MAX_TERMS: usize = 300;
/// The maximum degree of an unknown in a monomial.
const MAX_DEGREE: u32 = 64;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unknown {
    Variable(String),
    Pi,
    E,
    I,
    Root(u64),
}

type Monomial = BTreeMap<Unknown, u32>;

#[derive(Clone, Debug, Default, PartialEq)]
struct Polynomial(BTreeMap<Monomial, Rational>);

/// A quotient of polynomials. The denominator is not zero.
#[derive(Clone, Debug)]
pub(super) struct Quotient {
    above: Polynomial,
    below: Polynomial,
}

/// Returns the normal form of an expression. Returns `None` if the expression has no normal form, is undefined, or exceeds the limits on
/// size or work.
pub(super) fn normal(expr: &Expr, work: &WorkBudget) -> Option<Quotient> {
    match expr {
        Expr::Number(number) => Some(Polynomial::constant(number.value.clone()).into()),
        Expr::Based(digits, base) => {
            Some(Polynomial::constant(number::based(digits, *base)?).into())
        }
        Expr::Symbol(name) => Some(Polynomial::unknown(Unknown::Variable(name.clone())).into()),
        Expr::Constant(Constant::Pi) => Some(Polynomial::unknown(Unknown::Pi).into()),
        Expr::Constant(Constant::E) => Some(Polynomial::unknown(Unknown::E).into()),
        Expr::Constant(Constant::I) => Some(Polynomial::unknown(Unknown::I).into()),
        Expr::Sum(terms) => reduce(terms, Rational::zero(), Quotient::add, work),
        Expr::Product(factors) => reduce(factors, Rational::one(), Quotient::multiply, work),
        Expr::Power(base, exponent) => power(base, exponent, work),
        Expr::Apply(function, arguments) => apply(function, arguments, work),
        _ => None,
    }
}

/// Returns the value of an expression if its normal form is a quotient of two numbers, and `None` otherwise.
pub(super) fn rational(expr: &Expr, work: &WorkBudget) -> Option<Rational> {
    let quotient = normal(expr, work)?;
    Some(quotient.above.as_constant()? / quotient.below.as_constant()?)
}

impl Quotient {
    /// Returns `true` if two quotients are equal, and `None` if the comparison exceeds the limits on size or work.
    pub(super) fn same(&self, other: &Self, work: &WorkBudget) -> Option<bool> {
        let (left, right) = self.crossed(other, work)?;
        Some(left == right)
    }

    /// Returns the constant factor `c` with `self = c * other`, if there is one and neither quotient is zero. Returns `None` otherwise, and
    /// if the computation exceeds the limits on size or work.
    pub(super) fn ratio(&self, other: &Self, work: &WorkBudget) -> Option<Rational> {
        let (left, right) = self.crossed(other, work)?;
        let first = |polynomial: &Polynomial| polynomial.0.values().next().cloned();
        let ratio = first(&left)? / first(&right)?;
        (left == right.scaled(&ratio, work)?).then_some(ratio)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.above.0.is_empty()
    }

    fn crossed(&self, other: &Self, work: &WorkBudget) -> Option<(Polynomial, Polynomial)> {
        Some((self.above.multiply(&other.below, work)?, other.above.multiply(&self.below, work)?))
    }

    fn add(&self, other: &Self, work: &WorkBudget) -> Option<Self> {
        let below = self.below.multiply(&other.below, work)?;
        let (left, right) = self.crossed(other, work)?;
        Some(Self { above: left.add(&right)?, below })
    }

    fn multiply(&self, other: &Self, work: &WorkBudget) -> Option<Self> {
        Some(Self {
            above: self.above.multiply(&other.above, work)?,
            below: self.below.multiply(&other.below, work)?,
        })
    }

    fn inverse(self) -> Option<Self> {
        (!self.is_zero()).then_some(Self { above: self.below, below: self.above })
    }

    fn raised(&self, exponent: u32, work: &WorkBudget) -> Option<Self> {
        let mut result = Self::from(Polynomial::constant(Rational::one()));
        for _ in 0..exponent {
            result = result.multiply(self, work)?;
        }
        Some(result)
    }
}

impl From<Polynomial> for Quotient {
    fn from(above: Polynomial) -> Self {
        Self { above, below: Polynomial::constant(Rational::one()) }
    }
}

impl Polynomial {
    fn constant(value: Rational) -> Self {
        let mut terms = BTreeMap::new();
        if !value.is_zero() {
            terms.insert(Monomial::new(), value);
        }
        Self(terms)
    }

    fn unknown(unknown: Unknown) -> Self {
        Self(BTreeMap::from([(Monomial::from([(unknown, 1)]), Rational::one())]))
    }

    fn as_constant(&self) -> Option<Rational> {
        match self.0.first_key_value() {
            None => Some(Rational::zero()),
            Some((monomial, value)) => {
                (self.0.len() == 1 && monomial.is_empty()).then(|| value.clone())
            }
        }
    }

    fn insert(&mut self, monomial: Monomial, value: &Rational) -> Option<()> {
        let sum = match self.0.get(&monomial) {
            Some(there) => number::add(there, value)?,
            None => value.clone(),
        };
        if sum.is_zero() {
            self.0.remove(&monomial);
        } else {
            self.0.insert(monomial, sum);
        }
        (self.0.len() <= MAX_TERMS).then_some(())
    }

    fn add(&self, other: &Self) -> Option<Self> {
        let mut sum = self.clone();
        for (monomial, value) in &other.0 {
            sum.insert(monomial.clone(), value)?;
        }
        Some(sum)
    }

    fn scaled(&self, factor: &Rational, work: &WorkBudget) -> Option<Self> {
        self.multiply(&Self::constant(factor.clone()), work)
    }

    fn multiply(&self, other: &Self, work: &WorkBudget) -> Option<Self> {
        work.spend(self.0.len() * other.0.len() + 1)?;
        let mut product = Self::default();
        for (left, left_value) in &self.0 {
            for (right, right_value) in &other.0 {
                let value = number::multiply(left_value, right_value)?;
                let (monomial, factor) = times(left, right)?;
                product.insert(monomial, &number::multiply(&value, &factor)?)?;
            }
        }
        Some(product)
    }
}

/// Returns the product of two monomials, and the numeric factor that results from powers of roots and i. Returns `None` if the degree of an
/// unknown exceeds [`MAX_DEGREE`] or the factor is too large.
fn times(left: &Monomial, right: &Monomial) -> Option<(Monomial, Rational)> {
    let (mut product, mut factor) = (left.clone(), Rational::one());
    for (unknown, degree) in right {
        let degree = product.get(unknown).copied().unwrap_or(0) + degree;
        let square = match unknown {
            Unknown::I => Some(number::integer(-1)),
            Unknown::Root(prime) => Some(Rational::from_integer((*prime).into())),
            _ => None,
        };
        let left_over = match square {
            Some(square) => {
                factor = number::multiply(&factor, &number::power(&square, &whole(degree / 2))?)?;
                degree % 2
            }
            None => degree,
        };
        if left_over > MAX_DEGREE {
            return None;
        }
        if left_over == 0 {
            product.remove(unknown);
        } else {
            product.insert(unknown.clone(), left_over);
        }
    }
    Some((product, factor))
}

fn whole(value: u32) -> Rational {
    number::integer(value.into())
}

fn reduce(
    parts: &[Expr],
    neutral: Rational,
    join: fn(&Quotient, &Quotient, &WorkBudget) -> Option<Quotient>,
    work: &WorkBudget,
) -> Option<Quotient> {
    let mut result = Quotient::from(Polynomial::constant(neutral));
    for part in parts {
        result = join(&result, &normal(part, work)?, work)?;
    }
    Some(result)
}

fn power(base: &Expr, exponent: &Expr, work: &WorkBudget) -> Option<Quotient> {
    let exponent = rational(exponent, work)?;
    let base = normal(base, work)?;
    if exponent.is_integer() {
        return to_integer(base, exponent.to_integer().to_i64()?, work);
    }
    if *exponent.denom() != 2.into() {
        return None;
    }
    let twice = exponent.numer().to_i64()?;
    let radicand = base.above.as_constant()? / base.below.as_constant()?;
    to_integer(square_root(&radicand, work)?, twice, work)
}

fn to_integer(base: Quotient, exponent: i64, work: &WorkBudget) -> Option<Quotient> {
    let size =
        u32::try_from(exponent.unsigned_abs()).ok().filter(|size| *size <= 4 * MAX_DEGREE)?;
    let raised = base.raised(size, work)?;
    if exponent < 0 { raised.inverse() } else { Some(raised) }
}

/// Returns the square root of a number in terms of the square roots of primes and, for a negative number, of i. Returns `None` if the
/// number cannot be factored or the work is exhausted.
fn square_root(value: &Rational, work: &WorkBudget) -> Option<Quotient> {
    if value.is_zero() {
        return Some(Polynomial::default().into());
    }
    work.spend(2000)?;
    let (root, primes) = number::split_square(&(value.numer() * value.denom()))?;
    let outside = Rational::new(root, value.denom().clone());
    let mut result = Polynomial::constant(outside);
    for prime in primes {
        result = result.multiply(&Polynomial::unknown(Unknown::Root(prime)), work)?;
    }
    if value.is_negative() {
        result = result.multiply(&Polynomial::unknown(Unknown::I), work)?;
    }
    Some(result.into())
}

/// Applies a function to rational arguments. Only factorials, binomial coefficients, absolute values, rounding, remainders, maxima and
/// minima have a normal form.
fn apply(function: &Function, arguments: &[Expr], work: &WorkBudget) -> Option<Quotient> {
    let values: Vec<Rational> =
        arguments.iter().map(|argument| rational(argument, work)).collect::<Option<_>>()?;
    let value = match (function, values.as_slice()) {
        (Function::Factorial, [value]) => number::factorial(value)?,
        (Function::Binomial, [from, chosen]) => number::binomial(from, chosen)?,
        (Function::Abs, [value]) => value.abs(),
        (Function::Floor, [value]) => value.floor(),
        (Function::Ceil, [value]) => value.ceil(),
        (Function::Mod, [value, by]) if !by.is_zero() => value - by * (value / by).floor(),
        (Function::Max, [_, ..]) => values.into_iter().max()?,
        (Function::Min, [_, ..]) => values.into_iter().min()?,
        _ => return None,
    };
    Some(Polynomial::constant(value).into())
}
