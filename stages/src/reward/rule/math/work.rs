//! How much a comparison may cost.

use std::cell::Cell;

/// Steps that a comparison has left. A step is a node evaluated or a term multiplied: the bound on time that no clock is needed for.
#[derive(Debug)]
pub(super) struct Work(Cell<u32>);

impl Work {
    /// Room for so many steps.
    pub(super) fn steps(steps: u32) -> Self {
        Self(Cell::new(steps))
    }

    /// Whether there are none left, so that nothing that was found can be relied upon.
    pub(super) fn is_exhausted(&self) -> bool {
        self.0.get() == 0
    }

    /// Takes steps; `None` where there are not enough left.
    pub(super) fn spend(&self, steps: usize) -> Option<()> {
        let left = self.0.get();
        let taken = u32::try_from(steps).ok().filter(|steps| *steps <= left);
        self.0.set(left - taken.unwrap_or(left));
        taken.map(|_| ())
    }
}
