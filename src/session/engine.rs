//! The rollout engine that a recipe describes.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::ensure;
use rollpacker_model::ModelConfig;
use rollpacker_stages::rollout::lengths::Lengths;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_torch::model::Decoder;
use rollpacker_torch::rollout::{TorchEngine, TorchEngineConfig};
use tch::Device;

use super::shared_inputs::{SharedInputs, WorkerResources};
use crate::recipe::Recipe;

impl SharedInputs {
    /// Returns the options of an engine with the sampling settings `sampling`. If `replayed` is `true`, the recipe's recorded lengths are
    /// forced.
    pub(super) fn engine_options(
        &self,
        sampling: Sampling,
        replayed: bool,
    ) -> anyhow::Result<EngineOptions> {
        let raw = &self.recipe.raw;
        let lengths = raw.rollout.replay_lengths.as_deref().filter(|_| replayed);
        let replay = lengths.map(Lengths::read).transpose()?;
        let config = TorchEngineConfig { sampling, replay, ..engine_config(&self.recipe) };
        Ok(EngineOptions {
            config,
            model: raw.model.path.clone(),
            device: self.device,
            stages: self.stages.clone(),
        })
    }
}

/// The options to start an engine, which can be moved to the thread that starts it.
pub(super) struct EngineOptions {
    config: TorchEngineConfig,
    model: PathBuf,
    device: Device,
    stages: WorkerResources,
}

impl EngineOptions {
    pub(super) fn start(self) -> anyhow::Result<TorchEngine> {
        let Self { config, model, device, stages: WorkerResources { clock, encoder, store, .. } } =
            self;
        // Some models have more ids than the tokenizer; these padding ids decode to an empty text.
        let detokenize =
            Arc::new(move |ids: &[i32]| encoder.tokenizer.decode(ids, true).unwrap_or_default());
        Ok(TorchEngine::start(
            config,
            |_instance| Decoder::load(&model, device),
            store,
            detokenize,
            clock,
        )?)
    }
}

/// Returns the sampling settings of training.
pub(super) fn sampling(recipe: &Recipe) -> Sampling {
    let (rollout, data) = (&recipe.raw.rollout, &recipe.raw.data);
    Sampling {
        temperature: rollout.temperature,
        top_p: rollout.top_p,
        top_k: u32::try_from(rollout.top_k).unwrap_or(0),
        min_new_tokens: rollout.min_response_length,
        max_new_tokens: data.max_response_length,
    }
}

/// Returns the configuration of the training engine, without replayed lengths.
pub(crate) fn engine_config(recipe: &Recipe) -> TorchEngineConfig {
    let rollout = &recipe.raw.rollout;
    TorchEngineConfig {
        instances: recipe.engine_instances(),
        threads_per_instance: rollout.threads_per_instance,
        max_running: rollout.max_num_seqs,
        kv_cache_tokens: rollout.kv_cache_tokens,
        sampling: sampling(recipe),
        seed: rollout.seed.unwrap_or(recipe.raw.trainer.seed),
        replay: None,
        deterministic: recipe.raw.trainer.deterministic,
    }
}

/// Rejects prompt and response lengths that exceed the model's maximum context.
pub(crate) fn check_context(recipe: &Recipe, model: &ModelConfig) -> anyhow::Result<()> {
    let data = &recipe.raw.data;
    let longest = data.max_prompt_length as i64 + i64::from(data.max_response_length);
    let context = model.max_position_embeddings;
    ensure!(
        longest <= context,
        "keys `data.max_prompt_length` + `data.max_response_length`: expected at most the model's {context} tokens, found {longest}"
    );
    Ok(())
}
