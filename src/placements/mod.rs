//! The placements that recipes can name with `placement.kind`. Simulated jobs can name the placements that a program adds, with
//! `pipeline.placement`.
//!
//! An entry of a program is a constructor. It receives the options of `placement.options` or `pipeline.placement_options`, and a
//! [`PlacementContext`].

mod built_in;
mod context;
mod custom;
mod fixed;
pub(crate) mod live;
mod live_cost;
mod planner;
mod planner_options;
mod separate_pools;
mod stream_trainer;
mod time_sharing;

use std::fmt;
use std::sync::Arc;

use rollpacker_operators::placement::PlacementPolicy;
use rollpacker_stages::catalog::{Catalog, CatalogError};
use serde::de::DeserializeOwned;
use toml::Table;

pub use self::context::PlacementContext;
pub use self::custom::CustomPlacement;
use self::custom::MakePolicy;
pub(crate) use self::custom::PlacementKeys;
use self::live::Check;
pub use self::planner_options::{PlannerOptions, PlannerRule};
use crate::recipe::choice::{KeyedChoice, choice, make};
use crate::recipe::error::RecipeError;

/// The placement policies that recipes can name. Clones share their entries.
///
/// ```
/// use rollpacker::placements::Placements;
/// use rollpacker::prelude::*;
/// use rollpacker::stages::catalog::CatalogError;
/// use rollpacker::stages::rollout::Placement;
/// use serde::Deserialize;
///
/// #[derive(Clone, Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct PoolOptions {
///     training_devices: u32,
/// }
///
/// // Some devices always generate and the others always train.
/// let placements = Placements::default().with("pool", |options: PoolOptions, context| {
///     let found = options.training_devices;
///     let instances = context.devices.checked_sub(found).filter(|left| *left > 0).ok_or_else(|| {
///         CatalogError::out_of_range("training_devices", "less than rollout.instances", found)
///     })?;
///     let rollout = Placement { instances, tensor_parallel: 1 };
///     Ok(Separate::new(rollout, options.training_devices))
/// });
/// assert!(placements.names().any(|name| name == "pool"));
/// assert_eq!(placements.options("pool"), Some(["training_devices"].as_slice()));
/// ```
#[derive(Clone)]
pub struct Placements {
    /// The placements of the program.
    custom: Catalog<MakePolicy>,
    built_in: Catalog<Check>,
}

impl Default for Placements {
    /// Returns the built-in placements.
    fn default() -> Self {
        Self { custom: Catalog::new("placement"), built_in: built_in::catalog() }
    }
}

impl fmt::Debug for Placements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

impl PartialEq for Placements {
    /// Returns `true` if both have placements of the same names. The constructors are not compared.
    fn eq(&self, other: &Self) -> bool {
        self.names().eq(other.names())
    }
}

impl Placements {
    /// Adds a policy that `start` constructs from its options. Replaces a policy of the same name, including a built-in policy.
    ///
    /// `start` runs when the recipe is read, also by `--dry-run`, and again on each worker when the run begins. Only the policy of the
    /// first worker decides. For a simulated job, `start` runs when the job is read, and again for each seed.
    #[must_use]
    pub fn with<O, P>(
        self,
        name: &str,
        start: impl Fn(O, PlacementContext) -> Result<P, CatalogError> + Send + Sync + 'static,
    ) -> Self
    where
        O: DeserializeOwned + Clone + Send + Sync + 'static,
        P: PlacementPolicy + 'static,
    {
        let start = Arc::new(start);
        let custom = self.custom.with(name, move |options: O| {
            let start = start.clone();
            let make = move |context| {
                Ok(Box::new(start(options.clone(), context)?) as Box<dyn PlacementPolicy>)
            };
            Ok(Arc::new(make) as MakePolicy)
        });
        Self { custom, ..self }
    }

    /// Returns the names of the built-in placements that the program does not replace, and then the names of the program's placements. Both
    /// parts are in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let is_custom = |name: &&str| self.custom.options(name).is_some();
        self.built_in.names().filter(move |name| !is_custom(name)).chain(self.custom_names())
    }

    /// Returns the names of the placements of the program in alphabetical order. Simulated jobs can name these.
    pub fn custom_names(&self) -> impl Iterator<Item = &str> {
        self.custom.names()
    }

    /// Returns the options of the placement `name`, or `None` if there is no such placement. They are keys of `[placement]` for a built-in
    /// placement, and of `placement.options` and `pipeline.placement_options` for a placement of the program.
    #[must_use]
    pub fn options(&self, name: &str) -> Option<&'static [&'static str]> {
        self.custom.options(name).or_else(|| self.built_in.options(name))
    }

    pub(crate) fn built_in(&self) -> &Catalog<Check> {
        &self.built_in
    }

    /// Returns the policy `name` of the program, or `None` if there is no such policy. Errors name the keys in `keys`.
    ///
    /// # Errors
    /// If an option is unknown or has a wrong type.
    pub(crate) fn find(
        &self,
        keys: PlacementKeys,
        name: &str,
        options: &Table,
    ) -> Result<Option<CustomPlacement>, RecipeError> {
        if self.custom.options(name).is_none() {
            return Ok(None);
        }
        let (choice, keyed) = (choice(name, options), Vec::new());
        let written = KeyedChoice { key: keys.name, section: keys.options, choice, keyed };
        let make = make(&self.custom, &written)?;
        Ok(Some(CustomPlacement { name: name.to_owned(), keys, make }))
    }
}
