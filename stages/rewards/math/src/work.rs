//! The budget of a comparison.

use std::cell::Cell;

/// The remaining steps of a comparison. A step costs about as much as the evaluation of a node or the multiplication of two terms. Counting
/// steps bounds the time without a clock, so that results are reproducible.
#[derive(Debug)]
pub(super) struct WorkBudget(Cell<u32>);

impl WorkBudget {
    pub(super) fn new(steps: u32) -> Self {
        Self(Cell::new(steps))
    }

    /// Returns `true` if no steps are left, in which case a result is not reliable.
    pub(super) fn is_exhausted(&self) -> bool {
        self.0.get() == 0
    }

    /// Takes `steps` steps from the budget. If fewer steps are left, exhausts the budget and returns `None`.
    pub(super) fn spend(&self, steps: usize) -> Option<()> {
        let left = self.0.get();
        let taken = u32::try_from(steps).ok().filter(|steps| *steps <= left);
        self.0.set(left - taken.unwrap_or(left));
        taken.map(|_| ())
    }
}
