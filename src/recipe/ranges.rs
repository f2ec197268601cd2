//! The range of every number in a recipe. Checks and the list of keys both read this table.

use std::fmt::Display;

use rollpacker_model::config::most as size;

use super::error::{Number, RecipeError, between, out_of_bounds};
use super::limits::{self, FACTOR};
use super::raw::RawRecipe;

/// A key and the range of its numbers.
pub(crate) struct Range {
    pub(crate) key: &'static str,
    rule: Rule,
}

enum Rule {
    /// Integers from `least` to `most`.
    Between { found: fn(&RawRecipe) -> Option<i128>, least: i128, most: i128 },
    /// Integers for which `fits` returns `true`.
    Integers {
        found: fn(&RawRecipe) -> Option<i128>,
        fits: fn(i128) -> bool,
        expected: &'static str,
    },
    /// Numbers for which `fits` returns `true`.
    Numbers { found: fn(&RawRecipe) -> Vec<f64>, fits: fn(f64) -> bool, expected: &'static str },
}

impl Range {
    /// Returns the range in words.
    pub(crate) fn words(&self) -> String {
        match self.rule {
            Rule::Between { least, most, .. } => format!("from {least} to {most}"),
            Rule::Integers { expected, .. } | Rule::Numbers { expected, .. } => expected.to_owned(),
        }
    }

    fn check(&self, recipe: &RawRecipe) -> Result<(), RecipeError> {
        match self.rule {
            Rule::Between { found, least, most } => {
                found(recipe).map_or(Ok(()), |value| between(self.key, value, least, most))
            }
            Rule::Integers { found, fits, expected } => {
                self.reject(found(recipe).filter(|value| !fits(*value)), expected)
            }
            Rule::Numbers { found, fits, expected } => {
                let wrong = found(recipe).into_iter().find(|value| !fits(*value));
                self.reject(wrong.map(Number), expected)
            }
        }
    }

    fn reject(&self, wrong: Option<impl Display>, expected: &str) -> Result<(), RecipeError> {
        wrong.map_or(Ok(()), |found| Err(out_of_bounds(self.key, expected, found)))
    }
}

/// Returns the range of a key, if it has one of its own.
pub(crate) fn range_of(key: &str) -> Option<&'static Range> {
    RANGES.iter().find(|range| range.key == key)
}

/// Returns an error for each number that is out of the range of its key.
pub(super) fn errors(recipe: &RawRecipe) -> impl Iterator<Item = RecipeError> {
    RANGES.iter().filter_map(|range| range.check(recipe).err())
}

/// An integer that a recipe sets or leaves out.
trait Integer: Copy {
    fn integer(self) -> Option<i128>;
}

macro_rules! integers {
    ($($type:ty),*) => {
        $(impl Integer for $type {
            fn integer(self) -> Option<i128> {
                i128::try_from(self).ok()
            }
        })*
    };
}

integers!(u32, u64, usize, i64);

impl<T: Integer> Integer for Option<T> {
    fn integer(self) -> Option<i128> {
        self.and_then(T::integer)
    }
}

/// Numbers that a recipe sets or leaves out.
trait Numbers: Copy {
    fn numbers(self) -> Vec<f64>;
}

impl Numbers for f64 {
    fn numbers(self) -> Vec<f64> {
        vec![self]
    }
}

impl Numbers for (f64, f64) {
    fn numbers(self) -> Vec<f64> {
        vec![self.0, self.1]
    }
}

impl Numbers for Option<f64> {
    fn numbers(self) -> Vec<f64> {
        self.into_iter().collect()
    }
}

/// A range of integers: `data.train_batch_size: 1, limits::PROMPTS`, or a predicate and its words.
macro_rules! integer {
    ($($part:ident).+: |$value:ident| $fits:expr, $expected:literal) => {
        Range { key: key!($($part).+), rule: Rule::Integers {
            found: |recipe| recipe.$($part).+.integer(),
            fits: |$value| $fits,
            expected: $expected,
        } }
    };
    ($($part:ident).+: $least:expr, $most:expr) => {
        Range { key: key!($($part).+), rule: Rule::Between {
            found: |recipe| recipe.$($part).+.integer(),
            least: $least,
            most: $most as i128,
        } }
    };
}

/// A range of numbers: a predicate and its words.
macro_rules! number {
    ($($part:ident).+: $fits:expr, $expected:literal) => {
        Range { key: key!($($part).+), rule: Rule::Numbers {
            found: |recipe| recipe.$($part).+.numbers(),
            fits: $fits,
            expected: $expected,
        } }
    };
}

macro_rules! key {
    ($first:ident $(.$part:ident)*) => { concat!(stringify!($first) $(, ".", stringify!($part))*) };
}

