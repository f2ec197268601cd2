//! Trainers: what turns complete groups into a better policy.

#[cfg(feature = "torch")]
mod accumulation;
pub mod config;
#[cfg(feature = "torch")]
mod critic;
mod fixed;
#[cfg(feature = "torch")]
mod head;
pub mod learning_rate;
#[cfg(feature = "torch")]
pub mod loss;
#[cfg(feature = "torch")]
mod micro_batch;
#[cfg(feature = "torch")]
mod objective;
#[cfg(feature = "torch")]
pub mod optimizer;
mod partial;
#[cfg(feature = "torch")]
pub mod sft;
#[cfg(feature = "torch")]
mod shared_prompts;
pub mod simulated;
#[cfg(feature = "torch")]
mod tally;
#[cfg(feature = "torch")]
pub mod torch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rollpacker_dataflow::step::{PolicyVersion, PromptId, Step};

use crate::rollout::Policy;

#[cfg(feature = "torch")]
pub use critic::ValueModel;
#[cfg(feature = "torch")]
pub use objective::Objective;
pub use partial::{Numbers, Partial, PartialError, Total};

/// One response to learn from. All slices but `prompt_ids` have the length of `response_ids`, which is `response_length` unless tokens
/// are only counted; the last three are empty where nothing gave them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sequence<'a> {
    /// Which prompt it answers.
    pub prompt: PromptId,
    /// Which response to that prompt, from 0.
    pub sample: u32,
    /// Prompt tokens; no loss falls on them.
    pub prompt_ids: &'a [i32],
    /// Sampled tokens: how many.
    pub response_length: u32,
    /// Sampled tokens.
    pub response_ids: &'a [i32],
    /// Log-probability of each token under the policy that sampled it, in nats.
    pub logprobs: &'a [f32],
    /// Advantage of each token.
    pub advantages: &'a [f32],
    /// How much the response counts in the loss.
    pub weight: f32,
    /// Log-probability of each token under the reference, in nats.
    pub ref_logprobs: &'a [f32],
    /// What the critic predicted at each token before the update.
    pub values: &'a [f32],
    /// What the critic should have predicted.
    pub returns: &'a [f32],
}

impl Default for Sequence<'_> {
    /// An empty one, of weight 1.
    fn default() -> Self {
        Self {
            prompt: PromptId(0),
            sample: 0,
            prompt_ids: &[],
            response_length: 0,
            response_ids: &[],
            logprobs: &[],
            advantages: &[],
            weight: 1.0,
            ref_logprobs: &[],
            values: &[],
            returns: &[],
        }
    }
}

/// What the models of a trainer say of a response before its advantages are estimated; each `[response tokens]`, or empty where nothing
/// asks for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inferred {
    /// Estimate of the KL divergence from the reference, in nats, for the reward.
    pub reward_kl: Vec<f32>,
    /// Log-probability under the reference, in nats, for the loss.
    pub ref_logprobs: Vec<f32>,
    /// What the critic predicts.
    pub values: Vec<f32>,
}

/// Numbers by metric name, in the words of the project's users (`actor/pg_loss`, ...).
pub type Metrics = BTreeMap<String, f64>;

