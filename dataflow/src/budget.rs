//! Back-pressure: limits how far a producer may run ahead of its consumer.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A limit on the amount, in rows, tokens or bytes, that a producer has handed over and its consumer has not released. Clones share the
/// budget.
///
/// Counting messages would not bound memory: one message may hold a row or a million. A producer thread blocks in
/// [`acquire`](Self::acquire); an operator calls [`try_acquire`](Self::try_acquire), which never blocks.
#[derive(Clone, Debug)]
pub struct Budget {
    shared: Arc<(Mutex<BudgetState>, Condvar)>,
}

struct BudgetState {
    available: usize,
    granted: usize,
    closed: bool,
    waker: Option<Box<dyn Fn() + Send>>,
}

impl std::fmt::Debug for BudgetState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { available, closed, .. } = self;
        write!(f, "{available} free{}", if *closed { ", closed" } else { "" })
    }
}

impl Budget {
    /// Creates a budget of `amount` units, all of them free.
    #[must_use]
    pub fn new(amount: usize) -> Self {
        Self {
            shared: Arc::new((
                Mutex::new(BudgetState {
                    available: amount,
                    granted: amount,
                    closed: false,
                    waker: None,
                }),
                Condvar::new(),
            )),
        }
    }

    /// Takes between 1 and `max` units, as many as are free, and blocks while there are none. Returns `None` once the budget is closed.
    ///
    /// # Panics
    /// If `max` is 0.
    #[must_use]
    pub fn acquire(&self, max: usize) -> Option<usize> {
        assert!(
            max > 0,
            "invariant: a request for 0 units would return immediately and loop forever"
        );
        let mut state = self.lock();
        while state.available == 0 && !state.closed {
            state = self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return None;
        }
        let taken = max.min(state.available);
        state.available -= taken;
        Some(taken)
    }

    /// Takes at most `max` units, as many as are free now, and returns their number. Does not check if the budget is closed.
    pub fn try_acquire(&self, max: usize) -> usize {
        let mut state = self.lock();
        let taken = max.min(state.available);
        state.available -= taken;
        taken
    }

    /// Adds `amount` free units: units that a producer has taken, or new units. The sums saturate at `usize::MAX`.
    pub fn release(&self, amount: usize) {
        let mut state = self.lock();
        state.available = state.available.saturating_add(amount);
        state.granted = state.granted.saturating_add(amount);
        self.notify(&state);
    }

    /// Sets the function that is called whenever units are released and when the budget is closed. Replaces an earlier function. The
    /// function must not use the budget, which is locked during the call.
    pub fn set_waker(&self, waker: impl Fn() + Send + 'static) {
        self.lock().waker = Some(Box::new(waker));
    }

    fn notify(&self, state: &BudgetState) {
        self.shared.1.notify_all();
        if let Some(waker) = &state.waker {
            waker();
        }
    }

    /// Returns `true` if the budget is closed: the consumer accepts nothing more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Returns the number of units that are free now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.lock().available
    }

    /// Returns the number of units at the start plus all units released or added since: the total that a producer could have taken so far.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.lock().granted
    }

    /// Closes the budget and unblocks every waiting producer.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.notify(&state);
    }

    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        // A panic elsewhere cannot leave the fields inconsistent, so a poisoned lock is still usable.
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_at_most_the_free_budget() {
        let budget = Budget::new(5);
        assert_eq!(budget.acquire(3), Some(3));
        assert_eq!(budget.acquire(3), Some(2));
        budget.release(1);
        assert_eq!(budget.acquire(3), Some(1));
        assert_eq!((budget.granted(), budget.available()), (6, 0));
    }

    #[test]
    fn an_unlimited_budget_stays_unlimited() {
        let budget = Budget::new(usize::MAX);
        budget.release(1);
        assert_eq!((budget.granted(), budget.available()), (usize::MAX, usize::MAX));
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
