//! Violations of the contract of a schedule.

use std::ops::Range;
use std::sync::Arc;

use rollpacker_dataflow::fault::Origin;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};

use crate::schedule::Decision;

/// A decision that the contract of a schedule forbids, or a round that can never close.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A decision follows [`Decision::Finish`](crate::schedule::Decision::Finish).
    #[error("it decides `{decision}` after it finished")]
    AfterFinish {
        /// The decision, as text.
        decision: String,
    },
    /// A round opens while another is open.
    #[error("it opens step {} before it closes step {}", .step.ordinal(), .open.ordinal())]
    SecondRound {
        /// The step whose round opens too early.
        step: Step,
        /// The step of the open round.
        open: Step,
    },
    /// A round opens for a step whose policy is not published or was used before, or for a step before the previous round's step.
    #[error("it opens step {}, whose policy is not published or was used before", .step.ordinal())]
    NoPolicy {
        /// The step of the round.
        step: Step,
    },
    /// A decision needs an open round, but no round is open, or the decision names another step than the step of the open round.
    #[error("it decides `{decision}`, and that round is not open")]
    NotOpen {
        /// The decision, as text.
        decision: String,
    },
    /// A decision names a prompt that was never offered, or that was admitted or rejected before.
    #[error(
        "it decides `{decision}`, and {prompt} was never offered, or was admitted or rejected before"
    )]
    UnknownPrompt {
        /// The decision, as text.
        decision: String,
        /// The id of the prompt.
        prompt: PromptId,
    },
    /// A prompt is admitted or deferred in a round that did not launch it.
    #[error("it decides `{decision}`, and the round did not launch {prompt}")]
    NotLaunched {
        /// The decision, as text.
        decision: String,
        /// The id of the prompt.
        prompt: PromptId,
    },
    /// A prompt is launched, admitted, deferred or rejected after it was deferred in the same round.
    #[error("it decides `{decision}`, and {prompt} was deferred in this round before")]
    DecidedTwice {
        /// The decision, as text.
        decision: String,
        /// The id of the prompt.
        prompt: PromptId,
    },
    /// A launch has no samples.
    #[error("it launches the samples {} to {} of {prompt}, which are none", .samples.start, .samples.end)]
    NoSamples {
        /// The id of the prompt.
        prompt: PromptId,
        /// The empty range of the launch.
        samples: Range<u32>,
    },
    /// A sample is launched a second time in a round.
    #[error("it launches {id} a second time")]
    LaunchedTwice {
        /// The id of the response.
        id: SampleId,
    },
    /// A response is aborted or paused although it is not in flight or was stopped before. As an exception, a response that has ended by
    /// itself may be paused.
    #[error("it stops {id}, which is not in flight")]
    NotRunning {
        /// The id of the response.
        id: SampleId,
    },
    /// A response is paused by a schedule whose [`pauses`](crate::schedule::Schedule::pauses) returns `false`.
    #[error("it pauses {id}, and its `pauses` returns false")]
    Pause {
        /// The id of the response.
        id: SampleId,
    },
    /// A group contains a response that did not end by itself in the open round.
    #[error("it admits {id}, which has not ended by itself in this round")]
    NotWhole {
        /// The id of the response.
        id: SampleId,
    },
    /// A group is empty or not in ascending order, or its weights are negative, not finite, or not as many as its responses.
    #[error(
        "it admits a group of {prompt} that is empty, not in ascending order, or has invalid weights"
    )]
    Group {
        /// The id of the prompt.
        prompt: PromptId,
    },
    /// A round closes although a prompt that it launched is undecided.
    #[error("it closes step {}, and {prompt} was neither admitted, deferred nor rejected", .step.ordinal())]
    Undecided {
        /// The step of the round.
        step: Step,
        /// The id of the prompt.
        prompt: PromptId,
    },
    /// A round closes although a response is in flight and was not aborted.
    #[error("it closes the round of {id}, which is in flight and was not aborted")]
    InFlight {
        /// The id of the response.
        id: SampleId,
    },
    /// A [`RoundPolicy`](crate::schedule::round_policy::RoundPolicy) replaces a rejected prompt with a prompt of another lane.
    #[error("it replaces a rejected prompt of lane `{expected}` with {prompt} of lane `{found}`")]
    ReplacementLane {
        /// The id of the replacement.
        prompt: PromptId,
        /// The lane of the rejected prompt.
        expected: Arc<str>,
        /// The lane of the replacement.
        found: Arc<str>,
    },
    /// A [`RoundPolicy`](crate::schedule::round_policy::RoundPolicy) opens a round without a plan, or with a plan without prompts. Such a
    /// round trains on nothing.
    #[error("it opens step {} without a plan that has a prompt", .step.ordinal())]
    NoPlan {
        /// The step of the round.
        step: Step,
    },
    /// The run finishes although a round is open.
    #[error("it finishes before it closes step {}", .step.ordinal())]
    OpenAtFinish {
        /// The step of the open round.
        step: Step,
    },
    /// The run finishes although a prompt that was launched is neither admitted nor rejected. In a resumed run, the prompt may have been
    /// launched before: the schedule must restore it, or report that it [is out of steps](crate::schedule::Schedule::is_out_of_steps).
    #[error("it finishes, and the deferred prompt {prompt} was neither admitted nor rejected")]
    Lost {
        /// The id of the prompt.
        prompt: PromptId,
    },
    /// All responses of the open round have ended and, if the schedule wants scores, are scored. The schedule neither launches further
    /// responses, nor closes the round, nor waits for a prompt that may still be offered.
    #[error(
        "all responses of step {} have ended, and it neither launches a response nor closes the round",
        .step.ordinal()
    )]
    NeverCloses {
        /// The step of the round.
        step: Step,
    },
}

impl Violation {
    /// Returns the decision that ends the run because of the violation.
    pub(in crate::schedule) fn failure(&self) -> Decision {
        let message = format!("the schedule violates its contract: {self}");
        Decision::Fail { origin: Origin::Program, message }
    }
}
