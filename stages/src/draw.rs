//! Random numbers that are keyed by name instead of drawn in sequence.

use rollpacker_dataflow::step::SampleId;
use statrs::function::erf::{erfc, erfc_inv};
use std::f64::consts::SQRT_2;

/// A random number that depends only on a seed and on the keys for which it is drawn.
///
/// With a sequential generator, the length of a response would change whenever another draw happened before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw(u64);

impl Draw {
    /// Returns the root of all draws of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// Returns the draw that is derived from this one by the key `what`.
    #[must_use]
    pub fn of(self, what: u64) -> Self {
        Self(mix(self.0 ^ mix(what)))
    }

    /// Returns the draw of a response.
    #[must_use]
    pub fn of_sample(self, id: SampleId) -> Self {
        self.of(id.step.0).of(id.prompt.0).of(u64::from(id.sample))
    }

    /// Returns a uniform number in the open interval (0, 1).
    #[must_use]
    pub fn uniform(self) -> f64 {
        // The largest number below 2^53, plus a half, rounds to 2^53.
        (((self.0 >> 11) as f64 + 0.5) / (1_u64 << 53) as f64).min(1.0_f64.next_down())
    }

    /// Returns a standard normal number.
    #[must_use]
    pub fn normal(self) -> f64 {
        normal_quantile(self.uniform())
    }

    /// Returns a uniform integer in `0..bound`; `bound` must be at least 1.
    #[must_use]
    pub fn below(self, bound: usize) -> usize {
        ((u128::from(self.0) * bound as u128) >> 64) as usize
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014), applied to the next number of its sequence.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Returns the share of a standard normal distribution below `value`.
#[must_use]
pub fn normal_cdf(value: f64) -> f64 {
    0.5 * erfc(-value / SQRT_2)
}

/// Returns the quantile of a standard normal distribution: the value below which the share `below` of the distribution lies. It is negative
/// infinity for shares up to 0, and infinity for shares from 1.
#[must_use]
pub fn normal_quantile(below: f64) -> f64 {
    -SQRT_2 * erfc_inv(2.0 * below)
}

/// Returns a standard normal number whose correlation with `other` is `correlation`, in [-1, 1]. `own` and `other` must be independent
/// standard normal numbers.
#[must_use]
pub fn correlated(correlation: f64, other: f64, own: f64) -> f64 {
    correlation * other + (1.0 - correlation * correlation).sqrt() * own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_have_mean_0_and_variance_1_and_names_are_independent() {
        let root = Draw::new(7);
        let pairs: Vec<_> =
            (0..20_000).map(|n| (root.of(n).of(0).normal(), root.of(n).of(1).normal())).collect();
        let mean =
            |f: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(f).sum::<f64>() / pairs.len() as f64;
        assert!(mean(&|p| p.0).abs() < 0.02);
        assert!((mean(&|p| p.0 * p.0) - 1.0).abs() < 0.03);
        assert!(mean(&|p| p.0 * p.1).abs() < 0.02);
    }

    #[test]
    fn the_smallest_and_the_largest_number_lie_in_the_open_interval() {
        for draw in [Draw(0), Draw(u64::MAX)] {
            assert!(draw.uniform() > 0.0 && draw.uniform() < 1.0, "{draw:?}");
            assert!(draw.normal().is_finite(), "{draw:?}");
        }
    }

    #[test]
    fn quantile_is_the_inverse_of_cdf() {
        for value in [-3.0, -0.5, 0.0, 1.0, 2.5] {
            assert!((normal_quantile(normal_cdf(value)) - value).abs() < 1e-9);
        }
    }
}
