//! The options of a torch engine, and the errors of starting one.

use std::sync::Arc;

use rollpacker_model::ModelConfig;
use rollpacker_stages::train::config::Precision;
use tch::TchError;

use super::Placement;
use super::invariance::InvarianceError;
use super::lengths::Lengths;
use super::sampling::Sampling;

/// A function that decodes the token ids of a response to text without special tokens: a tokenizer's `decode`, or a function that returns
/// an empty string for models without a tokenizer.
pub type Detokenize = Arc<dyn Fn(&[i32]) -> String + Send + Sync>;

/// The options of a [`TorchEngine`](super::TorchEngine).
#[derive(Clone, Debug, PartialEq)]
pub struct TorchEngineConfig {
    /// Number of instances, each on its own thread; at least 1. A [placement](super::Placement) may join the threads and KV budgets of
    /// several instances to one.
    pub instances: u32,
    /// Number of threads that compute an instance; at least 1. On a CPU, products and attention are divided among them. Engines that [pack
    /// weights](super::packs_weights) pack them once per policy for all instances together.
    pub threads_per_instance: usize,
    /// Maximum number of responses that an instance runs at once; at least 1. (verl: `rollout.max_num_seqs`)
    pub max_running: usize,
    /// Maximum number of tokens, prompts included, that the running responses of an instance hold in the KV cache together, rounded up to a
    /// multiple of 16. A response holds blocks of 16 tokens; blocks that responses to the same prompt share count once. Responses beyond
    /// this limit are preempted and computed again. Must be greater than `max_new_tokens` of the sampling options.
    pub kv_cache_tokens: usize,
    /// Precision of the weights of the layers' matrix products. With [`Bfloat16`](Precision::Bfloat16) the packed weights are rounded and
    /// take half of the memory; where the engine cannot pack them, libtorch rounds both factors.
    pub dtype: Precision,
    /// The sampling options of all responses, including the limits on their length. `max_new_tokens` must be less than the positions of the
    /// model.
    pub sampling: Sampling,
    /// Seed of the random streams of all responses.
    pub seed: u64,
    /// Lengths that are forced on the responses; `None` to let them end by themselves.
    pub replay: Option<Lengths>,
    /// Makes generation deterministic: tokens and log-probabilities of a response are bit-identical independent of the rest of the batch,
    /// in any order, on any instance, and however often the response is stopped, preempted and resumed. The engine then supports races in
    /// [lockstep](super::lockstep).
    ///
    /// A [`load`](super::RolloutEngine::load) then waits, on each instance, until the responses requested before it have left the instance.
    /// [Replayed](Self::replay) lengths are assigned by [id](Lengths::of). Results are the same only on the same kind of processor with the
    /// same libtorch. Where engines do not [pack weights](super::packs_weights), the number of threads per instance must also be the same.
    ///
    /// The engine tests the kernels of the machine before it starts. The test computes the logits of 876 tokens, or of more if the kernels
    /// fail the first part of the test. A single row generates at 0.6 to 1.0 of the speed of the default, depending on the model, because
    /// it is padded; from 32 rows on, the difference is within the noise.
    pub deterministic: bool,
}

/// The reason why an engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TorchEngineError {
    /// An option is out of bounds.
    #[error("rollout option `{option}`: expected {expected}, found {found}")]
    Option {
        /// The name of the option.
        option: &'static str,
        /// The allowed values.
        expected: String,
        /// The configured value.
        found: String,
    },
    /// A libtorch operation failed while weights were packed or an instance was set up, for example because the device is out of memory.
    #[error("cannot set up a rollout engine instance: {0}")]
    Torch(TchError),
    /// The machine cannot generate deterministically, or the test of its kernels cannot run.
    #[error("rollout option `deterministic`: {0}")]
    Invariance(InvarianceError),
    /// The system cannot create a thread.
    #[error("cannot start the thread of rollout engine instance {instance}: {error}")]
    Thread {
        /// The number of the instance, from 0. Also 0 if the thread that tests the kernels cannot start its threads.
        instance: u32,
        /// The error of the operating system.
        error: std::io::Error,
    },
}

impl From<TchError> for TorchEngineError {
    fn from(error: TchError) -> Self {
        Self::Torch(error)
    }
}

impl From<InvarianceError> for TorchEngineError {
    fn from(error: InvarianceError) -> Self {
        Self::Invariance(error)
    }
}

impl TorchEngineConfig {
    pub(super) fn check(&self) -> Result<(), TorchEngineError> {
        if let Some((option, expected, found)) = self.sampling.invalid_option() {
            return Err(TorchEngineError::Option { option, expected: expected.to_owned(), found });
        }
        at_least_one("instances", self.instances as usize)?;
        at_least_one("threads_per_instance", self.threads_per_instance)?;
        at_least_one("max_running", self.max_running)
    }

    /// Returns `true` if `placement` has no instances, or has at least one device and no more devices than the engine. The engine has one
    /// device for each of its instances.
    pub(super) fn has_devices_for(&self, placement: Placement) -> bool {
        let Placement { instances, tensor_parallel } = placement;
        let devices = u64::from(instances) * u64::from(tensor_parallel);
        instances == 0 || (1..=u64::from(self.instances)).contains(&devices)
    }

    /// Returns the maximum number of tokens of a sequence: the positions of the model, or the KV budget if that is smaller. Returns an
    /// error unless the maximum exceeds `max_new_tokens`.
    pub(super) fn token_limit(&self, model: &ModelConfig) -> Result<usize, TorchEngineError> {
        let positions = usize::try_from(model.max_position_embeddings).unwrap_or(0);
        let limit = positions.min(self.kv_cache_tokens);
        let response = self.sampling.max_new_tokens as usize;
        if response < limit {
            return Ok(limit);
        }
        Err(TorchEngineError::Option {
            option: "max_new_tokens",
            expected: format!(
                "less than {limit}, the smaller of kv_cache_tokens and the positions of the model"
            ),
            found: response.to_string(),
        })
    }
}

fn at_least_one(option: &'static str, value: usize) -> Result<(), TorchEngineError> {
    match value {
        0 => Err(TorchEngineError::Option {
            option,
            expected: "at least 1".to_owned(),
            found: "0".to_owned(),
        }),
        _ => Ok(()),
    }
}
