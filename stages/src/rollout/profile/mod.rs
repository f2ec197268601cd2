//! The cost of an engine's iterations, measured over batch sizes, lengths and instances.

pub mod grid;

pub use grid::Grid;

use std::fmt;

use rollpacker_dataflow::clock::{Clock, Nanos};
use serde::{Deserialize, Serialize};

use super::RolloutError;

/// The number of repeats that a point gets even beyond its share of the time, while budget is left.
pub const MIN_REPEATS: u32 = 3;

/// Maximum number of repeats of a point, regardless of the remaining time.
pub const MAX_REPEATS: u32 = 15;

/// A point is deferred while its preparation and one repeat would take more than 1 / `PARTS` of the remaining time.
const PARTS: u64 = 8;

/// The kind of an engine's iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Prompts, or caches that were dropped, are computed.
    Prefill,
    /// Each response of the batch gets one token.
    Decode,
}

impl Phase {
    /// Returns the value of the column `phase`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// An iteration that every instance runs at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    /// The kind of the iteration.
    pub phase: Phase,
    /// Number of instances that run the iteration at the same time; on one machine they share cores or bandwidth.
    pub instances: u32,
    /// Number of devices of an instance.
    pub tensor_parallel: u32,
    /// Number of sequences of an iteration, per instance.
    pub batch_size: u32,
    /// Number of tokens of each sequence: computed when prefilling, attended to when decoding.
    pub tokens: u32,
}

impl Point {
    /// Returns the number of tokens that an instance computes or reads.
    #[must_use]
    pub fn work(&self) -> usize {
        self.batch_size as usize * self.tokens as usize
    }

    /// Returns `true` if `other` has at least as many sequences of at least as many tokens, and is otherwise equal.
    fn is_part_of(&self, other: &Self) -> bool {
        let setting = |point: &Self| (point.phase, point.instances, point.tensor_parallel);
        setting(self) == setting(other)
            && self.batch_size <= other.batch_size
            && self.tokens <= other.tokens
    }
}

/// One measurement: a row of a profile's Parquet file, whose columns have the same names.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The kind of the iteration.
    pub phase: Phase,
    /// Number of instances that ran the iteration at the same time; on one machine they share cores or bandwidth.
    pub instances: u32,
    /// Number of devices of an instance.
    pub tensor_parallel: u32,
    /// Number of sequences of an iteration, per instance.
    pub batch_size: u32,
    /// Number of tokens of each sequence: the length of the prompt when prefilling, the tokens in the cache when decoding.
    pub tokens: u32,
    /// Seconds of an iteration, as the median of the repeats.
    pub seconds: f64,
    /// Number of times that the iteration was timed.
    pub repeats: u32,
}

impl Row {
    fn of(point: Point, samples: Vec<f64>) -> Self {
        let Point { phase, instances, tensor_parallel, batch_size, tokens } = point;
        let repeats = u32::try_from(samples.len()).unwrap_or(u32::MAX);
        let seconds = median(samples);
        Self { phase, instances, tensor_parallel, batch_size, tokens, seconds, repeats }
    }

    /// Returns the point that was measured.
    #[must_use]
    pub fn point(&self) -> Point {
        let Self { phase, instances, tensor_parallel, batch_size, tokens, .. } = *self;
        Point { phase, instances, tensor_parallel, batch_size, tokens }
    }
}

/// A system whose iterations can be timed: an engine, or a model of one.
///
/// # Contract
/// [`seconds`](Self::seconds) is called any number of times after [`prepare`](Self::prepare), and each time measures an iteration at the
/// prepared point. The first measurement must not include warm-up costs.
///
/// # Example
/// ```
/// use rollpacker_dataflow::clock::{Clock, Nanos, VirtualClock};
/// use rollpacker_stages::rollout::RolloutError;
/// use rollpacker_stages::rollout::profile::{Grid, Measure, Phase, Point, measure};
///
/// /// A device that takes a millisecond per token that it prefills, and 10 ms to decode.
/// struct Model {
///     clock: VirtualClock,
///     seconds: f64,
/// }
///
/// impl Measure for Model {
///     fn prepare(&mut self, point: Point) -> Result<(), RolloutError> {
///         self.seconds = match point.phase {
///             Phase::Prefill => 0.001 * point.work() as f64,
///             Phase::Decode => 0.01,
///         };
///         Ok(())
///     }
///
///     fn seconds(&mut self) -> Result<f64, RolloutError> {
///         let elapsed = Nanos::from_secs_f64(self.seconds);
///         self.clock.advance_to(Nanos(self.clock.now().0 + elapsed.0));
///         Ok(self.seconds)
///     }
/// }
///
/// let grid = Grid {
///     instances: vec![1],
///     tensor_parallel: 1,
///     batch_sizes: vec![4],
///     prompt_lengths: vec![100],
///     context_lengths: vec![100],
///     kv_cache_tokens: 4096,
/// };
/// let clock = VirtualClock::default();
/// let mut device = Model { clock: clock.clone(), seconds: 0.0 };
/// let rows = measure(&grid, &mut device, &clock, Nanos::from_secs_f64(60.0)).expect("no error");
/// let seconds: Vec<f64> = rows.iter().map(|row| row.seconds).collect();
/// assert_eq!(seconds, [0.4, 0.01], "prefill of 4 x 100 tokens, and decode");
/// ```
pub trait Measure {
    /// Prepares for iterations at `point`.
    ///
    /// # Errors
    /// Returns an error if the engine fails.
    fn prepare(&mut self, point: Point) -> Result<(), RolloutError>;

