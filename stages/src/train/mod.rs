//! Trainers, which update the policy from complete groups.

pub mod config;
pub mod fixed;
pub mod learning_rate;
mod partial;
mod rollout_correction;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rollpacker_dataflow::fault::{HasOrigin, Origin};
use rollpacker_dataflow::step::{PolicyVersion, PromptId, Step};

use crate::rollout::Policy;

pub use partial::{Numbers, Partial, PartialError, Total};

/// One response to learn from.
///
/// All slices but `prompt_ids` have the length of `response_ids`. That length is `response_length`, unless tokens are only counted. The
/// last three slices are empty if no model or estimator provides them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sequence<'a> {
    /// The prompt of the response.
    pub prompt: PromptId,
    /// The index of the response among the responses to the prompt, from 0.
    pub sample: u32,
    /// Prompt tokens. They carry no loss.
    pub prompt_ids: &'a [i32],
    /// The number of sampled tokens.
    pub response_length: u32,
    /// Sampled tokens.
    pub response_ids: &'a [i32],
    /// Log-probability of each token under the policy that sampled it, in nats.
    pub logprobs: &'a [f32],
    /// Advantage of each token.
    pub advantages: &'a [f32],
    /// The weight of the response in the loss.
    pub weight: f32,
    /// Log-probability of each token under the reference, in nats.
    pub ref_logprobs: &'a [f32],
    /// Prediction of the critic at each token, before the update.
    pub values: &'a [f32],
    /// Target of the critic at each token.
    pub returns: &'a [f32],
}

impl Default for Sequence<'_> {
    /// Returns an empty sequence with weight 1.
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

/// The outputs of a trainer's models for a response before its advantages are estimated. Each is `[response tokens]`, or empty if it is not
/// needed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inferred {
    /// Estimate of the KL divergence from the reference, in nats, for the reward.
    pub reward_kl: Vec<f32>,
    /// Log-probability under the reference, in nats, for the loss.
    pub ref_logprobs: Vec<f32>,
    /// Prediction of the critic.
    pub values: Vec<f32>,
}

/// Values by metric name. Names follow verl (`actor/pg_loss`, ...).
pub type Metrics = BTreeMap<String, f64>;

