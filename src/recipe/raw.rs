//! What is written in a recipe: every key with its default, nothing checked yet.
//!
//! Keys are those of verl where it has them; the names of other frameworks are accepted as aliases where they mean the same.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rollpacker_dataflow::watchdog::OnStall;
use rollpacker_operators::overlap::Scoring;
use rollpacker_operators::reward::LimitOptions;
use rollpacker_stages::reward::OnError;
use rollpacker_stages::train::config::Aggregation;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::aliases::{ALIASES, Alias};
use super::keys::{Sections, fields};
use super::period::Period;
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
        /// The model of values.
        critic: Critic = Critic::default(),
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
        max_response_length: u32 = 512,
        /// Column of the prompt.
        prompt_key: Option<String> = None,
        /// Column that says where a prompt comes from.
        reward_fn_key: Option<String> = None,
        /// Column of the reference answer.
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
        /// What an error does, unless the options of the reward say so: `tolerate`, `fail`, `zero` or `drop_group`.
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
        /// An estimator of advantages, by a name of [`advantages`](rollpacker_operators::advantage::advantages) or of one's own.
        adv_estimator: String = "grpo".to_owned(),
        /// Whether GRPO divides by the deviation of the group; left out, it does. Without it is Dr. GRPO.
        norm_adv_by_std_in_grpo: Option<bool> = None,
        /// Discount of a token; left out, 1.
        gamma: Option<f64> = None,
        /// Decay of a critic's later errors; left out, 1.
        lam: Option<f64> = None,
        /// Further options of the estimator.
        adv_options: Table = Table::new(),
        /// Whether rewards are lessened by the KL divergence from the initial weights.
        use_kl_in_reward: bool = false,
        /// Estimator of that divergence, by a name of `kl_estimators`.
        kl_penalty: String = "kl".to_owned(),
        /// Its factor.
        kl_ctrl: KlCtrl = KlCtrl::default(),
        /// What is done about the difference between the engine's policy and the trainer's.
        rollout_correction: RolloutCorrection = RolloutCorrection::default(),
        /// Steps that the sampling policy may lag behind: 0 is on-policy.
        staleness: u64 = 0,
    }
}

section! {
    /// `[algorithm.kl_ctrl]`
    KlCtrl {
        /// `fixed` or `adaptive`.
        r#type: String = "fixed".to_owned(),
        /// The factor, or where it begins.
        kl_coef: f64 = 0.001,
        /// Responses over which an adaptive factor follows.
        horizon: f64 = 10_000.0,
        /// Divergence that an adaptive factor aims at, nats a token.
        target_kl: f64 = 0.1,
    }
}

section! {
    /// `[algorithm.rollout_correction]`
    RolloutCorrection {
        /// Weights for the difference of log-probabilities between engine and trainer: of a `token` or a `sequence`; left out, none.
        rollout_is: Option<String> = None,
        /// They count up to this number, or, as text `low_high`, only within this band.
        rollout_is_threshold: IsThreshold = IsThreshold::Above(2.0),
        /// Whether ratios are against the engine's log-probabilities instead of the trainer's; left out, where the sampling policy can be
        /// another than the trained one.
        bypass_mode: Option<bool> = None,
    }
}

/// Where importance weights are cut off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a number, or a text `low_high`")]
pub enum IsThreshold {
    /// Above this.
    Above(f64),
    /// Out of this band.
    Band(String),
}

section! {
    /// `[actor]`
    Actor {
        /// Highest learning rate.
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
        grad_clip: f64 = 1.0,
        /// The policy loss.
        policy_loss: PolicyLoss = PolicyLoss::default(),
        /// Both of the next two.
        clip_ratio: Option<f64> = None,
        /// The ratio counts down to 1 less this; left out, as the policy loss has it.
        clip_ratio_low: Option<f64> = None,
        /// The ratio counts up to 1 plus this; left out, as the policy loss has it.
        clip_ratio_high: Option<f64> = None,
        /// Second clip for negative advantages; left out, as the policy loss has it.
        clip_ratio_c: Option<f64> = None,
        /// Steepness of SAPO's gate for positive advantages.
        tau_pos: Option<f64> = None,
        /// Steepness of SAPO's gate for the others.
        tau_neg: Option<f64> = None,
        /// How the losses of tokens become one number; left out, `token-mean`, unless the policy loss fixes it.
        loss_agg_mode: Option<Aggregation> = None,
        /// What `seq-mean-token-sum-norm` divides by; left out, `data.max_response_length`.
        loss_scale_factor: Option<f64> = None,
        /// Whether the loss has a KL term against the initial weights.
        use_kl_loss: bool = false,
        /// Its factor.
        kl_loss_coef: f64 = 0.001,
        /// Its estimator, by a name of `kl_estimators`.
        kl_loss_type: String = "low_var_kl".to_owned(),
        /// Whether the KL term is multiplied by the ratio.
        use_bias_correction_kl: bool = false,
        /// Factor of the entropy bonus.
        entropy_coeff: f64 = 0.0,
        /// Tokens of a packed micro-batch.
        ppo_max_token_len: usize = 4096,
        /// Threads that the tensor operations of the trainer use on the CPU.
        threads: usize = 1,
    }
}

