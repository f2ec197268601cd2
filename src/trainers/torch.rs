//! The torch trainer of this project as a trainer of a run.

use rollpacker_stages::catalog::About;
use rollpacker_stages::train::Trainer;
use rollpacker_torch::model::Decoder;
use rollpacker_torch::train::{TorchTrainer, ValueModel};

use super::TrainerContext;

pub(super) const ABOUT: About =
    About::new(&[], "the model on libtorch, in this process, with AdamW", "this project");

/// Loads the model and returns the trainer. Also loads the critic, if the context names its folder.
pub(super) fn start(context: TrainerContext) -> anyhow::Result<Box<dyn Trainer>> {
    let TrainerContext {
        model,
        critic,
        device,
        config,
        objective,
        weights,
        progress,
        threads_per_device,
        ..
    } = context;
    let decoder = Decoder::load(&model, device)?;
    let mut trainer =
        TorchTrainer::with_objective(decoder, config, weights, objective)?.with_progress(progress);
    if let Some(threads) = threads_per_device {
        trainer = trainer.with_threads_per_device(threads);
    }
    if let Some(folder) = critic {
        trainer = trainer.with_critic(ValueModel::load(&folder, device)?)?;
    }
    Ok(Box::new(trainer))
}
