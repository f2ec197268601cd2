//! All lengths of a trace, ordered by rank.

use rollpacker_stages::draw::normal_quantile;

/// Recorded lengths, ascending.
#[derive(Clone, Debug)]
pub(super) struct Pool(Vec<u32>);

impl Pool {
    /// Creates a pool of `lengths`, which must not be empty.
    pub(super) fn new(mut lengths: Vec<u32>) -> Self {
        lengths.sort_unstable();
        Self(lengths)
    }

    /// Returns the normal score of a recorded length: the quantile of a standard normal at its rank. Equal lengths share a range of ranks,
    /// in which `within`, from 0 to 1, is the position.
    pub(super) fn score(&self, length: u32, within: f64) -> f64 {
        let below = self.0.partition_point(|other| *other < length) as f64;
        let up_to = self.0.partition_point(|other| *other <= length) as f64;
        let count = self.0.len() as f64;
        let share = (below + (up_to - below) * within) / count;
        normal_quantile(share.clamp(0.5 / count, 1.0 - 0.5 / count))
    }

    /// Returns the quantile of the lengths at `below`, a share in [0, 1].
    pub(super) fn quantile(&self, below: f64) -> u32 {
        let rank = (below * self.0.len() as f64) as usize;
        self.0[rank.min(self.0.len() - 1)]
    }

    /// Returns the lengths above `length`.
    pub(super) fn longer_than(&self, length: u32) -> &[u32] {
        &self.0[self.0.partition_point(|other| *other <= length)..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_quantiles_are_inverse() {
        let pool = Pool::new(vec![30, 10, 20, 20]);
        assert_eq!([0.0, 0.3, 0.6, 1.0].map(|share| pool.quantile(share)), [10, 20, 20, 30]);
        assert!(pool.score(20, 0.5).abs() < 1e-9);
        assert!(pool.score(10, 0.5) < pool.score(20, 0.0));
        assert!(pool.score(20, 0.0) < pool.score(20, 1.0));
        assert_eq!(pool.longer_than(20), [30]);
        assert!(pool.longer_than(30).is_empty());
    }
}
