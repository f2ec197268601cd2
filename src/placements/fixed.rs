//! The placement `fixed`: all instances generate, and the trainer computes with threads of its own.

use std::sync::Arc;

use rollpacker_operators::placement::PlacementPolicy;
use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};

use super::live::{BuiltIn, LivePlacement, LiveRun, PlacementInputs, TrainerThreads};
use crate::recipe::error::RecipeError;

documented! {
    /// The placement `fixed`, which has no options.
    #[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct Fixed {}
}

impl BuiltIn for Fixed {
    const NAME: &'static str = "fixed";
    const ABOUT: About = About::new(
        &[],
        "the trainer runs next to all instances, with `actor.threads`",
        "this project",
    );

    fn check(self, _recipe: &PlacementInputs<'_>) -> Result<Arc<dyn LivePlacement>, RecipeError> {
        Ok(Arc::new(self))
    }
}

impl LivePlacement for Fixed {
    fn policy(&self, _run: LiveRun) -> Result<Option<Box<dyn PlacementPolicy>>, RecipeError> {
        Ok(None)
    }

    fn trainer_threads(&self) -> TrainerThreads {
        TrainerThreads::Own
    }

    fn describe(&self, _devices: u32, _training: &str) -> Option<String> {
        None
    }
}
