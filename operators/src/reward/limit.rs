//! Limits of test cases: how long the code under test may run, decided as responses are dispatched.

use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::reward::{Execution, Limits};

/// What decides how long test cases may run. A pure policy: it is asked and told in the operator's thread, and holds no clock.
///
/// # Contract
/// [`limits`](Self::limits) is asked once for each response, when its scoring is dispatched. [`executed`](Self::executed) is told once
/// for each response whose score arrives with executions; scores that are cancelled or fail tell nothing. Between the two others may
/// be asked and told: several responses are scored at once.
pub trait Limit {
    /// The limits of the test cases of a response to the prompt in `row` of the dataset.
    fn limits(&mut self, id: SampleId, row: u64) -> Limits;

    /// Takes in what scoring the response executed.
    fn executed(&mut self, id: SampleId, row: u64, executions: &[Execution]);
}

/// The same limits for every response.
impl Limit for Limits {
    fn limits(&mut self, _: SampleId, _: u64) -> Limits {
        self.clone()
    }

    fn executed(&mut self, _: SampleId, _: u64, _: &[Execution]) {}
}

impl Limit for Box<dyn Limit> {
    fn limits(&mut self, id: SampleId, row: u64) -> Limits {
        self.as_mut().limits(id, row)
    }

    fn executed(&mut self, id: SampleId, row: u64, executions: &[Execution]) {
        self.as_mut().executed(id, row, executions);
    }
}