/// `[actor.policy_loss]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyLoss {
    /// A policy loss, by a name of `policy_losses` or of one's own.
    #[serde(default = "vanilla")]
    pub loss_mode: String,
    /// Further options of the policy loss.
    #[serde(flatten)]
    pub options: Table,
}

impl Default for PolicyLoss {
    fn default() -> Self {
        Self { loss_mode: vanilla(), options: Table::new() }
    }
}

fn vanilla() -> String {
    "vanilla".to_owned()
}

section! {
    /// `[critic]`: the model of values, where the estimator of advantages needs one.
    Critic {
        /// Folder in Hugging Face format; left out, that of `model.path`.
        path: Option<PathBuf> = None,
        /// Highest learning rate.
        lr: f64 = 1e-5,
        /// Updates over which the rate rises.
        lr_warmup_steps: u64 = 0,
        /// Decoupled weight decay.
        weight_decay: f64 = 0.01,
        /// Decay of the moments.
        betas: (f64, f64) = (0.9, 0.999),
        /// Added to the root of the second moment.
        eps: f64 = 1e-8,
        /// Longest gradient.
        grad_clip: f64 = 1.0,
        /// Predictions count up to this far from those before the update.
        cliprange_value: f64 = 0.5,
        /// How the losses of tokens become one number.
        loss_agg_mode: Aggregation = Aggregation::TokenMean,
    }
}

/// What it means that a snapshot cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotOnError {
    /// The run ends.
    Fail,
    /// It is told, and tried again.
    Warn,
}

impl From<SnapshotOnError> for rollpacker_dataflow::snapshot::OnError {
    fn from(written: SnapshotOnError) -> Self {
        match written {
            SnapshotOnError::Fail => Self::Fail,
            SnapshotOnError::Warn => Self::Warn,
        }
    }
}

section! {
    /// `[trainer]`
    Trainer {
        /// Steps; left out, as many as the epochs give.
        total_training_steps: Option<u64> = None,
        /// Epochs at most.
        total_epochs: u32 = 1,
        /// Steps between two validations; -1 and 0 for none but the first and the last.
        test_freq: i64 = -1,
        /// Whether to validate before the first step.
        val_before_train: bool = true,
        /// Seed of everything that has none of its own.
        seed: u64 = 1,
        /// `auto`, `cpu`, `cuda` or `cuda:N`.
        device: String = "auto".to_owned(),
        /// Workers of each process, unless the command line says so: each has `rollout.instances` engine instances and a replica of the
        /// trainer.
        workers: usize = 1,
        /// Run folder, unless the command line says so.
        default_local_dir: PathBuf = PathBuf::from("runs/default"),
        /// Steps at the start in which the critic alone is trained.
        critic_warmup: u64 = 0,
        /// Whether to write every response to `rollouts/`.
        write_rollouts: bool = true,
        /// Whether a run can be repeated to the bit: races of responses are decided by tokens, and sums have no order. Slower.
        deterministic: bool = false,
        /// Steps between two snapshots, from which `--resume` goes on; -1 and 0 for none. The end of a run that takes any has one, too.
        save_freq: i64 = -1,
        /// Good snapshots that are kept, the newest.
        max_ckpt_to_keep: usize = 2,
        /// What it means that a snapshot cannot be written: `fail`, the run ends, or `warn`, it goes on and tries again.
        snapshot_on_error: SnapshotOnError = SnapshotOnError::Fail,
        /// How long the run may take, in seconds or as in `1h30m`: no step begins that may not end by then. Left out, as long as it takes.
        max_wall_time: Option<Period> = None,
        /// How long nothing may move, in seconds or as in `5m`, before the run says what it waits for; 0 for ever.
        stall_timeout: Period = Period::Seconds(300.0),
        /// What that does: `warn`, or `fail`, which ends the run.
        on_stall: OnStall = OnStall::default(),
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
            "algorithm.kl_ctrl" => fields::<KlCtrl>(),
            "algorithm.rollout_correction" => fields::<RolloutCorrection>(),
            "actor" => fields::<Actor>(),
            "critic" => fields::<Critic>(),
            "trainer" => fields::<Trainer>(),
            "sft" => fields::<Sft>(),
            // The keys of a schedule or of a policy loss depend on its name; it checks them when it is built.
            _ => return None,
        })
    }

    fn aliases() -> &'static [Alias] {
        ALIASES
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
