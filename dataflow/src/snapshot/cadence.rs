//! When snapshots are taken.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::step::Step;

/// When snapshots are taken: every so many steps, on request, and at the end of the run. All workers of a process share one.
#[derive(Clone, Debug)]
pub struct Cadence {
    every: u64,
    agenda: Arc<Mutex<Agenda>>,
}

#[derive(Debug, Default)]
struct Agenda {
    /// The last step about which an operator has asked.
    asked: Option<Step>,
    /// Kept for operators that are late to ask.
    requested: BTreeSet<Step>,
    /// Workers of this process that have an operator which asks.
    workers: usize,
    /// Workers of the graph.
    peers: usize,
}

impl Cadence {
    /// At the end of every `steps`-th step, counted from the first of the run; 0 for never.
    #[must_use]
    pub fn every(steps: u64) -> Self {
        Self { every: steps, agenda: Arc::default() }
    }

    /// Whoever asks for a snapshot besides.
    #[must_use]
    pub fn request(&self) -> Request {
        Request(self.clone())
    }

    /// Counts a worker; the graph begins after the step `resumed`.
    pub(crate) fn join(&self, peers: usize, resumed: Option<Step>) {
        let mut agenda = self.lock();
        agenda.workers += 1;
        agenda.peers = peers;
        agenda.asked = agenda.asked.max(resumed);
    }

    pub(crate) fn leave(&self) {
        self.lock().workers -= 1;
    }

    /// Whether a snapshot is taken at the end of `step`: the same answer to whoever asks, whenever.
    pub(crate) fn is_due(&self, step: Step) -> bool {
        let mut agenda = self.lock();
        agenda.asked = agenda.asked.max(Some(step));
        let regular = self.every > 0 && step.next().0.is_multiple_of(self.every);
        regular || agenda.requested.contains(&step)
    }

    fn lock(&self) -> MutexGuard<'_, Agenda> {
        // Nothing that holds the lock can panic half-way.
        self.agenda.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks for a snapshot, from any thread: a signal, a time budget.
#[derive(Clone, Debug)]
pub struct Request(Cadence);

impl Request {
    /// Asks for a snapshot at the end of the first step that no operator has closed yet; of that step it returns the number.
    ///
    /// `None` where the workers of other processes would not hear of it. There, what ends the run gives a snapshot, and so does every
    /// step of the cadence.
    #[must_use]
    pub fn now(&self) -> Option<Step> {
        let mut agenda = self.0.lock();
        if agenda.workers < agenda.peers {
            return None;
        }
        // One that is still to come is that of this request too: it is the same step.
        let next = agenda.asked.map_or(Step(0), Step::next);
        agenda.requested.insert(next);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(cadence: &Cadence, steps: u64) -> Vec<u64> {
        (0..steps).filter(|&step| cadence.is_due(Step(step))).collect()
    }

    #[test]
    fn every_third_step() {
        assert_eq!(due(&Cadence::every(3), 10), [2, 5, 8]);
        assert!(due(&Cadence::every(0), 10).is_empty());
    }

    #[test]
    fn a_request_is_for_the_first_step_that_nobody_has_closed() {
        let cadence = Cadence::every(0);
        cadence.join(1, Some(Step(3)));
        assert_eq!(cadence.request().now(), Some(Step(4)));
        assert_eq!(cadence.request().now(), Some(Step(4)), "which is still to come");
        assert!(cadence.is_due(Step(4)) && !cadence.is_due(Step(6)));
        assert!(cadence.is_due(Step(4)), "also for one that is late to ask");
        assert_eq!(cadence.request().now(), Some(Step(7)));
        assert!(cadence.is_due(Step(4)), "another request does not take it back");
    }

    #[test]
    fn a_request_is_refused_where_others_would_not_hear_of_it() {
        let cadence = Cadence::every(0);
        cadence.join(2, None);
        assert_eq!(cadence.request().now(), None);
        cadence.join(2, None);
        assert_eq!(cadence.request().now(), Some(Step(0)));
    }
}
