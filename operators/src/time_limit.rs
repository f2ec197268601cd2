//! Time limits of test cases, determined when the scoring of a response starts.

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::reward::{Execution, Limits};

/// A policy that determines how long test cases may run. It is called on the operator's thread and reads no clock.
///
/// # Contract
/// [`limits`](Self::limits) is called once per response, when its scoring starts. [`executed`](Self::executed) is called once per response
/// whose score arrives with executions, but not for scores that are cancelled or fail. Calls for other responses may come in between,
/// because several responses are scored at once. [`set_anchor`](Self::set_anchor) is called with the ledger's anchors when a step is
/// complete, in the order of the steps. When a run is resumed, it is first called for all known test cases. A snapshot holds only these
/// anchors: anything else that an implementation learns is lost on resume.
///
/// # Example
/// ```
/// use std::collections::BTreeMap;
///
/// use rollpacker_dataflow::clock::Nanos;
/// use rollpacker_dataflow::step::SampleId;
/// use rollpacker_operators::reward::TimeLimit;
/// use rollpacker_stages::reward::{Execution, Limits};
///
/// /// Twice the longest correct execution of any test case of the prompt, and 10 s until there is one.
/// #[derive(Default)]
/// struct Doubled(BTreeMap<u64, Nanos>);
///
/// impl TimeLimit for Doubled {
///     fn limits(&mut self, _id: SampleId, row: u64) -> Limits {
///         let doubled = self.0.get(&row).map(|longest| Nanos(2 * longest.0));
///         Limits::fixed(doubled.unwrap_or(Nanos::from_secs_f64(10.0)))
///     }
///
///     fn executed(&mut self, _id: SampleId, row: u64, executions: &[Execution]) {
///         for execution in executions.iter().filter(|execution| execution.correct) {
///             let longest = self.0.entry(row).or_default();
///             *longest = (*longest).max(execution.took);
///         }
///     }
/// }
///
/// let (mut policy, id) = (Doubled::default(), SampleId::default());
/// let limit = policy.limits(id, 3).of(0, None);
/// assert_eq!(limit, Nanos(10_000_000_000));
/// let took = Nanos(1_500);
/// policy.executed(id, 3, &[Execution { case: 0, took, limit, correct: true, audited: false }]);
/// assert_eq!(policy.limits(id, 3).of(0, None), Nanos(3_000));
/// ```
pub trait TimeLimit {
    /// Returns the time limits of the test cases for the response `id` to the prompt in `row` of the dataset.
    fn limits(&mut self, id: SampleId, row: u64) -> Limits;

    /// Records the executions of the scored response `id` to the prompt in `row` of the dataset. `executions` is never empty.
    fn executed(&mut self, id: SampleId, row: u64, executions: &[Execution]);

    /// Records the longest correct execution of test case `case` of the prompt in `row`, over all steps so far and all workers. Called when
    /// the value has changed and, when a run is resumed, for all known test cases. The default does nothing.
    fn set_anchor(&mut self, row: u64, case: u32, longest: Nanos) {
        let _ = (row, case, longest);
    }
}

/// Uses the same limits for every response.
impl TimeLimit for Limits {
    fn limits(&mut self, _: SampleId, _: u64) -> Limits {
        self.clone()
    }

    fn executed(&mut self, _: SampleId, _: u64, _: &[Execution]) {}
}

impl TimeLimit for Box<dyn TimeLimit> {
    fn limits(&mut self, id: SampleId, row: u64) -> Limits {
        self.as_mut().limits(id, row)
    }

    fn executed(&mut self, id: SampleId, row: u64, executions: &[Execution]) {
        self.as_mut().executed(id, row, executions);
    }

    fn set_anchor(&mut self, row: u64, case: u32, longest: Nanos) {
        self.as_mut().set_anchor(row, case, longest);
    }
}
