//! Schedules, which decide the prompts and responses that a rollout round launches, keeps, drops and defers.
//!
//! A schedule is a pure policy: it receives events, each with the time at which it happened, and returns decisions. It holds no clock, no
//! channel and no capability; the driver in [`operator`] connects it to streams. The same schedule therefore runs live and simulated, and
//! its state is a value that can be compared, cloned and written to a snapshot.

mod builtin;
pub mod checked;
mod driver;
pub mod dynamic;
pub(crate) mod encode;
mod error;
pub mod frontier_group;
mod group;
pub mod history_sorted;
mod inclusion;
mod long_prompt_queue;
pub mod longest_first;
pub mod operator;
pub mod partial;
mod plan;
mod pool;
pub(crate) mod prompt_affinity;
mod prompt_gate;
mod prompt_store;
mod published;
mod round;
pub mod round_policy;
mod rounds;
mod scores;
pub(crate) mod sequencer;
pub mod snapshot;
pub mod sorted;
mod speculation;
mod stop;
pub mod sync;
pub mod tail_batching;
pub mod testkit;
mod variance;

#[cfg(test)]
mod tests;

pub use builtin::Builtin;
pub use checked::Checked;
pub use dynamic::Dynamic;
pub use error::ScheduleError;
pub use frontier_group::FrontierGroup;
pub use history_sorted::HistorySorted;
pub use partial::Partial;
pub use sorted::Sorted;
pub use sync::Synchronous;
pub use tail_batching::TailBatching;
pub use variance::{OnExhausted, ZeroVarianceFilter};

pub use crate::wire::decision::RoundKind;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rollpacker_dataflow::BoxError;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::fault::Origin;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::FinishReason;
use serde::{Deserialize, Serialize};

/// An event that a schedule receives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// A prompt was read. Prompts arrive in ascending order of their ids; the epoch never decreases.
    Prompt(Offer),
    /// No further prompt follows.
    EndOfPrompts,
    /// The weights for `step` are published, so its round may open. Steps ascend.
    Policy {
        /// The step that samples with the weights.
        step: Step,
    },
    /// A response ended, was paused or was dropped. Reported exactly once for each launched sample, including aborted samples. The event
    /// may come after the round that launched the response has closed.
    Response {
        /// The id of the response.
        id: SampleId,
        /// The number of tokens of the response, including tokens that earlier rounds sampled.
        tokens: u32,
        /// The finish reason. [`FinishReason::Pause`] confirms a [`Decision::Pause`]. A response that ended before it could be paused has
        /// another reason.
        finish_reason: FinishReason,
    },
    /// The reward of a response that ended by itself. Reported only to schedules that [want scores](Schedule::wants_scores), and after the
    /// response's own event. Once the round that launched the response has closed, the reward is reported only if the response was
    /// admitted.
    Scored {
        /// The id of the response.
        id: SampleId,
        /// The reward. If scoring failed, it is 0 with [`OnError::Zero`](rollpacker_stages::reward::OnError::Zero), and otherwise NaN. The
        /// group of a response with a NaN reward is not trained on, even if it is admitted.
        score: f64,
    },
}

/// A prompt that a schedule may launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The id of the prompt.
    pub prompt: PromptId,
    /// The epoch in which the prompt was read, counted from 0.
    pub epoch: u32,
    /// The row of the dataset, counted from 0. The row is the same in every epoch and so identifies the prompt across epochs.
    pub row: u64,
    /// The domain (kind of task) of the prompt; quotas apply per domain.
    pub domain: Arc<str>,
}

