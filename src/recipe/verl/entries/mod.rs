//! The table of verl's keys. It drives the translation, its messages and `docs/verl.md`.

mod policy;
mod run;

/// The meaning of a key of verl here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// The key with this name means the same.
    Key(&'static str),
    /// One of these values is what happens here, and others are refused with the reason. `null` is always accepted.
    Only(&'static [&'static str], &'static str),
    /// The value of this key is what happens here, and others are refused with the reason.
    SameAs(&'static str, &'static str),
    /// One of these values is what happens here. Others are left out, with the reason as a note.
    Noted(&'static [&'static str], &'static str),
    /// The key is left out if the value is negative, and otherwise means the same as the one with this name.
    NotNegative(&'static str),
    /// The key with this name means the same, but `null` does not, and is left out with the reason as a note.
    NotNull(&'static str, &'static str),
    /// The inner meaning, but only while another setting uses the key. It has no effect in verl otherwise, and is left out.
    If(Condition, &'static Use),
    /// The first meaning while another setting holds, and the second otherwise.
    Switch(Condition, &'static Use, &'static Use),
    /// The maximum number of tokens of a prompt with its response. One that the limits of the two reach is refused.
    Context,
    /// The file of a reward in Python.
    RewardFile,
    /// The function in that file.
    RewardFunction,
    /// The further arguments of the function, below this section.
    RewardArguments,
    /// The rollout engine: that of the recipe, unless the run has servers.
    Engine,
    /// A setting of DAPO's penalty for long responses, which is the reward `soft_overlong`.
    Overlong(OverlongPart),
    /// The loggers, of which TensorBoard's event file has to be selected here. The console and a file are always written, and other loggers
    /// are left out.
    Loggers,
    /// The key concerns something that does not exist here and does not change what a run computes.
    Ignored,
    /// Leaving the key out would mislead, for this reason.
    Refused(&'static str),
}

/// The settings of DAPO's penalty for long responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverlongPart {
    /// `true` to add the penalty to the scores.
    Enable,
    /// The number of tokens over which it grows.
    Len,
    /// Its largest value.
    Factor,
    /// The length at which it is largest.
    MaxLength,
}

/// A condition on other settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// The key of the other setting.
    pub(crate) key: &'static str,
    /// The values as TOML with which the condition holds. If there are none, it holds whenever the key is set.
    pub(crate) values: &'static [&'static str],
}

/// A key of verl, or all keys below a section if the name ends with `.*`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) verl: &'static str,
    pub(crate) meaning: Use,
}

pub(super) const fn entry(verl: &'static str, meaning: Use) -> Entry {
    Entry { verl, meaning }
}

