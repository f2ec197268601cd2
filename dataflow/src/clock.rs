//! What time it is: wall or virtual, behind one trait.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Nanoseconds since the run began.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// As seconds.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 * 1e-9
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
}

impl WallClock {
    /// A clock that reads 0 now.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the system's time")]
    pub fn start() -> Self {
        Self { start: std::time::Instant::now() }
    }
}

impl Clock for WallClock {
    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// A time that stands still until it is advanced. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock {
    now: Arc<AtomicU64>,
}

impl VirtualClock {
    /// Moves the time to `now`, or leaves it where it is if that would be backwards.
    pub fn advance_to(&self, now: Nanos) {
        self.now.fetch_max(now.0, Ordering::AcqRel);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::Acquire))
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
    fn wall_time_does_not_go_back() {
        let clock = WallClock::start();
        let earlier = clock.now();
        assert!(clock.now() >= earlier);
    }
}
