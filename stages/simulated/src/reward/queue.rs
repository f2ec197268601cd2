//! Queues in which responses wait before they are scored.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, PoisonError};

use rollpacker_dataflow::clock::{Clock, Nanos, VirtualClock};
use serde::{Deserialize, Serialize};

/// The controller of a job. It receives the responses that arrive at the same time one after the other, and then dispatches all of them.
#[derive(Debug)]
pub(super) struct Controller {
    /// The time to receive a response.
    interval: Nanos,
    turn: Mutex<Turn>,
}

/// The responses that arrived at the same time.
#[derive(Debug, Default)]
struct Turn {
    given: Nanos,
    /// The time at which the controller starts to receive them.
    from: Nanos,
    responses: u64,
}

impl Controller {
    pub(super) fn new(interval: f64) -> Self {
        Self { interval: Nanos::from_secs_f64(interval), turn: Mutex::default() }
    }

    /// Waits until a response that arrives now is dispatched.
    pub(super) async fn pass(&self, clock: &VirtualClock) {
        self.give(clock.now());
        // Advance the time only after all responses that arrive now are counted.
        clock.sleep(Nanos(1)).await;
        let handed_out = self.handed_out();
        clock.sleep(handed_out.since(clock.now())).await;
    }

    fn give(&self, now: Nanos) {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if turn.given != now || turn.responses == 0 {
            let free = turn.end(self.interval);
            *turn = Turn { given: now, from: now.max(free), responses: 0 };
        }
        turn.responses += 1;
    }

    fn handed_out(&self) -> Nanos {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner).end(self.interval)
    }
}

impl Turn {
    fn end(&self, interval: Nanos) -> Nanos {
        Nanos(self.from.0 + interval.0 * self.responses)
    }
}

/// The assignment of runs to the slots of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workers {
    /// The first slot that is free.
    #[default]
    FirstFree,
    /// Round robin, even if the slot is busy (verl).
    InTurn,
}

/// Slots that each execute one run at a time. A run is executed to its end, even if its score is no longer needed.
#[derive(Debug)]
pub(super) struct Slots {
    workers: Workers,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The time at which each slot is free, with the index of the slot.
    free: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// The time at which each slot is free, for round robin.
    own: Vec<Nanos>,
    given: usize,
}

impl Slots {
    pub(super) fn new(slots: usize, workers: Workers) -> Self {
        let free = (0..slots.max(1)).map(|slot| Reverse((Nanos(0), slot))).collect();
        let own = vec![Nanos(0); slots.max(1)];
        Self { workers, state: Mutex::new(State { free, own, given: 0 }) }
    }

    /// Assigns a run of `duration` to a slot. Returns the time at which it is done.
    pub(super) fn give(&self, now: Nanos, duration: Nanos) -> Nanos {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match self.workers {
            Workers::FirstFree => state.first_free(now, duration),
            Workers::InTurn => state.in_turn(now, duration),
        }
    }
}

impl State {
    fn first_free(&mut self, now: Nanos, duration: Nanos) -> Nanos {
        let mut first = self.free.peek_mut().expect("invariant: there is at least one slot");
        let Reverse((free, slot)) = *first;
        let done = Nanos(free.max(now).0 + duration.0);
        *first = Reverse((done, slot));
        done
    }

    fn in_turn(&mut self, now: Nanos, duration: Nanos) -> Nanos {
        let slots = self.own.len();
        let slot = &mut self.own[self.given % slots];
        self.given += 1;
        *slot = Nanos((*slot).max(now).0 + duration.0);
        *slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_go_to_the_first_free_slot_or_to_slots_in_turn() {
        let done = |workers| {
            let slots = Slots::new(2, workers);
            [9, 1, 1, 1].map(|duration| slots.give(Nanos(100), Nanos(duration)).0)
        };
        assert_eq!(done(Workers::FirstFree), [109, 101, 102, 103]);
        assert_eq!(done(Workers::InTurn), [109, 101, 110, 102]);
    }
}
