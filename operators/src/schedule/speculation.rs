//! How much more is launched than kept.

use super::ScheduleError;

/// The greatest speculation factor; more is a slip of the pen.
const MAX: f64 = 1000.0;

/// Refuses a speculation factor outside its bounds, or not a number.
pub(super) fn factor(key: &'static str, found: f64) -> Result<(), ScheduleError> {
    if (1.0..=MAX).contains(&found) {
        Ok(())
    } else {
        Err(ScheduleError::Factor { key, found, max: MAX })
    }
}

/// `ceil(eta * count)` for the ratio that `eta` stands for, not for its nearest binary fraction: 1.1 times 10 is 11, though the
/// float 1.1 lies above 1.1.
///
/// Storing `eta` and multiplying each err by at most half a unit in the last place, so a product that should be whole is within two
/// units of it. For `eta` = a/b, one that should not be is 1/b or more away, so the answer is exact while `count * a` is below 2^50.
pub(super) fn scaled(eta: f64, count: usize) -> usize {
    let product = eta * count as f64;
    let whole = product.round();
    let is_whole = (product - whole).abs() <= product * 2.0 * f64::EPSILON;
    (if is_whole { whole } else { product.ceil() }) as usize
}

#[cfg(test)]
mod tests {
    use super::scaled;

    // Without care 1.1 * 50 gives 56.
    #[test]
    fn decimals_and_fractions_are_scaled_exactly() {
        for count in 1..=512 {
            for hundredths in 100..=400 {
                assert_eq!(
                    scaled(hundredths as f64 / 100.0, count),
                    (hundredths * count).div_ceil(100)
                );
            }
            for thirds in 3..=12 {
                assert_eq!(scaled(thirds as f64 / 3.0, count), (thirds * count).div_ceil(3));
            }
        }
    }
}