/// A decision of a schedule. Decisions are carried out in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Decision {
    /// The round of `step` begins.
    Open {
        /// The step of the round.
        step: Step,
        /// The kind of the round.
        round: RoundKind,
        /// The reason for this kind of round.
        reason: Reason,
    },
    /// Launches responses to a prompt in the open round. A sample that an earlier round paused resumes from its kept tokens, under a new
    /// [`SampleId`] with the step of the open round.
    Launch {
        /// The id of the prompt.
        prompt: PromptId,
        /// The indices of the samples to launch. The range must not be empty, and no index may be launched twice in a round.
        samples: Range<u32>,
        /// The reason for the launch.
        reason: Reason,
    },
    /// Aborts a response in flight and discards its tokens. The [end of the response](Event::Response) is still reported.
    Abort {
        /// The id of the response.
        id: SampleId,
        /// The reason for the abort.
        reason: Reason,
    },
    /// Stops a response and keeps its tokens. A later launch of the same prompt and sample resumes from them.
    ///
    /// A response that has already ended is kept whole. The later launch returns it at once, without sampling another token. A group can
    /// therefore be completed in a later round, with each of its responses being a response of that round.
    Pause {
        /// The id of the response.
        id: SampleId,
        /// The reason for the pause.
        reason: Reason,
    },
    /// Trains on these responses of a prompt, as one group.
    Admit {
        /// The id of the prompt.
        prompt: PromptId,
        /// The samples that form the group, ascending.
        samples: Vec<u32>,
        /// The weight of each response in the loss, in the order of `samples`; finite and at least 0. If empty, each response has weight 1.
        weights: Vec<f32>,
        /// The reason for the admission.
        reason: Reason,
    },
    /// Keeps the prompt for a later round. Of its responses so far, only the paused ones can be trained on later.
    Defer {
        /// The id of the prompt.
        prompt: PromptId,
        /// The reason for the deferral.
        reason: Reason,
    },
    /// Drops the prompt; it is never trained on.
    Reject {
        /// The id of the prompt.
        prompt: PromptId,
        /// The reason for the rejection.
        reason: Reason,
    },
    /// Closes the round of `step`: nothing more is launched, admitted or deferred in it.
    Close {
        /// The step of the round.
        step: Step,
        /// The number and the age of the deferred prompts that the schedule holds for later rounds.
        queue: Queue,
    },
    /// No further round follows.
    Finish,
    /// The open round cannot be completed as configured, or a [`Checked`] schedule violates its contract. The run ends with this error. No
    /// decision follows.
    Fail {
        /// The cause of the failure: [`Origin::User`] for the configuration, [`Origin::Program`] for a violated contract.
        origin: Origin,
        /// The error message. It names the configuration key at fault, if there is one.
        message: String,
    },
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { step, round, reason } => write!(f, "open {step} {round} ({reason})"),
            Self::Launch { prompt, samples, reason } => {
                write!(f, "launch {prompt}.{}..{} ({reason})", samples.start, samples.end)
            }
            Self::Abort { id, reason } => write!(f, "abort {id} ({reason})"),
            Self::Pause { id, reason } => write!(f, "pause {id} ({reason})"),
            Self::Admit { prompt, samples, weights, reason } if weights.is_empty() => {
                write!(f, "admit {prompt} {samples:?} ({reason})")
            }
            Self::Admit { prompt, samples, weights, reason } => {
                write!(f, "admit {prompt} {samples:?} x {weights:.3?} ({reason})")
            }
            Self::Defer { prompt, reason } => write!(f, "defer {prompt} ({reason})"),
            Self::Reject { prompt, reason } => write!(f, "reject {prompt} ({reason})"),
            Self::Close { step, queue } => {
                write!(f, "close {step} (queue {}, age {})", queue.length, queue.age)
            }
            Self::Finish => f.write_str("finish"),
            Self::Fail { message, .. } => write!(f, "fail ({message})"),
        }
    }
}

/// The reason for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The prompt was never launched. As the reason for a round: the round launches fresh prompts.
    Fresh,
    /// An earlier round deferred the prompt. As the reason for a round: the round continues with prompts that earlier rounds left.
    Queued,
    /// The group of the prompt is complete, and the round trains on it.
    Finished,
    /// The round, or the part of the round that the prompt belongs to, admits no further group.
    RoundFull,
    /// The prompt has all the responses of its group.
    GroupFull,
    /// The engine dropped responses to the prompt that the schedule did not abort, and too few are left to fill the group.
    Lost,
    /// The queue holds a quota of each domain, except domains with less than a quota of fresh prompts left in the epoch.
    QueueFull,
    /// A deferred prompt would exceed the maximum queue age after another short round.
    QueueAge,
    /// Too few fresh prompts of the epoch remain to fill a round.
    EpochEnd,
    /// The run has only as many rounds left as the queue needs. As the reason for a rejection: a run that was resumed with fewer steps
    /// has no round left for the deferred prompt.
    RunEnd,
    /// No quota is set for the domain of the prompt.
    NoQuota,
    /// All responses of the prompt have the same reward, so the group has no gradient.
    ZeroVariance,
    /// A response of the prompt could not be scored because of an error.
    Unscored,
}

