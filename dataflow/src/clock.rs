//! What time it is: wall or virtual, behind one trait.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use serde::{Deserialize, Serialize};

/// Nanoseconds since the run began.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// So many seconds, to the nearest nanosecond; 0 for less than none.
    #[must_use]
    pub fn from_secs_f64(seconds: f64) -> Self {
        Self((seconds * 1e9).round() as u64)
    }

    /// As seconds.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// How long after `earlier` this is; 0 if it is before.
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

/// A source of time. Policies and operators never ask the system; they are told.
pub trait Clock: Send + Sync {
    /// The time now.
    ///
    /// # Contract
    /// Never less than what an earlier call returned.
    fn now(&self) -> Nanos;
}

/// The time of the system, from the moment the clock was made.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    start: std::time::Instant,
    /// What it read then.
    read: Nanos,
}

impl WallClock {
    /// A clock that reads 0 now.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the system's time")]
    pub fn start() -> Self {
        Self { start: std::time::Instant::now(), read: Nanos(0) }
    }

    /// A clock that reads `now` now: one that goes by another.
    #[must_use]
    pub fn reading(now: Nanos) -> Self {
        Self { read: now, ..Self::start() }
    }
}

impl Clock for WallClock {
    fn now(&self) -> Nanos {
        let elapsed = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Nanos(self.read.0.saturating_add(elapsed))
    }
}

/// A time that stands still until it is advanced, with an agenda of what waits for it. Clones share it.
///
/// Whatever runs in virtual time is on one thread: [`runtime::run_virtual`](crate::runtime::run_virtual) lets the graph do all that can
/// be done now, and then moves the time to the earliest alarm. So a run is the same at every repetition, whatever the machine does.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock {
    now: Arc<AtomicU64>,
    agenda: Arc<Mutex<Agenda>>,
}

/// Alarms by time, then in the order in which they were made.
#[derive(Default)]
struct Agenda {
    made: u64,
    due: BTreeSet<(Nanos, u64)>,
    alarms: BTreeMap<u64, (Option<Nanos>, Wake)>,
}

type Wake = Arc<dyn Fn() + Send + Sync>;

impl fmt::Debug for Agenda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agenda").field("due", &self.due).finish_non_exhaustive()
    }
}

impl VirtualClock {
    /// Moves the time to `now`, or leaves it where it is if that would be backwards.
    pub fn advance_to(&self, now: Nanos) {
        self.now.fetch_max(now.0, Ordering::AcqRel);
    }

    /// Moves the time to the earliest alarm that is set, and rings all that are set to that time. `false` if none is.
    pub fn advance(&self) -> bool {
        let Some(at) = self.lock().due.first().map(|&(at, _)| at) else { return false };
        self.advance_to(at);
        // The agenda is not locked while an alarm rings: it may set another.
        while let Some(wake) = self.lock().take_due(at) {
            wake();
        }
        true
    }

    /// An alarm that calls `wake` at the time to which it is set; it is not set yet.
    pub fn alarm(&self, wake: impl Fn() + Send + Sync + 'static) -> Alarm {
        let mut agenda = self.lock();
        let id = agenda.made;
        agenda.made += 1;
        agenda.alarms.insert(id, (None, Arc::new(wake)));
        Alarm { clock: self.clone(), id }
    }

    /// Waits until `duration` has passed.
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

    /// Lets time pass for whoever works now: what is done on a [`bridge::Owner`](crate::bridge::Owner) in virtual time takes as long as
    /// it says. There, [`now`](Clock::now) counts it at once; everywhere else the time stands still.
    pub fn spend(&self, duration: Nanos) {
        SPENT.set(Nanos(SPENT.get().0.saturating_add(duration.0)));
    }

    /// What was spent since the last time this was asked.
    pub(crate) fn take_spent(&self) -> Nanos {
        SPENT.take()
    }

    fn lock(&self) -> MutexGuard<'_, Agenda> {
        // Nothing that holds the lock can panic half-way.
        self.agenda.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// What the work that runs on this thread has spent.
    static SPENT: Cell<Nanos> = const { Cell::new(Nanos(0)) };
}

impl Agenda {
    fn set(&mut self, id: u64, at: Option<Nanos>) {
        let Some((set, _)) = self.alarms.get_mut(&id) else { return };
        if let Some(before) = std::mem::replace(set, at) {
            self.due.remove(&(before, id));
        }
        if let Some(at) = at {
            self.due.insert((at, id));
        }
    }

    fn take_due(&mut self, now: Nanos) -> Option<Wake> {
        let &(at, id) = self.due.first()?;
        if at > now {
            return None;
        }
        self.set(id, None);
        self.alarms.get(&id).map(|(_, wake)| wake.clone())
    }
}

/// Something that waits for a time; see [`VirtualClock::alarm`]. Dropping it cancels it.
#[derive(Debug)]
pub struct Alarm {
    clock: VirtualClock,
    id: u64,
}

impl Alarm {
    /// Rings once at `at`, instead of when it was set to ring; at the next advance, if `at` has passed.
    pub fn set(&self, at: Nanos) {
        self.clock.lock().set(self.id, Some(at));
    }

    /// Does not ring until it is set again.
    pub fn clear(&self) {
        self.clock.lock().set(self.id, None);
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let mut agenda = self.clock.lock();
        agenda.set(self.id, None);
        agenda.alarms.remove(&self.id);
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
    fn alarms_ring_in_the_order_of_their_times_and_once() {
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
    fn wall_time_does_not_go_back() {
        let clock = WallClock::start();
        let earlier = clock.now();
        assert!(clock.now() >= earlier);
    }
}