static RANGES: &[Range] = &[
    integer!(data.train_batch_size: 1, limits::PROMPTS),
    integer!(data.train_max_samples: |n| n == -1 || n > 0, "at least 1, or -1 for all"),
    integer!(data.val_max_samples: |n| n == -1 || n > 0, "at least 1, or -1 for all"),
    integer!(data.max_prompt_length: 1, limits::POSITIONS),
    integer!(data.max_response_length: 1, limits::POSITIONS),
    integer!(rollout.n: 1, limits::RESPONSES),
    number!(rollout.temperature: |t| (1e-3..=1e3).contains(&t), "from 0.001 to 1000"),
    number!(rollout.top_p: |p| p > 0.0 && p <= 1.0, "in (0, 1]"),
    integer!(rollout.top_k: -1, limits::POSITIONS),
    integer!(rollout.val_kwargs.n: 1, limits::VALIDATION_RESPONSES),
    number!(rollout.val_kwargs.temperature: |t| t == 0.0 || (1e-3..=1e3).contains(&t), "0, or from 0.001 to 1000"),
    number!(rollout.val_kwargs.top_p: |p| p > 0.0 && p <= 1.0, "in (0, 1]"),
    integer!(rollout.val_kwargs.top_k: -1, limits::POSITIONS),
    integer!(rollout.instances: 1, limits::THREADS),
    integer!(rollout.threads_per_instance: 1, limits::THREADS),
    integer!(rollout.max_num_seqs: 1, limits::CONCURRENT),
    integer!(rollout.kv_cache_tokens: 1, limits::TOKENS),
    integer!(pipeline.max_groups: 1, limits::CONCURRENT),
    integer!(reward.num_workers: 1, limits::REWARD_THREADS),
    integer!(algorithm.staleness: 0, limits::STALENESS),
    number!(algorithm.kl_ctrl.kl_coef: coefficient, "from 0 to 1e6"),
    number!(algorithm.kl_ctrl.horizon: |n| (1.0..=1e12).contains(&n), "from 1 to 1e12"),
    number!(algorithm.kl_ctrl.target_kl: |kl| (1e-9..=FACTOR).contains(&kl), "from 1e-9 to 1e6"),
    number!(actor.weight_decay: weight_decay, "from 0 to 1000"),
    number!(actor.lr: learning_rate, "above 0, at most 10"),
    number!(actor.betas: beta, "two numbers in [0, 1)"),
    number!(actor.eps: positive, "a finite number above 0"),
    number!(actor.grad_clip: |norm| norm > 0.0, "a number above 0, or inf"),
    number!(actor.kl_loss_coef: coefficient, "from 0 to 1e6"),
    number!(actor.entropy_coeff: coefficient, "from 0 to 1e6"),
    number!(actor.loss_scale_factor: |s| (1e-6..=1e12).contains(&s), "from 1e-6 to 1e12"),
    integer!(actor.lr_warmup_steps: 0, limits::STEPS),
    integer!(actor.ppo_mini_batch_size: 1, limits::PROMPTS),
    integer!(actor.ppo_epochs: 1, limits::STEPS),
    integer!(actor.ppo_max_token_len: 1, limits::TOKENS),
    integer!(actor.threads: 1, limits::THREADS),
    number!(critic.lr: learning_rate, "above 0, at most 10"),
    number!(critic.betas: beta, "two numbers in [0, 1)"),
    number!(critic.eps: positive, "a finite number above 0"),
    number!(critic.grad_clip: |norm| norm > 0.0, "a number above 0, or inf"),
    number!(critic.weight_decay: weight_decay, "from 0 to 1000"),
    integer!(critic.lr_warmup_steps: 0, limits::STEPS),
    number!(critic.cliprange_value: positive, "a finite number above 0"),
    integer!(trainer.workers: 1, limits::WORKERS),
    integer!(trainer.total_epochs: 1, limits::STEPS),
    integer!(trainer.total_training_steps: 1, limits::STEPS),
    integer!(trainer.critic_warmup: 0, limits::STEPS),
    integer!(trainer.test_freq: -1, limits::STEPS),
    integer!(trainer.save_freq: -1, limits::STEPS),
    integer!(trainer.max_ckpt_to_keep: 1, limits::CONCURRENT),
    integer!(sft.steps: 1, limits::STEPS),
    integer!(sft.batch_size: 1, limits::CONCURRENT),
    integer!(sft.micro_batch_tokens: 1, limits::TOKENS),
    integer!(sft.threads: 1, limits::THREADS),
    integer!(sft.lr_warmup_steps: 0, limits::STEPS),
    number!(sft.lr: learning_rate, "above 0, at most 10"),
    number!(sft.weight_decay: weight_decay, "from 0 to 1000"),
    integer!(sft.hidden_size: 1, size::WIDTH),
    integer!(sft.intermediate_size: 1, size::INNER_WIDTH),
    integer!(sft.num_hidden_layers: 1, size::LAYERS),
    integer!(sft.num_attention_heads: 1, size::HEADS),
    integer!(sft.num_key_value_heads: 1, size::HEADS),
    integer!(sft.max_position_embeddings: 1, limits::POSITIONS),
];

/// Accepts a coefficient of a loss unless it is negative, or so large that the loss could become infinite.
fn coefficient(value: f64) -> bool {
    (0.0..=FACTOR).contains(&value)
}

fn learning_rate(rate: f64) -> bool {
    rate > 0.0 && rate <= limits::LEARNING_RATE
}

fn weight_decay(decay: f64) -> bool {
    (0.0..=limits::WEIGHT_DECAY).contains(&decay)
}

fn beta(beta: f64) -> bool {
    (0.0..1.0).contains(&beta)
}

fn positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}
