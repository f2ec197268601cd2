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

    /// Returns the iterations since the last call on any reader of the same engine, or since the engine started if this is the first call.
    /// Each iteration is returned once.
    ///
    /// A row covers the iterations with the same batch size, the same number of running instances, the same number of devices per instance,
    /// and a mean context between one power of two and the next. `tokens` is the mean context of a sequence, `seconds` the mean time of an
    /// iteration, and `repeats` the number of iterations.
    #[must_use]
    pub fn take(&self) -> Vec<Row> {
        iterations::take(self.instances.iter().map(|counters| &counters.iterations))
    }
}
