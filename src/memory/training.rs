//! The memory of reinforcement learning.

use rollpacker_model::ModelConfig;
use rollpacker_torch::rollout::packs_weights;

use super::model::{
    FLOAT_BYTES, kv_cache_bytes_per_token, packed_weight_bytes, size, weight_bytes,
};
use super::part::{MemoryPart, setting};
use crate::recipe::Recipe;

/// The inputs of the estimate of a training run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrainingMemory<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) model: &'a ModelConfig,
    /// `true` if the advantage estimator needs a critic.
    pub(crate) has_critic: bool,
    /// The number of prompts of an epoch.
    pub(crate) prompts: u64,
    /// `true` if the torch engine generates the responses. The memory of other engines is unknown and not counted.
    pub(crate) has_torch_engine: bool,
    /// `true` if the torch trainer trains. The memory of other trainers is unknown and not counted.
    pub(crate) has_torch_trainer: bool,
    /// `true` if models are in main memory and not on a GPU.
    pub(crate) on_host: bool,
}

/// Copies of the weights that a trainer holds during the first update: the weights, their gradient, two moments, the flattened gradient,
/// the change, and the published weights.
const TRAINER_WEIGHT_COPIES: u64 = 7;

/// Copies of the weights of a critic: the weights, their gradient and two moments.
const CRITIC_WEIGHT_COPIES: u64 = 4;

/// Number of engines for validation, in addition to the engines for training: one that samples and one that decodes greedily.
const VALIDATION_ENGINES: u64 = 2;

/// Tokens of a block of the KV cache: a running response holds at least one block.
const BLOCK_TOKENS: u64 = 16;

/// Bytes of a response in the schedule, the engine and the stream, without its tokens. This is a lower bound: 4,600 were measured.
const BYTES_PER_RESPONSE: u64 = 2048;

/// Bytes of a prompt in memory, without its text and tokens.
const BYTES_PER_PROMPT: u64 = 256;

/// Returns the memory parts of an engine that `rollpacker profile` measures.
#[cfg(feature = "cli")]
pub(crate) fn profiling_parts(recipe: &Recipe, model: &ModelConfig) -> Vec<MemoryPart> {
    vec![engine_weights(recipe, model, 1, [setting("model.path", recipe.model.path.display())])]
}

/// Returns the memory of the weights of `engines` engines, packed if engines pack them. The instances of an engine share one copy.
fn engine_weights(
    recipe: &Recipe,
    model: &ModelConfig,
    engines: u64,
    settings: impl IntoIterator<Item = String>,
) -> MemoryPart {
    let dtype = recipe.rollout.dtype;
    let bytes =
        if packs_weights() { packed_weight_bytes(model, dtype) } else { weight_bytes(model) };
    let settings = settings.into_iter().chain([setting("rollout.dtype", dtype)]);
    MemoryPart::new("the weights of engines", settings, [engines, bytes])
}

pub(crate) fn training_parts(run: TrainingMemory<'_>) -> Vec<MemoryPart> {
    let mut parts = vec![run.responses(), run.read_ahead()];
    if run.on_host && run.has_torch_trainer {
        parts.extend([run.trainer(), run.published()]);
    }
    if run.on_host && run.has_torch_engine {
        let settings = run.model_and([run.workers_setting()]);
        let weights = engine_weights(run.recipe, run.model, run.engine_count(), settings);
        parts.extend([weights, run.caches(), run.logits()]);
    }
    parts
}

