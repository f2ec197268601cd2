//! Exact rational numbers of bounded size.
//!
//! An operation returns `None` instead of a number of more than [`MAX_BITS`] bits. Powers are rejected before they are computed, so that
//! `10^{10^{10}}` takes no time.

use num_bigint::{BigInt, Sign};
use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::DEFAULT_PRECISION;

pub(super) type Rational = BigRational;

/// The maximum number of bits of a numerator or denominator.
const MAX_BITS: u64 = 4096;

pub(super) fn integer(value: i64) -> Rational {
    Rational::from_integer(value.into())
}

/// Parses decimal digits such as `12`, `0.5` or `.5`, without sign and exponent. Returns `None` for any other text and for more than 1000
/// digits.
pub(super) fn decimal(digits: &str) -> Option<Rational> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = format!("{whole}{fraction}");
    if all.is_empty() || all.len() > 1000 || !all.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let numerator = BigInt::parse_bytes(all.as_bytes(), 10)?;
    checked(Rational::new(numerator, ten_to(fraction.len())))
}

/// Parses a repeating decimal, such as `0.1` with the period `6`, without sign and exponent. Returns `None` if [`decimal`] rejects the
/// digits or the period, or if the value exceeds [`MAX_BITS`].
pub(super) fn repeating(digits: &str, period: &str) -> Option<Rational> {
    let first = decimal(digits)?;
    let places = digits.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let nines = ten_to(period.len()) - BigInt::one();
    checked(first + decimal(period)? / Rational::from_integer(nines * ten_to(places)))
}

/// Parses an integer in a base from 2 to 36. Returns `None` for any other base, for a digit that the base does not have, and for more than
/// 500 digits.
pub(super) fn based(digits: &str, base: u32) -> Option<Rational> {
    let fits = (2..=36).contains(&base) && digits.len() <= 500;
    fits.then(|| BigInt::parse_bytes(digits.as_bytes(), base))?.map(Rational::from_integer)
}

/// Returns `left + right`, or `None` if the sum exceeds [`MAX_BITS`].
pub(super) fn add(left: &Rational, right: &Rational) -> Option<Rational> {
    checked(left + right)
}

/// Returns `left * right`, or `None` if the product exceeds [`MAX_BITS`].
pub(super) fn multiply(left: &Rational, right: &Rational) -> Option<Rational> {
    checked(left * right)
}

/// Returns the power with an integer exponent. Returns `None` for any other exponent, and for zero to a power that is not positive. For a
/// base other than 1 and -1, returns `None` if the number of its bits times the exponent exceeds [`MAX_BITS`].
pub(super) fn power(base: &Rational, exponent: &Rational) -> Option<Rational> {
    if !exponent.is_integer() {
        return None;
    }
    if base.is_one() || exponent.is_zero() {
        return (!base.is_zero()).then(Rational::one);
    }
    if (-base).is_one() {
        let is_odd = exponent.numer().bit(0);
        return Some(if is_odd { base.clone() } else { Rational::one() });
    }
    let exponent = exponent.to_i32()?;
    if base.is_zero() {
        return (exponent > 0).then(Rational::zero);
    }
    let bits = base.numer().bits().max(base.denom().bits());
    let fits = bits.saturating_mul(exponent.unsigned_abs().into()) <= MAX_BITS;
    fits.then(|| base.pow(exponent))
}

/// Returns the factorial of an integer from 0 to 400, and `None` for any other number.
pub(super) fn factorial(value: &Rational) -> Option<Rational> {
    let value = whole(value, 400)?;
    let product = (1..=value).fold(BigInt::one(), |product, factor| product * factor);
    checked(Rational::from_integer(product))
}

/// Returns the number of ways to choose `chosen` of `from` elements. Both must be integers from 0 to 400; returns `None` for any other
/// numbers.
pub(super) fn binomial(from: &Rational, chosen: &Rational) -> Option<Rational> {
    let (from, chosen) = (whole(from, 400)?, whole(chosen, 400)?);
    if chosen > from {
        return Some(Rational::zero());
    }
    let ways = (0..chosen).fold(BigInt::one(), |ways, step| ways * (from - step) / (step + 1));
    Some(Rational::from_integer(ways))
}

/// Returns the value if it is an integer from 0 to `limit`, and `None` otherwise.
pub(super) fn whole(value: &Rational, limit: u64) -> Option<u64> {
    let value = value.is_integer().then(|| value.to_integer())?.to_u64()?;
    (value <= limit).then_some(value)
}

