//! The points of a profile and the order in which they are measured.

use super::{Phase, Point};

/// Minimum number of tokens of a measured sequence. An iteration over shorter sequences costs the same.
pub const MIN_SEQUENCE_TOKENS: u32 = 16;

/// The points to measure: every combination of these values that an instance can hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Number of instances that run at the same time, ascending.
    pub instances: Vec<u32>,
    /// Number of devices of an instance.
    pub tensor_parallel: u32,
    /// Number of sequences of an iteration, per instance, ascending.
    pub batch_sizes: Vec<u32>,
    /// Number of tokens of a sequence when prefilling, ascending.
    pub prompt_lengths: Vec<u32>,
    /// Number of tokens of a sequence when decoding, ascending.
    pub context_lengths: Vec<u32>,
    /// Number of tokens that an instance can hold; larger batches are omitted.
    pub kv_cache_tokens: usize,
}

impl Grid {
    /// Returns the points from coarse to fine: first the corners, then the midpoints, repeatedly. Points of one level are ordered by
    /// increasing [work](Point::work), so that an exhausted budget omits the most expensive ones.
    #[must_use]
    pub fn points(&self) -> Vec<Point> {
        let mut points: Vec<(u32, Point)> =
            [(Phase::Prefill, &self.prompt_lengths), (Phase::Decode, &self.context_lengths)]
                .into_iter()
                .flat_map(|(phase, lengths)| self.phase(phase, lengths))
                .filter(|(_, point)| point.work() <= self.kv_cache_tokens)
                .collect();
        points.sort_by_key(|(level, point)| (*level, point.work(), *point));
        points.into_iter().map(|(_, point)| point).collect()
    }

    fn phase(&self, phase: Phase, lengths: &[u32]) -> Vec<(u32, Point)> {
        let tensor_parallel = self.tensor_parallel;
        let mut points = Vec::new();
        for (by_instances, instances) in with_levels(&self.instances) {
            for (by_batch, batch_size) in with_levels(&self.batch_sizes) {
                points.extend(with_levels(lengths).into_iter().map(|(by_tokens, tokens)| {
                    let point = Point { phase, instances, tensor_parallel, batch_size, tokens };
                    (by_instances.max(by_batch).max(by_tokens), point)
                }));
            }
        }
        points
    }
}

/// Returns `first * 2^i` for i = 0, 1, ... as long as it is less than `last`, and then `last`. If `first` is 0 or not less than `last`,
/// returns only `last`.
#[must_use]
pub fn doublings(first: u32, last: u32) -> Vec<u32> {
    let below = std::iter::successors(Some(first), |value| value.checked_mul(2));
    below.take_while(|value| *value > 0 && *value < last).chain([last]).collect()
}

/// Returns each value with its level: 0 for the ends, 1 for the middle between them, 2 for the middles of the halves, and so on.
fn with_levels(values: &[u32]) -> Vec<(u32, u32)> {
    let mut levels = vec![0; values.len()];
    if let Some(last) = values.len().checked_sub(1) {
        assign_levels(&mut levels, 0, last, 1);
    }
    levels.into_iter().zip(values.iter().copied()).collect()
}

fn assign_levels(levels: &mut [u32], first: usize, last: usize, level: u32) {
    if last - first > 1 {
        let middle = first.midpoint(last);
        levels[middle] = level;
        assign_levels(levels, first, middle, level + 1);
        assign_levels(levels, middle, last, level + 1);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn values_double_up_to_the_last() {
        assert_eq!(doublings(1, 8), [1, 2, 4, 8]);
        assert_eq!(doublings(16, 100), [16, 32, 64, 100]);
        assert_eq!(doublings(16, 10), [10]);
        assert_eq!(doublings(1, u32::MAX).len(), 33);
    }

    #[test]
    fn ends_come_before_the_values_between_them() {
        let levels = |count: u32| -> Vec<u32> {
            let values: Vec<u32> = (0..count).collect();
            with_levels(&values).into_iter().map(|(level, _)| level).collect()
        };
        assert_eq!(levels(0), [0; 0]);
        assert_eq!(levels(1), [0]);
        assert_eq!(levels(6), [0, 2, 1, 2, 3, 0]);
    }

    #[test]
    fn every_point_that_fits_occurs_once_and_corners_come_first() {
        let grid = Grid {
            instances: vec![1, 2],
            tensor_parallel: 1,
            batch_sizes: vec![1, 2, 4],
            prompt_lengths: vec![8],
            context_lengths: vec![8, 16, 32],
            kv_cache_tokens: 64,
        };
        let points = grid.points();
        let distinct: BTreeSet<_> = points.iter().collect();
        // 2 instance counts x (3 prefills + 9 decodes minus the 4 x 32 that no instance can hold).
        assert_eq!((points.len(), distinct.len()), (22, 22));
        let ends = |point: &Point| point.batch_size != 2 && point.tokens != 16;
        let corners = points.iter().take_while(|point| ends(point)).count();
        assert_eq!(corners, points.iter().filter(|point| ends(point)).count());
        assert!(points[..corners].is_sorted_by_key(Point::work));
    }
}
