//! The occupancy of the engine during the rollout of a step.

use std::collections::BTreeMap;

use arrow_array::types::{UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;

/// A response that occupied a slot of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotUse {
    /// The instance on which the response ended.
    pub(super) instance: u32,
    /// The start, in nanoseconds of the run's clock.
    pub(super) started: u64,
    /// The end, in nanoseconds of the run's clock.
    pub(super) finished: u64,
}

/// Returns the responses of a step that ran during the step. Responses from an earlier round without a new token are left out, such as
/// responses that were kept whole.
pub(super) fn slot_uses(responses: &[Batch]) -> impl Iterator<Item = SlotUse> {
    responses.iter().flat_map(|batch| {
        let started = batch.values::<UInt64Type>(column::STARTED).values();
        let finished = batch.values::<UInt64Type>(column::FINISHED).values();
        let instances = batch.values::<UInt32Type>(column::INSTANCE).values();
        let tokens = batch.values::<UInt32Type>(column::RESPONSE_LENGTH).values();
        let resumed = batch.values::<UInt32Type>(column::RESUMED_LENGTH).values();
        (0..batch.num_rows()).filter(|&row| resumed[row] == 0 || tokens[row] > resumed[row]).map(
            |row| SlotUse {
                instance: instances[row],
                started: started[row],
                finished: finished[row],
            },
        )
    })
}

/// The duration of the rollout, and the shares of idle time of the engine's slots and instances.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Occupancy {
    /// Seconds from the start of the first response to the end of the last response.
    pub(super) seconds: f64,
    /// Bubble ratio of SortedRL, equation 4: `sum_k (Q - r_k) dt_k / (Q T)`. Here `r_k` responses run in interval `k` of the rollout, and
    /// `dt_k` is the duration of the interval. `Q` is the maximum of `r_k`, and `T` is `seconds`.
    pub(super) bubble_ratio: f64,
    /// The share of the rollout in which an instance ran no response: the mean over the instances that ran a response.
    pub(super) idle_ratio: f64,
}

impl Occupancy {
    /// Returns the occupancy of the engine by the responses `runs`. All values are 0 if there are no responses or the rollout took no time.
    pub(super) fn of(runs: impl Iterator<Item = SlotUse>) -> Self {
        // If a response starts when another one ends, the end comes first (-1 before 1), so that both use the same slot.
        let mut changes: Vec<(u64, i64, u32)> = runs
            .flat_map(|SlotUse { instance, started, finished }| {
                [(started, 1, instance), (started.max(finished), -1, instance)]
            })
            .collect();
        changes.sort_unstable();
        let (first, last) = (changes.first(), changes.last());
        let length = first.zip(last).map_or(0, |(first, last)| last.0 - first.0);
        let (mut engine, mut instances) = (Load::default(), BTreeMap::<u32, Load>::new());
        for (time, change, instance) in changes {
            engine.change(time, change);
            instances.entry(instance).or_default().change(time, change);
        }
        let busy: u128 = instances.values().map(|load| load.busy).sum();
        let idle = |used: u128, max: u64| {
            let capacity = max as f64 * length as f64;
            if capacity > 0.0 { 1.0 - used as f64 / capacity } else { 0.0 }
        };
        Self {
            seconds: length as f64 / 1e9,
            bubble_ratio: idle(engine.slot_time, engine.max),
            idle_ratio: idle(busy, instances.len() as u64),
        }
    }
}

/// The load of the engine or of an instance up to a time.
#[derive(Default)]
struct Load {
    /// The time of the last change, in nanoseconds of the run's clock; 0 before the first change.
    since: u64,
    running: u64,
    /// The maximum number of responses that ran at the same time.
    max: u64,
    /// Nanoseconds in which at least one response ran.
    busy: u128,
    /// The sum of the running times of the responses, in nanoseconds.
    slot_time: u128,
}

impl Load {
    /// Changes the number of running responses at `time`, which is not before the last change.
    fn change(&mut self, time: u64, change: i64) {
        let elapsed = u128::from(time - self.since);
        self.slot_time += u128::from(self.running) * elapsed;
        self.busy += u128::from(self.running.min(1)) * elapsed;
        self.since = time;
        self.running = self.running.saturating_add_signed(change);
        self.max = self.max.max(self.running);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the occupancy by responses with an instance, a start and an end in seconds.
    fn occupancy(runs: &[(u32, u64, u64)]) -> Occupancy {
        let run = |&(instance, started, finished): &(u32, u64, u64)| SlotUse {
            instance,
            started: started * 1_000_000_000,
            finished: finished * 1_000_000_000,
        };
        Occupancy::of(runs.iter().map(run))
    }

    #[test]
    fn without_responses_nothing_is_idle() {
        assert_eq!(occupancy(&[]), Occupancy::default());
        assert_eq!(occupancy(&[(0, 5, 5)]), Occupancy::default());
    }

    #[test]
    fn times_of_another_clock_do_not_overflow() {
        let run = |instance| SlotUse { instance, started: 0, finished: u64::MAX };
        let own = Occupancy::of((0..1000).map(run));
        assert_eq!((own.bubble_ratio, own.idle_ratio), (0.0, 0.0));
    }

    #[test]
    fn an_instance_is_idle_before_its_first_response_between_two_and_after_its_last() {
        // Instance 0 runs from 10 to 20; instance 1 from 12 to 14 and from 16 to 18.
        let own = occupancy(&[(0, 10, 20), (1, 12, 14), (1, 16, 18)]);
        assert_eq!(own.seconds, 10.0);
        assert!((own.idle_ratio - 0.3).abs() < 1e-12);
        assert!((own.bubble_ratio - 0.3).abs() < 1e-12);
    }

    #[test]
    fn slots_can_be_idle_while_no_instance_is() {
        let own = occupancy(&[(0, 0, 10), (0, 0, 2), (1, 0, 10), (1, 4, 10)]);
        assert_eq!(own.idle_ratio, 0.0);
        assert!((own.bubble_ratio - 2.0 / 30.0).abs() < 1e-12);
    }

    #[test]
    fn a_response_takes_the_slot_of_one_that_ends_when_it_starts() {
        let own = occupancy(&[(0, 0, 4), (0, 4, 10)]);
        assert_eq!((own.bubble_ratio, own.idle_ratio), (0.0, 0.0));
    }
}
