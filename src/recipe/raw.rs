//! The settings of a recipe as written: every key with its default, before bounds are checked.
//!
//! Keys have verl's names where verl has them. Names of other frameworks are accepted as [aliases](super::aliases) where they mean the
//! same.

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

/// Declares a section: a struct with its keys and their defaults.
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
        pipeline: Pipeline = Pipeline::default(),
        /// The rewards that score responses.
        reward: Reward = Reward::default(),
        /// Advantages, and the staleness of policies.
        algorithm: Algorithm = Algorithm::default(),
        /// The loss and the optimizer.
        actor: Actor = Actor::default(),
        /// The value model.
        critic: Critic = Critic::default(),
        /// The length of training, and the outputs.
        trainer: Trainer = Trainer::default(),
        /// Supervised fine-tuning before training.
        sft: Sft = Sft::default(),
    }
}

section! {
    /// The section `[data]`: the prompt datasets.
    Data {
        /// Parquet or JSONL files or globs of training prompts: a string or a list. (verl: `data.train_files`)
        #[serde(deserialize_with = "one_or_many")]
        train_files: Vec<String> = Vec::new(),
        /// Parquet or JSONL files or globs of validation prompts. Default: none, which disables validation. (verl: `data.val_files`)
        #[serde(deserialize_with = "one_or_many")]
        val_files: Vec<String> = Vec::new(),
        /// Number of prompts of a step, called P0 in the RollPacker paper. At least 1; default 16. (verl: `data.train_batch_size`; TRL:
        /// `generation_batch_size / num_generations`)
        train_batch_size: usize = 16,
        /// Maximum number of training rows to use; -1, the default, uses all. (verl: `data.train_max_samples`)
        train_max_samples: i64 = -1,
        /// Maximum number of validation rows to use; -1, the default, uses all. (verl: `data.val_max_samples`)
        val_max_samples: i64 = -1,
        /// `true`, the default, to reshuffle the prompts in every epoch. (verl: `data.shuffle`)
        shuffle: bool = true,
        /// Seed of the prompt order. Default: `trainer.seed`. (verl: `data.seed`)
        seed: Option<u64> = None,
        /// Maximum prompt length in tokens, at least 1; default 512. Longer prompts are left out and counted. (verl:
        /// `data.max_prompt_length`)
        max_prompt_length: usize = 512,
        /// Maximum response length in tokens, at least 1; default 512. (verl: `data.max_response_length`; TRL: `max_completion_length`)
        max_response_length: u32 = 512,
        /// Column of the prompt. Default: one of the usual names. (verl: `data.prompt_key`)
        prompt_key: Option<String> = None,
        /// Column of the data source, which selects the reward. Default: one of the usual names. (verl: `data.reward_fn_key`)
        reward_fn_key: Option<String> = None,
        /// Column of the reference answer. Default: one of the usual names.
        ground_truth_key: Option<String> = None,
        /// Column of the domain, to which the schedule's quotas apply. Default: one of the usual names.
        domain_key: Option<String> = None,
        /// Further columns to pass to rewards in `extra_info`. Default: none.
        extra_columns: Vec<String> = Vec::new(),
    }
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
        /// Number of responses of a group, called R0 in the RollPacker paper. At least 1; default 8. (verl: `rollout.n`; TRL:
        /// `num_generations`)
        n: u32 = 8,
        /// Sampling temperature, by which logits are divided. From 0.001 to 1000; default 1. (verl: `rollout.temperature`)
        temperature: f64 = 1.0,
        /// Nucleus sampling: draws from the most likely tokens whose probabilities sum to at least this value. In (0, 1]; the default, 1,
        /// disables it. (verl: `rollout.top_p`)
        top_p: f64 = 1.0,
        /// Top-k sampling: draws from this many most likely tokens. The default, -1, and 0 disable it. (verl: `rollout.top_k`)
        top_k: i64 = -1,
        /// Minimum response length in tokens: no response ends by itself earlier. At most `data.max_response_length`; default 0.
        min_response_length: u32 = 0,
        /// Number of engine instances of a worker, each on its own thread. From 1 to 1024; default 2.
        instances: u32 = 2,
        /// Number of CPU threads that the tensor operations of an instance use. From 1 to 1024; default 1.
        threads_per_instance: usize = 1,
        /// Maximum number of responses that an instance runs at once, at least 1; default 256. (verl: `rollout.max_num_seqs`)
        max_num_seqs: usize = 256,
        /// Capacity of an instance's KV cache in tokens. At least `data.max_prompt_length + data.max_response_length`; default 262,144.
        kv_cache_tokens: usize = 262_144,
        /// Seed of sampling. Default: `trainer.seed`. (verl: `rollout.seed`)
        seed: Option<u64> = None,
        /// File of response lengths to force, for benchmarks: a JSON list of steps, each a list of lengths in tokens. Default: none.
        replay_lengths: Option<PathBuf> = None,
        /// Profile of the engine, as `rollpacker profile` writes it. Each step compares it with the live engine. Cells that drifted are
        /// measured again, and the file is rewritten at the end of the run. Default: none.
        profile: Option<PathBuf> = None,
    }
}