/// Why a trainer stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A number of the loss or of the gradient is not finite.
    #[error("{quantity} is not finite at step {}", .step.ordinal())]
    NotFinite {
        /// The step.
        step: Step,
        /// What was computed.
        quantity: &'static str,
    },
    /// What is to be optimised cannot be made.
    #[error(transparent)]
    Objective(#[from] crate::catalog::CatalogError),
    /// There is nothing to learn from.
    #[error("no example has a response")]
    NoExamples,
    /// A sequence does not hold together.
    #[error("sequence {at}: `{field}` has {found} entries, expected {expected}")]
    Sequence {
        /// Which of those handed over, from 0.
        at: usize,
        /// The slice.
        field: &'static str,
        /// How many entries it should have.
        expected: String,
        /// How many it has.
        found: usize,
    },
    /// Gradients cannot be added up.
    #[error(transparent)]
    Partial(#[from] PartialError),
    /// The file of a state cannot be used.
    #[error(transparent)]
    State(crate::model::ModelError),
    /// The trainer is not made for it.
    #[error("this trainer cannot {operation}")]
    Unsupported {
        /// What was asked.
        operation: &'static str,
    },
    /// The backend failed.
    #[error("trainer failed in {operation}: {reason}")]
    Backend {
        /// What it was doing.
        operation: &'static str,
        /// What it said.
        reason: String,
    },
    /// A file cannot be written, or its place has something that must not be replaced.
    #[error(transparent)]
    File(#[from] rollpacker_files::FileError),
    /// Weights could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

#[cfg(feature = "torch")]
impl TrainError {
    /// Wraps what libtorch or the model says while doing `operation`; what follows its first line is a C++ stack.
    pub(crate) fn backend<E: std::fmt::Display>(operation: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Backend {
            operation,
            reason: error.to_string().lines().next().unwrap_or_default().to_owned(),
        }
    }
}

#[cfg(feature = "torch")]
impl From<crate::model::ModelError> for TrainError {
    fn from(error: crate::model::ModelError) -> Self {
        match error {
            crate::model::ModelError::Write { path, source } => Self::Write { path, source },
            crate::model::ModelError::File(error) => Self::File(error),
            other => Self::backend("using the model")(other),
        }
    }
}

/// Something that accumulates gradients of groups as they arrive, and applies them once per step.
///
/// # Contract
/// - The update depends on the sequences of the step, not on their order nor on how they were split over calls of
///   [`accumulate`](Self::accumulate), beyond floating-point reassociation: accumulated sums are divided by the step's totals
///   (tokens or sequences, whichever the loss aggregates over) in [`update`](Self::update).
/// - Where a trainer is deterministic, it does not depend on them at all: it is the same to the bit. The responses of a prompt then come
///   together, in one call.
/// - A trainer may be one of several replicas, each of which accumulates responses of its own. What they have accumulated is
///   [taken out](Self::take_partial) of each, once or several times a step, and the sum over all of them [put into](Self::put_sum) each;
///   when nothing is left to take, each [updates](Self::update).
/// - [`update`](Self::update) without a sequence since the last one changes no weight, and still publishes a policy.
pub trait Trainer: Send {
    /// Hands out the weights as they stand, as `version`: 0 at the start of a run.
    ///
    /// # Errors
    /// If they cannot be published.
    fn publish(&mut self, version: PolicyVersion) -> Result<Policy, TrainError>;

    /// What the trainer's models say of some sequences of the current step, which have no advantages yet: one a sequence, in order. The
    /// models are those that the step's update starts from, whenever it is asked before that.
    ///
    /// # Errors
    /// If a number is not finite or the backend fails; the step is lost then.
    fn infer(
        &mut self,
        step: Step,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<Inferred>, TrainError> {
        let _ = step;
        Ok(vec![Inferred::default(); sequences.len()])
    }

    /// Adds the gradient of some sequences of the current step.
    ///
    /// # Errors
    /// If the loss is not finite or the backend fails; the step is lost then.
    fn accumulate(&mut self, step: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError>;

    /// Applies the optimizer to what was accumulated, publishes the new weights, and clears the accumulation.
    ///
    /// # Errors
    /// If the gradient is not finite or the backend fails.
    fn update(&mut self, step: Step) -> Result<(Policy, Metrics), TrainError>;

    /// Takes out what was accumulated since it was last taken; empty if nothing was.
    ///
    /// # Errors
    /// If the backend fails, or the trainer cannot be one of several.
    fn take_partial(&mut self, step: Step) -> Result<Partial, TrainError> {
        let _ = step;
        Err(TrainError::Unsupported { operation: "be one of several replicas" })
    }

    /// Puts in the sum over all replicas, this one included, of what was taken out. Replicas get sums of the same bits.
    ///
    /// # Errors
    /// If it is not of this trainer's model and mode, or a number leaves the range of fixed point.
    fn put_sum(&mut self, step: Step, sum: Partial) -> Result<(), TrainError> {
        let _ = (step, sum);
        Err(TrainError::Unsupported { operation: "be one of several replicas" })
    }

    /// Computes on `devices` devices from the next call on; a trainer of a fixed size has nothing to do here.
    fn place(&mut self, devices: u32) {
        let _ = devices;
    }

    /// Writes the weights as a Hugging Face folder.
    ///
    /// # Errors
    /// If a file cannot be written; the error names it.
    fn save(&mut self, folder: &Path) -> Result<(), TrainError>;

    /// Writes all that later updates depend on beside the configuration and the model that the run began with, as of the last
    /// [`update`](Self::update): what was accumulated since is not in it.
    ///
    /// # Errors
    /// If the file cannot be written, or the trainer has no state that can be.
    fn save_state(&mut self, file: &Path) -> Result<(), TrainError> {
        let _ = file;
        Err(TrainError::Unsupported { operation: "save its state" })
    }

    /// Goes on from a state, in place of the weights that the trainer was made with: updates are the same to the bit as those of the
    /// trainer that saved it. Returns the policies that it publishes again under their versions, oldest first and the current one last;
    /// with a staleness the engines of the next steps may ask for any of them.
    ///
    /// # Errors
    /// If the file cannot be read, or is not of this model and algorithm; nothing is overwritten then. The error names file and tensor.
    fn load_state(&mut self, file: &Path) -> Result<Vec<Policy>, TrainError> {
        let _ = file;
        Err(TrainError::Unsupported { operation: "load a state" })
    }
}
