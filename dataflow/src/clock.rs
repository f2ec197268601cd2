//! Clocks: wall time and virtual time behind one trait.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use serde::{Deserialize, Serialize};

/// A time in nanoseconds since the start of the run, or a duration in nanoseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Converts from seconds, rounded to the nearest nanosecond. Negative values and NaN become 0; values that are too large become the
    /// maximum.
    #[must_use]
    pub fn from_secs_f64(seconds: f64) -> Self {
        Self((seconds * 1e9).round() as u64)
    }

    /// Returns the time in seconds.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Returns the time elapsed since `earlier`, or 0 if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s", self.as_secs_f64())
    }
}

/// A source of time. Policies and operators never read the system clock; they get the time from a `Clock`.
///
/// Code that reads time from a clock runs in wall time and in virtual time:
///
/// ```
/// use rollpacker_dataflow::clock::{Clock, Nanos, VirtualClock, WallClock};
///
/// /// Measures how long `work` takes.
/// fn timed(clock: &dyn Clock, work: impl FnOnce()) -> Nanos {
///     let begun = clock.now();
///     work();
///     clock.now().since(begun)
/// }
///
/// let virtual_time = VirtualClock::default();
/// assert_eq!(timed(&virtual_time, || virtual_time.advance_to(Nanos(5))), Nanos(5));
/// assert!(timed(&WallClock::start(), || {}) < Nanos::from_secs_f64(60.0));
/// ```
pub trait Clock: Send + Sync {
    /// Returns the current time.
    ///
    /// # Contract
    /// The result is never less than that of an earlier call.
    fn now(&self) -> Nanos;
}

/// The system's monotonic clock. At the creation of this value, it shows 0 or the time given to [`starting_at`](Self::starting_at).
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    start: std::time::Instant,
    /// The time that the clock showed at `start`.
    read: Nanos,
}

impl WallClock {
    /// Creates a clock that shows 0 now.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the system's time")]
    pub fn start() -> Self {
        Self { start: std::time::Instant::now(), read: Nanos(0) }
    }

    /// Creates a clock whose current time is `now`, to follow the clock of another process.
    #[must_use]
    pub fn starting_at(now: Nanos) -> Self {
        Self { read: now, ..Self::start() }
    }
}

/// Returns the system's time in seconds since 1970, for records that are compared with the records of other programs. The result is 0 if
/// the system's time lies before 1970. The time may jump; measure durations with a [`Clock`].
#[must_use]
#[allow(clippy::disallowed_methods, reason = "no clock of a run has the date")]
pub fn unix_seconds() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0.0, |since| since.as_secs_f64())
}

impl Clock for WallClock {
    fn now(&self) -> Nanos {
        let elapsed = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Nanos(self.read.0.saturating_add(elapsed))
    }
}

/// A clock that advances only on request and keeps a queue of alarms. Clones share the time and the alarms.
///
/// Everything that runs in virtual time runs on one thread. [`runtime::run_virtual`](crate::runtime::run_virtual) lets the graph do all
/// work that is possible now and then advances the clock to the earliest alarm. A run is therefore reproducible on any machine, under any
/// load.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock {
    now: Arc<AtomicU64>,
    queue: Arc<Mutex<AlarmQueue>>,
}

/// The alarms, ordered by time and then by creation.
#[derive(Default)]
struct AlarmQueue {
    created: u64,
    due: BTreeSet<(Nanos, u64)>,
    alarms: BTreeMap<u64, (Option<Nanos>, AlarmCallback)>,
}

type AlarmCallback = Arc<dyn Fn() + Send + Sync>;

impl fmt::Debug for AlarmQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlarmQueue").field("due", &self.due).finish_non_exhaustive()
    }
}

impl VirtualClock {
    /// Advances the clock to `now`; never moves it backwards. Rings no alarms.
    pub fn advance_to(&self, now: Nanos) {
        self.now.fetch_max(now.0, Ordering::AcqRel);
    }

    /// Advances the clock to the earliest alarm and rings all alarms that are due then. Returns `false` if no alarm is set.
    pub fn advance(&self) -> bool {
        let Some(at) = self.lock().due.first().map(|&(at, _)| at) else { return false };
        self.advance_to(at);
        // The queue is unlocked while an alarm rings, because the alarm may set another.
        while let Some(wake) = self.lock().take_due(at) {
            wake();
        }
        true
    }

