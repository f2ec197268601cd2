//! The inputs that a run provides to its engines.

use std::path::PathBuf;
use std::sync::Arc;

use rollpacker_dataflow::clock::Clock;
use rollpacker_model::Tokenizer;
use rollpacker_stages::rollout::lengths::Lengths;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::train::config::Precision;
use rollpacker_torch::model::WeightStore;
use rollpacker_torch::rollout::colocated::ColocatedModels;
use tch::Device;

/// The inputs that a run provides to an engine when it starts it. Fields may be added.
#[derive(Clone)]
#[non_exhaustive]
pub struct EngineContext {
    /// The purpose of the engine: training or validation.
    pub purpose: EnginePurpose,
    /// The index of the worker among all workers of the run, from 0. Each worker has an engine of its own.
    pub worker: usize,
    /// The folder of the initial model in Hugging Face format: configuration, tokenizer and weights (`model.path`). Its weights are the
    /// weights of policy version 0, unless the run is resumed.
    pub model: PathBuf,
    /// The run folder (`trainer.default_local_dir`).
    pub run_folder: PathBuf,
    /// The vocabulary size of the model. It may exceed the vocabulary size of the tokenizer.
    pub vocab_size: usize,
    /// The tokenizer of the model, for the [text](rollpacker_stages::rollout::Completion::text) of a completion.
    pub tokenizer: Arc<Tokenizer>,
    /// The store in which the trainer of this worker publishes its weights. [`WeightStore::find`] returns the weights of the policy that
    /// [`load`](rollpacker_stages::rollout::RolloutEngine::load) names, as tensors by their Hugging Face names. Unused with a trainer that
    /// publishes elsewhere.
    pub weights: WeightStore,
    /// The tokens of the first training prompts, concatenated, at most [`EXAMPLE_TOKENS`](Self::EXAMPLE_TOKENS). An engine can use them
    /// to check itself on text that resembles the text of the run. Empty for the torch engine and for validation.
    pub example: Vec<i32>,
    /// The device of this worker's models.
    pub device: Device,
    /// The settings of the recipe that concern engines.
    pub settings: EngineSettings,
    /// The clock of the run, by which completions are timed.
    pub clock: Arc<dyn Clock>,
    /// The recorded response lengths that the torch engine replays; `None` without `rollout.replay_lengths`, and for validation.
    pub(crate) replay: Option<Lengths>,
    /// The models that the torch engine hosts; none for validation, and on all workers of a process but the first.
    pub(crate) colocated: ColocatedModels,
}

impl EngineContext {
    /// The maximum length of [`example`](Self::example) in tokens.
    pub const EXAMPLE_TOKENS: usize = 96;
}

/// The purpose of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnginePurpose {
    /// The engine generates the responses of a worker's rounds.
    Training,
    /// The engine generates responses to validation prompts, on the thread of the validator. The first worker has two such engines: one
    /// samples as `rollout.val_kwargs` says, the other decodes greedily (temperature 0).
    Validation,
}

/// The settings of a recipe that concern engines. An engine honours `sampling` and the other settings that apply to it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EngineSettings {
    /// The sampling of tokens and the bounds of a response (`rollout.temperature`, `top_p`, `top_k`, `min_response_length` and
    /// `data.max_response_length`; in a validation also `rollout.val_kwargs`). Every engine must honour it.
    pub sampling: Sampling,
    /// The seed of sampling (`rollout.seed`, or `trainer.seed` if it is not set).
    pub seed: u64,
    /// The maximum length of a prompt in tokens (`data.max_prompt_length`).
    pub max_prompt_length: usize,
    /// The number of instances of a worker that generate: `rollout.instances`, minus the instances whose threads only train.
    pub instances: u32,
    /// The number of CPU threads of an instance (`rollout.threads_per_instance`).
    pub threads_per_instance: usize,
    /// The maximum number of responses that an instance runs at once (`rollout.max_num_seqs`).
    pub max_running: usize,
    /// The capacity of an instance's KV cache in tokens (`rollout.kv_cache_tokens`).
    pub kv_cache_tokens: usize,
    /// The precision of the weights of matrix products (`rollout.dtype`).
    pub dtype: Precision,
    /// `true` if the run is deterministic (`trainer.deterministic`): the training engine must support
    /// [lockstep](rollpacker_stages::rollout::RolloutEngine::lockstep), and the run is refused otherwise.
    pub deterministic: bool,
}
