//! The settings of a recipe as written: every key with its default, before bounds are checked.
//!
//! Keys have verl's names where verl has them. Names of other frameworks are accepted as [aliases](super::aliases) where they mean the
//! same.

mod algorithm;
mod pipeline;
mod placement;
mod reward;
mod serve;
mod trainer;

pub use algorithm::{
    Actor, Algorithm, CorrectedLoss, Critic, IsThreshold, KlControlType, KlCtrl, LrScheduler,
    PolicyLoss, RolloutCorrection, RsThreshold,
};
pub use pipeline::{Gradient, Pipeline};
pub use placement::Placement;
pub use reward::{Reward, RouteTarget};
pub use serve::Serve;
pub use trainer::{Run, Sft};

use std::path::PathBuf;

use rollpacker_operators::curriculum::CurriculumOptions;
use rollpacker_stages::train::config::Precision;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::schedule;
use super::section::section;

section! {
    /// A recipe as written.
    RawRecipe {
        /// The datasets to train and to validate on.
        data: Data = Data::default(),
        /// The initial model.
        model: Model = Model::default(),
        /// Sampling of responses, and the engine that samples them.
        rollout: Rollout = Rollout::default(),
        /// The schedule: which prompts and responses a round launches and admits.
        schedule: schedule::ScheduleSection = schedule::ScheduleSection::default(),
        /// Overlap of the stages of a step.
        pipeline: Pipeline = Pipeline::default() => resumable,
        /// Division of the engine instances between rollout and training.
        placement: Placement = Placement::default() => resumable,
        /// The rewards that score responses.
        reward: Reward = Reward::default(),
        /// Advantages, and the staleness of policies.
        algorithm: Algorithm = Algorithm::default(),
        /// The trainer, the loss and the optimizer.
        actor: Actor = Actor::default(),
        /// The value model.
        critic: Critic = Critic::default(),
        /// The length of training, and the outputs.
        trainer: Run = Run::default(),
        /// Supervised fine-tuning before training.
        sft: Sft = Sft::default() => resumable,
    }
}

section! {
    /// The section `[data]`: the prompt datasets.
    Data {
        /// Parquet or JSONL files or globs of training prompts: a string or a list. Required for training. (verl: `data.train_files`)
        #[serde(deserialize_with = "one_or_many")]
        (recipe) train_files: Vec<String> = Vec::new() => resumable,
        /// Parquet or JSONL files or globs of validation prompts. Default: none, which disables validation. (verl: `data.val_files`)
        #[serde(deserialize_with = "one_or_many")]
        (recipe) val_files: Vec<String> = Vec::new() => resumable,
        /// Number of prompts of a step, called P0 in the RollPacker paper. At least 1; default 16. (verl: `data.train_batch_size`; TRL:
        /// `generation_batch_size / num_generations`)
        train_batch_size: usize [prompts] = 16,
        /// Maximum number of training rows to use; -1, the default, uses all. (verl: `data.train_max_samples`)
        (recipe) train_max_samples: i64 [rows] = -1,
        /// Maximum number of validation rows to use; -1, the default, uses all. (verl: `data.val_max_samples`)
        (recipe) val_max_samples: i64 [rows] = -1 => resumable,
        /// `true`, the default, to reshuffle the prompts in every epoch. (verl: `data.shuffle`)
        (recipe) shuffle: bool = true,
        /// Seed of the prompt order. Default: `trainer.seed`. (verl: `data.seed`)
        (recipe) seed: Option<u64> = None,
        /// Maximum prompt length in tokens, at least 1; default 512. (verl: `data.max_prompt_length`)
        max_prompt_length: usize [tokens] = 512,
        /// Treatment of prompts longer than `data.max_prompt_length`: `skip`, the default, leaves them out and counts them; `left`, `right`
        /// and `middle` cut tokens there. `error` is accepted for `skip`; verl ends the run instead. (verl: `data.truncation`)
        truncation: Truncation = Truncation::Skip,
        /// Maximum response length in tokens, at least 1; default 512. The sum with `max_prompt_length` must not exceed the context length
        /// of the model. (verl: `data.max_response_length`; TRL: `max_completion_length`)
        max_response_length: u32 [tokens] = 512,
        /// `true`, the default, to apply the chat template of the model to prompts. `false` joins the contents of the messages, for prompts
        /// that carry the markup of a template already.
        apply_chat_template: bool = true,
        /// Column of the prompt. By default, a column `messages` that mostly ends with an assistant's message yields to one with the
        /// question as text. Default: `prompt` if it is a list of messages; otherwise the first of `messages`, `prompt`, `question` and
        /// `problem` that the file has. (verl: `data.prompt_key`)
        (recipe) prompt_key: Option<String> = None,
        /// Column of the data source, which selects the reward. Default: `data_source` or `source`. (verl: `data.reward_fn_key`)
        (recipe) reward_fn_key: Option<String> = None,
        /// Column of the reference answer. Default: the first of `reward_model.ground_truth`, `reward_spec.ground_truth`, `ground_truth`,
        /// `answer` and `label` that the file has.
        (recipe) ground_truth_key: Option<String> = None,
        /// Column of the domain, to which the schedule's quotas apply. Default: the first of `domain`, `ability` and `tag` that the file has
        /// and that is not a list or a struct.
        (recipe) domain_key: Option<String> = None,
        /// Further columns to pass to rewards in `extra_info`. Default: none.
        (recipe) extra_columns: Vec<String> = Vec::new(),
        /// Skips prompts by the pass rate of their last group. By default, it skips prompts whose responses all passed or all failed. A
        /// table of `min_pass_rate`, `max_pass_rate`, `exploration` and `pass_score`; an empty table has the defaults. Needs at least 2
        /// epochs. Default: none, which trains on all prompts.
        #[serde(skip_serializing_if = "Option::is_none")]
        curriculum: Option<CurriculumOptions> = None,
    }
}