section! {
    /// The section `[pipeline]`: how the stages of a step overlap.
    Pipeline {
        /// Scoring of responses: `streamed` scores each response as soon as it ends, `after_rollout` scores all of a step after its
        /// rollout. Default: as the schedule requires.
        reward: Option<Scoring> = None,
        /// Training on groups: `streamed` trains on groups as they become complete, `once` on those that are complete when a device starts
        /// to train and then on the rest, `whole_step` on all groups of the step at once. Default: as the schedule requires.
        gradient: Option<String> = None,
        /// Maximum number of groups that the trainer receives at once while they are streamed, at least 1. Default: all that are complete.
        max_groups: Option<usize> = None,
    }
}

section! {
    /// The section `[reward]`: the rewards, and which data sources they score.
    Reward {
        /// Maps each data source to the name of a reward, or to a table of rewards and weights. A trailing `*` matches any suffix. Default:
        /// `math` for all.
        routes: BTreeMap<String, RouteTarget> = BTreeMap::from([("*".to_owned(), RouteTarget::One("math".to_owned()))]),
        /// Number of threads that score responses, from 1 to 4096; default 1. (verl: `reward.num_workers`)
        num_workers: usize = 1,
        /// Reaction to an error of a reward, unless the reward's options set `on_error`: `tolerate` (the default), `fail`, `zero` or
        /// `drop_group`.
        on_error: OnError = OnError::default(),
        /// Time limits of the test cases of code: `mode` (`adaptive` or `fixed`), `min_s`, `max_s`, `slack` and `audit_share`.
        timeout: LimitOptions = LimitOptions::default(),
        /// Options by the name of the reward: its own keys, those of its [guard](rollpacker_rewards::Guard), `on_error`, and `kind`.
        /// `kind` names the built-in reward if it differs from the name.
        options: BTreeMap<String, Table> = BTreeMap::new(),
    }
}

/// The target of a route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "the name of a reward, or a table of rewards and their weights")]
pub enum RouteTarget {
    /// The name of one reward.
    One(String),
    /// The weighted sum of several rewards.
    Sum(BTreeMap<String, f64>),
}

impl std::fmt::Display for RouteTarget {
    /// Formats as `math`, or as `0.8 math + 0.2 format`.
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
    /// The section `[algorithm]`: advantages, KL penalty, correction of rollouts, and staleness.
    Algorithm {
        /// Name of the advantage estimator: one of [`advantages`](rollpacker_operators::advantage::advantages), or one that the program
        /// adds. Default: `grpo`. (verl: `algorithm.adv_estimator`)
        adv_estimator: String = "grpo".to_owned(),
        /// `true` if GRPO divides advantages by the standard deviation of the group; `false` gives Dr. GRPO. Default: as the estimator has
        /// it, which is `true` for `grpo`. (verl: `algorithm.norm_adv_by_std_in_grpo`)
        norm_adv_by_std_in_grpo: Option<bool> = None,
        /// Discount factor per token. Default: 1. (verl: `algorithm.gamma`)
        gamma: Option<f64> = None,
        /// Lambda of generalized advantage estimation. Default: 1. (verl: `algorithm.lam`)
        lam: Option<f64> = None,
        /// Further options of the estimator.
        adv_options: Table = Table::new(),
        /// `true` to subtract the KL divergence from the initial policy from the rewards. Default: `false`. (verl:
        /// `algorithm.use_kl_in_reward`)
        use_kl_in_reward: bool = false,
        /// Estimator of this divergence: a name of `kl_estimators`. Default: `kl`. (verl: `algorithm.kl_penalty`)
        kl_penalty: String = "kl".to_owned(),
        /// Coefficient of this divergence. (verl: `algorithm.kl_ctrl`)
        kl_ctrl: KlCtrl = KlCtrl::default(),
        /// Correction for the difference between the engine's and the trainer's policy. (verl: `algorithm.rollout_correction`)
        rollout_correction: RolloutCorrection = RolloutCorrection::default(),
        /// Maximum number of steps by which the sampling policy may lag behind the trained one, from 0 to 65,536. The default, 0, is
        /// on-policy. (TRL: `max_staleness`)
        staleness: u64 = 0,
    }
}

