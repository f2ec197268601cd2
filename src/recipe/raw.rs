//! What is written in a recipe: every key with its default, nothing checked yet.
//!
//! Keys are those of verl where it has them; the names of other frameworks are accepted as aliases where they mean the same.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rollpacker_operators::overlap::Scoring;
use rollpacker_operators::reward::LimitOptions;
use rollpacker_stages::reward::OnError;
use rollpacker_stages::train::config::{Aggregation, KlPenalty};
use serde::{Deserialize, Serialize};
use toml::Table;

use super::keys::{Sections, fields};
use super::schedule;

/// A section: its keys with their defaults, as a struct.
macro_rules! section {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty = $default:expr,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

pub(crate) use section;

section! {
    /// A recipe as written.
    Raw {
        /// Prompts to train and to validate on.
        data: Data = Data::default(),
        /// The model to start from.
        model: Model = Model::default(),
        /// How responses are sampled, and by what.
        rollout: Rollout = Rollout::default(),
        /// Which prompts and responses a round launches and keeps.
        schedule: schedule::Section = schedule::Section::default(),
        /// How the stages of a step overlap.
        pipeline: Pipeline = Pipeline::default(),
        /// How good a response is.
        reward: Reward = Reward::default(),
        /// Advantages, and how old a policy may be.
        algorithm: Algorithm = Algorithm::default(),
        /// Loss and optimizer.
        actor: Actor = Actor::default(),
        /// How long to train, and what to write.
        trainer: Trainer = Trainer::default(),
        /// The supervised warm start.
        sft: Sft = Sft::default(),
    }
}

section! {
    /// `[data]`
    Data {
        /// Parquet or JSONL files, or globs.
        #[serde(deserialize_with = "one_or_many")]
        train_files: Vec<String> = Vec::new(),
        /// The same, to validate on; none: no validation.
        #[serde(deserialize_with = "one_or_many")]
        val_files: Vec<String> = Vec::new(),
        /// Prompts of a step: P0.
        #[serde(alias = "rollout_batch_size")]
        train_batch_size: usize = 16,
        /// Use only so many rows; -1 for all.
        train_max_samples: i64 = -1,
        /// The same for validation.
        val_max_samples: i64 = -1,
        /// Whether to shuffle, anew every epoch.
        shuffle: bool = true,
        /// Seed of the order; left out, that of the trainer.
        seed: Option<u64> = None,
        /// Longest prompt in tokens; longer ones are left out, and counted.
        max_prompt_length: usize = 512,
        /// Longest response in tokens.
        #[serde(alias = "max_completion_length", alias = "response_length", alias = "max_new_tokens")]
        max_response_length: u32 = 512,
        /// Column of the prompt.
        #[serde(alias = "input_key")]
        prompt_key: Option<String> = None,
        /// Column that says where a prompt comes from.
        reward_fn_key: Option<String> = None,
        /// Column of the reference answer.
        #[serde(alias = "label_key")]
        ground_truth_key: Option<String> = None,
        /// Column of the kind of task, by which quotas go.
        domain_key: Option<String> = None,
        /// Further columns to hand to rewards within `extra_info`.
        extra_columns: Vec<String> = Vec::new(),
    }
}

section! {
    /// `[model]`
    Model {
        /// Folder in Hugging Face format.
        path: PathBuf = PathBuf::new(),
    }
}

section! {
    /// `[rollout]`
    Rollout {
        /// Responses of a group: R0.
        #[serde(alias = "num_generations", alias = "n_samples_per_prompt", alias = "group_size")]
        n: u32 = 8,
        /// Divides the logits.
        temperature: f64 = 1.0,
        /// Draws from the likeliest tokens whose probabilities sum to at least this; 1 is off.
        top_p: f64 = 1.0,
        /// Draws from this many likeliest tokens; -1 and 0 are off.
        top_k: i64 = -1,
        /// Tokens before which no response ends by itself.
        min_response_length: u32 = 0,
        /// Engine instances, each on a thread of its own.
        instances: u32 = 2,
        /// Threads that the tensor operations of an instance use on the CPU.
        threads_per_instance: usize = 1,
        /// Responses that an instance runs at once.
        max_num_seqs: usize = 256,
        /// Tokens that the KV cache of an instance holds.
        kv_cache_tokens: usize = 262_144,
        /// Seed of sampling; left out, that of the trainer.
        seed: Option<u64> = None,
        /// File of response lengths to force, for benchmarks: a JSON list of steps, each a list of lengths.
        replay_lengths: Option<PathBuf> = None,
        /// Profile of the engine, as `rollpacker profile` writes it: compared with each step, and rewritten at the end of the run where the
        /// engine is no longer as fast as it says.
        profile: Option<PathBuf> = None,
    }
}

section! {
    /// `[pipeline]`: how the stages of a step overlap.
    Pipeline {
        /// When responses are scored: `streamed`, each as it ends, or `after_rollout`; left out, as the schedule has it.
        reward: Option<Scoring> = None,
        /// When groups are trained on: `streamed`, `once` or `whole_step`; left out, as the schedule has it.
        gradient: Option<String> = None,
        /// Groups that the trainer is given at once where they are streamed; left out, all that wait.
        max_groups: Option<usize> = None,
    }
}

section! {
    /// `[reward]`
    Reward {
        /// Reward by data source, or a table of rewards and their weights; a trailing `*` matches any ending.
        routes: BTreeMap<String, Routed> = BTreeMap::from([("*".to_owned(), Routed::One("math".to_owned()))]),
        /// Threads that score.
        num_workers: usize = 1,
        /// What an error does, unless the options of the reward say so: `fail`, `zero` or `drop_group`.
        on_error: OnError = OnError::default(),
        /// How long the test cases of code may run: `mode`, `adaptive` or `fixed`; `min_s`, `max_s`, `slack` and `audit_share`.
        timeout: LimitOptions = LimitOptions::default(),
        /// Options by the name of the reward: its own; those of its [guard](rollpacker_stages::reward::Guard); `on_error`; and `kind`, the
        /// built-in reward that it is, where the name is another.
        options: BTreeMap<String, Table> = BTreeMap::new(),
    }
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "the name of a reward, or a table of rewards and their weights")]
pub enum Routed {
    /// To a reward.
    One(String),
    /// To the weighted sum of several.
    Sum(BTreeMap<String, f64>),
}