/// Returns `true` if an answer equals the truth after rounding to `places` decimal places, with halves rounded to even.
///
/// Rounding to decimal places would make 0 the answer to every small constant, such as the charge of an electron. A truth other than 0 that
/// would be rounded to 0 is therefore compared at about `places` significant digits, unless `places` is 0. With the default number of
/// places, a truth that is 0 is compared at 6 more decimal places, which leaves room for errors of floating point only.
pub(super) fn same_rounded(truth: &Rational, answer: &Rational, places: u32) -> bool {
    let zeros = if truth.is_zero() {
        if places == DEFAULT_PRECISION { 6 } else { 0 }
    } else if places > 0 && round(truth, places).is_zero() {
        leading_zeros(truth)
    } else {
        0
    };
    truth == answer || round(truth, zeros + places) == round(answer, zeros + places)
}

/// Returns the approximate number of zeros after the decimal point of a number whose magnitude is below 1.
fn leading_zeros(value: &Rational) -> u32 {
    let bits = value.denom().bits().saturating_sub(value.numer().bits());
    (bits as f64 * std::f64::consts::LOG10_2) as u32
}

fn round(value: &Rational, places: u32) -> BigInt {
    let scaled = value * Rational::from_integer(ten_to(places as usize));
    let doubled = &scaled * integer(2);
    let tie = doubled.is_integer() && doubled.to_integer() % 2 != BigInt::zero();
    if !tie {
        return scaled.round().to_integer();
    }
    let floor = scaled.floor().to_integer();
    let even: BigInt = &floor % 2;
    if even.is_zero() { floor } else { floor + 1 }
}

/// Returns the nearest floating-point number, which is infinite for a value beyond the range of `f64`.
pub(super) fn to_f64(value: &Rational) -> f64 {
    value.to_f64().unwrap_or(f64::NAN)
}

/// Returns the exact value of a finite floating-point number, and `None` for any other one.
pub(super) fn from_f64(value: f64) -> Option<Rational> {
    Rational::from_float(value)
}

/// Returns the largest `root` with `root^2 * rest = |value|`, and the prime factors of `rest`, which are distinct. Only factors up to
/// 100000 are searched. Returns `None` if these do not suffice, if the value is 0, or if its magnitude exceeds 64 bits.
pub(super) fn split_square(value: &BigInt) -> Option<(BigInt, Vec<u64>)> {
    let (mut rest, mut root, mut primes) = (value.abs().to_u64()?, BigInt::one(), Vec::new());
    let mut factor = 2_u64;
    while factor <= 100_000 && factor * factor <= rest {
        while rest % (factor * factor) == 0 {
            rest /= factor * factor;
            root *= factor;
        }
        if rest % factor == 0 {
            rest /= factor;
            primes.push(factor);
        }
        factor += 1;
    }
    if rest > 1 && factor * factor <= rest {
        return None;
    }
    if rest > 1 {
        primes.push(rest);
    }
    (value.sign() != Sign::NoSign).then_some((root, primes))
}

fn ten_to(places: usize) -> BigInt {
    BigInt::from(10).pow(u32::try_from(places.min(1000)).unwrap_or(1000))
}

fn checked(value: Rational) -> Option<Rational> {
    (value.numer().bits().max(value.denom().bits()) <= MAX_BITS).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_halves_to_even() {
        let value = |text| decimal(text).expect("digits");
        assert!(same_rounded(&value("0.5"), &value("0.4"), 0));
        assert!(same_rounded(&value("1.5"), &value("2.5"), 0));
        assert!(same_rounded(&value("0.333333"), &Rational::new(1.into(), 3.into()), 6));
        assert!(!same_rounded(&value("0.33333"), &Rational::new(1.into(), 3.into()), 6));
        let charge = &value("1.6") / Rational::from_integer(ten_to(19));
        assert!(same_rounded(
            &charge,
            &(&value("1.60000004") / Rational::from_integer(ten_to(19))),
            6
        ));
        for wrong in ["0", "1.7", "0.00000000000000000017"] {
            assert!(!same_rounded(&charge, &value(wrong), 6), "{wrong}");
        }
        assert!(!same_rounded(&value("0"), &value("0.0000001"), 6));
        assert!(same_rounded(&value("0"), &value("0.0000000000001"), 6));
        assert!(same_rounded(&value("0"), &value("0.001"), 2));
        assert!(!same_rounded(&value("0"), &value("0.01"), 2));
        assert!(same_rounded(&value("0"), &value("0.4"), 0));
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let ten = integer(10);
        let huge = power(&ten, &integer(1000)).expect("fits");
        assert_eq!(power(&huge, &ten), None);
        assert_eq!(power(&integer(0), &integer(-1)), None);
        assert_eq!(factorial(&integer(5)), Some(integer(120)));
        assert_eq!(factorial(&integer(100_000)), None);
        assert_eq!(binomial(&integer(5), &integer(2)), Some(integer(10)));
    }

    #[test]
    fn takes_squares_out_of_roots() {
        assert_eq!(split_square(&72.into()), Some((6.into(), vec![2])));
        assert_eq!(split_square(&1358.into()), Some((1.into(), vec![2, 7, 97])));
    }
}
