//! The placement policies that a program adds to those that recipes can name with `placement.kind`.
//!
//! An entry of the catalog is a constructor. It receives the options of `placement.options` and a [`PlacementContext`].

use std::fmt;
use std::sync::Arc;

use rollpacker_operators::placement::PlacementPolicy;
use rollpacker_stages::catalog::{Catalog, CatalogError};
use serde::de::DeserializeOwned;
use toml::Table;

use crate::recipe::choice::{KeyedChoice, choice, make, option_error};
use crate::recipe::error::RecipeError;

/// The devices that a placement divides between rollout and training. A device is an engine instance with its threads. Fields may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacementContext {
    /// The number of devices of a worker (`rollout.instances`). One policy decides for all workers, and each of them follows it.
    pub devices: u32,
    /// The number of threads of a device (`rollout.threads_per_instance`).
    pub threads_per_device: usize,
    /// The number of tokens that the KV cache of a device holds (`rollout.kv_cache_tokens`), summed over the workers, because the policy
    /// receives the responses of all of them.
    pub kv_cache_tokens: usize,
    /// The maximum length of a response in tokens (`data.max_response_length`).
    pub max_response_length: u32,
    /// The number of steps that the rollout may be ahead of the training (`algorithm.staleness`).
    pub staleness: u64,
}

/// The placement policies of a program. Clones share their entries.
///
/// ```
/// use rollpacker::placements::Placements;
/// use rollpacker::prelude::*;
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
///     let instances = context.devices - options.training_devices;
///     let rollout = Placement { instances, tensor_parallel: 1 };
///     Ok(Separate::new(rollout, options.training_devices))
/// });
/// assert_eq!(placements.names().collect::<Vec<_>>(), ["pool"]);
/// assert_eq!(placements.options("pool"), Some(["training_devices"].as_slice()));
/// ```
#[derive(Clone)]
pub struct Placements(Catalog<MakePolicy>);

type MakePolicy =
    Arc<dyn Fn(PlacementContext) -> Result<Box<dyn PlacementPolicy>, CatalogError> + Send + Sync>;

impl Default for Placements {
    /// Returns a catalog without entries.
    fn default() -> Self {
        Self(Catalog::new("placement"))
    }
}

impl fmt::Debug for Placements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

impl PartialEq for Placements {
    /// Compares the names.
    fn eq(&self, other: &Self) -> bool {
        self.names().eq(other.names())
    }
}

impl Placements {
    /// Adds a policy that `start` constructs from its options. Replaces a policy of the same name, also a built-in one.
    ///
    /// `start` runs when the recipe is read, also by `--dry-run`, and again on each worker when the run begins. Only the policy of the
    /// first worker decides.
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
        Self(self.0.with(name, move |options: O| {
            let start = start.clone();
            let make = move |context| {
                Ok(Box::new(start(options.clone(), context)?) as Box<dyn PlacementPolicy>)
            };
            Ok(Arc::new(make) as MakePolicy)
        }))
    }

    /// Returns the names of the policies in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.names()
    }

    /// Returns the keys that `placement.options` may have for the policy `name`, or `None` if there is no such policy.
    #[must_use]
    pub fn options(&self, name: &str) -> Option<&'static [&'static str]> {
        self.0.options(name)
    }

    /// Returns the policy `name`, or `None` if there is no such policy.
    ///
    /// # Errors
    /// If an option is unknown or has a wrong type.
    pub(crate) fn find(
        &self,
        name: &str,
        options: &Table,
    ) -> Result<Option<OwnPlacement>, RecipeError> {
        if self.options(name).is_none() {
            return Ok(None);
        }
        let (choice, keyed) = (choice(name, options), Vec::new());
        let written =
            KeyedChoice { key: "placement.kind", section: "placement.options", choice, keyed };
        let make = make(&self.0, &written)?;
        Ok(Some(OwnPlacement { name: name.to_owned(), make }))
    }
}

/// A placement policy of a program, whose options have been read.
#[derive(Clone)]
pub struct OwnPlacement {
    name: String,
    make: MakePolicy,
}

impl OwnPlacement {
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
            CatalogError::Option { key, reason } => option_error("placement.options", &key, reason),
            other => RecipeError::Type { key: "placement.kind".into(), reason: other.to_string() },
        })
    }
}

impl fmt::Debug for OwnPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnPlacement").field(&self.name).finish()
    }
}

impl PartialEq for OwnPlacement {
    /// Compares the names.
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}