impl TrainingMemory<'_> {
    fn trainer(&self) -> MemoryPart {
        let trainer = &self.recipe.trainer;
        let copies = TRAINER_WEIGHT_COPIES
            + u64::from(trainer.needs_reference())
            + if self.has_critic { CRITIC_WEIGHT_COPIES } else { 0 };
        let factors = [self.workers(), copies, weight_bytes(self.model)];
        MemoryPart::new(
            "the trainer's weights, gradients and moments",
            self.model_and([self.workers_setting()]),
            factors,
        )
    }

    /// Returns the number of engines, including the engines for validation.
    fn engine_count(&self) -> u64 {
        let validation = if self.recipe.val_data.is_some() { VALIDATION_ENGINES } else { 0 };
        self.workers() + validation
    }

    /// Returns the memory of the published weight versions except the newest version, which is counted with the trainer.
    fn published(&self) -> MemoryPart {
        let staleness = self.recipe.staleness;
        let held = (staleness + 1).min(self.steps().saturating_sub(1));
        let settings = self.model_and([setting("algorithm.staleness", staleness)]);
        MemoryPart::new(
            "weights of older policies",
            settings,
            [self.workers(), held, weight_bytes(self.model)],
        )
    }

    fn caches(&self) -> MemoryPart {
        let rollout = &self.recipe.rollout;
        let running = self.running();
        let settings = [
            setting("rollout.max_num_seqs", rollout.max_num_seqs),
            setting("rollout.n", rollout.n),
            setting("data.train_batch_size", self.recipe.data.train_batch_size),
        ];
        MemoryPart::new(
            "keys and values of running responses",
            settings,
            [running, BLOCK_TOKENS, kv_cache_bytes_per_token(self.model)],
        )
    }

    fn logits(&self) -> MemoryPart {
        let rollout = &self.recipe.rollout;
        let settings = self.model_and([
            setting("rollout.max_num_seqs", rollout.max_num_seqs),
            setting("rollout.n", rollout.n),
        ]);
        MemoryPart::new(
            "logits of running responses",
            settings,
            [self.running(), size(self.model.vocab_size), FLOAT_BYTES],
        )
    }

    fn responses(&self) -> MemoryPart {
        let (prompts, responses) = self.launched();
        let recipe = self.recipe;
        let settings = [
            setting("rollout.n", recipe.rollout.n),
            setting("data.train_batch_size", recipe.data.train_batch_size),
        ];
        MemoryPart::new(
            "the responses of a step",
            settings,
            [prompts, responses, BYTES_PER_RESPONSE],
        )
    }

    fn read_ahead(&self) -> MemoryPart {
        let settings = [setting("data.train_batch_size", self.recipe.data.train_batch_size)];
        MemoryPart::new("the prompts of a step", settings, [self.launched().0, BYTES_PER_PROMPT])
    }

    /// Returns a lower bound on the number of responses that the engines run at once in the first step. It assumes that every prompt and
    /// every response has the maximum length.
    fn running(&self) -> u64 {
        let rollout = &self.recipe.rollout;
        let data = &self.recipe.data;
        let longest = (data.max_prompt_length as u64 + u64::from(data.max_response_length)).max(1);
        let of_instance =
            (rollout.max_num_seqs as u64).min(rollout.kv_cache_tokens as u64 / longest);
        let (prompts, responses) = self.launched();
        let instances = u64::from(self.recipe.engine_instances());
        let slots = of_instance.saturating_mul(instances * self.workers());
        slots
            .min(prompts.saturating_mul(responses))
            .min(self.recipe.schedule_slots().unwrap_or(u64::MAX))
    }

    /// Returns the number of prompts that the first step launches, limited by the dataset, and the number of responses to each.
    fn launched(&self) -> (u64, u64) {
        let (prompts, responses) = self.recipe.launched;
        let epochs = u64::from(self.recipe.run.total_epochs);
        ((prompts as u64).min(self.prompts.saturating_mul(epochs)), responses.into())
    }

    /// Returns the number of steps with a full batch, at most `trainer.total_training_steps`.
    fn steps(&self) -> u64 {
        let (data, run) = (&self.recipe.data, &self.recipe.run);
        let prompts = self.prompts.saturating_mul(run.total_epochs.into());
        let steps = prompts / data.train_batch_size as u64;
        run.total_training_steps.map_or(steps, |max| max.min(steps))
    }

    fn workers(&self) -> u64 {
        self.recipe.run.workers as u64
    }

    fn workers_setting(&self) -> String {
        setting("trainer.workers", self.recipe.run.workers)
    }

    /// Returns the model setting together with other settings.
    fn model_and<const N: usize>(&self, others: [String; N]) -> Vec<String> {
        let model = setting("model.path", self.recipe.model.path.display());
        std::iter::once(model).chain(others).collect()
    }
}
