//! Requests to end a run before its schedule does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rollpacker_dataflow::step::Step;

/// A handle that ends a run after the rounds that are open, or whose policy the schedule has received. With staleness `k`, up to `k` rounds
/// may follow the open one. Clones share one state.
#[derive(Clone, Default)]
pub struct Stop(Arc<StopState>);

/// The reason for ending a run early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The end was [requested](Stop::request).
    Requested,
    /// Too little time was left for [another round](Stop::set_deadline_check).
    OutOfTime,
}

#[derive(Default)]
struct StopState {
    /// The first reason is final.
    reason: OnceLock<StopReason>,
    may_begin: OnceLock<Box<MayBegin>>,
    complete: AtomicBool,
}

type MayBegin = dyn Fn(Step) -> bool + Send + Sync;

impl Stop {
    /// Requests the end of the run. If the run is already to end early, the first reason remains.
    pub fn request(&self) {
        self.set(StopReason::Requested);
    }

    /// Sets a predicate that is called with each step, in order, before the schedule receives the policy of the step. Once the predicate
    /// returns `false`, the rounds of this step and of all later steps do not open, and the run ends as
    /// [`OutOfTime`](StopReason::OutOfTime). The rounds of earlier steps still run. Only the first call of this method has an effect.
    pub fn set_deadline_check(&self, may_begin: impl Fn(Step) -> bool + Send + Sync + 'static) {
        drop(self.0.may_begin.set(Box::new(may_begin)));
    }

    /// Returns `true` if the run is to end early, for either [reason](StopReason).
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.reason().is_some()
    }

    /// Returns the reason to end the run early, or `None` if there is none.
    #[must_use]
    pub fn reason(&self) -> Option<StopReason> {
        self.0.reason.get().copied()
    }

    /// Returns `true` if the schedule has ended the run because nothing is left to do. The run then ended for this reason, even if an end
    /// was also requested.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.0.complete.load(Ordering::Acquire)
    }

    pub(crate) fn complete(&self) {
        self.0.complete.store(true, Ordering::Release);
    }

    /// Returns `true` if the round of `step` must not open.
    pub(crate) fn forbids(&self, step: Step) -> bool {
        if !self.is_requested() && self.0.may_begin.get().is_some_and(|may_begin| !may_begin(step))
        {
            self.set(StopReason::OutOfTime);
        }
        self.is_requested()
    }

    fn set(&self, reason: StopReason) {
        // Only the first request sets the reason.
        let _ = self.0.reason.set(reason);
    }
}

impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Stop").field(&self.reason()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_stop_reason_is_final() {
        let (out_of_time, requested) = (Stop::default(), Stop::default());
        for stop in [&out_of_time, &requested] {
            stop.set_deadline_check(|step| step < Step(2));
            assert!(!stop.forbids(Step(1)) && !stop.is_requested());
        }
        requested.request();
        assert!(requested.forbids(Step(1)) && requested.forbids(Step(2)));
        assert!(out_of_time.clone().forbids(Step(2)) && out_of_time.forbids(Step(1)));
        out_of_time.request();
        assert_eq!(out_of_time.reason(), Some(StopReason::OutOfTime));
        assert_eq!(requested.reason(), Some(StopReason::Requested));
    }
}
