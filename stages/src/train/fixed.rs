//! Sums that do not depend on the order of their terms.
//!
//! Floating-point addition is not associative: the same gradients in another order give a result with different bits. Gradients rounded to
//! multiples of one step are integers, whose sum does not depend on the order. The step is 2^-40. It follows that
//!
//! - the error of a term is at most 2^-41 (4.5e-13). For a parameter's gradient, divided by the tokens or responses of a step, the error is
//!   this bound divided by the number of tokens or responses per term. It is far below the `eps` of AdamW (1e-8), under which gradients
//!   have no effect. A float32 above 2^-17 (7.6e-6) loses less by this rounding than by the rounding to float32;
//! - a sum can reach 2^23 (8.4 million). The sum is over the tokens of a step, before division, for one parameter. A step of a million
//!   tokens has room for a mean of 8, where norms over all parameters are around 1. A sum outside of the range is an error.
//!
//! 128-bit sums were rejected: they would cost memory and transfer for digits that float32 gradients do not have.

use super::partial::PartialError;

/// The number of fixed-point steps in 1: 2^40.
pub const STEPS_PER_UNIT: f64 = (1_u64 << 40) as f64;

/// The bound of the magnitude of a term, in steps; a term must be below it. The bound is far enough from the end of the range for the check
/// to be exact in float64.
const MAX_MAGNITUDE_STEPS: f64 = (1_u64 << 62) as f64;

/// Adds each term to the sum at its index, rounded to the nearest multiple of the step; halves are rounded away from 0. Extra elements of
/// the longer slice are ignored.
///
/// # Errors
/// Returns an error if a term or a sum leaves the range, or a term is NaN. The sums are invalid then.
pub fn add_rounded(sums: &mut [i64], terms: &[f32]) -> Result<(), PartialError> {
    let mut outside = false;
    let mut wrapped = 0;
    for (sum, &term) in sums.iter_mut().zip(terms) {
        let steps = f64::from(term) * STEPS_PER_UNIT;
        let inside = steps.abs() < MAX_MAGNITUDE_STEPS;
        outside |= !inside;
        // A float32 above 2^24 steps is a whole number of steps, which adding a half does not change.
        let term = (steps + 0.5_f64.copysign(steps)) as i64;
        wrapped |= add_one(sum, term);
    }
    check(outside || wrapped < 0)
}

/// Adds sums element by element. Extra elements of the longer slice are ignored.
///
/// # Errors
/// Returns an error if a sum leaves the range. The sums are invalid then.
pub fn add(sums: &mut [i64], others: &[i64]) -> Result<(), PartialError> {
    let wrapped =
        sums.iter_mut().zip(others).fold(0, |flags, (sum, &other)| flags | add_one(sum, other));
    check(wrapped < 0)
}

/// Returns the sums as numbers, divided by `denominator`. With a `denominator` of 0, the numbers are infinite or NaN.
pub fn divided(sums: &[i64], denominator: f64) -> impl Iterator<Item = f64> {
    let by = STEPS_PER_UNIT * denominator;
    sums.iter().map(move |&sum| sum as f64 / by)
}

/// Adds `term` to `sum`. The result is negative if the sum overflowed. There is no branch, so that loops over this function are vectorized.
fn add_one(sum: &mut i64, term: i64) -> i64 {
    let total = sum.wrapping_add(term);
    let wrapped = (*sum ^ total) & (term ^ total);
    *sum = total;
    wrapped
}

fn check(outside: bool) -> Result<(), PartialError> {
    if outside { Err(PartialError::OutOfRange) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum_of<'a>(terms: impl IntoIterator<Item = &'a f32>) -> Result<i64, PartialError> {
        let mut sum = [0];
        terms.into_iter().try_for_each(|&term| add_rounded(&mut sum, &[term]))?;
        Ok(sum[0])
    }

    proptest! {
        #[test]
        fn a_sum_does_not_depend_on_order_or_grouping(
            terms in proptest::collection::vec(-1e3f32..1e3, 1..40),
            cut in 0..40usize,
        ) {
            let whole = sum_of(&terms).unwrap();
            prop_assert_eq!(sum_of(terms.iter().rev()).unwrap(), whole);
            let (first, second) = terms.split_at(cut.min(terms.len()));
            let mut parts = [sum_of(first).unwrap()];
            add(&mut parts, &[sum_of(second).unwrap()]).unwrap();
            prop_assert_eq!(parts[0], whole);
            // The error bound stated in the module documentation.
            let exact: f64 = terms.iter().copied().map(f64::from).sum();
            let off = divided(&[whole], 1.0).next().unwrap() - exact;
            prop_assert!(off.abs() <= terms.len() as f64 / (2.0 * STEPS_PER_UNIT) + 1e-12, "{off}");
        }

        #[test]
        fn a_term_is_rounded_to_the_next_step(bits in any::<u32>()) {
            let term = f32::from_bits(bits);
            let steps = f64::from(term) * STEPS_PER_UNIT;
            let expect = (steps.abs() < MAX_MAGNITUDE_STEPS).then(|| steps.round() as i64);
            prop_assert_eq!(sum_of([&term]).ok(), expect);
        }
    }

    #[test]
    fn a_value_out_of_range_is_refused() {
        for outside in [f32::NAN, f32::INFINITY, -4.3e6, 4.3e6] {
            assert_eq!(sum_of([&outside]), Err(PartialError::OutOfRange), "{outside}");
        }
        assert_eq!(sum_of(&[4e6, 4e6, 4e6]), Err(PartialError::OutOfRange));
        assert_eq!(sum_of(&[-4e6, -4e6, -4e6]), Err(PartialError::OutOfRange));
        assert_eq!(add(&mut [i64::MAX, 0], &[1, 0]), Err(PartialError::OutOfRange));
        assert_eq!(add(&mut [i64::MAX, i64::MIN], &[-1, 1]), Ok(()));
    }
}
