//! The torch engine of this project as an entry of the catalog.

use std::sync::Arc;

use rollpacker_stages::catalog::About;
use rollpacker_stages::rollout::lengths::Lengths;
use rollpacker_torch::model::Decoder;
use rollpacker_torch::rollout::{TorchEngine, TorchEngineConfig};

use super::context::{EngineContext, EngineSettings};
use super::starter::{EngineMeasurements, StartedEngine};

pub(super) const ABOUT: About = About::new(
    &[],
    "the model on libtorch, in this process, with continuous batching",
    "this project",
);

/// Starts the engine and lets it host the colocated models of the context.
pub(super) fn start(context: EngineContext) -> anyhow::Result<StartedEngine> {
    let EngineContext { model, device, tokenizer, colocated, .. } = context;
    // Some models have more ids than the tokenizer; these padding ids decode to an empty text.
    let detokenize = Arc::new(move |ids: &[i32]| tokenizer.decode(ids, true).unwrap_or_default());
    let mut engine = TorchEngine::start(
        config(context.settings, context.replay),
        Decoder::load(&model, device)?,
        context.weights,
        detokenize,
        context.clock,
    )?;
    engine.colocate(&colocated);
    let live = engine.live_iterations();
    let colocated = (!colocated.is_empty()).then(|| engine.colocated_use());
    Ok(StartedEngine {
        engine: Box::new(engine),
        measurements: Some(EngineMeasurements { live, colocated }),
        server_metrics: None,
    })
}

/// Returns the configuration of the torch engine. If `replay` is `Some`, the engine forces these response lengths.
pub(crate) fn config(settings: EngineSettings, replay: Option<Lengths>) -> TorchEngineConfig {
    TorchEngineConfig {
        instances: settings.instances,
        threads_per_instance: settings.threads_per_instance,
        max_running: settings.max_running,
        kv_cache_tokens: settings.kv_cache_tokens,
        dtype: settings.dtype,
        sampling: settings.sampling,
        seed: settings.seed,
        replay,
        deterministic: settings.deterministic,
    }
}
