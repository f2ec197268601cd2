//! What the iterations of an engine cost, measured over batch sizes, lengths and instances.

pub mod grid;
#[cfg(feature = "torch")]
pub mod torch;

pub use grid::Grid;

use std::fmt;

use rollpacker_dataflow::clock::{Clock, Nanos};
use serde::{Deserialize, Serialize};

use super::RolloutError;

/// Repeats from which on a median is taken as it is.
pub const LEAST_REPEATS: u32 = 3;

/// Repeats after which a point is left, whatever time there is.
pub const MOST_REPEATS: u32 = 15;

/// What an engine does with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Prompts, or caches that were given up, are computed.
    Prefill,
    /// Each response of the batch gets one token.
    Decode,
}

impl Phase {
    /// As written in the column `phase`.
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

/// An iteration of every instance at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    /// What the iteration does.
    pub phase: Phase,
    /// Instances that run it at the same time: on one machine they share cores or bandwidth.
    pub instances: u32,
    /// Devices of an instance.
    pub tensor_parallel: u32,
    /// Sequences of an iteration, of each instance.
    pub batch_size: u32,
    /// Tokens of each sequence: computed when prefilling, attended to when decoding.
    pub tokens: u32,
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// What the iteration does.
    pub phase: Phase,
    /// Instances that ran it at the same time.
    pub instances: u32,
    /// Devices of an instance.
    pub tensor_parallel: u32,
    /// Sequences of an iteration, of each instance.
    pub batch_size: u32,
    /// Tokens of each sequence.
    pub tokens: u32,
    /// Seconds of an iteration, the median of the repeats.
    pub seconds: f64,
    /// How often it was measured.
    pub repeats: u32,
}

impl Row {
    fn of(point: Point, samples: Vec<f64>) -> Self {
        let Point { phase, instances, tensor_parallel, batch_size, tokens } = point;
        let repeats = u32::try_from(samples.len()).unwrap_or(u32::MAX);
        let seconds = median(samples);
        Self { phase, instances, tensor_parallel, batch_size, tokens, seconds, repeats }
    }

    /// Where it was measured.
    #[must_use]
    pub fn point(&self) -> Point {
        let Self { phase, instances, tensor_parallel, batch_size, tokens, .. } = *self;
        Point { phase, instances, tensor_parallel, batch_size, tokens }
    }
}

/// Something whose iterations take time: an engine, or a model of one.
///
/// # Contract
/// [`seconds`](Self::seconds) follows [`prepare`](Self::prepare), any number of times, and measures an iteration at the prepared point
/// each time; the first is not slower than the others because it is the first.
pub trait Measure {
    /// Makes everything ready for iterations at `point`.
    ///
    /// # Errors
    /// If the engine breaks.
    fn prepare(&mut self, point: Point) -> Result<(), RolloutError>;

    /// Runs an iteration; its seconds, the mean over the instances.
    ///
    /// # Errors
    /// If the engine breaks.
    fn seconds(&mut self) -> Result<f64, RolloutError>;
}

/// Measures the points of `grid`, coarse to fine, until all are measured or `budget` is spent; the rows by point.
///
/// What is left of the budget is shared among the points that are left; of its share a point is measured up to [`MOST_REPEATS`] times,
/// beyond it up to [`LEAST_REPEATS`] times. A measurement under way when the budget ends is brought to its end, so that there is always
/// a row.
///
/// # Errors
/// If the engine breaks.
pub fn measure(
    grid: &Grid,
    engine: &mut impl Measure,
    clock: &dyn Clock,
    budget: Nanos,
) -> Result<Vec<Row>, RolloutError> {
    let end = Nanos(clock.now().0.saturating_add(budget.0));
    let points = grid.points();
    let mut rows = Vec::new();
    for (at, point) in points.iter().enumerate() {
        let now = clock.now();
        if at > 0 && now >= end {
            break;
        }
        let left = (points.len() - at) as u64;
        let share_end = Nanos(now.0 + end.since(now).0 / left);
        engine.prepare(*point)?;
        rows.push(Row::of(*point, repeat(engine, clock, share_end, end)?));
    }
    rows.sort_by_key(Row::point);
    Ok(rows)
}

fn repeat(
    engine: &mut impl Measure,
    clock: &dyn Clock,
    share_end: Nanos,
    end: Nanos,
) -> Result<Vec<f64>, RolloutError> {
    let mut samples = vec![engine.seconds()?];
    while samples.len() < MOST_REPEATS as usize {
        let enough = samples.len() >= LEAST_REPEATS as usize;
        if clock.now() >= if enough { share_end } else { end } {
            break;
        }
        samples.push(engine.seconds()?);
    }
    Ok(samples)
}

/// The middle of `samples`, of which there is at least one; the mean of the middle two.
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

    /// Takes a second for whatever it does, and `costs` in turn for what it says.
    struct Steady {
        clock: VirtualClock,
        costs: Vec<f64>,
        calls: Vec<Point>,
        samples: usize,
    }

    impl Steady {
        fn new(costs: &[f64]) -> Self {
            let clock = VirtualClock::default();
            Self { clock, costs: costs.to_vec(), calls: Vec::new(), samples: 0 }
        }

        fn pass(&self) {
            self.clock.advance_to(Nanos(self.clock.now().0 + 1_000_000_000));
        }

        fn measure(&mut self, budget: f64) -> Vec<Row> {
            let clock = self.clock.clone();
            measure(&grid(), self, &clock, Nanos::from_secs_f64(budget)).expect("it never breaks")
        }
    }

    impl Measure for Steady {
        fn prepare(&mut self, point: Point) -> Result<(), RolloutError> {
            self.calls.push(point);
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
        let mut engine = Steady::new(&[9.0, 1.0, 2.0]);
        let rows = engine.measure(1e6);
        let mut points = grid().points();
        points.sort_unstable();
        assert_eq!(rows.iter().map(Row::point).collect::<Vec<_>>(), points);
        assert!(rows.iter().all(|row| (row.repeats, row.seconds) == (MOST_REPEATS, 2.0)));
    }

    #[test]
    fn the_budget_bounds_what_is_done() {
        for budget in [0.0, 1.0, 7.5, 30.0, 100.0] {
            let mut engine = Steady::new(&[1.0]);
            let rows = engine.measure(budget);
            let spent = (engine.calls.len() + engine.samples) as f64;
            assert!(spent <= (budget + 1.0).max(2.0), "{spent} of {budget}");
            assert!(!rows.is_empty());
            assert_eq!(rows.len(), engine.calls.len());
            assert_eq!(grid().points()[..rows.len()], engine.calls);
        }
    }

    #[test]
    fn time_is_shared_among_the_points_that_are_left() {
        let points = grid().points().len() as u32;
        let rows = Steady::new(&[1.0]).measure(f64::from(points) * 6.0);
        assert_eq!(rows.len() as u32, points);
        assert!(rows.iter().all(|row| row.repeats == 5), "{rows:?}");
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