impl Reason {
    /// Returns the name as written in the column `reason` of decisions, with spaces between words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Queued => "queued",
            Self::Finished => "finished",
            Self::RoundFull => "round full",
            Self::GroupFull => "group full",
            Self::Lost => "lost",
            Self::QueueFull => "queue full",
            Self::QueueAge => "queue age",
            Self::EpochEnd => "epoch end",
            Self::RunEnd => "run end",
            Self::NoQuota => "no quota",
            Self::ZeroVariance => "zero variance",
            Self::Unscored => "unscored",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The state of the queue of deferred prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// The number of prompts in the queue.
    pub length: usize,
    /// The number of rounds after the round that first deferred the oldest prompt, up to the round that closes; 0 if the queue is empty.
    pub age: u64,
}

/// A policy that decides rollout rounds.
///
/// # Contract
/// - **Conservation.** Each offered prompt is admitted or rejected exactly once before [`Decision::Finish`]. A prompt may be rejected
///   before it is launched. The exception is a run that reaches its last step first: then every launched prompt was admitted or rejected,
///   and the other prompts were never launched. Deferred prompts are launched again. All prompts of an epoch are admitted or rejected
///   before any prompt of the next epoch is launched.
/// - **Rounds.** [`Decision::Open`] answers [`Event::Policy`]. One round is open at a time, in the order of steps. Between `Open` and
///   [`Decision::Close`] the round launches, aborts, pauses, admits and defers. Each prompt that the round launched is admitted, deferred
///   or rejected in the round. The round admits only whole responses that it launched. Before the round closes, the end of each paused
///   response is reported: as paused, or as whole if the response ended before it could be stopped. In both cases, the tokens of the
///   response are kept. They are lost if the response is reported as aborted, because the engine dropped it.
/// - **Progress.** An open round closes at the latest when all its launched responses have ended. If the schedule wants scores, all whole
///   responses must also be scored. A round may stay open while the schedule still wants prompts. While prompts remain, a published policy
///   opens a round. A schedule that cannot complete its open round as configured [fails](Decision::Fail).
/// - **Determinism.** Decisions depend only on the events: no clock, no hash order, and no randomness except a seeded generator in the
///   state. Offering more prompts than [`wants_prompts`](Self::wants_prompts) asks for changes no decision.
///
/// # Example
/// A minimal schedule; [`RoundPolicy`](round_policy::RoundPolicy) is the simpler interface for larger ones.
/// [`testkit::check_schedule`] checks the contract:
///
/// ```
/// # use std::collections::VecDeque;
/// # use rollpacker_dataflow::clock::Nanos;
/// # use rollpacker_dataflow::step::{PromptId, Step};
/// # use rollpacker_operators::schedule::testkit::{World, check_schedule};
/// # use rollpacker_operators::schedule::{Decision, Event, Queue, Reason, RoundKind, Schedule};
/// /// Rounds of one prompt with one response, for engines that abort no response by themselves.
/// #[derive(Default)]
/// struct OneByOne {
///     prompts: VecDeque<PromptId>,
///     all_read: bool,
///     published: VecDeque<Step>,
///     is_open: bool,
///     is_finished: bool,
///     decisions: VecDeque<Decision>,
/// }
///
/// impl OneByOne {
///     /// Opens the next round or ends the run, if that is possible.
///     fn proceed(&mut self) {
///         let reason = Reason::Fresh;
///         if let (Some(&prompt), Some(&step)) = (self.prompts.front(), self.published.front()) {
///             self.is_open = true;
///             drop((self.prompts.pop_front(), self.published.pop_front()));
///             self.decisions.extend([
///                 Decision::Open { step, round: RoundKind::Full, reason },
///                 Decision::Launch { prompt, samples: 0..1, reason },
///             ]);
///         } else if self.prompts.is_empty() && self.all_read {
///             self.is_finished = true;
///             self.decisions.push_back(Decision::Finish);
///         }
///     }
/// }
///
/// impl Schedule for OneByOne {
///     fn on(&mut self, _now: Nanos, event: Event) {
///         match event {
///             Event::Prompt(offer) => self.prompts.push_back(offer.prompt),
///             Event::EndOfPrompts => self.all_read = true,
///             Event::Policy { step } => self.published.push_back(step),
///             Event::Response { id, .. } => {
///                 let (samples, weights) = (vec![id.sample], Vec::new());
///                 let reason = Reason::Finished;
///                 self.decisions.extend([
///                     Decision::Admit { prompt: id.prompt, samples, weights, reason },
///                     Decision::Close { step: id.step, queue: Queue::default() },
///                 ]);
///                 self.is_open = false;
///             }
///             Event::Scored { .. } => {}
///         }
///         if !self.is_open && !self.is_finished {
///             self.proceed();
///         }
///     }
///
///     fn poll(&mut self) -> Option<Decision> {
///         self.decisions.pop_front()
///     }
///
///     fn wants_prompts(&self) -> bool {
///         self.prompts.is_empty() && !self.all_read && !self.is_open
///     }
/// }
///
/// let world = World::new(&[vec!["math".into(); 5]], 1);
/// check_schedule(OneByOne::default, &world).expect("it keeps the contract");
/// ```
pub trait Schedule {
    /// Processes an event.
    ///
    /// # Contract
    /// `now` never decreases. In races that are decided by tokens, `now` is the number of the tick: each response gains one token per tick.
    /// The caller drains [`poll`](Self::poll) after each event, or after several events with the same time. An [`Event::Policy`] may arrive
    /// while an earlier round is still open, or before the prompts of its round; the round then opens as soon as it can.
    fn on(&mut self, now: Nanos, event: Event);

