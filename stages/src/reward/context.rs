//! The context of a reward call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollpacker_dataflow::clock::{Clock, Nanos, WallClock};

use super::cost::Cost;
use super::limited::Buckets;
use super::limits::Limits;

/// The context of a reward call: limits, deadline, cancellation, metrics and budgets. Clones share cancellation and metrics.
#[derive(Clone)]
pub struct Context {
    /// The time limits of the test cases of the sample's prompt.
    pub limits: Limits,
    deadline: Option<Nanos>,
    call: Arc<Call>,
    /// The budgets of each [`Limited`](super::Limited) around the call.
    budgets: Vec<Arc<Buckets>>,
}

/// The state that the clones of a context share, in one allocation because a context is made for every response.
struct Call {
    clock: Arc<dyn Clock>,
    is_cancelled: AtomicBool,
    metrics: Mutex<Vec<(String, f64)>>,
    /// The call that this call is part of; `None` for an outermost call. If the outer call is cancelled, this call is cancelled, too.
    /// Metrics are recorded in the outermost call.
    outer: Option<Arc<Self>>,
}

impl Call {
    fn new(clock: Arc<dyn Clock>, outer: Option<Arc<Self>>) -> Arc<Self> {
        let (is_cancelled, metrics) = (AtomicBool::default(), Mutex::default());
        Arc::new(Self { clock, is_cancelled, metrics, outer })
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
            || self.outer.as_ref().is_some_and(|outer| outer.is_cancelled())
    }

    fn metrics(&self) -> MutexGuard<'_, Vec<(String, f64)>> {
        match &self.outer {
            Some(outer) => outer.metrics(),
            None => self.metrics.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl Context {
    /// Returns a context without a deadline.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            limits: Limits::default(),
            deadline: None,
            call: Call::new(clock, None),
            budgets: Vec::new(),
        }
    }

    /// Returns a context that belongs to no run and uses the system clock, for tests and tools.
    #[must_use]
    pub fn detached() -> Self {
        Self::new(Arc::new(WallClock::start()))
    }

    /// Sets the limits of test cases.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Returns a copy whose deadline is `timeout` from now, or the current deadline if that is earlier.
    #[must_use]
    pub fn within(&self, timeout: Duration) -> Self {
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let at = Nanos(self.clock().now().0.saturating_add(timeout));
        Self {
            deadline: Some(self.deadline.map_or(at, |deadline| deadline.min(at))),
            ..self.clone()
        }
    }

    /// Returns the time until the deadline: zero after the deadline, and `None` if there is no deadline.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        let left = |deadline: Nanos| Duration::from_nanos(deadline.since(self.clock().now()).0);
        self.deadline.map(left)
    }

    /// Returns `true` if the score is no longer needed.
    ///
    /// A future does not need to check this, since it is dropped. Code that blocks a thread should check it from time to time.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.call.is_cancelled()
    }

    /// Marks the score as no longer needed.
    pub fn cancel(&self) {
        self.call.is_cancelled.store(true, Ordering::Release);
    }

    /// Returns a copy that is cancelled when this context is, and that can also be cancelled alone: for one of several attempts.
    #[must_use]
    pub fn nested(&self) -> Self {
        let call = Call::new(self.clock().clone(), Some(self.call.clone()));
        Self { call, ..self.clone() }
    }

    /// Returns a copy whose call also spends from `budgets`.
    pub(super) fn with_budgets(&self, budgets: Arc<Buckets>) -> Self {
        let mut context = self.clone();
        context.budgets.push(budgets);
        context
    }

    /// Takes `cost` from the [budgets](super::Budgets) of each [`Limited`](super::Limited) around the call, one after the other, the
    /// outermost first. At each budget, it takes at most the allowance of one minute and waits until the amount is available. Returns
    /// immediately if no budget limits the call. If the future is dropped while it waits, amounts taken from earlier budgets stay taken.
    ///
    /// Call this for costs that [`Reward::cost`](super::Reward::cost) could not foresee.
    pub async fn spend(&self, cost: Cost) {
        for budgets in &self.budgets {
            budgets.take(cost).await;
        }
    }

    /// Records a value, even if the call returns no score. The metric `reward/<name>` of a step is the mean of all values recorded in the
    /// step.
    pub fn metric(&self, name: &str, value: f64) {
        self.call.metrics().push((name.to_owned(), value));
    }

    /// Removes and returns the recorded values, with their names. For a [nested](Self::nested) context, these are the values of the
    /// outermost context.
    #[must_use]
    pub fn take_metrics(&self) -> Vec<(String, f64)> {
        std::mem::take(&mut *self.call.metrics())
    }

    /// Returns the clock by which the deadline is measured: the clock of the run, or the system clock if the context is
    /// [detached](Self::detached).
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.call.clock
    }
}
