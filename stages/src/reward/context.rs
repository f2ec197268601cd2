//! What a reward may know and do besides the sample.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollpacker_dataflow::clock::{Clock, Nanos, WallClock};

use super::guard::{Buckets, Cost};
use super::limits::Limits;

/// What a reward may know and do besides the sample. Clones share cancellation and metrics.
#[derive(Clone)]
pub struct Context {
    /// How long the test cases of the sample's prompt may run.
    pub limits: Limits,
    deadline: Option<Nanos>,
    clock: Arc<dyn Clock>,
    cancelled: Arc<Cancelled>,
    metrics: Arc<Mutex<Vec<(String, f64)>>>,
    /// Those of each [`Limited`](super::Limited) around the call.
    budgets: Vec<Arc<Buckets>>,
}

/// Whether a score is no longer wanted: it alone, or what it is a part of.
#[derive(Default)]
struct Cancelled {
    said: AtomicBool,
    outer: Option<Arc<Self>>,
}

impl Cancelled {
    fn get(&self) -> bool {
        self.said.load(Ordering::Acquire) || self.outer.as_ref().is_some_and(|outer| outer.get())
    }
}

impl Context {
    /// A context without a deadline.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            limits: Limits::default(),
            deadline: None,
            clock,
            cancelled: Arc::default(),
            metrics: Arc::default(),
            budgets: Vec::new(),
        }
    }

    /// A context outside of any run, by the time of the system: for tests and tools.
    #[must_use]
    pub fn detached() -> Self {
        Self::new(Arc::new(WallClock::start()))
    }

    /// The same, with these limits of test cases.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// The same, for a call that is given up after `timeout` from now, or at the deadline that there is, whichever comes first.
    #[must_use]
    pub fn within(&self, timeout: Duration) -> Self {
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let at = Nanos(self.clock.now().0.saturating_add(timeout));
        Self {
            deadline: Some(self.deadline.map_or(at, |deadline| deadline.min(at))),
            ..self.clone()
        }
    }

    /// How long until the call is given up; `None` if it is not.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        let left = |deadline: Nanos| Duration::from_nanos(deadline.since(self.clock.now()).0);
        self.deadline.map(left)
    }

    /// Whether the score is no longer wanted.
    ///
    /// A future is dropped then and need not ask; work that blocks a thread should, now and then.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    /// Says that the score is no longer wanted.
    pub fn cancel(&self) {
        self.cancelled.said.store(true, Ordering::Release);
    }

    /// The same, cancelled with this one or without it: for one of several tries.
    #[must_use]
    pub fn nested(&self) -> Self {
        let outer = Some(Arc::clone(&self.cancelled));
        Self { cancelled: Arc::new(Cancelled { outer, ..Cancelled::default() }), ..self.clone() }
    }

    /// The same, within budgets.
    pub(super) fn paying(&self, budgets: Arc<Buckets>) -> Self {
        let mut context = self.clone();
        context.budgets.push(budgets);
        context
    }

    /// Waits until the [budgets](super::Guard) of the call have as much left: for what [`Reward::cost`](super::Reward::cost) could not
    /// foresee.
    pub async fn spend(&self, cost: Cost) {
        for budgets in &self.budgets {
            budgets.take(cost).await;
        }
    }

    /// Tells a number, also where no score comes of it; the metric `reward/<name>` of a step is the mean of all that is told in it.
    pub fn metric(&self, name: &str, value: f64) {
        let mut metrics = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        metrics.push((name.to_owned(), value));
    }

    /// What was told since the last call.
    #[must_use]
    pub fn take_metrics(&self) -> Vec<(String, f64)> {
        std::mem::take(&mut *self.metrics.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The clock of the run.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }
}
