//! Limits of test cases: how long the code under test may run, decided as responses are dispatched.

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::reward::{Execution, Limits};

/// What decides how long test cases may run. A pure policy: it is asked and told in the operator's thread, and holds no clock.
///
/// # Contract
/// [`limits`](Self::limits) is asked once for each response, when its scoring is dispatched. [`executed`](Self::executed) is told once
/// for each response whose score arrives with executions; scores that are cancelled or fail tell nothing. Between the two others may
/// be asked and told: several responses are scored at once. [`anchored`](Self::anchored) is told what the ledger says once a step is
/// over, in the order of the steps; when a run is resumed, first of all test cases. That is what a snapshot has of it: what else a limit
/// has learned begins anew.
pub trait Limit {
    /// The limits of the test cases of a response to the prompt in `row` of the dataset.
    fn limits(&mut self, id: SampleId, row: u64) -> Limits;

    /// Takes in what scoring the response executed.
    fn executed(&mut self, id: SampleId, row: u64, executions: &[Execution]);

    /// Takes in the longest correct execution of a test case in all steps so far, whoever scored it; told where it has changed.
    fn anchored(&mut self, row: u64, case: u32, longest: Nanos) {
        let _ = (row, case, longest);
    }
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

    fn anchored(&mut self, row: u64, case: u32, longest: Nanos) {
        self.as_mut().anchored(row, case, longest);
    }
}