    /// Removes and returns the next decision; `None` if there is none before the next event.
    fn poll(&mut self) -> Option<Decision>;

    /// Returns `true` if the next round cannot be decided without another [`Event::Prompt`] or [`Event::EndOfPrompts`].
    ///
    /// A schedule detects the end of an epoch only by a prompt of a later epoch or by the end of prompts. The last rounds of an epoch may
    /// therefore request a prompt that they do not launch. While a round is open, the needs of the next round depend on the prompts that
    /// the open round defers. The method then returns `true` only if the open round itself needs a prompt to continue.
    fn wants_prompts(&self) -> bool;

    /// Returns `true` if the schedule decides by rewards and must receive [`Event::Scored`].
    fn wants_scores(&self) -> bool {
        false
    }

    /// Returns `true` if the schedule may [pause](Decision::Pause) responses. The rollout then keeps whole responses at least until their
    /// round closes.
    fn pauses(&self) -> bool {
        false
    }

    /// Returns the maximum number of prompts of a round, without replacements for rejected prompts, and the number of responses launched
    /// for each. `None`, the default, states that a round launches only the responses that it trains on. Estimates of memory and the banner
    /// of a run use the numbers.
    fn round_size(&self) -> Option<(usize, u32)> {
        None
    }

    /// Returns `true` if no step of the run is left, so that the schedule opens no further round. The default is `false`, for schedules
    /// without a number of steps. The result matters if a resumed run finishes before its first round. With `true`, the run keeps its
    /// deferred prompts in the snapshot. With `false`, it ends with an error, because the schedule has lost them.
    fn is_out_of_steps(&self) -> bool {
        false
    }

    /// Returns the state for a snapshot, or `None`, the default, if the schedule cannot be resumed. A run that takes snapshots calls the
    /// method at its start, and ends with an error if the result is `None`. Later calls come between two rounds, after all responses of the
    /// earlier round were reported.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    /// Restores a state that [`save`](Self::save) returned. Called on a new schedule, before any event.
    ///
    /// # Contract
    /// The saved state comes from another process, whose run may have ended because it reached its last step or ran out of prompts. The
    /// configuration of the current schedule determines when the run ends, and prompts may be offered again. Implementations therefore
    /// ignore in the saved state that the run had finished or that no prompts were left. A run may also be resumed with fewer steps, too
    /// few to launch or admit all deferred prompts. Its last round then [rejects](Decision::Reject) those that are left, with the reason
    /// [`Reason::RunEnd`]. A run without a step left only finishes, and [`is_out_of_steps`](Self::is_out_of_steps) returns `true`.
    ///
    /// # Errors
    /// If `saved` is not a state of this schedule. The default implementation always returns an error.
    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let _ = saved;
        Err("the schedule does not implement `restore`".into())
    }
}

impl Schedule for Box<dyn Schedule> {
    fn on(&mut self, now: Nanos, event: Event) {
        self.as_mut().on(now, event);
    }

    fn poll(&mut self) -> Option<Decision> {
        self.as_mut().poll()
    }

    fn wants_prompts(&self) -> bool {
        self.as_ref().wants_prompts()
    }

    fn wants_scores(&self) -> bool {
        self.as_ref().wants_scores()
    }

    fn pauses(&self) -> bool {
        self.as_ref().pauses()
    }

    fn round_size(&self) -> Option<(usize, u32)> {
        self.as_ref().round_size()
    }

    fn is_out_of_steps(&self) -> bool {
        self.as_ref().is_out_of_steps()
    }

    fn save(&self) -> Option<Vec<u8>> {
        self.as_ref().save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        self.as_mut().restore(saved)
    }
}
