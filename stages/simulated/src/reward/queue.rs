//! Queues in which responses wait before they are scored.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, PoisonError};

use rollpacker_dataflow::clock::{Clock, Nanos, VirtualClock};
use serde::{Deserialize, Serialize};

/// The controller of a job. It receives the responses that arrive at the same time one after the other, and then dispatches all of them.
#[derive(Debug)]
pub(super) struct ScoringController {
    /// The time to receive a response.
    interval: Nanos,
    batch: Mutex<ArrivalBatch>,
}

/// The responses that arrived at the same time.
#[derive(Debug, Default)]
struct ArrivalBatch {
    arrived: Nanos,
    /// The time at which the controller starts to receive the responses.
    starts: Nanos,
    responses: u64,
}

impl ScoringController {
    pub(super) fn new(interval: f64) -> Self {
        Self { interval: Nanos::from_secs_f64(interval), batch: Mutex::default() }
    }

    /// Waits until a response that arrives now is dispatched.
    pub(super) async fn wait_for_dispatch(&self, clock: &VirtualClock) {
        self.add_arrival(clock.now());
        // Wait for the next nanosecond, so that all responses that arrive at the same time are counted first.
        clock.sleep(Nanos(1)).await;
        let dispatch_time = self.dispatch_time();
        clock.sleep(dispatch_time.since(clock.now())).await;
    }

    fn add_arrival(&self, now: Nanos) {
        let mut batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        if batch.arrived != now || batch.responses == 0 {
            let free = batch.end(self.interval);
            *batch = ArrivalBatch { arrived: now, starts: now.max(free), responses: 0 };
        }
        batch.responses += 1;
    }

    fn dispatch_time(&self) -> Nanos {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner).end(self.interval)
    }
}

impl ArrivalBatch {
    fn end(&self, interval: Nanos) -> Nanos {
        Nanos(self.starts.0 + interval.0 * self.responses)
    }
}

/// The assignment of runs to the slots of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workers {
    /// A run goes to the first slot that is free.
    #[default]
    FirstFree,
    /// Runs are assigned round-robin, even to a slot that is busy (verl).
    InTurn,
}

/// Slots that each execute one run at a time. A run is executed to its end, even if its score is no longer needed.
#[derive(Debug)]
pub(super) struct Slots {
    workers: Workers,
    state: Mutex<SlotState>,
}

#[derive(Debug)]
struct SlotState {
    /// The time at which each slot is free, with the index of the slot. Used with [`Workers::FirstFree`].
    free: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// The time at which each slot is free, by the index of the slot. Used with [`Workers::InTurn`].
    free_by_slot: Vec<Nanos>,
    assigned: usize,
}

impl Slots {
    pub(super) fn new(slots: usize, workers: Workers) -> Self {
        let free = (0..slots.max(1)).map(|slot| Reverse((Nanos(0), slot))).collect();
        let free_by_slot = vec![Nanos(0); slots.max(1)];
        Self { workers, state: Mutex::new(SlotState { free, free_by_slot, assigned: 0 }) }
    }

    /// Assigns a run of `duration` to a slot. Returns the time at which the run ends.
    pub(super) fn assign(&self, now: Nanos, duration: Nanos) -> Nanos {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match self.workers {
            Workers::FirstFree => state.first_free(now, duration),
            Workers::InTurn => state.round_robin(now, duration),
        }
    }
}

impl SlotState {
    fn first_free(&mut self, now: Nanos, duration: Nanos) -> Nanos {
        let mut first = self.free.peek_mut().expect("invariant: there is at least one slot");
        let Reverse((free, slot)) = *first;
        let done = Nanos(free.max(now).0 + duration.0);
        *first = Reverse((done, slot));
        done
    }

    fn round_robin(&mut self, now: Nanos, duration: Nanos) -> Nanos {
        let slots = self.free_by_slot.len();
        let slot = &mut self.free_by_slot[self.assigned % slots];
        self.assigned += 1;
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
            [9, 1, 1, 1].map(|duration| slots.assign(Nanos(100), Nanos(duration)).0)
        };
        assert_eq!(done(Workers::FirstFree), [109, 101, 102, 103]);
        assert_eq!(done(Workers::InTurn), [109, 101, 110, 102]);
    }
}
