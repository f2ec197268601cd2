//! Schedules: which prompts and responses a rollout round launches, keeps, drops and defers.
//!
//! A schedule is a pure policy: it is told events with the time at which they happened, and drained of decisions. It holds no clock,
//! no channel, no capability; the driver in [`operator`] puts it on streams. So the same schedule runs live and simulated, and its
//! state is a value that can be compared, cloned and written to a snapshot.

mod builtin;
mod driver;
pub mod dynamic;
pub(crate) mod encode;
mod error;
pub mod frontier_group;
mod group;
pub mod history_sorted;
mod inclusion;
pub mod operator;
pub mod partial;
mod plan;
mod pool;
mod published;
mod queue;
mod round;
mod round_policy;
mod rounds;
mod scores;
pub(crate) mod sequencer;
pub mod sorted;
mod speculation;
pub(crate) mod state;
mod stock;
mod stop;
pub mod sync;
pub mod tail_batching;
mod variance;

#[cfg(test)]
mod tests;

pub use builtin::Builtin;
pub use dynamic::Dynamic;
pub use error::ScheduleError;
pub use frontier_group::FrontierGroup;
pub use history_sorted::HistorySorted;
pub use partial::Partial;
pub use sorted::Sorted;
pub use sync::Synchronous;
pub use tail_batching::TailBatching;
pub use variance::{OnExhausted, ZeroVarianceFilter};

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::FinishReason;
use serde::{Deserialize, Serialize};

/// What a schedule is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// A prompt was read. Prompts come in the order of their ids; epochs never go back.
    Prompt(Offer),
    /// No prompt follows.
    EndOfPrompts,
    /// The weights for `step` are published: its round may open. Steps ascend.
    Policy {
        /// The step.
        step: Step,
    },
    /// A response ended or was dropped. Told exactly once for each launched sample, aborted ones included, possibly after the round
    /// that launched it has closed.
    Response {
        /// Which response.
        id: SampleId,
        /// Sampled tokens.
        tokens: u32,
        /// Why it ended; [`FinishReason::Pause`] answers [`Decision::Pause`], unless the response had ended before.
        finish_reason: FinishReason,
    },
    /// A response that ended by itself has its reward; told to schedules that [want scores](Schedule::wants_scores) only, after the
    /// response's own event. Once the round that launched the response has closed, it is told only if the response was admitted.
    Scored {
        /// Which response.
        id: SampleId,
        /// The reward; not a number if there is none, because of an error: then the response's group will not be trained on, also where
        /// it is admitted.
        score: f64,
    },
}

/// A prompt that a schedule may launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The prompt.
    pub prompt: PromptId,
    /// The epoch it was read in.
    pub epoch: u32,
    /// The row of the dataset: the same in every epoch, so that what is known of the prompt can be known again.
    pub row: u64,
    /// What kind of task it is; quotas go by it.
    pub domain: Arc<str>,
}

/// What a schedule wants done, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Decision {
    /// The round of `step` begins.
    Open {
        /// The step.
        step: Step,
        /// What kind of round, in the schedule's words.
        round: Round,
        /// Why this kind.
        reason: Reason,
    },
    /// Ask for responses. A sample that was paused goes on from the tokens that were kept of it, under a new [`SampleId`] of this step.
    Launch {
        /// The prompt.
        prompt: PromptId,
        /// Which of its samples.
        samples: Range<u32>,
        /// Why.
        reason: Reason,
    },
    /// Drop a response.
    Abort {
        /// Which.
        id: SampleId,
        /// Why.
        reason: Reason,
    },
    /// Stop a response and keep its tokens: a later launch of the same prompt and sample goes on from them.
    ///
    /// One that has ended is kept whole: the later launch gives it again at once, without another token being sampled. So a group can be
    /// completed in a later round, with each of its responses a response of that round.
    Pause {
        /// Which.
        id: SampleId,
        /// Why.
        reason: Reason,
    },
    /// Train on these responses of a prompt, as one group.
    Admit {
        /// The prompt.
        prompt: PromptId,
        /// The responses that form the group, ascending.
        samples: Vec<u32>,
        /// How much each counts in the loss, in the order of `samples`; empty: 1 each.
        weights: Vec<f32>,
        /// Why.
        reason: Reason,
    },
    /// Keep the prompt for a later round; its responses so far are not trained on.
    Defer {
        /// The prompt.
        prompt: PromptId,
        /// Why.
        reason: Reason,
    },
    /// Never train on the prompt.
    Reject {
        /// The prompt.
        prompt: PromptId,
        /// Why.
        reason: Reason,
    },
    /// The round of `step` is decided: nothing more will be launched, admitted or deferred in it.
    Close {
        /// The step.
        step: Step,
        /// What the schedule still holds.
        queue: Queue,
    },
    /// No round will follow.
    Finish,
    /// The open round cannot be completed as configured: the run ends with this error. Nothing follows.
    Fail {
        /// What cannot be done, and which key of the configuration says so.
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
            Self::Fail { message } => write!(f, "fail ({message})"),
        }
    }
}