    /// Runs an iteration and returns its seconds, as the mean over the instances.
    ///
    /// # Errors
    /// Returns an error if the engine fails.
    fn seconds(&mut self) -> Result<f64, RolloutError>;
}

/// Measures the points of `grid`, from coarse to fine, until all are measured or `budget` is spent. Returns the rows ordered by point.
///
/// The remaining budget is divided among the remaining points. A point is measured up to [`MAX_REPEATS`] times within its share. If the
/// share does not suffice for [`MIN_REPEATS`] repeats, they continue beyond it while budget is left.
///
/// A point is deferred while its preparation and one repeat would take more than an eighth of the remaining time, as long as other points
/// take less. It is omitted if its preparation and one repeat would take more than all the remaining time. The time of a point is estimated
/// from smaller points that were measured, in proportion to the tokens. The estimate is too high rather than too low, and becomes more
/// accurate as larger points are measured. The smallest point of each phase and instance count has no estimate and is measured regardless
/// of its cost, while time is left, so that there is always a row.
///
/// # Errors
/// Returns an error if the engine fails.
pub fn measure(
    grid: &Grid,
    engine: &mut impl Measure,
    clock: &dyn Clock,
    budget: Nanos,
) -> Result<Vec<Row>, RolloutError> {
    let end = Nanos(clock.now().0.saturating_add(budget.0));
    let mut pending = grid.points();
    let mut known = Vec::new();
    let mut rows = Vec::new();
    loop {
        let begun = clock.now();
        let left = end.since(begun);
        if left == Nanos(0) && !rows.is_empty() {
            break;
        }
        let part = Nanos(left.0 / PARTS);
        let at = affordable(&pending, &known, part).or_else(|| affordable(&pending, &known, left));
        let Some(at) = at else { break };
        let share_end = Nanos(begun.0 + left.0 / pending.len() as u64);
        let point = pending.remove(at);
        engine.prepare(point)?;
        let samples = repeat(engine, clock, share_end, end)?;
        let took = clock.now().since(begun).as_secs_f64();
        known.push((point, took / (samples.len() + 1) as f64));
        rows.push(Row::of(point, samples));
    }
    rows.sort_by_key(Row::point);
    Ok(rows)
}

/// Returns the index of the first of `pending` that can be prepared and measured once in the time that is `left`. Times are estimated
/// from `known`: points that were measured, each with its mean seconds of a preparation or a repeat.
fn affordable(pending: &[Point], known: &[(Point, f64)], left: Nanos) -> Option<usize> {
    pending.iter().position(|point| {
        let estimates = known.iter().filter(|(known, _)| known.is_part_of(point));
        let estimates =
            estimates.map(|(known, seconds)| seconds * point.work() as f64 / known.work() as f64);
        estimates.min_by(f64::total_cmp).is_none_or(|seconds| 2.0 * seconds <= left.as_secs_f64())
    })
}

/// Measures iterations at the prepared point and returns the seconds of each: at least one, at most [`MAX_REPEATS`]. Up to [`MIN_REPEATS`],
/// another one is measured if it is expected to end by `end`; beyond, if it is expected to end by `share_end`.
fn repeat(
    engine: &mut impl Measure,
    clock: &dyn Clock,
    share_end: Nanos,
    end: Nanos,
) -> Result<Vec<f64>, RolloutError> {
    let begun = clock.now();
    let mut samples = vec![engine.seconds()?];
    while samples.len() < MAX_REPEATS as usize {
        let enough = samples.len() >= MIN_REPEATS as usize;
        let now = clock.now();
        let each = now.since(begun).0 / samples.len() as u64;
        if now.0 + each > if enough { share_end.0 } else { end.0 } {
            break;
        }
        samples.push(engine.seconds()?);
    }
    Ok(samples)
}

