//! The rollout engines that recipes can name with `rollout.engine`.
//!
//! An entry of the catalog is a constructor. It receives the options of `rollout.engine_options` and an [`EngineContext`] with everything
//! that a run provides. A built-in engine is one file of this module and one line in [`Engines::default`].

mod context;
#[cfg(feature = "servers")]
mod forward;
#[cfg(feature = "servers")]
mod launch;
#[cfg(feature = "servers")]
mod servers;
mod servers_unavailable;
mod starter;
mod torch;

pub use self::context::{EngineContext, EnginePurpose, EngineSettings};
#[cfg(feature = "servers")]
pub use self::forward::{ReferenceDecoder, canary_tokens};
pub use self::servers_unavailable::ServersUnavailable;
pub use self::starter::MetricSource;
pub(crate) use self::starter::StartedEngine;
#[cfg(feature = "cli")]
pub(crate) use self::torch::config as torch_config;

use std::fmt;
use std::sync::Arc;

#[cfg(feature = "cli")]
use rollpacker_stages::catalog::ListedEntry;
use rollpacker_stages::catalog::{Catalog, CatalogError, NoOptions};
use rollpacker_stages::rollout::RolloutEngine;
use serde::de::DeserializeOwned;

use self::starter::EngineStarter;
use crate::recipe::choice::{make, option_error};
use crate::recipe::error::{RecipeError, out_of_bounds};
use crate::recipe::{Choices, Recipe};

/// The engines that recipes can name. Clones share their entries.
///
/// ```
/// use rollpacker::engines::{EngineContext, Engines};
/// use rollpacker::prelude::*;
/// use rollpacker::stages::catalog::CatalogError;
/// use serde::Deserialize;
///
/// #[derive(Clone, Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct ServerOptions {
///     url: String,
/// }
///
/// fn start(options: ServerOptions, context: EngineContext) -> Result<Box<dyn RolloutEngine>, CatalogError> {
///     let model = context.model.display();
///     Err(CatalogError::start(format!("{} does not serve {model}", options.url)))
/// }
///
/// let engines = Engines::default().with("my_server", start);
/// assert!(engines.names().any(|name| name == "my_server"));
/// assert_eq!(engines.options("my_server"), Some(["url"].as_slice()));
/// ```
#[derive(Clone)]
pub struct Engines(Catalog<EngineStarter>);

/// The engine that a recipe names.
#[derive(Clone)]
pub(crate) struct ChosenEngine {
    name: String,
    starter: EngineStarter,
}

impl Default for Engines {
    /// Returns the built-in engines.
    fn default() -> Self {
        let engines = Catalog::new("engine").described("torch", torch::ABOUT, torch_starter);
        #[cfg(feature = "servers")]
        let engines = engines.described("vllm", servers::VLLM, servers::vllm).described(
            "sglang",
            servers::SGLANG,
            servers::sglang,
        );
        Self(engines)
    }
}

impl fmt::Debug for Engines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

