//! The watchdog: reports what a stalled graph waits for.
//!
//! A graph may wait for something that never comes, such as a reward that hangs or a response that an engine lost. Its workers are then
//! parked, as in a working graph. Operators therefore report what they wait for ([`WaitHandle`]). If there is no progress for a set time,
//! the watchdog reports the stall ([`Stall`]) and ends the run if it is configured to.
//!
//! Three things count as progress of a graph: a row that an operator receives or emits, a frontier that advances, and work outside of the
//! graph that is reported. Such work is reported by counters that are [read](crate::operator::Operator::count_progress) at every check,
//! such as the tokens of an engine, and by [records](ProgressCounter::record) from other threads.
//!
//! The watchdog runs on the workers' own threads between activations, so it cannot detect logic that does not return. Ending a run tears
//! its graph down and waits for the threads that operators own. A program whose threads may hang must end itself in the callback
//! [`on_fault`](crate::fault::Faults::on_fault).

mod progress;
mod stall;
mod waits;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) use progress::{WorkerProgress, count_progress, progress, record_event, record_rows};
use serde::{Deserialize, Serialize};
pub use stall::{Stall, Wait};
pub(crate) use waits::OperatorWaits;
pub use waits::{WaitGuard, WaitHandle, WaitKey};

use self::progress::total_progress;
use crate::clock::{Clock, Nanos};
use crate::fault::record::Fault;

/// Removes the operators of dataflows that this thread ran before. Operators of the next dataflow measure their waits with `clock`; `None`
/// if no watchdog runs.
pub(crate) fn begin(clock: Option<Arc<dyn Clock>>) {
    waits::clear();
    progress::begin(clock);
}

/// The reaction to a stall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnStall {
    /// Reports the stall once and continues. The default.
    #[default]
    Warn,
    /// Reports the stall and ends the run.
    Fail,
}

/// The watchdog settings of a run. Every worker of a process gets a clone.
#[derive(Clone, Debug)]
pub struct WatchdogSettings {
    /// The time without progress after which a graph counts as stalled. Default: 5 minutes.
    pub after: Nanos,
    /// The reaction to a stall. Default: [`OnStall::Warn`].
    pub on_stall: OnStall,
    /// The progress that the workers of the process share. Threads that no worker owns may record progress in it, too.
    pub progress: ProgressCounter,
}

impl Default for WatchdogSettings {
    /// Returns settings that report a stall after 5 minutes.
    fn default() -> Self {
        let after = Nanos::from_secs_f64(300.0);
        Self { after, on_stall: OnStall::Warn, progress: ProgressCounter::default() }
    }
}

impl WatchdogSettings {
    /// Creates the watchdog of one worker; `on_stall` is called for stalls that do not end the run.
    #[must_use]
    pub fn on(
        &self,
        clock: Arc<dyn Clock>,
        mut on_stall: impl FnMut(&Stall) + 'static,
    ) -> Watchdog {
        let warns = self.on_stall == OnStall::Warn;
        let on_stall = move |stall: &Stall| {
            if warns {
                on_stall(stall)
            }
        };
        let watchdog =
            Watchdog::new(clock, self.after, on_stall).with_shared_progress(&self.progress);
        if warns { watchdog } else { watchdog.fail_on_stall() }
    }
}

/// A counter of the progress of several workers of a process. The workers share the counter, so that a worker without work does not count
/// as stalled while other workers make progress.
#[derive(Clone, Debug, Default)]
pub struct ProgressCounter(Arc<AtomicU64>);