/// Returns the median of `samples`, which must not be empty; for an even number, the mean of the middle two.
fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    let middle = samples.len() / 2;
    if samples.len() % 2 == 1 {
        samples[middle]
    } else {
        samples[middle - 1].midpoint(samples[middle])
    }
}

#[cfg(test)]
mod tests {
    use rollpacker_dataflow::clock::VirtualClock;

    use super::*;

    /// An engine in which every operation takes one second plus `dearness` per token, and which reports the times `costs` in turn.
    struct Steady {
        clock: VirtualClock,
        dearness: f64,
        costs: Vec<f64>,
        points: Vec<Point>,
        samples: usize,
    }

    impl Steady {
        fn new(dearness: f64, costs: &[f64]) -> Self {
            let clock = VirtualClock::default();
            Self { clock, dearness, costs: costs.to_vec(), points: Vec::new(), samples: 0 }
        }

        fn pass(&self) {
            let work = self.points.last().map_or(0, Point::work) as f64;
            let now = self.clock.now().as_secs_f64();
            self.clock.advance_to(Nanos::from_secs_f64(now + 1.0 + self.dearness * work));
        }

        fn measure(&mut self, budget: f64) -> Vec<Row> {
            let clock = self.clock.clone();
            measure(&grid(), self, &clock, Nanos::from_secs_f64(budget)).expect("it never breaks")
        }
    }

    impl Measure for Steady {
        fn prepare(&mut self, point: Point) -> Result<(), RolloutError> {
            self.points.push(point);
            self.pass();
            Ok(())
        }

        fn seconds(&mut self) -> Result<f64, RolloutError> {
            self.pass();
            self.samples += 1;
            Ok(self.costs[self.samples % self.costs.len()])
        }
    }

    fn grid() -> Grid {
        Grid {
            instances: vec![1, 2],
            tensor_parallel: 1,
            batch_sizes: vec![1, 2, 4],
            prompt_lengths: vec![8, 16],
            context_lengths: vec![8, 16, 32],
            kv_cache_tokens: 100,
        }
    }

    #[test]
    fn every_point_is_measured_once_if_there_is_time() {
        let mut engine = Steady::new(1.0, &[9.0, 1.0, 2.0]);
        let rows = engine.measure(1e6);
        let mut points = grid().points();
        assert_eq!(points, engine.points, "coarse to fine");
        points.sort_unstable();
        assert_eq!(rows.iter().map(Row::point).collect::<Vec<_>>(), points);
        assert!(rows.iter().all(|row| (row.repeats, row.seconds) == (MAX_REPEATS, 2.0)));
    }

    #[test]
    fn the_budget_is_kept() {
        for dearness in [0.0, 0.1, 1.0] {
            for budget in (0..200).map(|part| f64::from(part) * 7.3) {
                let mut engine = Steady::new(dearness, &[1.0]);
                let rows = engine.measure(budget);
                let spent = engine.clock.now().as_secs_f64();
                // One more of the smallest points, which have no estimate, and its preparation.
                let min = 2.0 * (1.0 + dearness * 8.0);
                assert!(spent <= budget + min, "{spent} s of {budget} s, {dearness} s a token");
                assert!(!rows.is_empty());
                assert_eq!(rows.len(), engine.points.len());
            }
        }
    }

    #[test]
    fn only_points_that_do_not_fit_are_left_out() {
        let rows = Steady::new(1.0, &[1.0]).measure(600.0);
        let measured = |batch_size, tokens| {
            let here = |row: &&Row| row.batch_size == batch_size && row.tokens == tokens;
            rows.iter().filter(here).count()
        };
        assert_eq!(measured(1, 8), 4, "both phases, one instance and two");
        assert!(measured(4, 16) + measured(2, 32) < 6, "129 seconds and more, each");
        assert!(rows.len() > 8);
    }

    #[test]
    fn time_is_shared_among_the_points_that_are_left() {
        let points = grid().points().len();
        let rows = Steady::new(0.0, &[1.0]).measure(points as f64 * 8.0);
        let repeats: Vec<u32> = rows.iter().map(|row| row.repeats).collect();
        assert!(
            rows.len() + 3 >= points,
            "all points are measured, except the last ones if their estimated time exceeds the budget"
        );
        assert!(repeats.iter().all(|repeats| (6..10).contains(repeats)), "{repeats:?}");
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
