//! The table of verl's keys. It drives the translation, its messages and `docs/verl.md`.

mod policy;
mod run;

/// The translation of a verl key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyMapping {
    /// Translates to the key with this name.
    Key(&'static str),
    /// Accepts these values and `null`, which match this program's behavior; rejects other values with the reason.
    Only(&'static [&'static str], &'static str),
    /// Accepts the value that the key of this name has here, and `null`; rejects other values with the reason.
    SameAs(&'static str, &'static str),
    /// Ignores these values and `null`, which match this program's behavior. Leaves out other values, with the reason as a note.
    Noted(&'static [&'static str], &'static str),
    /// Translates to the key with this name. A negative value is left out.
    NotNegative(&'static str),
    /// Translates to the key with this name. `null` is left out, with the reason as a note.
    NotNull(&'static str, &'static str),
    /// Applies the inner translation if the condition holds or the value is `null`. Otherwise the key has no effect in verl and is left
    /// out; a key of the critic is refused if `algorithm.adv_estimator` is not set.
    If(Condition, &'static KeyMapping),
    /// Applies the first translation if the condition holds, and the second translation otherwise.
    Switch(Condition, &'static KeyMapping, &'static KeyMapping),
    /// The maximum number of tokens of a prompt with its response. The key is ignored if its value is at least the sum of the prompt limit
    /// and the response limit, and rejected otherwise.
    Context,
    /// The file with the Python function that scores responses.
    RewardFile,
    /// The name of the Python function that scores responses.
    RewardFunction,
    /// An additional argument of the Python function that scores responses. The entry covers all keys below this section.
    RewardArguments,
    /// The rollout engine. The key is translated if the run has servers. Otherwise it is left out with a note, and the recipe's engine
    /// generates.
    Engine,
    /// A setting of DAPO's penalty for long responses, which is the reward `soft_overlong` here.
    Overlong(OverlongPart),
    /// The loggers. Only TensorBoard's event file has to be selected here. The console and a file are always written, and other loggers are
    /// left out.
    Loggers,
    /// The key is left out. It concerns something that does not exist here, and does not change what a run computes.
    Ignored,
    /// The key is rejected with this reason, because leaving it out would mislead. `null` is ignored.
    Refused(&'static str),
}

/// The settings of DAPO's penalty for long responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverlongPart {
    /// `true` to add the penalty to the scores.
    Enable,
    /// The number of tokens over which the penalty grows to its maximum.
    Len,
    /// The maximum of the penalty.
    Factor,
    /// The response length in tokens at which the penalty reaches its maximum.
    MaxLength,
}

/// A condition on other settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// The key of the other setting.
    pub(crate) key: &'static str,
    /// The values, as TOML, with which the condition holds. If the list is empty, the condition holds whenever the key is set.
    pub(crate) values: &'static [&'static str],
}

/// A key of verl, or all keys below a section if the name ends with `.*`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) verl: &'static str,
    pub(crate) meaning: KeyMapping,
}

pub(super) const fn entry(verl: &'static str, meaning: KeyMapping) -> Entry {
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
/// The losses that ignore `loss_agg_mode`, because they have an aggregation of their own.
pub(super) const SEQUENCE_MEAN: Condition = when(LOSS, &["\"geo_mean\"", "\"sapo\""]);
pub(super) const SUM_NORM: Condition =
    when("actor.loss_agg_mode", &["\"seq-mean-token-sum-norm\""]);
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

/// Returns the entries of all known verl keys.
pub(crate) fn all() -> impl Iterator<Item = &'static Entry> {
    policy::POLICY.iter().chain(run::RUN)
}

/// Returns the translation of a verl key, or `None` if the key is not known. An exact name has precedence over sections, and a longer
/// section over a shorter section. With `is_exact`, only an exact name matches.
pub(crate) fn find(key: &str, is_exact: bool) -> Option<KeyMapping> {
    let exact = all().find(|entry| entry.verl == key);
    let below = |entry: &&Entry| {
        let section = entry.verl.strip_suffix('*');
        section.is_some_and(|section| format!("{key}.").starts_with(section))
    };
    let longest = || all().filter(below).max_by_key(|entry| entry.verl.len());
    let found = if is_exact { exact } else { exact.or_else(longest) };
    found.map(|entry| entry.meaning)
}
