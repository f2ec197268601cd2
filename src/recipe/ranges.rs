//! The ranges of the numeric keys of a recipe. Other modules check durations, thresholds, options that other crates define, and numbers
//! that depend on other settings.

use rollpacker_model::config::max as size;

use super::limits::{self, MAX_FACTOR};
use super::range::{Integer, Numbers, Range, integer, number};
use super::raw::RawRecipe;

pub(crate) static RANGES: &[Range<RawRecipe>] = &[
    integer!(data.train_batch_size: 1, limits::MAX_PROMPTS),
    integer!(data.train_max_samples: |n| n == -1 || n > 0, "at least 1, or -1 for all"),
    integer!(data.val_max_samples: |n| n == -1 || n > 0, "at least 1, or -1 for all"),
    integer!(data.max_prompt_length: 1, limits::MAX_POSITIONS),
    integer!(data.max_response_length: 1, limits::MAX_POSITIONS),
    integer!(rollout.n: 1, limits::MAX_RESPONSES),
    number!(rollout.temperature: |t| (1e-3..=1e3).contains(&t), "from 0.001 to 1000"),
    number!(rollout.top_p: |p| p > 0.0 && p <= 1.0, "in (0, 1]"),
    integer!(rollout.top_k: -1, limits::MAX_POSITIONS),
    integer!(rollout.val_kwargs.n: 1, limits::MAX_VALIDATION_RESPONSES),
    number!(rollout.val_kwargs.temperature: |t| t == 0.0 || (1e-3..=1e3).contains(&t), "0, or from 0.001 to 1000"),
    number!(rollout.val_kwargs.top_p: |p| p > 0.0 && p <= 1.0, "in (0, 1]"),
    integer!(rollout.val_kwargs.top_k: -1, limits::MAX_POSITIONS),
    integer!(rollout.instances: 1, limits::MAX_THREADS),
    integer!(rollout.threads_per_instance: 1, limits::MAX_THREADS),
    integer!(rollout.max_num_seqs: 1, limits::MAX_CONCURRENT),
    integer!(rollout.kv_cache_tokens: 1, limits::MAX_TOKENS),
    integer!(pipeline.max_groups: 1, limits::MAX_CONCURRENT),
    integer!(reward.num_workers: 1, limits::MAX_REWARD_THREADS),
    integer!(algorithm.staleness: 0, limits::MAX_STALENESS),
    number!(algorithm.kl_ctrl.kl_coef: coefficient, "from 0 to 1e6"),
    number!(algorithm.kl_ctrl.horizon: |n| (1.0..=1e12).contains(&n), "from 1 to 1e12"),
    number!(algorithm.kl_ctrl.target_kl: |kl| (1e-9..=MAX_FACTOR).contains(&kl), "from 1e-9 to 1e6"),
    number!(actor.weight_decay: weight_decay, "from 0 to 1000"),
    number!(actor.lr: learning_rate, "above 0, at most 10"),
    number!(actor.betas: beta, "two numbers in [0, 1)"),
    number!(actor.eps: positive, "a finite number above 0"),
    number!(actor.grad_clip: |norm| norm > 0.0, "a number above 0, or inf"),
    number!(actor.kl_loss_coef: coefficient, "from 0 to 1e6"),
    number!(actor.entropy_coeff: coefficient, "from 0 to 1e6"),
    number!(actor.loss_scale_factor: |s| (1e-6..=1e12).contains(&s), "from 1e-6 to 1e12"),
    integer!(actor.lr_warmup_steps: 0, limits::MAX_STEPS),
    integer!(actor.ppo_mini_batch_size: 1, limits::MAX_PROMPTS),
    integer!(actor.ppo_epochs: 1, limits::MAX_STEPS),
    integer!(actor.ppo_max_token_len: 1, limits::MAX_TOKENS),
    integer!(actor.threads: 1, limits::MAX_THREADS),
    number!(critic.lr: learning_rate, "above 0, at most 10"),
    number!(critic.betas: beta, "two numbers in [0, 1)"),
    number!(critic.eps: positive, "a finite number above 0"),
    number!(critic.grad_clip: |norm| norm > 0.0, "a number above 0, or inf"),
    number!(critic.weight_decay: weight_decay, "from 0 to 1000"),
    integer!(critic.lr_warmup_steps: 0, limits::MAX_STEPS),
    number!(critic.cliprange_value: positive, "a finite number above 0"),
    integer!(trainer.workers: 1, limits::MAX_WORKERS),
    integer!(trainer.total_epochs: 1, limits::MAX_STEPS),
    integer!(trainer.total_training_steps: 1, limits::MAX_STEPS),
    integer!(trainer.critic_warmup: 0, limits::MAX_STEPS),
    integer!(trainer.test_freq: -1, limits::MAX_STEPS),
    integer!(trainer.save_freq: -1, limits::MAX_STEPS),
    integer!(trainer.max_ckpt_to_keep: 1, limits::MAX_CONCURRENT),
    integer!(sft.steps: 1, limits::MAX_STEPS),
    integer!(sft.batch_size: 1, limits::MAX_CONCURRENT),
    integer!(sft.micro_batch_tokens: 1, limits::MAX_TOKENS),
    integer!(sft.threads: 1, limits::MAX_THREADS),
    integer!(sft.lr_warmup_steps: 0, limits::MAX_STEPS),
    number!(sft.lr: learning_rate, "above 0, at most 10"),
    number!(sft.weight_decay: weight_decay, "from 0 to 1000"),
    integer!(sft.hidden_size: 1, size::WIDTH),
    integer!(sft.intermediate_size: 1, size::INNER_WIDTH),
    integer!(sft.num_hidden_layers: 1, size::LAYERS),
    integer!(sft.num_attention_heads: 1, size::HEADS),
    integer!(sft.num_key_value_heads: 1, size::HEADS),
    integer!(sft.max_position_embeddings: 1, limits::MAX_POSITIONS),
];

/// Accepts a coefficient of a term of the loss or of the KL penalty in rewards, unless it is negative, or so large that the loss could
/// become infinite.
fn coefficient(value: f64) -> bool {
    (0.0..=MAX_FACTOR).contains(&value)
}

fn learning_rate(rate: f64) -> bool {
    rate > 0.0 && rate <= limits::MAX_LEARNING_RATE
}

fn weight_decay(decay: f64) -> bool {
    (0.0..=limits::MAX_WEIGHT_DECAY).contains(&decay)
}

fn beta(beta: f64) -> bool {
    (0.0..1.0).contains(&beta)
}

fn positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}
