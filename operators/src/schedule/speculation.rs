//! Speculation factors: ratios of launched to kept prompts or responses.

use super::ScheduleError;

/// The upper bound of speculation factors and of `max_weight`. Larger values are rejected, because they are probably mistyped.
const MAX: f64 = 1000.0;

/// Returns an error if the speculation factor or maximum weight `found` is not from 1 to [`MAX`].
pub(super) fn check_factor(key: &str, found: f64) -> Result<(), ScheduleError> {
    if (1.0..=MAX).contains(&found) {
        Ok(())
    } else {
        Err(ScheduleError::bound(key, &format!("a number from 1 to {MAX}"), found))
    }
}

/// Returns `ceil(eta * count)`, computed as if `eta` were exactly the decimal number or fraction that the user wrote, and not the nearest
/// float. For example, the result for 1.1 and 10 is 11, although the float nearest to 1.1 is above 1.1.
///
/// Storing `eta` and multiplying each have an error of at most half a unit in the last place. A product that should be a whole number is
/// therefore within two units of that number. For `eta` = a/b, a product that should not be whole is at least 1/b away from a whole number.
/// The result is thus exact while `count * a` is below 2^50.
pub(super) fn scaled(eta: f64, count: usize) -> usize {
    let product = eta * count as f64;
    let whole = product.round();
    let is_whole = (product - whole).abs() <= product * 2.0 * f64::EPSILON;
    (if is_whole { whole } else { product.ceil() }) as usize
}

#[cfg(test)]
mod tests {
    use super::scaled;

    // A plain ceiling of 1.1 * 50 gives 56.
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