/// The treatment of prompts that are longer than `data.max_prompt_length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Truncation {
    /// Prompts that are too long are left out and counted.
    #[serde(alias = "error")]
    Skip,
    /// Tokens at the start of the prompt are cut.
    Left,
    /// Tokens at the end of the prompt are cut.
    Right,
    /// Tokens in the middle of the prompt are cut; its start and its end keep half of the maximum length each.
    Middle,
}

section! {
    /// The section `[model]`: the initial model.
    Model {
        /// Folder of the model in Hugging Face format. Required for training. (verl: `actor_rollout_ref.model.path`)
        path: PathBuf = PathBuf::new(),
    }
}

section! {
    /// The section `[rollout]`: sampling, and the rollout engine.
    Rollout {
        /// Name of the rollout engine: `torch` (the default), `vllm`, `sglang`, or one that the program [adds](crate::App::engine). (verl:
        /// `rollout.name`)
        (recipe) engine: String = "torch".to_owned(),
        /// Options of the engine. Default: none. The engine `torch` has none; its settings are the other keys of this section. The options
        /// of `vllm` and `sglang` are in `docs/servers.md`. (verl: `rollout.engine_kwargs`)
        (recipe) engine_options: Table = Table::new(),
        /// URLs of the inference servers, for the engines `vllm` and `sglang`, which need either this key or `rollout.serve`. Default:
        /// none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        (recipe) servers: Vec<String> = Vec::new() => resumable,
        /// Servers that the run starts, watches and stops itself, for the engines `vllm` and `sglang`: a table of `command`, `count` and
        /// `env`. Excludes `rollout.servers`. Default: none.
        #[serde(skip_serializing_if = "Option::is_none")]
        (recipe) serve: Option<Serve> = None => resumable,
        /// Maximum time without any available inference server, after which the run ends, in seconds. One server of `rollout.serve` must be
        /// ready within this time. Above 0, below 3e9. Default: 600.
        #[serde(skip_serializing_if = "Option::is_none")]
        (recipe) server_timeout: Option<f64> [seconds] = None => resumable,
        /// Number of responses of a group, called R0 in the RollPacker paper. At least 1; default 8. (verl: `rollout.n`; TRL:
        /// `num_generations`)
        n: u32 [responses] = 8,
        /// Sampling temperature, by which logits are divided. From 0.001 to 1000; default 1. (verl: `rollout.temperature`)
        (recipe) temperature: f64 = 1.0,
        /// Nucleus sampling: draws from the most likely tokens whose probabilities sum to at least this value. In (0, 1]; the default, 1,
        /// disables it. (verl: `rollout.top_p`)
        (recipe) top_p: f64 = 1.0,
        /// Top-k sampling: draws from this many most likely tokens. The default, -1, and 0 disable it. (verl: `rollout.top_k`)
        (recipe) top_k: i64 [tokens] = -1,
        /// Sampling of validations, where it differs from the sampling of training. (verl: `rollout.val_kwargs`)
        (recipe) val_kwargs: ValidationSampling = ValidationSampling::default() => resumable,
        /// Minimum response length in tokens: no response ends by itself earlier. At most `data.max_response_length`; default 0.
        (recipe) min_response_length: u32 [tokens] = 0,
        /// Number of engine instances of a worker, each on its own thread. From 1 to 1024; default 2.
        instances: u32 [instances] = 2 => resumable,
        /// Number of CPU threads that compute an instance. More instances of one thread are faster if there are enough responses. The
        /// instances and trainers of a process have at most 16,384 threads in total. From 1 to 1024; default 1.
        threads_per_instance: usize [threads] = 1 => resumable,
        /// Maximum number of responses that an instance runs at once, at least 1; default 256. (verl: `rollout.max_num_seqs`)
        max_num_seqs: usize [responses] = 256 => resumable,
        /// Capacity of an instance's KV cache in tokens, which the engine `torch` rounds up to a multiple of 16. Memory use follows the
        /// tokens held, not the capacity. At least `data.max_prompt_length + data.max_response_length`; default 262,144.
        kv_cache_tokens: usize [tokens] = 262_144 => resumable,
        /// Precision of the weights in the matrix products of the layers: `float32`, the default, or `bfloat16`, which halves the weight
        /// memory that each iteration reads. Sums, attention and logits are float32 in any case. For the engine `torch`; servers have a
        /// setting of their own. (verl: `rollout.dtype`)
        dtype: Precision = Precision::Float32,
        /// Seed of sampling. Default: `trainer.seed`. (verl: `rollout.seed`)
        (recipe) seed: Option<u64> = None,
        /// File of response lengths to force, for benchmarks: a JSON list of steps, each a list of lengths in tokens. After the last step,
        /// the lengths of the first step follow. Needs the engine `torch`. Default: none.
        replay_lengths: Option<PathBuf> = None,
        /// Profile of the engine, a file that `rollpacker profile` writes. Each step compares the profile with the live engine. Times that
        /// deviate too much are replaced by measured times, and the file is rewritten at the end of the run. Needs the engine `torch`.
        /// Default: none.
        profile: Option<PathBuf> = None => resumable,
    }
}

section! {
    /// The section `[rollout.val_kwargs]`: the sampling of validations. Each validation also decodes one response greedily.
    ValidationSampling {
        /// Number of sampled responses to a prompt, whose mean score is reported. At least 1; default 1. (verl: `rollout.val_kwargs.n`)
        n: u32 [responses] = 1 => resumable,
        /// Sampling temperature; 0 is greedy. Default: `rollout.temperature`. (verl: `rollout.val_kwargs.temperature`)
        temperature: Option<f64> = None => resumable,
        /// Nucleus sampling. Default: `rollout.top_p`. (verl: `rollout.val_kwargs.top_p`)
        top_p: Option<f64> = None => resumable,
        /// Top-k sampling; -1 and 0 disable it. Default: `rollout.top_k`. (verl: `rollout.val_kwargs.top_k`)
        top_k: Option<i64> [tokens] = None => resumable,
    }
}

/// Deserializes a string or a list of strings.
fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text or a list of texts")]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(one) => vec![one],
        OneOrMany::Many(many) => many,
    })
}
