//! The edge from the weights that a step makes to the step that samples with them.
//!
//! The path summary of the edge is `staleness + 1`. So the policy that step `t` makes arrives at step `t + staleness + 1`, and since
//! a round opens only with the policy of its step, the edge is flow control, staleness contract and termination in one: staleness 0
//! is synchronous on-policy training, 1 the one-off pipeline, `k` bounds asynchrony. When no round opens, nothing goes round, every
//! frontier empties and the graph ends.

use timely::dataflow::Scope;
use timely::dataflow::operators::core::feedback::Handle;
use timely::dataflow::operators::{Concat, ConnectLoop, Feedback};

use crate::batch::{Batch, BatchStream};
use crate::operator::Operator;
use crate::schema;
use crate::step::{Step, Steps};

/// The open end of a feedback edge: where the policies that steps make are to be connected.
pub struct FeedbackEdge<'scope> {
    handle: Handle<'scope, Step, Batch>,
}

impl<'scope> FeedbackEdge<'scope> {
    /// Closes the loop.
    pub fn connect(self, policies: BatchStream<'scope>) {
        policies.connect_loop(self.handle);
    }
}

/// Opens a feedback edge: the stream of policies by the step that samples with them, and the end to connect what steps make to.
///
/// `initial` is the policy that training starts from; the first `staleness + 1` steps sample with it.
pub fn policies<'scope>(
    scope: Scope<'scope, Step>,
    staleness: u64,
    initial: Batch,
) -> (BatchStream<'scope>, FeedbackEdge<'scope>) {
    policies_from(scope, staleness, Step(0), vec![initial])
}

/// The same of a run that begins with the step `first`: `made` are the policies of the steps that are over, the last of them last, as
/// far as later steps sample with them. The first `staleness + 1` steps sample with the last as many of these, and where there are
/// fewer, the first steps with the first.
///
/// # Panics
/// If `made` is empty.
pub fn policies_from<'scope>(
    scope: Scope<'scope, Step>,
    staleness: u64,
    first: Step,
    made: Vec<Batch>,
) -> (BatchStream<'scope>, FeedbackEdge<'scope>) {
    assert!(!made.is_empty(), "invariant: training starts from a policy");
    let (handle, later) = scope.feedback(Steps(staleness + 1));
    let last = made.len() as u64 - 1;
    let at_first = (0..=staleness).map(|step| {
        let policy = (last + step).saturating_sub(staleness).min(last);
        (Step(first.0 + step), made[usize::try_from(policy).unwrap_or(0)].clone())
    });
    let at_first = at_steps(scope, at_first.collect());
    (at_first.concat(later), FeedbackEdge { handle })
}

/// Gives batches at steps, which ascend.
fn at_steps(scope: Scope<'_, Step>, batches: Vec<(Step, Batch)>) -> BatchStream<'_> {
    let mut operator = Operator::new("initial policy", scope);
    let (mut output, stream) = operator.output(&schema::POLICIES, &[]);
    operator.build(move |mut capabilities| {
        let mut capability = capabilities.pop();
        move |_frontiers| {
            if let Some(mut capability) = capability.take() {
                for (step, batch) in &batches {
                    capability.downgrade(step);
                    output.give(&capability, batch.clone());
                }
            }
        }
    });
    stream
}
