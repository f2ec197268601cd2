//! The trainers of a run.

mod context;
mod torch;

pub use self::context::TrainerContext;

use std::sync::Arc;

use rollpacker_stages::catalog::CatalogError;
use rollpacker_stages::train::Trainer;

type Start = Arc<dyn Fn(TrainerContext) -> anyhow::Result<Box<dyn Trainer>> + Send + Sync>;

/// A constructor of trainers, which runs on the thread of the trainer.
#[derive(Clone)]
pub(crate) struct TrainerStarter(Start);

impl Default for TrainerStarter {
    /// Returns the constructor of the torch trainer.
    fn default() -> Self {
        Self(Arc::new(torch::start))
    }
}

impl TrainerStarter {
    /// Returns a starter of a trainer that a program brings.
    pub(crate) fn own<T: Trainer + 'static>(
        start: impl Fn(TrainerContext) -> Result<T, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(move |context| Ok(Box::new(start(context)?))))
    }

    /// Starts the trainer on this thread.
    pub(crate) fn start(&self, context: TrainerContext) -> anyhow::Result<Box<dyn Trainer>> {
        (self.0)(context)
    }
}
