//! The rollout engines of a run: their settings and inputs.

use rollpacker_stages::rollout::lengths::Lengths;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_torch::rollout::colocated::ColocatedModels;

use super::shared_inputs::SharedInputs;
use crate::engines::{EngineContext, EnginePurpose, EngineSettings};
use crate::prompts::OverlongPrompts;
use crate::recipe::Recipe;

impl SharedInputs {
    /// Returns the inputs of the training engine, including the recorded lengths to replay, the judges to host and, for an engine other
    /// than the torch engine, example tokens.
    pub(super) fn training_engine(&self) -> anyhow::Result<EngineContext> {
        let lengths = self.recipe.rollout.replay_lengths.as_deref();
        let replay = lengths.map(Lengths::read).transpose()?;
        let context = self.engine_context(EnginePurpose::Training, self.recipe.sampling);
        let example = if self.engine.is_torch() {
            Vec::new()
        } else {
            let reader = self.reader(self.train_data.clone(), OverlongPrompts::default());
            reader.first_tokens(EngineContext::EXAMPLE_TOKENS)?
        };
        Ok(EngineContext { replay, example, colocated: self.colocated.clone(), ..context })
    }

    /// Returns the inputs of an engine for validation that samples by `sampling`.
    pub(super) fn validation_engine(&self, sampling: Sampling) -> EngineContext {
        self.engine_context(EnginePurpose::Validation, sampling)
    }

    fn engine_context(&self, purpose: EnginePurpose, sampling: Sampling) -> EngineContext {
        EngineContext {
            purpose,
            worker: self.worker,
            model: self.recipe.model.path.clone(),
            run_folder: self.recipe.run.default_local_dir.clone(),
            vocab_size: usize::try_from(self.vocab_size).unwrap_or(0),
            tokenizer: self.stages.encoder.tokenizer.clone(),
            weights: self.stages.store.clone(),
            device: self.device,
            settings: EngineSettings { sampling, ..settings(&self.recipe) },
            clock: self.stages.clock.clone(),
            example: Vec::new(),
            replay: None,
            colocated: ColocatedModels::default(),
        }
    }
}

/// Returns the settings of the training engine.
fn settings(recipe: &Recipe) -> EngineSettings {
    let rollout = &recipe.rollout;
    EngineSettings {
        sampling: recipe.sampling,
        seed: recipe.sampling_seed,
        max_prompt_length: recipe.data.max_prompt_length,
        instances: recipe.engine_instances(),
        threads_per_instance: rollout.threads_per_instance,
        max_running: rollout.max_num_seqs,
        kv_cache_tokens: rollout.kv_cache_tokens,
        dtype: rollout.dtype,
        deterministic: recipe.run.deterministic,
    }
}

/// Returns the configuration of a torch engine for training, without replayed lengths.
#[cfg(feature = "cli")]
pub(crate) fn engine_config(recipe: &Recipe) -> rollpacker_torch::rollout::TorchEngineConfig {
    crate::engines::torch_config(settings(recipe), None)
}
