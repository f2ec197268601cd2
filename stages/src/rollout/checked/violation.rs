//! Violations of the contract of a rollout engine.

use rollpacker_dataflow::step::{PolicyVersion, SampleId};

/// A report that the contract of a rollout engine forbids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineViolation {
    /// A response was never requested, or was reported before.
    #[error(
        "it reports {id}, which was not requested or was reported before: expected one report for each requested response"
    )]
    NotOutstanding {
        /// The response.
        id: SampleId,
    },
    /// A response ends with [`FinishReason::Pause`](super::FinishReason::Pause), which only the caller assigns.
    #[error("it reports {id} as paused: expected stop, length or abort")]
    Paused {
        /// The response.
        id: SampleId,
    },
    /// A field does not have one entry per token.
    #[error(
        "`{field}` of {id} has {found} entries: expected {expected}, one per token of the response"
    )]
    Length {
        /// The response.
        id: SampleId,
        /// The field of the [`Completion`](super::Completion).
        field: &'static str,
        /// The number of tokens of the response.
        expected: usize,
        /// The number of entries of the field.
        found: usize,
    },
    /// A log-probability is not finite, or exceeds 0 by more than rounding explains.
    #[error(
        "the log-probability of token {token} of {id} is {found}: expected a finite number of at most 0"
    )]
    Logprob {
        /// The response.
        id: SampleId,
        /// The index of the token in the response, from 0.
        token: usize,
        /// The value that was reported.
        found: String,
    },
    /// A resumed response does not begin with the tokens that it continues, or has other policy versions for them.
    #[error("{id} does not begin with the {tokens} tokens that it was resumed with")]
    Resumed {
        /// The response.
        id: SampleId,
        /// The number of tokens that it was resumed with.
        tokens: usize,
    },
    /// A token was sampled by a policy that was not in use.
    #[error(
        "token {token} of {id} was sampled by policy {found}: expected {oldest}, which was loaded at the time of the request, up to {newest}, \
         the last one loaded"
    )]
    Version {
        /// The response.
        id: SampleId,
        /// The index of the token in the response, from 0.
        token: usize,
        /// The version that was reported.
        found: PolicyVersion,
        /// The version that was loaded at the time of the request.
        oldest: PolicyVersion,
        /// The version that was loaded last.
        newest: PolicyVersion,
    },
}