section! {
    /// The section `[algorithm.kl_ctrl]`: the coefficient of the KL penalty in rewards.
    KlCtrl {
        /// `fixed`, the default, or `adaptive`. (verl: `algorithm.kl_ctrl.type`)
        r#type: String = "fixed".to_owned(),
        /// The fixed coefficient, or the initial value of an adaptive one. From 0 to 1e6; default 0.001. (verl:
        /// `algorithm.kl_ctrl.kl_coef`)
        kl_coef: f64 = 0.001,
        /// Number of responses over which an adaptive coefficient changes. From 1 to 1e12; default 10,000. (verl:
        /// `algorithm.kl_ctrl.horizon`)
        horizon: f64 = 10_000.0,
        /// Target divergence of an adaptive coefficient, nats per token. From 1e-9 to 1e6; default 0.1. (verl:
        /// `algorithm.kl_ctrl.target_kl`)
        target_kl: f64 = 0.1,
    }
}

section! {
    /// The section `[algorithm.rollout_correction]`: correction for the difference between the engine's and the trainer's policy.
    RolloutCorrection {
        /// Level of the importance weights between engine and trainer: `token` or `sequence`. Default: no weights. (verl:
        /// `algorithm.rollout_correction.rollout_is`)
        rollout_is: Option<String> = None,
        /// Upper bound of the weights, from 1 to 1e6; or a band `low_high`, outside of which a weight is 0. Default: 2. (verl:
        /// `algorithm.rollout_correction.rollout_is_threshold`)
        rollout_is_threshold: IsThreshold = IsThreshold::Above(2.0),
        /// `true` if policy ratios use the engine's log-probabilities instead of the trainer's. Default: `true` if the sampling policy can
        /// differ from the trained one and no weights are set. (verl: `algorithm.rollout_correction.bypass_mode`)
        bypass_mode: Option<bool> = None,
    }
}

/// The bounds at which importance weights are truncated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a number, or a text `low_high`")]
pub enum IsThreshold {
    /// Weights above this value are set to it.
    Above(f64),
    /// Weights outside of this band, written `low_high`, are set to 0.
    Band(String),
}

section! {
    /// The section `[actor]`: the loss and the optimizer.
    Actor {
        /// Peak learning rate, above 0 and at most 10; default 1e-6. (verl: `actor.optim.lr`; TRL: `learning_rate`)
        lr: f64 = 1e-6,
        /// Number of updates over which the learning rate rises to its peak; default 0. (verl: `actor.optim.lr_warmup_steps`)
        lr_warmup_steps: u64 = 0,
        /// Decay of the learning rate after the warm-up: `constant` (the default), `linear` or `cosine`. `linear` and `cosine` need
        /// `trainer.total_training_steps`. (verl: `actor.optim.lr_scheduler_type`)
        lr_scheduler_type: String = "constant".to_owned(),
        /// Decoupled weight decay of AdamW, from 0 to 1000; default 0.01. (verl: `actor.optim.weight_decay`)
        weight_decay: f64 = 0.01,
        /// Decay rates of Adam's first and second moment, each in [0, 1); default 0.9 and 0.999. (verl: `actor.optim.betas`)
        betas: (f64, f64) = (0.9, 0.999),
        /// Term that Adam adds to the root of the second moment, above 0; default 1e-8.
        eps: f64 = 1e-8,
        /// Maximum L2 norm of the gradient; larger gradients are scaled down. Above 0, or `inf`; default 1. (verl: `actor.grad_clip`; TRL:
        /// `max_grad_norm`)
        grad_clip: f64 = 1.0,
        /// The policy loss.
        policy_loss: PolicyLoss = PolicyLoss::default(),
        /// Sets both `clip_ratio_low` and `clip_ratio_high`. (verl: `actor.clip_ratio`)
        clip_ratio: Option<f64> = None,
        /// Lower clip range: ratios are clipped at 1 minus this value. Default: as the policy loss has it. (verl: `actor.clip_ratio_low`;
        /// TRL: `epsilon`)
        clip_ratio_low: Option<f64> = None,
        /// Upper clip range: ratios are clipped at 1 plus this value. Default: as the policy loss has it. (verl: `actor.clip_ratio_high`;
        /// TRL: `epsilon_high`)
        clip_ratio_high: Option<f64> = None,
        /// Second clip for negative advantages (dual clip). Default: as the policy loss has it. (verl: `actor.clip_ratio_c`; TRL: `delta`)
        clip_ratio_c: Option<f64> = None,
        /// Temperature of SAPO's gate for positive advantages. Default: as the policy loss has it. (verl: `actor.tau_pos`)
        tau_pos: Option<f64> = None,
        /// Temperature of SAPO's gate for the other advantages. Default: as the policy loss has it. (verl: `actor.tau_neg`)
        tau_neg: Option<f64> = None,
        /// Aggregation of token losses. Default: `token-mean`, unless the policy loss requires another mode. (verl: `actor.loss_agg_mode`)
        loss_agg_mode: Option<Aggregation> = None,
        /// Divisor of `seq-mean-token-sum-norm`, from 1e-6 to 1e12. Default: `data.max_response_length`. (verl: `actor.loss_scale_factor`)
        loss_scale_factor: Option<f64> = None,
        /// `true` to add the KL divergence from the initial policy to the loss. Default: `false`. (verl: `actor.use_kl_loss`)
        use_kl_loss: bool = false,
        /// Coefficient of this divergence, from 0 to 1e6; default 0.001. (verl: `actor.kl_loss_coef`; TRL: `beta`)
        kl_loss_coef: f64 = 0.001,
        /// Estimator of this divergence: a name of `kl_estimators`. Default: `low_var_kl`. (verl: `actor.kl_loss_type`)
        kl_loss_type: String = "low_var_kl".to_owned(),
        /// `true` to multiply this divergence by the policy ratio. Default: `false`. (TRL: `use_bias_correction_kl`)
        use_bias_correction_kl: bool = false,
        /// Coefficient of the entropy bonus, from 0 to 1e6; default 0. (verl: `actor.entropy_coeff`)
        entropy_coeff: f64 = 0.0,
        /// Maximum number of tokens of a packed micro-batch, at least 1; default 4096. (verl: `actor.ppo_max_token_len_per_gpu`)
        ppo_max_token_len: usize = 4096,
        /// Number of CPU threads that the trainer's tensor operations use, from 1 to 1024; default 1.
        threads: usize = 1,
    }
}