const fn when(key: &'static str, values: &'static [&'static str]) -> Condition {
    Condition { key, values }
}

pub(super) const KL_LOSS: Condition = when("actor.use_kl_loss", &["true"]);
pub(super) const KL_REWARD: Condition = when("algorithm.use_kl_in_reward", &["true"]);
pub(super) const ADAPTIVE: Condition = when("algorithm.kl_ctrl.type", &["\"adaptive\""]);
pub(super) const GAE: Condition = when("algorithm.adv_estimator", &["\"gae\""]);
pub(super) const DISCOUNTED: Condition =
    when("algorithm.adv_estimator", &["\"gae\"", "\"reinforce_plus_plus\""]);
pub(super) const GROUP_NORM: Condition =
    when("algorithm.adv_estimator", &["\"grpo\"", "\"grpo_passk\""]);

pub(super) const IMPORTANCE: Condition = when("algorithm.rollout_correction.rollout_is", &[]);
pub(super) const REJECTION: Condition = when("algorithm.rollout_correction.rollout_rs", &[]);
pub(super) const BYPASS: Condition = when("algorithm.rollout_correction.bypass_mode", &["true"]);
pub(super) const REINFORCE_LOSS: Condition =
    when("algorithm.rollout_correction.loss_type", &["\"reinforce\""]);
pub(crate) const DYNAMIC: Condition = when("schedule.name", &["\"dynamic\""]);
pub(super) const WARM_UP: Condition = when("actor.lr_warmup_steps", &[]);
pub(super) const FILTERED: Condition = when("data.filter_overlong_prompts", &["true"]);
pub(super) const SAMPLED_VALIDATION: Condition =
    when("actor_rollout_ref.rollout.val_kwargs.do_sample", &["true"]);

const LOSS: &str = "actor.policy_loss.loss_mode";
pub(super) const CLIP: Condition =
    when(LOSS, &["\"vanilla\"", "\"dapo\"", "\"gspo\"", "\"geo_mean\"", "\"cispo\""]);
pub(super) const DUAL_CLIP: Condition = when(LOSS, &["\"vanilla\"", "\"dapo\""]);
/// The losses that have an aggregation of their own, whatever `loss_agg_mode` is.
pub(super) const SEQUENCE_MEAN: Condition = when(LOSS, &["\"geo_mean\"", "\"sapo\""]);
pub(super) const SAPO: Condition = when(LOSS, &["\"sapo\""]);

pub(super) const SAME_UPDATES: &str = "policy and critic are updated together";
pub(super) const LEFT_OUT: &str = "prompts longer than data.max_prompt_length are left out and counted, unless data.truncation cuts them";
pub(super) const ONE_GREEDY: &str =
    "greedy responses to a prompt do not differ, so that a validation decodes one";
pub(super) const WHOLE_MODEL: &str = "all weights of the model are trained";
pub(super) const TEXT_ONLY: &str = "prompts are text";
pub(super) const SINGLE_TURN: &str = "a rollout is a single turn without tools";
pub(super) const OWN_PROGRAM: &str =
    "Python classes cannot replace stages; a Rust program can, see docs/engines.md";
pub(super) const REWARDS: &str = "rewards are set with `reward.routes`, see docs/rewards.md";
pub(super) const TEMPLATE: &str = "the chat template of the model folder is used as it is";
pub(super) const FRACTION: &str = "the warm-up is a number of steps: set actor.lr_warmup_steps";
pub(super) const WARM_UP_START: &str = "the warm-up begins at 0";
pub(super) const DECAY_END: &str = "the learning rate decays to 0";
pub(super) const DECAY_STEPS: &str = "the decay ends at trainer.total_training_steps";
pub(super) const ADAMW: &[&str] = &["\"adam\"", "\"AdamW\"", "\"adamw\""];
pub(super) const OPTIMIZER: &str =
    "the optimizer is AdamW; a Rust program can have another, see docs/trainers.md";
pub(super) const CONSTANT: &[&str] = &["\"constant\""];
pub(super) const CONSTANT_DECAY: &str = "the weight decay is constant";
pub(super) const MODEL_FOLDER: &str = "the model is that of its folder";
pub(super) const OWN_TOKENIZER: &str = "the tokenizer is that of the model folder";
pub(super) const FLOAT32: &[&str] = &["\"float32\"", "\"fp32\""];
pub(super) const PRECISION: &str =
    "weights are float32, and the precision of the trainer's products is `actor.dtype`";
pub(super) const OTHER_PROCESSES: &str = "rollout and training share the devices of a run; asynchronous training is `algorithm.staleness`";
pub(super) const CRITIC_WARM_UP: &str = "set `critic.lr_warmup_steps`, which counts updates";
pub(super) const RECORDED: &str = "recorded rollouts cannot replace generated ones";
pub(super) const OFF: &[&str] = &["false"];
pub(super) const ON: &[&str] = &["true"];
pub(super) const ZERO: &[&str] = &["0", "0.0"];
pub(super) const ONE: &[&str] = &["1", "1.0"];

/// Returns all keys of verl that are known here. Of several that match, an exact name has precedence, and then the longest.
pub(crate) fn all() -> impl Iterator<Item = &'static Entry> {
    policy::POLICY.iter().chain(run::RUN)
}

/// Returns the meaning of verl's key, if it is known. `is_exact` limits the search to full names.
pub(crate) fn find(key: &str, is_exact: bool) -> Option<Use> {
    let exact = all().find(|entry| entry.verl == key);
    let below = |entry: &&Entry| {
        let section = entry.verl.strip_suffix('*');
        section.is_some_and(|section| format!("{key}.").starts_with(section))
    };
    let longest = || all().filter(below).max_by_key(|entry| entry.verl.len());
    let found = if is_exact { exact } else { exact.or_else(longest) };
    found.map(|entry| entry.meaning)
}
