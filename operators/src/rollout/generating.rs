//! How many responses are under way on this worker.

use std::cell::Cell;
use std::rc::Rc;

/// Responses that this worker generates now. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Generating(Rc<Cell<usize>>);

impl Generating {
    /// So many more.
    pub(super) fn begin(&self, responses: usize) {
        self.0.set(self.0.get() + responses);
    }

    /// So many fewer.
    pub(super) fn end(&self, responses: usize) {
        self.0.set(self.0.get() - responses);
    }

    /// None.
    pub(crate) fn is_none(&self) -> bool {
        self.0.get() == 0
    }
}