    /// Creates an alarm that calls `wake` when it rings. The alarm is not set yet.
    pub fn alarm(&self, wake: impl Fn() + Send + Sync + 'static) -> Alarm {
        let mut queue = self.lock();
        let id = queue.created;
        queue.created += 1;
        queue.alarms.insert(id, (None, Arc::new(wake)));
        Alarm { clock: self.clone(), id }
    }

    /// Waits until `duration` has passed in virtual time.
    pub async fn sleep(&self, duration: Nanos) {
        let until = Nanos(self.now().0.saturating_add(duration.0));
        let mut alarm = None;
        std::future::poll_fn(|context| {
            if self.now() >= until {
                return Poll::Ready(());
            }
            let waker = context.waker().clone();
            let rings = self.alarm(move || waker.wake_by_ref());
            rings.set(until);
            alarm = Some(rings);
            Poll::Pending
        })
        .await;
    }

    /// Adds `duration` to the virtual time that the current work takes: a [`bridge::Service`](crate::bridge::Service) delays its reply by
    /// the sum of these durations. On the calling thread, [`now`](Clock::now) includes the duration from this call until the work ends; the
    /// time that other threads read does not advance.
    pub fn spend(&self, duration: Nanos) {
        SPENT.set(Nanos(SPENT.get().0.saturating_add(duration.0)));
    }

    /// Returns the time spent on this thread since the last call, and resets it.
    pub(crate) fn take_spent(&self) -> Nanos {
        SPENT.take()
    }

    fn lock(&self) -> MutexGuard<'_, AlarmQueue> {
        // No code panics while it holds the lock, so a poisoned lock is still usable.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// The virtual time spent by the work that runs on this thread.
    static SPENT: Cell<Nanos> = const { Cell::new(Nanos(0)) };
}

impl AlarmQueue {
    fn set(&mut self, id: u64, at: Option<Nanos>) {
        let Some((set, _)) = self.alarms.get_mut(&id) else { return };
        if let Some(before) = std::mem::replace(set, at) {
            self.due.remove(&(before, id));
        }
        if let Some(at) = at {
            self.due.insert((at, id));
        }
    }

    fn take_due(&mut self, now: Nanos) -> Option<AlarmCallback> {
        let &(at, id) = self.due.first()?;
        if at > now {
            return None;
        }
        self.set(id, None);
        self.alarms.get(&id).map(|(_, wake)| wake.clone())
    }
}

/// An alarm of a virtual clock; see [`VirtualClock::alarm`]. Dropping it cancels it.
#[derive(Debug)]
pub struct Alarm {
    clock: VirtualClock,
    id: u64,
}

impl Alarm {
    /// Sets the alarm to ring once at `at`, which replaces an earlier setting. If `at` has passed, the alarm rings at the next
    /// [`advance`](VirtualClock::advance).
    pub fn set(&self, at: Nanos) {
        self.clock.lock().set(self.id, Some(at));
    }

    /// Clears the alarm: it does not ring until it is set again.
    pub fn clear(&self) {
        self.clock.lock().set(self.id, None);
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let mut queue = self.clock.lock();
        queue.set(self.id, None);
        queue.alarms.remove(&self.id);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::Acquire) + SPENT.get().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_moves_only_forwards() {
        let clock = VirtualClock::default();
        let same = clock.clone();
        clock.advance_to(Nanos(5));
        clock.advance_to(Nanos(3));
        assert_eq!(same.now(), Nanos(5));
    }

    #[test]
    fn alarms_fire_once_in_the_order_of_their_times() {
        let clock = VirtualClock::default();
        let rung = Arc::new(Mutex::new(Vec::new()));
        let alarm = |name: &'static str| {
            let (clock, rung) = (clock.clone(), rung.clone());
            clock
                .clone()
                .alarm(move || rung.lock().expect("unpoisoned").push((name, clock.now().0)))
        };
        let (a, b, c, dropped) = (alarm("a"), alarm("b"), alarm("c"), alarm("dropped"));
        a.set(Nanos(9));
        b.set(Nanos(5));
        c.set(Nanos(5));
        c.set(Nanos(7));
        dropped.set(Nanos(1));
        drop(dropped);
        while clock.advance() {}
        assert_eq!(*rung.lock().expect("unpoisoned"), [("b", 5), ("c", 7), ("a", 9)]);
    }

    #[test]
    fn a_wall_clock_continues_from_the_time_of_another() {
        let begun = Nanos(1_000_000_000_000);
        let follower = WallClock::starting_at(begun);
        let elapsed = follower.now().since(begun);
        assert!(follower.now() >= begun && elapsed < begun, "{elapsed:?}");
    }
}
