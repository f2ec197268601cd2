//! The number of responses in flight on this worker.

use std::cell::Cell;
use std::rc::Rc;

/// A counter of the responses that this worker generates at the moment. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlightResponses(Rc<Cell<usize>>);

impl InFlightResponses {
    /// Adds `responses` to the count.
    pub(crate) fn begin(&self, responses: usize) {
        self.0.set(self.0.get() + responses);
    }

    /// Subtracts `responses` from the count.
    pub(crate) fn end(&self, responses: usize) {
        self.0.set(self.0.get() - responses);
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.get() == 0
    }
}