/// Kind of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Round {
    /// Every response that is launched is waited for.
    Full,
    /// Speculative: more is launched than kept.
    Short,
    /// Deferred prompts, each response waited for.
    Long,
}

impl Round {
    /// As written in the column `round`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Short => "short",
            Self::Long => "long",
        }
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a decision was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The prompt was not launched before.
    Fresh,
    /// The prompt was deferred before.
    Queued,
    /// Among the first to finish.
    Finished,
    /// The round has all the prompts that it wants.
    RoundFull,
    /// The prompt has all the responses that it wants.
    GroupFull,
    /// Too many responses of the prompt were dropped by others than the schedule for the rest to fill its group.
    Lost,
    /// The queue holds a round.
    QueueFull,
    /// A deferred prompt has waited as long as it may.
    QueueAge,
    /// Too few fresh prompts remain of the epoch.
    EpochEnd,
    /// Only as many rounds remain of the run as the queue needs.
    RunEnd,
    /// No quota is set for the domain of the prompt.
    NoQuota,
    /// All responses of the prompt have the same reward: they teach nothing.
    ZeroVariance,
    /// A response of the prompt has no reward, because of an error.
    Unscored,
}

impl Reason {
    /// As written in the column `reason`.
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

/// Prompts that wait for a later round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// How many.
    pub length: usize,
    /// Rounds that have closed since the oldest was deferred.
    pub age: u64,
}

/// A policy of rollout rounds.
///
/// # Contract
/// - **Conservation.** Each offered prompt is admitted or rejected (before or after it was launched) exactly once before [`Decision::Finish`], unless the run's last step
///   comes first: then what was launched was admitted, and the others were never launched. What is deferred is launched again. The
///   prompts of an epoch are admitted before any of the next is launched.
/// - **Rounds.** [`Decision::Open`] answers [`Event::Policy`]; rounds are open one at a time, in the order of their steps. Between
///   `Open` and [`Decision::Close`] the round launches, aborts, admits and defers; each prompt that it launched is admitted or deferred
///   in it, or rejected, and only responses that were launched in it are admitted in it, whole ones. A paused response is answered before
///   the round closes: as paused, or as whole where it ended before it could be stopped; either way its tokens are kept.
/// - **Progress.** An open round closes at the latest when all its launched responses have ended and, for a schedule that wants scores,
///   the whole ones are scored; while prompts remain, a published policy opens a round. Or the schedule [fails](Decision::Fail).
/// - **Determinism.** Decisions follow from the events alone: no clock, no randomness but a seeded one in the state, no hash order. How
///   far ahead of [`wants_prompts`](Self::wants_prompts) prompts are offered changes no decision.
pub trait Schedule {
    /// Takes an event in.
    ///
    /// # Contract
    /// Time does not go back. Where races are decided by tokens it is the tick, in nanoseconds: a response gains one token in each. The
    /// caller drains [`poll`](Self::poll) afterwards, or after several events of one time. A [`Event::Policy`] may come while an earlier round is still open, or before
    /// the prompts for its round: the round opens as soon as it can.
    fn on(&mut self, now: Nanos, event: Event);

    /// The next decision, until there is none.
    fn poll(&mut self) -> Option<Decision>;

    /// Whether the next round cannot be decided without another [`Event::Prompt`] or [`Event::EndOfPrompts`].
    ///
    /// That an epoch is over is learned only from a prompt of a later one or from the end of prompts, so the last rounds of an epoch may
    /// want a prompt that they do not launch. While a round is open, what the next one needs depends on what this one defers; so it is
    /// true then only if the open round itself needs a prompt to go on.
    fn wants_prompts(&self) -> bool;

    /// Whether the schedule decides by rewards, and so is told of them.
    fn wants_scores(&self) -> bool {
        false
    }

    /// Whether the schedule may [pause](Decision::Pause) responses, so that those that end are kept for it until their round closes.
    fn pauses(&self) -> bool {
        false
    }

    /// The state, for a snapshot: asked for between two rounds, when all of the responses of the earlier one have been told. None: the
    /// schedule cannot be resumed, and a run that takes snapshots refuses it.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    /// Goes on from a state that [`save`](Self::save) gave, told to a schedule at its start.
    ///
    /// # Contract
    /// What was saved is the state of another process, whose run may have ended: then by its steps, or its prompts. The configuration of
    /// this one says when the run ends, and prompts may be offered again, so what was saved about either end does not count.
    ///
    /// # Errors
    /// If it is no state of this schedule.
    fn restore(&mut self, saved: &[u8]) -> Result<(), String> {
        let _ = saved;
        Err("the schedule does not implement `restore`".to_owned())
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

    fn save(&self) -> Option<Vec<u8>> {
        self.as_ref().save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), String> {
        self.as_mut().restore(saved)
    }
}
