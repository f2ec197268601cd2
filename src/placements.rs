//! The placements that recipes can name with `placement.kind`, and those of a program, which jobs can name with `pipeline.placement`, too.
//!
//! An entry of a program is a constructor. It receives the options of `placement.options` or `pipeline.placement_options`, and a
//! [`PlacementContext`].

use std::fmt;
use std::sync::Arc;

use rollpacker_operators::placement::PlacementPolicy;
use rollpacker_stages::catalog::{Catalog, CatalogError};
use serde::de::DeserializeOwned;
use toml::Table;

use crate::recipe::choice::{KeyedChoice, choice, make, option_error};
use crate::recipe::error::RecipeError;
use crate::recipe::placement::{self, Resolve};

/// The devices that a placement divides between rollout and training. Fields may be added.
///
/// In a live run, a device is an engine instance with its threads. In a simulated job, a device is a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacementContext {
    /// The number of devices of a worker (`rollout.instances`). One policy decides for all workers, and each of them follows it. In a
    /// simulated job, the number of GPUs of the cluster (`cluster.gpus`).
    pub devices: u32,
    /// The number of threads of a device (`rollout.threads_per_instance`). In a simulated job, 1.
    pub threads_per_device: usize,
    /// The number of tokens that the KV cache of a device holds (`rollout.kv_cache_tokens`), summed over the workers, because the policy
    /// receives the responses of all of them. In a simulated job, the cache of an instance by the cost model, divided by its GPUs.
    pub kv_cache_tokens: usize,
    /// The maximum length of a response in tokens (`data.max_response_length`).
    pub max_response_length: u32,
    /// The number of steps that the rollout may be ahead of the training (`algorithm.staleness`; in a simulated job `pipeline.staleness`).
    pub staleness: u64,
    /// The number of devices of an engine instance before the first decision: 1. In a simulated job, `rollout.tensor_parallel`, on which
    /// the model fits.
    pub tensor_parallel: u32,
    /// The minimum number of devices that can train: 1. In a simulated job, the number of GPUs of a copy of the model, which is the product
    /// of `training.tensor_parallel`, `pipeline_parallel` and `context_parallel`. Each further multiple trains one more copy.
    pub training_replica: u32,
}

/// The placement policies that recipes can name. Clones share their entries.
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
/// assert!(placements.names().any(|name| name == "pool"));
/// assert_eq!(placements.options("pool"), Some(["training_devices"].as_slice()));
/// ```
#[derive(Clone)]
pub struct Placements {
    /// The placements of the program.
    own: Catalog<MakePolicy>,
    built_in: Catalog<Resolve>,
}

type MakePolicy =
    Arc<dyn Fn(PlacementContext) -> Result<Box<dyn PlacementPolicy>, CatalogError> + Send + Sync>;

impl Default for Placements {
    /// Returns the built-in placements.
    fn default() -> Self {
        Self { own: Catalog::new("placement"), built_in: placement::built_in() }
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
        let own = self.own.with(name, move |options: O| {
            let start = start.clone();
            let make = move |context| {
                Ok(Box::new(start(options.clone(), context)?) as Box<dyn PlacementPolicy>)
            };
            Ok(Arc::new(make) as MakePolicy)
        });
        Self { own, ..self }
    }

    /// Returns the names: those of the built-in placements, and then those of the program, each in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let is_own = |name: &&str| self.own.options(name).is_some();
        self.built_in.names().filter(move |name| !is_own(name)).chain(self.own_names())
    }

    /// Returns the names of the placements of the program in alphabetical order. Simulated jobs can name these.
    pub fn own_names(&self) -> impl Iterator<Item = &str> {
        self.own.names()
    }

    /// Returns the options of the placement `name`, or `None` if there is no such placement. They are keys of `[placement]` for a built-in
    /// placement, and of `placement.options` and `pipeline.placement_options` for one of the program.
    #[must_use]
    pub fn options(&self, name: &str) -> Option<&'static [&'static str]> {
        self.own.options(name).or_else(|| self.built_in.options(name))
    }

    pub(crate) fn built_in(&self) -> &Catalog<Resolve> {
        &self.built_in
    }

    /// Returns the policy `name` of the program, or `None` if there is no such policy. `keys` are those that errors name.
    ///
    /// # Errors
    /// If an option is unknown or has a wrong type.
    pub(crate) fn find(
        &self,
        keys: PlacementKeys,
        name: &str,
        options: &Table,
    ) -> Result<Option<OwnPlacement>, RecipeError> {
        if self.own.options(name).is_none() {
            return Ok(None);
        }
        let (choice, keyed) = (choice(name, options), Vec::new());
        let written = KeyedChoice { key: keys.name, section: keys.options, choice, keyed };
        let make = make(&self.own, &written)?;
        Ok(Some(OwnPlacement { name: name.to_owned(), keys, make }))
    }
}

/// The keys that name a placement and hold its options, in a recipe or in a simulated job.
#[derive(Clone, Copy)]
pub(crate) struct PlacementKeys {
    pub(crate) name: &'static str,
    pub(crate) options: &'static str,
}

/// A placement policy of a program, whose options have been read.
#[derive(Clone)]
pub struct OwnPlacement {
    name: String,
    keys: PlacementKeys,
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
            CatalogError::Option { key, reason } => option_error(self.keys.options, &key, reason),
            other => RecipeError::Type { key: self.keys.name.into(), reason: other.to_string() },
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