/// The section `[actor.policy_loss]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyLoss {
    /// Name of the policy loss: one of `policy_losses`, or one that the program adds. Default: `vanilla`. (verl:
    /// `actor.policy_loss.loss_mode`)
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
    /// The section `[critic]`: the value model, for advantage estimators that need one.
    Critic {
        /// Folder of the model in Hugging Face format. Default: `model.path`.
        path: Option<PathBuf> = None,
        /// Peak learning rate, above 0 and at most 10; default 1e-5. (verl: `critic.optim.lr`)
        lr: f64 = 1e-5,
        /// Number of updates over which the learning rate rises to its peak; default 0.
        lr_warmup_steps: u64 = 0,
        /// Decoupled weight decay of AdamW, from 0 to 1000; default 0.01.
        weight_decay: f64 = 0.01,
        /// Decay rates of Adam's first and second moment, each in [0, 1); default 0.9 and 0.999.
        betas: (f64, f64) = (0.9, 0.999),
        /// Term that Adam adds to the root of the second moment, above 0; default 1e-8.
        eps: f64 = 1e-8,
        /// Maximum L2 norm of the gradient; larger gradients are scaled down. Above 0, or `inf`; default 1.
        grad_clip: f64 = 1.0,
        /// Maximum distance of a predicted value from the prediction before the update, above 0; default 0.5. (verl:
        /// `critic.cliprange_value`)
        cliprange_value: f64 = 0.5,
        /// Aggregation of token losses. Default: `token-mean`. (verl: `critic.loss_agg_mode`)
        loss_agg_mode: Aggregation = Aggregation::TokenMean,
    }
}

