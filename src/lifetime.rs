//! How runs end: when all is done, when someone asks, when the time is over, or when they fail.

use std::collections::VecDeque;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::exit::exit_now;
use rollpacker_dataflow::step::Step;
use rollpacker_operators::schedule::operator::{Stop, Stopped};
use serde::Serialize;

use crate::terminal;

/// Exit status of a run that ended before its last step and can be resumed: `EX_TEMPFAIL` of sysexits.h, what batch systems are told to
/// run a job again by.
pub const ENDED_EARLY: u8 = 75;

/// Why a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// Nothing was left to do.
    #[default]
    Finished,
    /// It was asked to: by a signal, or from Rust.
    Stopped,
    /// Another step did not fit into `trainer.max_wall_time`.
    OutOfTime,
}

impl Ended {
    /// Of a run that `stop` could end, and that has made `updates` updates, of `wanted` if that is known.
    #[must_use]
    pub fn by(stop: &Stop, updates: u64, wanted: Option<u64>) -> Self {
        match stop.reason() {
            _ if stop.is_complete() || wanted.is_some_and(|wanted| updates >= wanted) => {
                Self::Finished
            }
            None => Self::Finished,
            Some(Stopped::Asked) => Self::Stopped,
            Some(Stopped::OutOfTime) => Self::OutOfTime,
        }
    }
}

/// The wall time of a run: no step begins that may not fit.
///
/// A step is expected to take no longer than the longest of the last [`RECENT`], from the opening of one round to the next, so with
/// validation and whatever else was waited for; with a staleness `k`, `k` rounds are under way before it. A tenth more is kept for
/// snapshot and model. The first step always begins: a job that is run again and again gets on.
pub struct WallTime {
    clock: Arc<dyn Clock>,
    limit: Nanos,
    /// Rounds that end before one that opens now does, itself among them.
    rounds: f64,
    pace: Mutex<Pace>,
}

/// Steps by which the length of the next is foreseen: long rounds of tail batching are a few steps apart.
pub const RECENT: usize = 16;

/// Of the time that is foreseen, how much more is kept.
const MARGIN: f64 = 0.1;

#[derive(Default)]
struct Pace {
    opened: Option<Nanos>,
    /// How long the last rounds took.
    took: VecDeque<Nanos>,
}

impl WallTime {
    /// A run that began when `clock` read 0, and may take `limit`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, limit: Nanos, staleness: u64) -> Self {
        let rounds = staleness as f64 + 1.0;
        Self { clock, limit, rounds, pace: Mutex::default() }
    }

    /// Whether there is time for another round. To be asked when one can open.
    pub fn allows(&self, _step: Step) -> bool {
        let now = self.clock.now();
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = pace.opened.replace(now) {
            pace.took.push_back(now.since(opened));
        }
        if pace.took.len() > RECENT {
            pace.took.pop_front();
        }
        let Some(longest) = pace.took.iter().max() else { return true };
        let needed = longest.as_secs_f64() * self.rounds * (1.0 + MARGIN);
        now.as_secs_f64() + needed <= self.limit.as_secs_f64()
    }
}

/// Ends the process if a run that has failed does not: it waits for the threads of its stages, and one of them may be what failed.
pub(crate) struct Grace(
    #[expect(dead_code, reason = "the thread ends when it is dropped")] mpsc::Sender<()>,
);

impl Grace {
    /// After `time` the process ends with exit status 1, and says `error`.
    pub(crate) fn begin(time: Duration, error: String) -> Self {
        let (end, ended) = mpsc::channel();
        let wait = move || {
            if ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                terminal::warn(&format!("error: {error}; a stage did not end in {time:?}"));
                exit_now(1);
            }
        };
        // A system without threads has other troubles: the process may then have to be killed.
        drop(std::thread::Builder::new().name("grace".to_owned()).spawn(wait));
        Self(end)
    }
}

#[cfg(test)]
mod tests {
    use rollpacker_dataflow::clock::VirtualClock;

    use super::*;

    /// How many rounds of the given lengths, in seconds, begin.
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
    fn a_step_begins_if_it_fits_and_the_first_always() {
        assert_eq!(rounds(100.0, 0, &[10.0; 20]), 9, "the tenth may end at 101");
        assert_eq!(rounds(101.0, 0, &[10.0; 20]), 10);
        assert_eq!(rounds(1.0, 0, &[10.0; 20]), 1);
    }

    #[test]
    fn the_longest_of_the_last_steps_counts() {
        let mut lengths = vec![1.0; 40];
        lengths[3] = 20.0;
        // Of 44 s, the 21 that are left behind the long one are too few for another, and the run does not live to forget it.
        assert_eq!(rounds(44.0, 0, &lengths), 4);
        assert_eq!(rounds(62.0, 0, &lengths), lengths.len());
        assert_eq!(rounds(45.0, 0, &lengths[4..]), 36);
    }

    #[test]
    fn rounds_that_are_under_way_have_to_end_too() {
        assert_eq!(rounds(100.0, 1, &[10.0; 20]), 8);
    }

    #[test]
    fn a_run_that_made_all_its_updates_is_finished_whatever_was_asked() {
        let stop = Stop::default();
        assert_eq!(Ended::by(&stop, 3, Some(5)), Ended::Finished, "prompts may be fewer");
        stop.request();
        assert_eq!(Ended::by(&stop, 3, Some(5)), Ended::Stopped);
        assert_eq!(Ended::by(&stop, 5, Some(5)), Ended::Finished);
        assert_eq!(Ended::by(&stop, 3, None), Ended::Stopped);
    }
}
