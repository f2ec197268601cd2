//! The iterations of a torch engine at work.

use std::sync::Arc;

use super::super::counters::Counters;
use super::super::iterations;
use super::Row;

/// The decode iterations of a torch engine while it works; free to read from any thread.
///
/// Iterations that also computed a prompt are left out. What the engine does with the tokens after an iteration, and what else the
/// machine does meanwhile, is not told apart: live iterations may take longer than the profile has them for good.
#[derive(Clone, Debug)]
pub struct Live {
    instances: Vec<Arc<Counters>>,
}

impl Live {
    pub(in super::super) fn new(instances: Vec<Arc<Counters>>) -> Self {
        Self { instances }
    }

    /// The iterations since the last call: a row for those of one batch size, of contexts of one power of two, while as many instances
    /// ran. Tokens and seconds are means, `repeats` says of how many.
    #[must_use]
    pub fn take(&self) -> Vec<Row> {
        iterations::take(self.instances.iter().map(|counters| &counters.iterations))
    }
}