impl std::fmt::Display for Routed {
    /// `math`, or `0.8 math + 0.2 format`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::One(name) => f.write_str(name),
            Self::Sum(terms) => {
                let terms: Vec<_> =
                    terms.iter().map(|(name, weight)| format!("{weight} {name}")).collect();
                f.write_str(&terms.join(" + "))
            }
        }
    }
}

section! {
    /// `[algorithm]`
    Algorithm {
        /// `grpo` or `rloo`.
        #[serde(alias = "advantage_estimator")]
        adv_estimator: String = "grpo".to_owned(),
        /// Whether GRPO divides by the deviation of the group; without it is Dr.GRPO.
        norm_adv_by_std_in_grpo: bool = true,
        /// Steps that the sampling policy may lag behind: 0 is on-policy.
        #[serde(alias = "max_staleness", alias = "max_off_policy_steps")]
        staleness: u64 = 0,
    }
}

section! {
    /// `[actor]`
    Actor {
        /// Highest learning rate.
        #[serde(alias = "learning_rate")]
        lr: f64 = 1e-6,
        /// Updates over which the rate rises.
        lr_warmup_steps: u64 = 0,
        /// `constant`, `linear` or `cosine`.
        lr_scheduler_type: String = "constant".to_owned(),
        /// Decoupled weight decay.
        weight_decay: f64 = 0.01,
        /// Decay of the moments.
        betas: (f64, f64) = (0.9, 0.999),
        /// Added to the root of the second moment.
        eps: f64 = 1e-8,
        /// Longest gradient.
        #[serde(alias = "max_grad_norm")]
        grad_clip: f64 = 1.0,
        /// The ratio counts down to 1 less this.
        #[serde(alias = "epsilon", alias = "eps_clip")]
        clip_ratio_low: f64 = 0.2,
        /// The ratio counts up to 1 plus this.
        #[serde(alias = "epsilon_high", alias = "eps_clip_high")]
        clip_ratio_high: f64 = 0.2,
        /// Second clip for negative advantages.
        #[serde(alias = "eps_clip_c")]
        clip_ratio_c: f64 = 3.0,
        /// How the losses of tokens become one number.
        loss_agg_mode: Aggregation = Aggregation::TokenMean,
        /// What `seq-mean-token-sum-norm` divides by; left out, `data.max_response_length`.
        loss_scale_factor: Option<f64> = None,
        /// Whether the loss has a KL term against the initial weights.
        use_kl_loss: bool = false,
        /// Its factor.
        #[serde(alias = "beta")]
        kl_loss_coef: f64 = 0.001,
        /// Its estimator.
        kl_loss_type: KlPenalty = KlPenalty::K3,
        /// Factor of the entropy bonus.
        entropy_coeff: f64 = 0.0,
        /// Tokens of a packed micro-batch.
        ppo_max_token_len: usize = 4096,
        /// Threads that the tensor operations of the trainer use on the CPU.
        threads: usize = 1,
    }
}