impl ProgressCounter {
    /// Records progress; callable from any thread.
    pub fn record(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a wrapping count of the recorded progress.
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A watchdog for the graph of this thread.
pub struct Watchdog {
    clock: Arc<dyn Clock>,
    after: Nanos,
    ends_run: bool,
    /// Returns `true` if the run was asked to end. A stall then ends the run.
    end_requested: Box<dyn Fn() -> bool>,
    on_stall: Box<dyn FnMut(&Stall)>,
    progress: ProgressCounter,
    remote_progress: ProgressCounter,
    /// The progress of this thread at the last check.
    last_own: u64,
    /// The progress of all workers at the last check.
    last_total: u64,
    since: Nanos,
    reported: bool,
}

impl Watchdog {
    /// Creates a watchdog that calls `on_stall` once per stall, when `after` has passed without progress.
    #[must_use]
    pub fn new(
        clock: Arc<dyn Clock>,
        after: Nanos,
        on_stall: impl FnMut(&Stall) + 'static,
    ) -> Self {
        Self {
            since: clock.now(),
            clock,
            after,
            ends_run: false,
            end_requested: Box::new(|| false),
            on_stall: Box::new(on_stall),
            progress: ProgressCounter::default(),
            remote_progress: ProgressCounter::default(),
            last_own: total_progress(),
            last_total: 0,
            reported: false,
        }
    }

    /// Makes a stall end the run after it is reported.
    #[must_use]
    pub fn fail_on_stall(mut self) -> Self {
        self.ends_run = true;
        self
    }

    /// Makes a stall end the run if `end_requested` returns `true`, which means that the run was asked to end. Such a stall is not passed
    /// to the callback of [`new`](Self::new), but it may have begun and been reported earlier.
    ///
    /// A run that was asked to end first completes its open step. If that step is stuck, nothing else would end the run.
    #[must_use]
    pub fn fail_on_stall_if(self, end_requested: impl Fn() -> bool + 'static) -> Self {
        Self { end_requested: Box::new(end_requested), ..self }
    }

    /// Counts the progress of all workers whose watchdogs share `progress`, in addition to the progress of this worker.
    #[must_use]
    pub fn with_shared_progress(mut self, progress: &ProgressCounter) -> Self {
        self.progress = progress.clone();
        self
    }

    /// Counts the progress of other processes in addition to the progress of this process. Their progress is not reported back to them.
    pub(crate) fn with_other_processes(mut self, remote_progress: &ProgressCounter) -> Self {
        self.remote_progress = remote_progress.clone();
        self
    }

    pub(crate) fn progress(&self) -> &ProgressCounter {
        &self.progress
    }

    /// Returns the time without progress after which the graph counts as stalled.
    pub(crate) fn stall_limit(&self) -> Duration {
        Duration::from_nanos(self.after.0)
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    /// Checks for a stall; call it between activations. Returns the fault if the run must end.
    pub fn check(&mut self) -> Option<Fault> {
        let now = self.clock.now();
        if self.has_progressed() {
            (self.since, self.reported) = (now, false);
            return None;
        }
        let silent = now.since(self.since);
        let end_requested = silent >= self.after && (self.end_requested)();
        if silent < self.after || (self.reported && !end_requested) {
            return None;
        }
        let stall = waits::with_operators(|operators| Stall::of(operators, silent, now));
        if end_requested {
            return Some(stall.fault_after_stop());
        }
        self.reported = true;
        (self.on_stall)(&stall);
        self.ends_run.then(|| stall.fault())
    }

    /// Returns `true` if there was progress since the last check, on this worker or on another.
    ///
    /// The worker adds its own progress to the shared counter and compares the total with the total at its last check. The total includes
    /// the progress of other processes, but the counter does not, because this process reports the counter to them. Two idle processes
    /// would otherwise echo each other's progress forever and hide a stall.
    fn has_progressed(&mut self) -> bool {
        let current = total_progress();
        let own = current.wrapping_sub(std::mem::replace(&mut self.last_own, current));
        let here = self.progress.0.fetch_add(own, Ordering::Relaxed).wrapping_add(own);
        let total = here.wrapping_add(self.remote_progress.count());
        std::mem::replace(&mut self.last_total, total) != total
    }

    /// Returns the time that a worker may park before the next [`check`](Self::check): at least 1 ms, and otherwise at most a quarter of
    /// the stall limit. Other workers see the progress of this worker's work outside of the graph only after its checks.
    #[must_use]
    pub fn park_timeout(&self) -> Duration {
        let waited = self.clock.now().since(self.since);
        let left = if self.reported { self.after } else { self.after.since(waited) };
        let left = left.min(Nanos(self.after.0 / 4));
        // Timely's park is not exact: a worker that wakes shortly before the deadline would spin.
        Duration::from_nanos(left.0).max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use super::*;
    use crate::clock::VirtualClock;
    use crate::step::{PromptId, SampleId, Step};

    const AFTER: Nanos = Nanos(10);

    fn watched() -> (VirtualClock, Watchdog, Rc<RefCell<Vec<String>>>) {
        let (clock, reports) = (VirtualClock::default(), Rc::<RefCell<Vec<String>>>::default());
        let sink = reports.clone();
        let on_stall = move |stall: &Stall| sink.borrow_mut().push(stall.to_string());
        let watchdog = Watchdog::new(Arc::new(clock.clone()), AFTER, on_stall);
        (clock, watchdog, reports)
    }

    #[test]
    fn each_stall_is_reported_once() {
        let (clock, mut watchdog, reports) = watched();
        for (now, moves, stalls) in [
            (9, false, 0),
            (10, false, 1),
            (30, false, 1),
            (31, true, 1),
            (40, false, 1),
            (41, false, 2),
        ] {
            clock.advance_to(Nanos(now));
            if moves {
                record_event();
            }
            assert_eq!(watchdog.check(), None);
            assert_eq!(reports.borrow().len(), stalls, "at {now}");
        }
    }

    #[test]
    fn a_stuck_run_with_a_requested_end_fails() {
        for requested_at in [0, 25] {
            let (clock, watchdog, reports) = watched();
            let now = clock.clone();
            let mut watchdog = watchdog.fail_on_stall_if(move || now.now() >= Nanos(requested_at));
            clock.advance_to(Nanos(9));
            assert_eq!(
                watchdog.check(),
                None,
                "asked to end at {requested_at}: the timeout has not passed"
            );
            clock.advance_to(Nanos(20));
            let fault = watchdog.check();
            assert_eq!(fault.is_some(), requested_at == 0, "asked to end at {requested_at}");
            assert_eq!(
                reports.borrow().len(),
                usize::from(requested_at == 25),
                "asked to end at {requested_at}"
            );
            clock.advance_to(Nanos(26));
            let fault = fault.or_else(|| watchdog.check()).expect("the run ends");
            let message = "the run was asked to end, and its step is stuck: no progress for ";
            assert!(fault.message.starts_with(message), "{fault}");
        }
    }

    #[test]
    fn a_stall_names_the_operator_the_step_and_the_ids() {
        let (clock, watchdog, reports) = watched();
        let clock_of_waits = Arc::new(clock.clone());
        begin(Some(clock_of_waits));
        let reward = OperatorWaits::register("reward").wait_handle();
        let (operator, parts) = (OperatorWaits::register("update"), "the disk");
        let (update, snapshot) = (operator.wait_handle(), operator.wait_handle());
        for sample in 0..10 {
            let id = SampleId { step: Step(7), prompt: PromptId(3), sample };
            reward.begin_with(id, || format!("a score by `{}`", "code"));
        }
        reward.end(SampleId { step: Step(7), prompt: PromptId(3), sample: 1 });
        clock.advance_to(Nanos(2_000_000_000));
        reward.begin((Step(8), PromptId(4)), "a group");
        update.begin(Step(6), "the trainer");
        update.begin(Step(7), "the trainer");
        update.end_before(Step(7));
        snapshot.begin(Step(7), parts);
        clock.advance_to(Nanos(12_000_000_000));
        let fault = watchdog.fail_on_stall().check().expect("a stall");
        assert_eq!(fault.step, Some(Step(7)));
        assert_eq!(
            *reports.borrow(),
            [
                "no progress for 12.000 s: reward, step 8, has waited 12.000 s for a score by `code`: p3.0, p3.2, p3.3, \
                 p3.4, p3.5, p3.6, p3.7, p3.8 and 1 more; reward, step 9, has waited 10.000 s for a group: p4; \
                 update, step 8, has waited 10.000 s for the disk; update, step 8, has waited 10.000 s for the trainer"
            ]
        );
        begin(None);
    }

    #[test]
    fn waits_are_not_recorded_without_a_watchdog() {
        begin(None);
        let operator = OperatorWaits::register("reward");
        operator.wait_handle().begin(Step(0), "a score");
        assert_eq!(Stall::of(&[operator], Nanos(1), Nanos(1)).waits, []);
    }

    #[test]
    fn external_progress_counts_as_progress() {
        begin(None);
        let (clock, mut watchdog, reports) = watched();
        let tokens = Rc::new(Cell::new(0));
        let counted = tokens.clone();
        count_progress(move || counted.get());
        for (now, sampled, stalls) in [(10, 5, 0), (19, 5, 0), (20, 5, 1), (21, 6, 1), (31, 6, 2)] {
            tokens.set(sampled);
            clock.advance_to(Nanos(now));
            assert_eq!(watchdog.check(), None);
            assert_eq!(reports.borrow().len(), stalls, "at {now}");
        }
        begin(None);
    }

    #[test]
    fn a_worker_is_not_stuck_while_another_works() {
        let progress = ProgressCounter::default();
        let (clock, watchdog, reports) = watched();
        let mut watchdog = watchdog.with_shared_progress(&progress);
        clock.advance_to(Nanos(9));
        progress.record();
        assert_eq!(watchdog.check(), None);
        clock.advance_to(Nanos(18));
        assert_eq!(watchdog.check(), None);
        assert!(reports.borrow().is_empty());
        assert_eq!(watchdog.park_timeout(), Duration::from_millis(1));
    }

    #[test]
    fn a_worker_checks_several_times_within_the_timeout() {
        let clock = VirtualClock::default();
        let of = Arc::new(clock.clone());
        let mut watchdog = Watchdog::new(of, Nanos(40_000_000), |_| {});
        assert_eq!(watchdog.park_timeout(), Duration::from_millis(10));
        clock.advance_to(Nanos(35_000_000));
        assert_eq!(watchdog.check(), None);
        assert_eq!(watchdog.park_timeout(), Duration::from_millis(5), "the time until the stall");
    }
}
