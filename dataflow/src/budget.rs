//! Back-pressure counted in rows: what a producer may have under way.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Rows, tokens or bytes that a producer may have handed over and its consumer not yet released. Clones share it.
///
/// Messages are no measure: one may hold a row or a million. A producer that is a thread blocks; operators never do.
#[derive(Clone, Debug)]
pub struct Budget {
    shared: Arc<(Mutex<State>, Condvar)>,
}

struct State {
    available: usize,
    granted: usize,
    closed: bool,
    waker: Option<Box<dyn Fn() + Send>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { available, closed, .. } = self;
        write!(f, "{available} free{}", if *closed { ", closed" } else { "" })
    }
}

impl Budget {
    /// A budget of `amount` units.
    #[must_use]
    pub fn new(amount: usize) -> Self {
        Self {
            shared: Arc::new((
                Mutex::new(State {
                    available: amount,
                    granted: amount,
                    closed: false,
                    waker: None,
                }),
                Condvar::new(),
            )),
        }
    }

    /// Takes between 1 and `most` units, as many as are free; waits while there is none. `None` once the budget is closed.
    ///
    /// # Panics
    /// If `most` is 0.
    #[must_use]
    pub fn acquire(&self, most: usize) -> Option<usize> {
        assert!(most > 0, "invariant: asking for nothing would return at once, for ever");
        let mut state = self.lock();
        while state.available == 0 && !state.closed {
            state = self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return None;
        }
        let taken = most.min(state.available);
        state.available -= taken;
        Some(taken)
    }

    /// Takes at most `most` units, as many as are free now.
    pub fn try_acquire(&self, most: usize) -> usize {
        let mut state = self.lock();
        let taken = most.min(state.available);
        state.available -= taken;
        taken
    }

    /// Gives units back, or adds new ones.
    pub fn release(&self, amount: usize) {
        let mut state = self.lock();
        state.available += amount;
        state.granted += amount;
        self.tell(&state);
    }

    /// Calls `waker` whenever units are given back, and when the budget is closed.
    pub fn wake_by(&self, waker: impl Fn() + Send + 'static) {
        self.lock().waker = Some(Box::new(waker));
    }

    fn tell(&self, state: &State) {
        self.shared.1.notify_all();
        if let Some(waker) = &state.waker {
            waker();
        }
    }

    /// Whether nothing more is wanted.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Units that are free now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.lock().available
    }

    /// Units that there were at the start, and those that were given back or added since: what a producer may have taken in all.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.lock().granted
    }

    /// Ends the waiting of every producer: nothing more is wanted.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.tell(&state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere cannot leave the two fields at odds.
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_no_more_than_is_free() {
        let budget = Budget::new(5);
        assert_eq!(budget.acquire(3), Some(3));
        assert_eq!(budget.acquire(3), Some(2));
        budget.release(1);
        assert_eq!(budget.acquire(3), Some(1));
        assert_eq!((budget.granted(), budget.available()), (6, 0));
    }

    #[test]
    fn closing_wakes_a_waiting_producer() {
        let budget = Budget::new(0);
        let waiting = budget.clone();
        let producer = std::thread::spawn(move || waiting.acquire(1));
        budget.close();
        assert_eq!(producer.join().expect("producer ends"), None);
    }
}