/// The reaction to a snapshot that cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotOnError {
    /// End the run with the error.
    Fail,
    /// Print a warning, and try again at the next snapshot.
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
    /// The section `[trainer]`: the length of training, workers, snapshots and outputs.
    Trainer {
        /// Maximum number of steps, at least 1. Default: as many as the epochs have. (verl: `trainer.total_training_steps`; TRL:
        /// `max_steps`)
        total_training_steps: Option<u64> = None,
        /// Maximum number of epochs, at least 1; default 1. (verl: `trainer.total_epochs`; TRL: `num_train_epochs`)
        total_epochs: u32 = 1,
        /// Number of steps between two validations. With -1, the default, and 0 only the validations before the first and after the last
        /// step run. (verl: `trainer.test_freq`)
        test_freq: i64 = -1,
        /// `true`, the default, to validate before the first step. (verl: `trainer.val_before_train`)
        val_before_train: bool = true,
        /// Seed of everything that has no seed of its own; default 1.
        seed: u64 = 1,
        /// Device of the models: `auto` (the default), `cpu`, `cuda` or `cuda:N`.
        device: String = "auto".to_owned(),
        /// Number of workers of each process, from 1 to 256; default 1. Each worker has `rollout.instances` engine instances and a replica
        /// of the trainer. `--workers` has precedence.
        workers: usize = 1,
        /// Run folder; default `runs/default`. `--out` has precedence. (verl: `trainer.default_local_dir`; TRL: `output_dir`)
        default_local_dir: PathBuf = PathBuf::from("runs/default"),
        /// Number of initial steps that train only the critic; default 0. (verl: `trainer.critic_warmup`)
        critic_warmup: u64 = 0,
        /// `true`, the default, to write every response to `rollouts/` in the run folder.
        write_rollouts: bool = true,
        /// `true` to make a run reproducible bit by bit: races between responses are decided by tokens instead of time, and sums do not
        /// depend on order. Slower. Default: `false`.
        deterministic: bool = false,
        /// Number of steps between two snapshots, from which `--resume` continues. -1, the default, and 0 disable snapshots. A run with
        /// snapshots also takes one at its end. (verl: `trainer.save_freq`; TRL: `save_steps`)
        save_freq: i64 = -1,
        /// Number of valid snapshots to keep, newest first. At least 1; default 2. (verl: `trainer.max_actor_ckpt_to_keep`; TRL:
        /// `save_total_limit`)
        max_ckpt_to_keep: usize = 2,
        /// Reaction to a snapshot that cannot be written: `fail` (the default) ends the run, `warn` continues and tries again.
        snapshot_on_error: SnapshotOnError = SnapshotOnError::Fail,
        /// Maximum wall time of the run, in seconds or as a string such as `1h30m`. A step that may not finish in time is not started.
        /// Default: unlimited.
        max_wall_time: Option<Period> = None,
        /// Time without progress after which the watchdog prints what the run waits for, in seconds or as a string such as `5m`. 0 disables
        /// the watchdog; default 300.
        stall_timeout: Period = Period::Seconds(300.0),
        /// Reaction of the watchdog to a stall: `warn` (the default), or `fail`, which ends the run.
        on_stall: OnStall = OnStall::default(),
    }
}

section! {
    /// The section `[sft]`: supervised fine-tuning of a small model made from scratch, for `rollpacker sft`.
    Sft {
        /// Parquet or JSONL files or globs with demonstrations: a string or a list.
        #[serde(deserialize_with = "one_or_many")]
        train_files: Vec<String> = Vec::new(),
        /// Field of `extra_info` that contains the demonstration. Default: `demonstration`.
        response_key: String = "demonstration".to_owned(),
        /// Number of updates, at least 1; default 1800.
        steps: u64 = 1800,
        /// Number of examples of an update, at least 1; default 48.
        batch_size: usize = 48,
        /// Peak learning rate, above 0 and at most 10; default 2e-3.
        lr: f64 = 2e-3,
        /// Number of updates over which the learning rate rises to its peak; default 50.
        lr_warmup_steps: u64 = 50,
        /// Decoupled weight decay of AdamW, from 0 to 1000; default 0.01.
        weight_decay: f64 = 0.01,
        /// Characters of the tokenizer, each of which is one token. Default: the alphabet of the built-in task.
        alphabet: String = rollpacker_datasets::generate::ALPHABET.to_owned(),
        /// Width of the residual stream; default 96.
        hidden_size: i64 = 96,
        /// Inner width of the feed-forward blocks; default 256.
        intermediate_size: i64 = 256,
        /// Number of transformer blocks; default 3.
        num_hidden_layers: i64 = 3,
        /// Number of query heads; default 4. `hidden_size` must be an even multiple of it.
        num_attention_heads: i64 = 4,
        /// Number of key and value heads; default 2. Must divide `num_attention_heads`.
        num_key_value_heads: i64 = 2,
        /// Maximum context length in tokens; default 4096.
        max_position_embeddings: i64 = 4096,
        /// Maximum number of tokens of a packed micro-batch, at least 1; default 4096.
        micro_batch_tokens: usize = 4096,
        /// Number of CPU threads that tensor operations use, from 1 to 1024; default 1.
        threads: usize = 1,
    }
}

impl Sections for RawRecipe {
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
            // The keys of a schedule or of a policy loss depend on its name and are checked when it is built.
            _ => return None,
        })
    }

    fn aliases() -> &'static [Alias] {
        ALIASES
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
