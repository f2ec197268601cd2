//! The trainers that recipes can name with `actor.strategy`.
//!
//! An entry of the catalog is a constructor. It receives the options of `actor.strategy_options` and a [`TrainerContext`] with everything
//! that a run provides. A built-in trainer is one file of this module and one line in [`Trainers::default`].

mod context;
mod torch;

pub use self::context::TrainerContext;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rollpacker_dataflow::step::Step;
use rollpacker_stages::catalog::{Catalog, CatalogError, NoOptions};
use rollpacker_stages::train::{TrainError, Trainer};
use serde::de::DeserializeOwned;

use crate::recipe::Choices;
use crate::recipe::choice::{make, option_error};
use crate::recipe::error::{RecipeError, out_of_bounds};

/// The trainers that recipes can name. Clones share their entries.
///
/// ```
/// use rollpacker::stages::catalog::CatalogError;
/// use rollpacker::stages::torch::model::Decoder;
/// use rollpacker::stages::torch::train::TorchTrainer;
/// use rollpacker::trainers::{TrainerContext, Trainers};
/// use serde::Deserialize;
///
/// #[derive(Clone, Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct AdamOptions {
///     eps: f64,
/// }
///
/// fn start(options: AdamOptions, context: TrainerContext) -> Result<TorchTrainer, CatalogError> {
///     let mut config = context.config;
///     config.optimizer.eps = options.eps;
///     let decoder = Decoder::load(&context.model, context.device).map_err(CatalogError::start)?;
///     TorchTrainer::new(decoder, config, context.weights).map_err(CatalogError::start)
/// }
///
/// let trainers = Trainers::default().with("adam", start);
/// assert_eq!(trainers.names().collect::<Vec<_>>(), ["adam", "torch"]);
/// assert_eq!(trainers.options("adam"), Some(["eps"].as_slice()));
/// ```
#[derive(Clone)]
pub struct Trainers(Catalog<TrainerStarter>);

type Start = Arc<dyn Fn(TrainerContext) -> anyhow::Result<Box<dyn Trainer>> + Send + Sync>;

/// A constructor of trainers, with the options that the recipe sets. It runs on the thread of the trainer.
#[derive(Clone)]
pub(crate) struct TrainerStarter {
    start: Start,
    /// `true` for the torch trainer, whose memory can be estimated.
    is_torch: bool,
}

/// The trainer that a recipe names.
#[derive(Clone)]
pub(crate) struct ChosenTrainer {
    name: String,
    starter: TrainerStarter,
}

/// The settings of a run with which it needs operations that a trainer may not support.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NeededOperations {
    /// The number of workers, each with a replica of the trainer.
    pub(crate) workers: usize,
    /// The number of steps between two snapshots; 0 if none are taken.
    pub(crate) save_freq: u64,
}

impl NeededOperations {
    /// Rejects a trainer that does not support an operation, before the first step instead of at its end.
    ///
    /// A trainer does not announce its operations. Therefore two calls are tried that change nothing by contract: one takes the partial
    /// gradient of no data, and one loads a state from a path that does not exist.
    fn check(self, name: &str, trainer: &mut dyn Trainer) -> Result<(), RecipeError> {
        let Self { workers, save_freq } = self;
        if workers > 1 && is_unsupported(trainer.take_partial(Step(0))) {
            let expected =
                format!("1 with the trainer `{name}`, which cannot be one of several replicas");
            return Err(out_of_bounds("trainer.workers", expected, workers));
        }
        if save_freq > 0 && is_unsupported(trainer.load_state(Path::new(""))) {
            let expected = format!("-1 with the trainer `{name}`, which cannot load a state");
            return Err(out_of_bounds("trainer.save_freq", expected, save_freq));
        }
        Ok(())
    }
}

fn is_unsupported<T>(result: Result<T, TrainError>) -> bool {
    matches!(result, Err(TrainError::Unsupported { .. }))
}

