//! Intervals around simulated speed-ups.

use serde::Serialize;

use super::stat::SeedStat;

/// Relative error of a ratio of step times, and thus of a speed-up: at least twice the root mean square error of the ratios that were held
/// out of the fit (`docs/simulator.md`, "Error of a speed-up"). Update the bound whenever the model is fitted again.
pub const HELD_OUT_ERROR: f64 = 0.18;

/// Half the width of the interval over seeds, in standard errors of the mean.
const STANDARD_ERRORS: f64 = 2.0;

/// An interval in which the true value of a speed-up is expected.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SpeedupInterval {
    /// The lower end, at least 0.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl SpeedupInterval {
    /// Returns the interval of a speed-up over `seeds` seeds. Half its width is the root of the sum of two squares: the error of the model,
    /// [`HELD_OUT_ERROR`] times the mean, and two standard errors of the mean. With one seed, the standard error is unknown and left out. A
    /// speed-up that is exactly 1 for every seed, such as that of a baseline over itself, has no error.
    #[must_use]
    pub fn of(speedup: SeedStat, seeds: usize) -> Self {
        let SeedStat { mean, sd } = speedup;
        if mean == 1.0 && sd == 0.0 {
            return Self { low: mean, high: mean };
        }
        let sampling = STANDARD_ERRORS * sd / (seeds.max(1) as f64).sqrt();
        let error = (HELD_OUT_ERROR * mean).hypot(sampling);
        Self { low: (mean - error).max(0.0), high: mean + error }
    }

    /// Returns the smallest interval that contains both intervals.
    #[must_use]
    pub fn hull(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    /// Returns `true` if the intervals have a value in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_model_and_the_seeds_add_up_as_squares() {
        let of = |sd, seeds| SpeedupInterval::of(SeedStat { mean: 2.0, sd }, seeds);
        let (model, both) = (of(0.0, 3), of(0.4, 4));
        assert!((model.high - 2.0 * (1.0 + HELD_OUT_ERROR)).abs() < 1e-12);
        assert!((both.high - 2.0 - (2.0 * HELD_OUT_ERROR).hypot(0.4)).abs() < 1e-12);
        assert!((both.high - 2.0 - (2.0 - both.low)).abs() < 1e-12);
        let itself = SpeedupInterval::of(SeedStat { mean: 1.0, sd: 0.0 }, 1);
        assert_eq!(itself, SpeedupInterval { low: 1.0, high: 1.0 });
    }

    #[test]
    fn intervals_that_touch_overlap() {
        let interval = |low, high| SpeedupInterval { low, high };
        assert!(interval(1.0, 2.0).overlaps(interval(2.0, 3.0)));
        assert!(!interval(1.0, 1.9).overlaps(interval(2.0, 3.0)));
        assert_eq!(interval(1.0, 2.0).hull(interval(1.5, 3.0)), interval(1.0, 3.0));
    }
}
