//! The end of a run: after all steps, on request, or when the time is over.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::step::Step;
use rollpacker_operators::schedule::operator::{Stop, StopReason};
use serde::Serialize;

/// Exit status of a run that ended before its last step and can be resumed if it took a snapshot: `EX_TEMPFAIL` of sysexits.h. Batch
/// systems can requeue a job with this status. `rollpacker probe` returns it if the server cannot be reached or a signal ended the probe.
pub const ENDED_EARLY: u8 = 75;

/// The reason why a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// All steps are done, or the prompts are exhausted.
    #[default]
    Finished,
    /// A stop was requested, by a signal or by the program.
    Stopped,
    /// The next step would not have fitted into `trainer.max_wall_time`.
    OutOfTime,
}

impl EndReason {
    /// Returns the reason why a run with the stop handle `stop` ended after `updates` updates. `wanted` is the total number of updates;
    /// `None` if it is unknown.
    ///
    /// A run that made all its updates, or whose schedule has nothing left to do, is finished, even if a stop was requested before. For any
    /// other run, `stop` has the reason. If it has none, the run is finished, too: its prompts are exhausted.
    #[must_use]
    pub fn of(stop: &Stop, updates: u64, wanted: Option<u64>) -> Self {
        match stop.reason() {
            _ if stop.is_complete() || wanted.is_some_and(|wanted| updates >= wanted) => {
                Self::Finished
            }
            None => Self::Finished,
            Some(StopReason::Requested) => Self::Stopped,
            Some(StopReason::OutOfTime) => Self::OutOfTime,
        }
    }
}

/// The wall-time limit of a run. A step that may not finish in time is not started.
///
/// The expected time of a step is the longest of the last [`RECENT_ROUNDS`] steps. A step lasts from the opening of one round to the
/// opening of the next, which includes validation and waiting. With staleness `k`, `k` further rounds are in flight and must end first. A
/// margin of 10 % is reserved for the snapshot and the model. The first step is always started, so that a job that is run repeatedly makes
/// progress.
pub struct WallTime {
    clock: Arc<dyn Clock>,
    /// The time of `clock` at which the run must have ended.
    limit: Nanos,
    /// The number of rounds that must end before a round that opens now can end, including this round: the staleness plus 1.
    rounds: f64,
    pace: Mutex<RoundDurations>,
}

/// The number of past steps that determine the expected time of the next step. Long rounds of tail batching are a few steps apart.
pub const RECENT_ROUNDS: usize = 16;

/// The time that is reserved for the snapshot and the model, as a share of the expected time.
const MARGIN: f64 = 0.1;

#[derive(Default)]
struct RoundDurations {
    /// The time at which the latest round opened; `None` before the first round.
    opened: Option<Nanos>,
    /// The durations of at most [`RECENT_ROUNDS`] rounds, oldest first.
    durations: VecDeque<Nanos>,
}

impl WallTime {
    /// Limits a run to `limit`, measured from time 0 of `clock`. `staleness` is the number of further rounds that are in flight.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, limit: Nanos, staleness: u64) -> Self {
        let rounds = staleness as f64 + 1.0;
        Self { clock, limit, rounds, pace: Mutex::default() }
    }

    /// Returns `true` if there is time for another round, and always at the first call. Call this whenever a round can open: the calls also
    /// measure the rounds.
    pub fn allows(&self, _step: Step) -> bool {
        let now = self.clock.now();
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = pace.opened.replace(now) {
            pace.durations.push_back(now.since(opened));
        }
        if pace.durations.len() > RECENT_ROUNDS {
            pace.durations.pop_front();
        }
        let Some(longest) = pace.durations.iter().max() else { return true };
        let needed = longest.as_secs_f64() * self.rounds * (1.0 + MARGIN);
        now.as_secs_f64() + needed <= self.limit.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use rollpacker_dataflow::clock::VirtualClock;

    use super::*;

    /// Returns the number of rounds that are started, for rounds of the given lengths in seconds.
    fn rounds(limit: f64, staleness: u64, lengths: &[f64]) -> usize {
        let clock = VirtualClock::default();
        let limit = Nanos::from_secs_f64(limit);
        let time = WallTime::new(Arc::new(clock.clone()), limit, staleness);
        let mut now = 0.0;
        let begins = |length: &&f64| {
            let begins = time.allows(Step(0));
            now += **length;
            clock.advance_to(Nanos::from_secs_f64(now));
            begins
        };
        lengths.iter().take_while(begins).count()
    }

    #[test]
    fn a_step_begins_if_it_fits_and_the_first_step_always_begins() {
        assert_eq!(rounds(100.0, 0, &[10.0; 20]), 9, "the tenth step could end at 101 s");
        assert_eq!(rounds(101.0, 0, &[10.0; 20]), 10);
        assert_eq!(rounds(1.0, 0, &[10.0; 20]), 1);
    }

    #[test]
    fn the_longest_of_the_last_steps_counts() {
        let mut lengths = vec![1.0; 40];
        lengths[3] = 20.0;
        // Of 44 s, 21 s are left after the long step. This is too short for another long one, which is still among the recent steps.
        assert_eq!(rounds(44.0, 0, &lengths), 4);
        assert_eq!(rounds(62.0, 0, &lengths), lengths.len());
        assert_eq!(rounds(45.0, 0, &lengths[4..]), 36);
    }

    #[test]
    fn time_is_reserved_for_rounds_in_flight() {
        assert_eq!(rounds(100.0, 1, &[10.0; 20]), 8);
    }

    #[test]
    fn a_run_with_all_updates_is_finished_even_if_a_stop_was_requested() {
        let stop = Stop::default();
        assert_eq!(EndReason::of(&stop, 3, Some(5)), EndReason::Finished, "prompts may be fewer");
        stop.request();
        assert_eq!(EndReason::of(&stop, 3, Some(5)), EndReason::Stopped);
        assert_eq!(EndReason::of(&stop, 5, Some(5)), EndReason::Finished);
        assert_eq!(EndReason::of(&stop, 3, None), EndReason::Stopped);
    }
}
