//! The decode iterations of a running torch engine.

use std::sync::Arc;

use rollpacker_stages::rollout::profile::Row;

use super::counters::Counters;
use super::iterations;

/// The decode iterations of a torch engine while it works. It can be read from any thread at any time.
///
/// Iterations that also prefilled a prompt are excluded. Times include delays by other work on the machine, such as the caller's processing
/// of responses, so live iterations may take longer than profiled iterations.
#[derive(Clone, Debug)]
pub struct LiveIterations {
    instances: Vec<Arc<Counters>>,
}

impl LiveIterations {
    pub(super) fn new(instances: Vec<Arc<Counters>>) -> Self {
        Self { instances }
    }

    /// Returns the iterations since the last call. Each row covers one batch size, contexts within one power of two, one number of running
    /// instances, and one number of devices per instance. Tokens and seconds are means; `repeats` is the number of iterations.
    #[must_use]
    pub fn take(&self) -> Vec<Row> {
        iterations::take(self.instances.iter().map(|counters| &counters.iterations))
    }
}
