//! The division of engine instances between rollout and training, from the section `[placement]`.

use std::sync::Arc;

use rollpacker_operators::overlap::{GroupDelivery, Scoring};

use super::Recipe;
use super::choice::{KeyedChoice, choice, make, type_errors};
use super::error::{RecipeError, one_of, out_of_bounds, unknown_in};
use super::raw::{self, RawRecipe};
use crate::code_list::code_list;
use crate::placements::live::{Check, LivePlacement, LiveRun, PlacementInputs, TrainerThreads};
use crate::placements::{PlacementContext, PlacementKeys, PlannerOptions};

const KIND: &str = "placement.kind";
const KEYS: PlacementKeys = PlacementKeys { name: KIND, options: "placement.options" };
/// Names of placements in simulated jobs, each with the name of the same placement here.
const SIMULATED: [(&str, &str); 3] =
    [("colocated", "time_sharing"), ("separate", "separate_pools"), ("stream", "stream_trainer")];

impl RawRecipe {
    /// Returns the placement with checked options.
    ///
    /// # Errors
    /// If an option is out of bounds, or the rest of the recipe does not allow the placement.
    pub(super) fn live_placement(&self) -> Result<Arc<dyn LivePlacement>, RecipeError> {
        // The workers of one process. A run of several processes checks the placement again when it begins.
        let workers = self.trainer.workers;
        let (kind, context) = (self.placement.kind.as_str(), self.placement_context(workers));
        let has_profile = self.rollout.profile.is_some();
        let check = self.placement.read_options()?;
        let placement = check(&PlacementInputs { kind, context, has_profile })?;
        // The policy is built here only to check its options. The run builds its own.
        placement.policy(LiveRun { context, workers, monitor: None })?;
        Ok(placement)
    }

    /// Returns the number of threads of the trainer. For a placement that lends instances, it is the number of threads while no instance is
    /// lent: `actor.threads`, or 1 if the recipe does not set it.
    ///
    /// With `fixed`, the default is the number of cores divided by the number of workers. The trainer then shares the cores with the
    /// engine, and has all of them after the last response. With `time_sharing`, `planner` and `separate_pools`, the trainer always
    /// computes on the same devices, so the result is the number of threads of these devices, or `actor.threads` if it is larger.
    pub(super) fn trainer_threads(&self, placement: &dyn LivePlacement) -> usize {
        let devices = match placement.trainer_threads() {
            TrainerThreads::Own => {
                return self.actor.threads.unwrap_or_else(|| cores() / self.trainer.workers).max(1);
            }
            TrainerThreads::Lent => 0,
            TrainerThreads::OfDevices(devices) => devices,
        };
        let of_devices = devices as usize * self.rollout.threads_per_instance;
        self.actor.threads.unwrap_or(1).max(of_devices)
    }

    /// Rejects a placement that lends instances during the rollout if responses are scored, or groups are trained on, only after the
    /// rollout.
    pub(super) fn check_streams(
        &self,
        placement: &dyn LivePlacement,
        scoring: Scoring,
        gradient: GroupDelivery,
    ) -> Result<(), RecipeError> {
        let (key, written) = if !placement.needs_streamed_groups() {
            return Ok(());
        } else if scoring == Scoring::AfterRollout {
            ("pipeline.reward", self.pipeline.reward.map(|_| "after_rollout".to_owned()))
        } else if gradient == GroupDelivery::WholeStep {
            ("pipeline.gradient", self.pipeline.gradient.map(|_| "whole_step".to_owned()))
        } else {
            return Ok(());
        };
        let expected = format!("streamed with {KIND} = {}", self.placement.kind);
        let default = || format!("the default of schedule.name = {}", self.schedule.name);
        Err(out_of_bounds(key, expected, written.unwrap_or_else(default)))
    }

    /// Returns the context from which the placement policy of a run with `workers` workers is built.
    fn placement_context(&self, workers: usize) -> PlacementContext {
        PlacementContext {
            devices: self.rollout.instances,
            threads_per_device: self.rollout.threads_per_instance,
            kv_cache_tokens: self.rollout.kv_cache_tokens.saturating_mul(workers),
            max_response_length: self.data.max_response_length,
            staleness: self.algorithm.staleness,
            tensor_parallel: 1,
            training_replica: 1,
        }
    }
}

