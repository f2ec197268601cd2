//! The placements that a program adds.

use std::fmt;
use std::sync::Arc;

use rollpacker_operators::placement::PlacementPolicy;
use rollpacker_stages::catalog::CatalogError;

use super::context::PlacementContext;
use super::live::{LivePlacement, LiveRun, TrainerThreads};
use crate::recipe::choice::option_error;
use crate::recipe::error::RecipeError;

/// A function that creates a policy in its initial state. It has already read the options of the policy.
pub(super) type MakePolicy =
    Arc<dyn Fn(PlacementContext) -> Result<Box<dyn PlacementPolicy>, CatalogError> + Send + Sync>;

/// The keys that name a placement and hold its options, in a recipe or in a simulated job.
#[derive(Clone, Copy)]
pub(crate) struct PlacementKeys {
    pub(crate) name: &'static str,
    pub(crate) options: &'static str,
}

/// A placement policy that a program added, with the options that a recipe or a simulated job sets.
#[derive(Clone)]
pub struct CustomPlacement {
    pub(super) name: String,
    pub(super) keys: PlacementKeys,
    pub(super) make: MakePolicy,
}

impl CustomPlacement {
    /// Returns the name of the policy.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the policy in its initial state.
    ///
    /// # Errors
    /// If the constructor rejects an option or cannot make the policy. The message names the key.
    pub fn policy(
        &self,
        context: PlacementContext,
    ) -> Result<Box<dyn PlacementPolicy>, RecipeError> {
        (self.make)(context).map_err(|error| match error {
            CatalogError::Option { key, reason } => option_error(self.keys.options, &key, reason),
            other => RecipeError::Type { key: self.keys.name.into(), reason: other.to_string() },
        })
    }
}

impl fmt::Debug for CustomPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CustomPlacement").field(&self.name).finish()
    }
}

impl PartialEq for CustomPlacement {
    /// Returns `true` if both policies have the same name. Their options are not compared.
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl LivePlacement for CustomPlacement {
    fn policy(&self, run: LiveRun) -> Result<Option<Box<dyn PlacementPolicy>>, RecipeError> {
        Self::policy(self, run.context).map(Some)
    }

    fn trainer_threads(&self) -> TrainerThreads {
        TrainerThreads::Lent
    }

    fn describe(&self, devices: u32, training: &str) -> Option<String> {
        Some(format!("divides {devices} instances; {training}"))
    }
}