section! {
    /// `[trainer]`
    Trainer {
        /// Steps; left out, as many as the epochs give.
        #[serde(alias = "max_steps")]
        total_training_steps: Option<u64> = None,
        /// Epochs at most.
        #[serde(alias = "num_train_epochs")]
        total_epochs: u32 = 1,
        /// Steps between two validations; -1 and 0 for none but the first and the last.
        test_freq: i64 = -1,
        /// Whether to validate before the first step.
        val_before_train: bool = true,
        /// Seed of everything that has none of its own.
        seed: u64 = 1,
        /// `auto`, `cpu`, `cuda` or `cuda:N`.
        device: String = "auto".to_owned(),
        /// Run folder, unless the command line says so.
        #[serde(alias = "output_dir")]
        default_local_dir: PathBuf = PathBuf::from("runs/default"),
        /// Whether to write every response to `rollouts/`.
        write_rollouts: bool = true,
    }
}

section! {
    /// `[sft]`
    Sft {
        /// Parquet files with demonstrations.
        #[serde(deserialize_with = "one_or_many")]
        train_files: Vec<String> = Vec::new(),
        /// Field of `extra_info` that holds the demonstration.
        response_key: String = "demonstration".to_owned(),
        /// Updates.
        steps: u64 = 1800,
        /// Examples of an update.
        batch_size: usize = 48,
        /// Highest learning rate.
        lr: f64 = 2e-3,
        /// Updates over which the rate rises.
        lr_warmup_steps: u64 = 50,
        /// Decoupled weight decay.
        weight_decay: f64 = 0.01,
        /// Characters of the tokenizer, if the model is made from scratch.
        alphabet: String = rollpacker_datasets::generate::ALPHABET.to_owned(),
        /// Width of a model made from scratch.
        hidden_size: i64 = 96,
        /// Inner width of its feed-forward blocks.
        intermediate_size: i64 = 256,
        /// Its blocks.
        num_hidden_layers: i64 = 3,
        /// Its query heads.
        num_attention_heads: i64 = 4,
        /// Its key and value heads.
        num_key_value_heads: i64 = 2,
        /// Its longest context in tokens.
        max_position_embeddings: i64 = 4096,
        /// Tokens of a packed micro-batch.
        micro_batch_tokens: usize = 4096,
        /// Threads that tensor operations use on the CPU.
        threads: usize = 1,
    }
}

impl Sections for Raw {
    fn keys(section: &str) -> Option<&'static [&'static str]> {
        Some(match section {
            "" => fields::<Self>(),
            "data" => fields::<Data>(),
            "model" => fields::<Model>(),
            "rollout" => fields::<Rollout>(),
            "pipeline" => fields::<Pipeline>(),
            "reward" => fields::<Reward>(),
            "reward.timeout" => fields::<LimitOptions>(),
            "algorithm" => fields::<Algorithm>(),
            "actor" => fields::<Actor>(),
            "trainer" => fields::<Trainer>(),
            "sft" => fields::<Sft>(),
            // The keys of a schedule depend on its name; it checks them when it is built.
            _ => return None,
        })
    }
}

/// A text, or a list of them.
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
