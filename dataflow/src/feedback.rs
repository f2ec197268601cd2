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
    let (handle, made) = scope.feedback(Steps(staleness + 1));
    (at_first_steps(scope, staleness + 1, initial).concat(made), FeedbackEdge { handle })
}

/// Gives `batch` at each of the first `steps` steps.
fn at_first_steps<'scope>(
    scope: Scope<'scope, Step>,
    steps: u64,
    batch: Batch,
) -> BatchStream<'scope> {
    let mut operator = Operator::new("initial policy", scope);
    let (mut output, stream) = operator.output(&schema::POLICIES, &[]);
    operator.build(move |mut capabilities| {
        let mut capability = capabilities.pop();
        move |_frontiers| {
            if let Some(mut capability) = capability.take() {
                for step in 0..steps {
                    capability.downgrade(&Step(step));
                    output.give(&capability, batch.clone());
                }
            }
        }
    });
    stream
}
