//! The constructors of engines, and the engines that they start.

use std::sync::Arc;

use rollpacker_stages::catalog::CatalogError;
use rollpacker_stages::rollout::RolloutEngine;
use rollpacker_torch::rollout::colocated::ColocatedUseMeter;
use rollpacker_torch::rollout::live::LiveIterations;

use super::context::EngineContext;
use crate::recipe::Recipe;
use crate::recipe::error::RecipeError;

/// A started engine, and the sources of its metrics.
pub(crate) struct StartedEngine {
    pub(crate) engine: Box<dyn RolloutEngine>,
    /// The measurements of the torch engine; `None` for other engines.
    pub(crate) measurements: Option<EngineMeasurements>,
    /// The metrics of an engine over servers; `None` for other engines.
    pub(crate) server_metrics: Option<MetricSource>,
}

/// A function that returns the names and values of metrics since its previous call.
pub type MetricSource = Box<dyn FnMut() -> Vec<(String, f64)>>;

pub(crate) struct EngineMeasurements {
    /// The decode iterations, for comparison with a profile.
    pub(crate) live: LiveIterations,
    /// The work of the colocated models; `None` if the engine hosts none.
    pub(crate) colocated: Option<ColocatedUseMeter>,
}

type Start = Arc<dyn Fn(EngineContext) -> anyhow::Result<StartedEngine> + Send + Sync>;
type Check = Arc<dyn Fn(&Recipe) -> Result<(), RecipeError> + Send + Sync>;

/// A constructor of engines, with the options that the recipe sets.
#[derive(Clone)]
pub(crate) struct EngineStarter {
    pub(super) start: Start,
    /// Rejects settings of a recipe that the engine does not support.
    pub(super) check: Check,
    /// `true` for the torch engine, which replays lengths, is compared with a profile and hosts judges.
    pub(super) is_torch: bool,
}

impl EngineStarter {
    /// Returns a starter that calls `start`, for an engine other than the torch engine that supports all settings of a recipe.
    pub(super) fn new(
        start: impl Fn(EngineContext) -> anyhow::Result<StartedEngine> + Send + Sync + 'static,
    ) -> Self {
        Self { start: Arc::new(start), check: Arc::new(|_| Ok(())), is_torch: false }
    }

    /// Returns a starter for an engine that a program adds.
    pub(super) fn custom<E: RolloutEngine + 'static>(
        start: impl Fn(EngineContext) -> Result<E, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        Self::new(move |context| {
            let engine = Box::new(start(context)?);
            Ok(StartedEngine { engine, measurements: None, server_metrics: None })
        })
    }
}