impl Default for Trainers {
    /// Returns the built-in trainers.
    fn default() -> Self {
        Self(Catalog::new("trainer").described("torch", torch::ABOUT, torch_starter))
    }
}

impl fmt::Debug for Trainers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

impl Trainers {
    /// Adds a trainer that `start` constructs from its options. Replaces a trainer of the same name.
    ///
    /// The options are read when the recipe is opened, also by `--dry-run`. `start` runs later, on the thread of the trainer, once for each
    /// worker.
    #[must_use]
    pub fn with<O, T>(
        self,
        name: &str,
        start: impl Fn(O, TrainerContext) -> Result<T, CatalogError> + Send + Sync + 'static,
    ) -> Self
    where
        O: DeserializeOwned + Clone + Send + Sync + 'static,
        T: Trainer + 'static,
    {
        let start = Arc::new(start);
        Self(self.0.with(name, move |options: O| {
            let start = start.clone();
            Ok(TrainerStarter::custom(move |context| start(options.clone(), context)))
        }))
    }

    /// Returns the names of the trainers in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.names()
    }

    /// Returns the keys that `actor.strategy_options` may have for the trainer `name`, or `None` if there is no such trainer.
    #[must_use]
    pub fn options(&self, name: &str) -> Option<&'static [&'static str]> {
        self.0.options(name)
    }

    /// Returns the trainer that a recipe names.
    ///
    /// # Errors
    /// If there is no trainer of that name, or an option is unknown or has a wrong value.
    pub(crate) fn chosen(&self, choices: &Choices) -> Result<ChosenTrainer, RecipeError> {
        let starter = make(&self.0, &choices.trainer)?;
        Ok(ChosenTrainer { name: choices.trainer.name().to_owned(), starter })
    }
}

fn torch_starter(_: NoOptions) -> Result<TrainerStarter, CatalogError> {
    Ok(TrainerStarter { start: Arc::new(torch::start), is_torch: true })
}

impl TrainerStarter {
    fn custom<T: Trainer + 'static>(
        start: impl Fn(TrainerContext) -> Result<T, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        let start = move |context| Ok(Box::new(start(context)?) as Box<dyn Trainer>);
        Self { start: Arc::new(start), is_torch: false }
    }
}

impl ChosenTrainer {
    /// Returns the choice of a trainer that a program constructs with `start`. Errors name the type of the trainer.
    pub(crate) fn custom<T: Trainer + 'static>(
        start: impl Fn(TrainerContext) -> Result<T, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        let name = std::any::type_name::<T>().to_owned();
        Self { name, starter: TrainerStarter::custom(start) }
    }

    pub(crate) fn is_torch(&self) -> bool {
        self.starter.is_torch
    }

    /// Starts the trainer on this thread.
    ///
    /// # Errors
    /// If the trainer cannot start, or does not support an operation that the run needs. The message names the trainer or the key.
    pub(crate) fn start(
        &self,
        context: TrainerContext,
        needed: NeededOperations,
    ) -> anyhow::Result<Box<dyn Trainer>> {
        let mut trainer = (self.starter.start)(context).map_err(|error| self.failed(error))?;
        if !self.is_torch() {
            needed.check(&self.name, &mut *trainer)?;
        }
        Ok(trainer)
    }

    /// Returns the error of a constructor with the recipe key or the trainer that it concerns. Other errors of the torch trainer are
    /// returned unchanged.
    fn failed(&self, error: anyhow::Error) -> anyhow::Error {
        match error.downcast::<CatalogError>() {
            Ok(CatalogError::Option { key, reason }) => {
                option_error("actor.strategy_options", &key, reason).into()
            }
            Ok(error) if self.is_torch() => error.into(),
            Ok(error) => anyhow::Error::from(error)
                .context(format!("cannot start the trainer `{}`", self.name)),
            Err(error) => error,
        }
    }
}