/// Returns metrics with the given names and values.
///
/// ```
/// use rollpacker_stages::train::named_metrics;
///
/// assert_eq!(named_metrics([("actor/lr", 0.1)])["actor/lr"], 0.1);
/// ```
pub fn named_metrics<'a>(values: impl IntoIterator<Item = (&'a str, f64)>) -> Metrics {
    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The error of a trainer.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A number that the trainer computed is not finite: a loss, gradient, log-probability, KL divergence or value.
    #[error("{quantity} is not finite at step {}", .step.ordinal())]
    NotFinite {
        /// The step that computed the number.
        step: Step,
        /// The name of the quantity that is not finite.
        quantity: &'static str,
    },
    /// The objective cannot be created.
    #[error(transparent)]
    Objective(#[from] crate::catalog::CatalogError),
    /// No example has a response.
    #[error("no example has a response")]
    NoExamples,
    /// A slice of a sequence, or an output of a model for it, has a wrong length.
    #[error("sequence {at}: `{field}` has {found} entries, expected {expected}")]
    Sequence {
        /// The index of the sequence in the call, from 0.
        at: usize,
        /// The name of the slice or output.
        field: &'static str,
        /// The expected number of entries.
        expected: String,
        /// The number of entries found.
        found: usize,
    },
    /// The partial gradients of replicas cannot be added or applied.
    #[error(transparent)]
    Partial(#[from] PartialError),
    /// The state file cannot be read or written.
    #[error(transparent)]
    State(Box<dyn std::error::Error + Send + Sync>),
    /// The trainer does not support the operation.
    #[error("this trainer cannot {operation}")]
    Unsupported {
        /// The operation in words, such as `save its state`.
        operation: &'static str,
    },
    /// An operation failed for a reason that no other variant describes.
    #[error("trainer failed in {operation}: {reason}")]
    Backend {
        /// The operation that failed.
        operation: &'static str,
        /// The message of the backend, without its stack trace.
        reason: String,
    },
    /// A file cannot be written, or its path holds something that must not be replaced.
    #[error(transparent)]
    File(#[from] rollpacker_files::FileError),
    /// Weights cannot be written.
    #[error("cannot write {path}: {error}")]
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
}

impl HasOrigin for TrainError {
    fn origin(&self) -> Origin {
        match self {
            Self::NotFinite { .. } | Self::Objective(_) | Self::Unsupported { .. } => Origin::User,
            Self::Partial(error) => error.origin(),
            Self::State(_) | Self::File(_) | Self::Write { .. } => Origin::Environment,
            Self::NoExamples | Self::Sequence { .. } | Self::Backend { .. } => Origin::Program,
        }
    }
}

impl TrainError {
    /// Wraps the reason why a state file cannot be read or written.
    pub fn state(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::State(Box::new(error))
    }

    /// Wraps the error of libtorch or of the model during `operation`. Only the first line is kept; a C++ stack trace follows it.
    pub fn backend<E: std::fmt::Display>(operation: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Backend {
            operation,
            reason: error.to_string().lines().next().unwrap_or_default().to_owned(),
        }
    }
}

/// Accumulates the gradients of groups as they arrive, and applies them once per step.
///
/// # Contract
/// - The update depends on the set of sequences of the step. It does not depend on their order, nor on how they are split over calls of
///   [`accumulate`](Self::accumulate), beyond floating-point reassociation: [`update`](Self::update) divides accumulated sums by the totals
///   of the step (tokens or sequences, depending on the aggregation of the loss).
/// - The update of a deterministic trainer does not depend on order and splitting at all: it is bit-identical. The responses of a prompt
///   must then come in one call.
/// - A trainer may be one of several replicas that accumulate different responses. The gradient of each replica is [taken
///   out](Self::take_partial), once or several times per step, and the sum over all replicas is [put into](Self::put_sum) each. When
///   nothing is left to take, each replica [updates](Self::update).
/// - [`update`](Self::update) of step `s` publishes the weights as version `s + 1`. Without sequences since the last update it changes no
///   weight, but still publishes a policy.
///
/// # Example
/// [`check_trainer`](crate::testkit::check_trainer) checks the contract:
///
/// ```
/// # use std::path::Path;
/// # use rollpacker_dataflow::step::{PolicyVersion, PromptId, Step};
/// # use rollpacker_stages::rollout::Policy;
/// # use rollpacker_stages::testkit::{TrainerWorld, check_trainer};
/// # use rollpacker_stages::train::{Metrics, Sequence, TrainError, Trainer};
/// /// A policy of one weight, which moves by the sum of the advantages.
/// struct OneWeight {
///     weight: f64,
///     gradient: f64,
/// }
///
/// impl Trainer for OneWeight {
///     fn publish(&mut self, version: PolicyVersion) -> Result<Policy, TrainError> {
///         Ok(Policy { version, location: "memory".to_owned(), digest: self.weight.to_bits() })
///     }
///
///     fn accumulate(&mut self, _: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError> {
///         let advantages = sequences.iter().flat_map(|sequence| sequence.advantages);
///         self.gradient += advantages.map(|&advantage| f64::from(advantage)).sum::<f64>();
///         Ok(())
///     }
///
///     fn update(&mut self, step: Step) -> Result<(Policy, Metrics), TrainError> {
///         let gradient = std::mem::take(&mut self.gradient);
///         self.weight += gradient;
///         let metrics = Metrics::from([("actor/grad_norm".to_owned(), gradient.abs())]);
///         Ok((self.publish(PolicyVersion(step.next().0))?, metrics))
///     }
///
///     fn save(&mut self, folder: &Path) -> Result<(), TrainError> {
///         let path = folder.join("weight.txt");
///         std::fs::write(&path, self.weight.to_string())
///             .map_err(|error| TrainError::Write { path, error })
///     }
/// }
///
/// let group = |prompt| vec![Sequence {
///     prompt: PromptId(prompt),
///     response_ids: &[7, 7],
///     advantages: &[0.5, 1.5],
///     ..Sequence::default()
/// }];
/// let folder = tempfile::tempdir().expect("a folder");
/// let world = TrainerWorld {
///     groups: &[group(0), group(1)],
///     tolerance: 0.0,
///     has_digests: true,
///     is_reproducible: true,
///     folder: folder.path(),
/// };
/// let start = || OneWeight { weight: 1.0, gradient: 0.0 };
/// check_trainer(start, &world).expect("it keeps the contract");
/// ```
pub trait Trainer: Send {
    /// Publishes the current weights as `version`, which is 0 at the start of a run.
    ///
    /// # Errors
    /// Returns an error if the weights cannot be published.
    fn publish(&mut self, version: PolicyVersion) -> Result<Policy, TrainError>;

    /// Returns the outputs of the trainer's models for sequences of the current step that have no advantages yet: one per sequence, in
    /// order. The outputs are computed with the models as they were at the start of the step. The default returns empty outputs.
    ///
    /// # Errors
    /// Returns an error if the slices of a sequence are inconsistent, a value is not finite or the backend fails. The step is lost then.
    fn infer(
        &mut self,
        step: Step,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<Inferred>, TrainError> {
        let _ = step;
        Ok(vec![Inferred::default(); sequences.len()])
    }

    /// Adds the gradient of sequences of the current step.
    ///
    /// # Errors
    /// Returns an error if the slices of a sequence are inconsistent, the loss is not finite or the backend fails. The step is lost then.
    fn accumulate(&mut self, step: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError>;

    /// Applies the optimizer to the accumulated gradient, publishes the new weights with the version `step + 1`, and clears the
    /// accumulation.
    ///
    /// # Errors
    /// Returns an error if the gradient is not finite, the weights cannot be published, a replica has accumulated responses since its last
    /// partial was taken, or the backend fails.
    fn update(&mut self, step: Step) -> Result<(Policy, Metrics), TrainError>;

    /// Removes and returns the gradient that was accumulated since the last call. It is empty if nothing was accumulated.
    ///
    /// # Errors
    /// Returns an error if the backend fails, or the trainer does not support replicas, which is the default.
    fn take_partial(&mut self, step: Step) -> Result<Partial, TrainError> {
        let _ = step;
        Err(TrainError::Unsupported { operation: "be one of several replicas" })
    }

    /// Sets the sum of the partial gradients of all replicas, including this one. All replicas receive identical bits.
    ///
    /// # Errors
    /// Returns an error if the sum does not match this trainer's model and mode, a value leaves the fixed-point range, or the trainer does
    /// not support replicas, which is the default.
    fn put_sum(&mut self, step: Step, sum: Partial) -> Result<(), TrainError> {
        let _ = (step, sum);
        Err(TrainError::Unsupported { operation: "be one of several replicas" })
    }

    /// Sets the number of devices from the next call on. The default does nothing, for trainers of fixed size.
    fn place(&mut self, devices: u32) {
        let _ = devices;
    }

    /// Writes the weights as a Hugging Face model folder.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written, in which case the error names the file, or the trainer has no weights to write.
    fn save(&mut self, folder: &Path) -> Result<(), TrainError>;

    /// Writes the state that later updates depend on, as of the last [`update`](Self::update). The configuration, the initial model, and
    /// gradients accumulated since that update are not included.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written, or the trainer does not support saving its state, which is the default.
    fn save_state(&mut self, file: &Path) -> Result<(), TrainError> {
        let _ = file;
        Err(TrainError::Unsupported { operation: "save its state" })
    }

    /// Restores a state in place of the initial weights. Later updates equal the updates of the trainer that saved the state; on a device
    /// that adds in a fixed order, they are bit-identical.
    ///
    /// Returns the policies that are published again under their versions: the oldest first, the current policy last. There is at least the
    /// current policy. With staleness, the engines of the next steps may request any of them.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or belongs to another model or algorithm; the error names the file and the tensor. Also
    /// returns an error if the trainer does not support loading a state, which is the default. A file of another model or algorithm leaves
    /// the trainer unchanged. If the file cannot be read, the trainer may hold a part of the state and must not be used.
    fn load_state(&mut self, file: &Path) -> Result<Vec<Policy>, TrainError> {
        let _ = file;
        Err(TrainError::Unsupported { operation: "load a state" })
    }
}
