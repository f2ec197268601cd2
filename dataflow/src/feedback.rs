//! The feedback edge: carries the weights that a step produces to the step that samples with them.
//!
//! The path summary of the edge is `staleness + 1`, so the policy that step `t` produces arrives at step `t + staleness + 1`. A round opens
//! only with the policy of its step. The edge therefore bounds both the rounds in flight and the staleness. Staleness 0 is synchronous
//! on-policy training, 1 is one-step off-policy training, and a larger value is bounded asynchrony. The edge also ends the run: when no
//! round opens, nothing circulates, every frontier becomes empty, and the graph ends.

use timely::dataflow::Scope;
use timely::dataflow::operators::core::feedback::Handle;
use timely::dataflow::operators::{Concat, ConnectLoop, Feedback};

use crate::batch::{Batch, BatchStream};
use crate::operator::Operator;
use crate::schema;
use crate::step::{Step, Steps};

/// The maximum staleness, in steps. It bounds the memory of a feedback edge, which carries `staleness + 1` batches from the start.
pub const MAX_STALENESS: u64 = 1 << 16;

/// The open end of a feedback edge, to which the stream of new policies is connected.
pub struct FeedbackEdge<'scope> {
    handle: Handle<'scope, Step, Batch>,
}

impl<'scope> FeedbackEdge<'scope> {
    /// Connects the policies that steps produce and closes the loop.
    pub fn connect(self, policies: BatchStream<'scope>) {
        policies.connect_loop(self.handle);
    }
}

/// Opens a feedback edge. Returns the stream of policies, each at the step that samples with it, and the open end of the edge. Pass the
/// stream of new policies to [`FeedbackEdge::connect`].
///
/// `initial` is the policy that training starts from. The first `staleness + 1` steps sample with it.
///
/// # Panics
/// If `staleness` is above [`MAX_STALENESS`].
pub fn policies<'scope>(
    scope: Scope<'scope, Step>,
    staleness: u64,
    initial: Batch,
) -> (BatchStream<'scope>, FeedbackEdge<'scope>) {
    policies_from(scope, staleness, Step(0), vec![initial])
}

/// Opens a feedback edge as [`policies`] does, for a run that begins with the step `first`. `made` holds the initial policy, or the
/// policies of completed steps that `first` and later steps still sample with, the latest last. The first `staleness + 1` steps sample with
/// the last `staleness + 1` policies of `made`, one each, in order. If `made` holds fewer policies, the first steps share its first policy.
///
/// # Panics
/// If `made` is empty, or `staleness` is above [`MAX_STALENESS`].
pub fn policies_from<'scope>(
    scope: Scope<'scope, Step>,
    staleness: u64,
    first: Step,
    made: Vec<Batch>,
) -> (BatchStream<'scope>, FeedbackEdge<'scope>) {
    assert!(!made.is_empty(), "invariant: training starts from a policy");
    assert!(staleness <= MAX_STALENESS, "expected a staleness of at most {MAX_STALENESS} steps");
    let (handle, later) = scope.feedback(Steps(staleness + 1));
    let last = made.len() as u64 - 1;
    let at_first = (0..=staleness).map(|step| {
        let policy = (last + step).saturating_sub(staleness).min(last);
        (Step(first.0 + step), made[usize::try_from(policy).unwrap_or(0)].clone())
    });
    let at_first = at_steps(scope, at_first.collect());
    (at_first.concat(later), FeedbackEdge { handle })
}

/// Returns a stream that emits each batch at its step. The steps must be in ascending order.
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