impl Engines {
    /// Returns the engines with their documentation.
    #[cfg(feature = "cli")]
    pub(crate) fn list(&self) -> impl Iterator<Item = ListedEntry<'_>> {
        self.0.list()
    }

    /// Adds an engine that `start` constructs from its options. Replaces an engine of the same name.
    ///
    /// The options are read when the recipe is opened, also by `--dry-run`. `start` runs later, on the thread that drives the engine: once
    /// for the training engine of each worker, and twice for the engines of the validator if the recipe has validation data.
    #[must_use]
    pub fn with<O, E>(
        self,
        name: &str,
        start: impl Fn(O, EngineContext) -> Result<E, CatalogError> + Send + Sync + 'static,
    ) -> Self
    where
        O: DeserializeOwned + Clone + Send + Sync + 'static,
        E: RolloutEngine + 'static,
    {
        let start = Arc::new(start);
        Self(self.0.with(name, move |options: O| {
            let start = start.clone();
            Ok(EngineStarter::custom(move |context| start(options.clone(), context)))
        }))
    }

    /// Returns the names of the engines in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.names()
    }

    /// Returns the keys that `rollout.engine_options` may have for the engine `name`, or `None` if there is no such engine.
    #[must_use]
    pub fn options(&self, name: &str) -> Option<&'static [&'static str]> {
        self.0.options(name)
    }

    /// Returns a one-line summary of the engine `name`, which is empty for engines that a program added. `None` if there is no such engine.
    #[must_use]
    pub fn summary(&self, name: &str) -> Option<&'static str> {
        self.0.list().find(|entry| entry.name == name).map(|entry| entry.about.summary)
    }

    /// Returns the engine that a recipe names.
    ///
    /// # Errors
    /// If there is no engine of that name, or an option is unknown or has a wrong value.
    pub(crate) fn chosen(&self, choices: &Choices) -> Result<ChosenEngine, RecipeError> {
        let starter = make(&self.0, &choices.engine)?;
        Ok(ChosenEngine { name: choices.engine.name().to_owned(), starter })
    }
}

fn torch_starter(_: NoOptions) -> Result<EngineStarter, CatalogError> {
    Ok(EngineStarter { is_torch: true, ..EngineStarter::new(torch::start) })
}

impl ChosenEngine {
    /// Returns the choice of an engine that a program constructs with `start`. Errors name the type of the engine.
    pub(crate) fn custom<E: RolloutEngine + 'static>(
        start: impl Fn(EngineContext) -> Result<E, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        let name = std::any::type_name::<E>().to_owned();
        Self { name, starter: EngineStarter::custom(start) }
    }

    pub(crate) fn is_torch(&self) -> bool {
        self.starter.is_torch
    }

    /// Returns an error if `is_used` is `true` and this is not the torch engine. `when` is the setting that needs the torch engine, for the
    /// message.
    pub(crate) fn require_torch_if(&self, is_used: bool, when: &str) -> Result<(), RecipeError> {
        if !is_used || self.is_torch() {
            return Ok(());
        }
        let expected = format!("`torch` when {when}");
        Err(out_of_bounds("rollout.engine", expected, format!("`{}`", self.name)))
    }

    /// Rejects settings of `recipe` that the engine does not support, as far as they are known before it starts.
    pub(crate) fn check(&self, recipe: &Recipe) -> Result<(), RecipeError> {
        (self.starter.check)(recipe)
    }

    /// Starts the engine on this thread.
    ///
    /// A deterministic run needs a training engine that supports lockstep, which is only known after the start. Engines for validation are
    /// not asked, because asking switches an engine to lockstep.
    ///
    /// # Errors
    /// If the engine cannot start, or does not support lockstep in a deterministic run. The message names the engine or the key.
    pub(crate) fn start(&self, context: EngineContext) -> anyhow::Result<StartedEngine> {
        let needs_lockstep =
            context.settings.deterministic && context.purpose == EnginePurpose::Training;
        let mut started = (self.starter.start)(context).map_err(|error| self.failed(error))?;
        if needs_lockstep && started.engine.lockstep().is_none() {
            let expected =
                format!("false with the engine `{}`, which cannot race in lockstep", self.name);
            Err(out_of_bounds("trainer.deterministic", expected, true))?;
        }
        Ok(started)
    }

    /// Returns the error of a constructor with the recipe key or the engine that it concerns. An error of the torch engine that is not a
    /// [`CatalogError`] is returned unchanged.
    fn failed(&self, error: anyhow::Error) -> anyhow::Error {
        match error.downcast::<CatalogError>() {
            Ok(CatalogError::Option { key, reason }) => {
                option_error("rollout.engine_options", &key, reason).into()
            }
            Ok(error) => anyhow::Error::from(error).context(self.cannot_start()),
            Err(error) if self.is_torch() => error,
            Err(error) => error.context(self.cannot_start()),
        }
    }

    fn cannot_start(&self) -> String {
        format!("cannot start the engine `{}`", self.name)
    }
}