impl raw::Placement {
    /// Returns the errors of this section alone: keys that no placement has, and an unknown name. If the name is known, also keys that this
    /// placement does not have, the table `options` for a built-in placement, values of a wrong type and numbers that are not finite.
    pub(super) fn errors(&self) -> Vec<RecipeError> {
        let catalog = self.placements.built_in();
        let all = catalog.names().filter_map(|name| catalog.options(name)).flatten().copied();
        let all: Vec<_> = all.chain(["kind", "options"]).collect();
        let mut errors =
            Vec::from_iter(unknown_in("placement", self.built_in_options.keys(), &all));
        if let Err(error) = self.check_kind() {
            errors.push(error);
            return errors;
        }
        let mut written = self.written();
        for (key, found) in
            self.built_in_options.iter().filter(|(key, _)| all.contains(&key.as_str()))
        {
            if let Err(error) = self.check_option(key, found) {
                written.choice.options.remove(key);
                errors.push(error);
            }
        }
        if !self.options.is_empty() && !self.is_custom() {
            let keys = code_list(self.options.keys());
            let expected = "no value unless placement.kind is one that the program adds";
            errors.push(out_of_bounds(KEYS.options, expected, keys));
        }
        if self.is_custom() {
            errors.extend(self.read_options().err());
        } else {
            written.choice.options.retain(|key, _| all.contains(&key.as_str()));
            errors.extend(type_errors(catalog, &written));
        }
        errors
    }

    /// Rejects a name that no placement has. For a name from simulated jobs, the error suggests the placement that it corresponds to.
    fn check_kind(&self) -> Result<(), RecipeError> {
        let (kind, kinds) = (&self.kind, self.placements.names().collect::<Vec<_>>());
        let simulated = SIMULATED.iter().find(|(simulated, _)| simulated == kind);
        match simulated.filter(|_| !kinds.contains(&kind.as_str())) {
            Some((_, ours)) => {
                let expected = format!("one of {} (did you mean `{ours}`?)", kinds.join(", "));
                Err(out_of_bounds(KIND, expected, format!("`{kind}`")))
            }
            None => one_of(KIND, kind, &kinds),
        }
    }

    /// Rejects a key that the selected placement does not have, and a number that is not finite.
    fn check_option(&self, key: &str, found: &toml::Value) -> Result<(), RecipeError> {
        let catalog = self.placements.built_in();
        let has = |name: &&str| catalog.options(name).is_some_and(|keys| keys.contains(&key));
        let having: Vec<_> = catalog.names().filter(has).collect();
        let name = format!("placement.{key}");
        if self.is_custom() || !having.contains(&self.kind.as_str()) {
            let expected = format!("no value unless {KIND} = {}", having.join(" or "));
            return Err(out_of_bounds(name, expected, found));
        }
        if found.as_float().is_some_and(|number| !number.is_finite()) {
            return Err(out_of_bounds(name, "a finite number", found));
        }
        Ok(())
    }

    /// Returns `true` if the placement was added by the program. Its options are then in `placement.options`.
    fn is_custom(&self) -> bool {
        self.placements.custom_names().any(|own| own == self.kind)
    }

    /// Reads the options and returns the function that checks them against the rest of the recipe.
    fn read_options(&self) -> Result<Check, RecipeError> {
        if let Some(own) = self.placements.find(KEYS, &self.kind, &self.options)? {
            let own = Arc::new(own);
            return Ok(Arc::new(move |_| Ok(own.clone())));
        }
        make(self.placements.built_in(), &self.written())
    }

    /// Returns the name of a built-in placement and its options as the recipe writes them.
    fn written(&self) -> KeyedChoice {
        let choice = choice(&self.kind, &self.built_in_options);
        KeyedChoice { key: KIND, section: "placement", choice, keyed: Vec::new() }
    }
}

/// Returns the number of cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Recipe {
    /// Returns the number of engine instances of a worker: `rollout.instances` minus the instances whose threads only train.
    #[must_use]
    pub fn engine_instances(&self) -> u32 {
        self.rollout.instances - self.placement.training_only_devices()
    }

    /// Returns the number of threads that train for each lent instance. `None` if the trainer's threads do not change during the run.
    #[must_use]
    pub fn lent_threads(&self) -> Option<usize> {
        let lends = self.placement.trainer_threads() == TrainerThreads::Lent;
        lends.then_some(self.rollout.threads_per_instance)
    }

    /// Returns `true` if all instances always generate and the trainer has threads of its own.
    #[must_use]
    pub fn has_fixed_placement(&self) -> bool {
        self.placement.trainer_threads() == TrainerThreads::Own
    }

    /// Returns the options of the parallelism planner; `None` if an instance always has one device.
    #[must_use]
    pub fn planner(&self) -> Option<PlannerOptions> {
        self.placement.planner()
    }

    /// Returns the context from which the placement policy of a run with `workers` workers is built. Its KV cache tokens are the sum over
    /// the workers. All other values describe one worker.
    #[must_use]
    pub fn placement_context(&self, workers: usize) -> PlacementContext {
        self.raw.placement_context(workers)
    }

    #[cfg(feature = "torch")]
    pub(crate) fn placement_name(&self) -> &str {
        &self.raw.placement.kind
    }

    /// Returns a description of the placement, or `None` if it is fixed.
    #[must_use]
    pub fn describe_placement(&self) -> Option<String> {
        let threads = self.trainer.threads;
        let training = self.lent_threads().map_or_else(
            || format!("{threads} threads train"),
            |each| format!("{each} threads of each lent instance train, at least {threads}"),
        );
        let described = self.placement.describe(self.engine_instances(), &training)?;
        Some(format!("{}: {described}", self.raw.placement.kind))
    }
}
