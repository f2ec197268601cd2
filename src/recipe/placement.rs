//! The division of engine instances between rollout and training, from the section `[placement]`.

use std::sync::Arc;

use rollpacker_operators::overlap::{GroupDelivery, Scoring};
use rollpacker_operators::placement::planner::Rule;
use rollpacker_operators::placement::{PlacementError, RoundFilter, StreamTrainerOptions, Trigger};
use rollpacker_stages::catalog::{About, Catalog, NoOptions};
use rollpacker_stages::documented::Documented;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Recipe;
use super::choice::{KeyedChoice, choice, make};
use super::choices::check_choice;
use super::error::{RecipeError, between, nearest, one_of, out_of_bounds};
use super::raw::{self, RawRecipe};
use crate::placements::{OwnPlacement, PlacementContext, PlacementKeys, Placements};

/// The checked section `[placement]`.
#[derive(Clone, Debug, PartialEq)]
pub enum PlacementKind {
    /// The trainer runs next to all instances, with its own threads.
    Fixed,
    /// All instances generate until the rollout of the step has ended; then their threads train.
    TimeSharing,
    /// Some instances generate, and the threads of the others train.
    SeparatePools {
        /// Number of instances whose threads train.
        training_instances: u32,
    },
    /// Instances are lent to training during the tail of a round.
    StreamTrainer {
        /// The choice of the instances that are lent.
        stream: StreamTrainerOptions,
        /// The number of devices of an instance.
        planner: PlannerOptions,
    },
    /// All instances generate, on as many devices each as a rule decides for the round, until its rollout has ended; then their threads
    /// train.
    Planner(PlannerOptions),
    /// A policy of the program divides the instances.
    Own(OwnPlacement),
}

/// The options of a parallelism planner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannerOptions {
    /// The rule that chooses the number of devices of an instance.
    pub rule: Rule,
    /// The number of devices of an instance in the first round of each kind.
    pub tensor_parallel: u32,
}

const KIND: &str = "placement.kind";
const KEYS: PlacementKeys = PlacementKeys { name: KIND, options: "placement.options" };
/// The names that simulated jobs have for these kinds.
const SIMULATED: [(&str, &str); 3] =
    [("colocated", "time_sharing"), ("separate", "separate_pools"), ("stream", "stream_trainer")];

/// An entry of the catalog of built-in placements. It checks the options, which have been read, with the rest of a recipe.
pub(crate) type Resolve =
    Arc<dyn Fn(&RawRecipe) -> Result<PlacementKind, RecipeError> + Send + Sync>;

/// Returns the built-in placements.
pub(crate) fn built_in() -> Catalog<Resolve> {
    let catalog = Catalog::new("placement");
    let summary = "the trainer runs next to all instances, with `actor.threads`";
    let fixed = |_: &NoOptions, _: &RawRecipe| Ok(PlacementKind::Fixed);
    let catalog = with(catalog, "fixed", summary, "this project", fixed);
    let summary =
        "all instances generate until the rollout of the step has ended; then their threads train";
    let time_sharing = |_: &NoOptions, recipe: &RawRecipe| recipe.time_sharing();
    let catalog = with(catalog, "time_sharing", summary, "RLHFuse, verl", time_sharing);
    let summary = "some instances only generate, and the threads of the others only train";
    let separate_pools = |options: &_, recipe: &RawRecipe| recipe.separate_pools(options);
    let catalog = with(catalog, "separate_pools", summary, "StreamRL, AReaL", separate_pools);
    let summary = "instances are lent to training during the tail of a round";
    let stream_trainer = |options: &_, recipe: &RawRecipe| recipe.stream_trainer(options);
    let source = "RollPacker, Algorithm 1";
    let catalog = with(catalog, "stream_trainer", summary, source, stream_trainer);
    let summary = "`time_sharing` with instances that compute on several devices, as `rule` decides for each round";
    let planner = |options: &raw::Planner, recipe: &RawRecipe| {
        recipe.planner(&options.rule, options.tensor_parallel).map(PlacementKind::Planner)
    };
    with(catalog, "planner", summary, "RollPacker, section 4.3", planner)
}

/// Adds a built-in placement.
fn with<O>(
    catalog: Catalog<Resolve>,
    name: &str,
    summary: &'static str,
    source: &'static str,
    resolve: fn(&O, &RawRecipe) -> Result<PlacementKind, RecipeError>,
) -> Catalog<Resolve>
where
    O: Documented + DeserializeOwned + Serialize + Default + Send + Sync + 'static,
{
    let make = move |options: O| {
        Ok(Arc::new(move |recipe: &RawRecipe| resolve(&options, recipe)) as Resolve)
    };
    catalog.described(name, About::new(&[], summary, source), make).with_fields::<O>(name)
}

impl RawRecipe {
    /// Returns the division of the instances.
    ///
    /// # Errors
    /// If the kind is unknown, an option is out of bounds or belongs to another kind, or the rest of the recipe does not allow the kind.
    pub(super) fn placement_kind(&self) -> Result<PlacementKind, RecipeError> {
        let raw::Placement { kind, options, built_in_options, placements } = &self.placement;
        if let Some(own) = placements.find(KEYS, kind, options)? {
            self.placement.reject_unused("")?;
            // Made here only to check its options. The run makes its own.
            own.policy(self.placement_context())?;
            return Ok(PlacementKind::Own(own));
        }
        check_kind(kind, placements)?;
        self.placement.reject_unused(kind)?;
        let choice = choice(kind, built_in_options);
        let written = KeyedChoice { key: KIND, section: "placement", choice, keyed: Vec::new() };
        make(placements.built_in(), &written)?(self)
    }

    /// Returns the number of threads of the trainer while no more are lent to it.
    ///
    /// By default, the trainer of a fixed placement has a thread for each core: those that generate and those that train share the cores,
    /// and training has all of them when the responses have ended. With `time_sharing`, `planner` and `separate_pools` the trainer always
    /// has the same devices while it computes, so the number is constant.
    pub(super) fn trainer_threads(&self, placement: &PlacementKind) -> usize {
        let devices = match placement {
            PlacementKind::Fixed => {
                return self.actor.threads.unwrap_or_else(|| cores() / self.trainer.workers).max(1);
            }
            PlacementKind::StreamTrainer { .. } | PlacementKind::Own(_) => 0,
            PlacementKind::TimeSharing | PlacementKind::Planner(_) => self.rollout.instances,
            PlacementKind::SeparatePools { training_instances } => *training_instances,
        };
        let of_devices = devices as usize * self.rollout.threads_per_instance;
        self.actor.threads.unwrap_or(1).max(of_devices)
    }

    /// Returns the devices that the placement of a single worker divides.
    fn placement_context(&self) -> PlacementContext {
        PlacementContext {
            devices: self.rollout.instances,
            threads_per_device: self.rollout.threads_per_instance,
            kv_cache_tokens: self.rollout.kv_cache_tokens,
            max_response_length: self.data.max_response_length,
            staleness: self.algorithm.staleness,
            tensor_parallel: 1,
            training_replica: 1,
        }
    }

    fn time_sharing(&self) -> Result<PlacementKind, RecipeError> {
        self.check_on_policy().map(|()| PlacementKind::TimeSharing)
    }

    fn separate_pools(&self, options: &raw::SeparatePools) -> Result<PlacementKind, RecipeError> {
        self.check_instances()?;
        let instances = self.rollout.instances;
        let training_instances = options.training_instances.unwrap_or(instances / 2);
        between("placement.training_instances", training_instances, 1, instances - 1)?;
        Ok(PlacementKind::SeparatePools { training_instances })
    }

    fn stream_trainer(&self, options: &raw::StreamTrainer) -> Result<PlacementKind, RecipeError> {
        let planner = self.planner(&options.rule, options.tensor_parallel)?;
        let written = |key| self.placement.built_in_options.get_key_value(key);
        let of_adaptive = ["to", "every", "headroom"].into_iter().find_map(written);
        if let Some((key, found)) = of_adaptive.filter(|_| options.trigger == "fixed") {
            let expected = "no value unless placement.trigger = adaptive";
            return Err(out_of_bounds(format!("placement.{key}"), expected, found));
        }
        let stream = options.checked()?.validated().map_err(refused)?;
        let instances = f64::from(self.rollout.instances);
        if (instances * stream.keep).ceil() >= instances {
            let expected =
                format!("a share that leaves one of rollout.instances = {instances} to lend");
            return Err(out_of_bounds("placement.keep", expected, stream.keep));
        }
        Ok(PlacementKind::StreamTrainer { stream, planner })
    }

    /// Returns the checked options of the planner.
    fn planner(&self, rule: &str, tensor_parallel: u32) -> Result<PlannerOptions, RecipeError> {
        self.check_on_policy()?;
        self.check_instances()?;
        check_choice("placement.rule", rule)?;
        let rule = match rule {
            "paper" => Rule::paper(),
            "predictive" => Rule::Predictive,
            _ => Rule::Fixed,
        };
        let instances = self.rollout.instances;
        if rule != Rule::Fixed && !instances.is_multiple_of(2) {
            let expected = "an even number, because the rule of the placement joins instances";
            return Err(out_of_bounds("rollout.instances", expected, instances));
        }
        if !parallelisms(instances).any(|size| size == tensor_parallel) {
            let sizes: Vec<_> = parallelisms(instances).map(|size| size.to_string()).collect();
            let sizes = sizes.join(", ");
            let expected = format!(
                "one of {sizes}, the powers of two that divide rollout.instances = {instances}"
            );
            return Err(out_of_bounds("placement.tensor_parallel", expected, tensor_parallel));
        }
        if rule == Rule::Predictive && self.rollout.profile.is_none() {
            let expected = "a profile with placement.rule = predictive, as `rollpacker profile` writes it for this recipe";
            return Err(out_of_bounds("rollout.profile", expected, "none"));
        }
        Ok(PlannerOptions { rule, tensor_parallel })
    }

    /// Rejects staleness for kinds in which an instance either generates or trains: the next round would take the instances back before
    /// the step is trained on.
    fn check_on_policy(&self) -> Result<(), RecipeError> {
        let (kind, staleness) = (&self.placement.kind, self.algorithm.staleness);
        if staleness == 0 {
            return Ok(());
        }
        let expected = format!(
            "0 with placement.kind = {kind}: the next round would need the instances that train (use separate_pools)"
        );
        Err(out_of_bounds("algorithm.staleness", expected, staleness))
    }

    fn check_instances(&self) -> Result<(), RecipeError> {
        let (kind, instances) = (&self.placement.kind, self.rollout.instances);
        if instances > 1 {
            return Ok(());
        }
        let expected = format!("at least 2 with placement.kind = {kind}");
        Err(out_of_bounds("rollout.instances", expected, instances))
    }
}

impl raw::StreamTrainer {
    /// Returns the options as the policy takes them. Their ranges are not checked yet, except that of `to`.
    fn checked(&self) -> Result<StreamTrainerOptions, RecipeError> {
        let Self { from, to, every, keep, headroom, .. } = *self;
        let trigger = match self.trigger.as_str() {
            "fixed" => Trigger::Fixed { share: from },
            "predicted" => {
                let expected = "adaptive or fixed: a live run has no predicted training times";
                return Err(out_of_bounds("placement.trigger", expected, "predicted"));
            }
            other => {
                check_choice("placement.trigger", other)?;
                if to < from {
                    let expected = format!("at least placement.from = {from}, and at most 1");
                    return Err(out_of_bounds("placement.to", expected, to));
                }
                Trigger::Adaptive { from, to, every }
            }
        };
        check_choice("placement.rounds", &self.rounds)?;
        let rounds = if self.rounds == "all" { RoundFilter::All } else { RoundFilter::Long };
        Ok(StreamTrainerOptions { rounds, trigger, keep, headroom, consolidate: false })
    }
}

impl raw::Placement {
    /// Rejects the first key that the built-in placement `kind` does not have, and a number that none can use. `kind` is empty for a
    /// placement of the program, which has none of these keys.
    fn reject_unused(&self, kind: &str) -> Result<(), RecipeError> {
        let catalog = self.placements.built_in();
        let has =
            |name: &str, key: &str| catalog.options(name).is_some_and(|keys| keys.contains(&key));
        for (key, found) in &self.built_in_options {
            let name = format!("placement.{key}");
            let having: Vec<_> = catalog.names().filter(|having| has(having, key)).collect();
            if having.is_empty() {
                let keys = catalog.names().filter_map(|name| catalog.options(name)).flatten();
                let nearest = nearest(key, keys.copied().chain(["kind", "options"]));
                let nearest = nearest.map(|near| format!("placement.{near}"));
                return Err(RecipeError::UnknownKey { key: name, nearest });
            }
            if !having.contains(&kind) {
                let expected = format!("no value unless {KIND} = {}", having.join(" or "));
                return Err(out_of_bounds(name, expected, found));
            }
            if found.as_float().is_some_and(|number| !number.is_finite()) {
                return Err(out_of_bounds(name, "a finite number", found));
            }
        }
        if kind.is_empty() || self.options.is_empty() {
            return Ok(());
        }
        let keys: Vec<_> = self.options.keys().map(|key| format!("`{key}`")).collect();
        let expected = "no value unless placement.kind is one that the program adds";
        Err(out_of_bounds(KEYS.options, expected, keys.join(", ")))
    }
}

/// Returns the number of cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Recipe {
    /// Returns the number of engine instances of a worker: `rollout.instances` without those whose threads only train.
    #[must_use]
    pub fn engine_instances(&self) -> u32 {
        let training = match &self.placement {
            PlacementKind::SeparatePools { training_instances } => *training_instances,
            _ => 0,
        };
        self.rollout.instances - training
    }

    /// Returns the number of threads that train for each lent instance. `None` if the trainer's threads do not change during the run.
    #[must_use]
    pub fn lent_threads(&self) -> Option<usize> {
        let lends =
            matches!(self.placement, PlacementKind::StreamTrainer { .. } | PlacementKind::Own(_));
        lends.then_some(self.rollout.threads_per_instance)
    }

    /// Returns the devices that the placement of a run with this number of workers divides.
    #[must_use]
    pub fn placement_context(&self, workers: usize) -> PlacementContext {
        let of_one = self.raw.placement_context();
        let kv_cache_tokens = of_one.kv_cache_tokens.saturating_mul(workers);
        PlacementContext { kv_cache_tokens, ..of_one }
    }

    /// Rejects a stream trainer without groups to train on while the rollout runs: lent instances would be idle.
    pub(super) fn check_streams(&self) -> Result<(), RecipeError> {
        let (scoring, delivery) = (self.scoring, self.gradient);
        let key = match self.placement {
            PlacementKind::StreamTrainer { .. } if scoring == Scoring::AfterRollout => {
                "pipeline.reward"
            }
            PlacementKind::StreamTrainer { .. } if delivery == GroupDelivery::WholeStep => {
                "pipeline.gradient"
            }
            _ => return Ok(()),
        };
        let expected = "streamed with placement.kind = stream_trainer";
        let found = format!("the default of schedule.name = {}", self.raw.schedule.name);
        let written = if key == "pipeline.reward" {
            self.raw.pipeline.reward.map(|_| "after_rollout".to_owned())
        } else {
            self.raw.pipeline.gradient.clone()
        };
        Err(out_of_bounds(key, expected, written.unwrap_or(found)))
    }

    /// Returns the name of the placement.
    #[cfg(feature = "torch")]
    pub(crate) fn placement_name(&self) -> &str {
        &self.raw.placement.kind
    }

    /// Returns a description of the placement, or `None` if it is fixed.
    #[must_use]
    pub fn describe_placement(&self) -> Option<String> {
        let (instances, threads) = (self.engine_instances(), self.trainer.threads);
        let lent = || {
            let of_each =
                |each| format!("{each} threads of each lent instance train, at least {threads}");
            self.lent_threads().map_or_else(|| format!("{threads} threads train"), of_each)
        };
        Some(match &self.placement {
            PlacementKind::Fixed => return None,
            PlacementKind::Own(own) => {
                format!("{}: divides {instances} instances; {}", own.name(), lent())
            }
            PlacementKind::TimeSharing => {
                format!(
                    "time_sharing: {instances} instances generate, then {threads} threads train"
                )
            }
            PlacementKind::SeparatePools { .. } => {
                format!("separate_pools: {instances} instances generate, {threads} threads train")
            }
            PlacementKind::Planner(options) => {
                format!("planner: {}, then {threads} threads train", options.describe(instances))
            }
            PlacementKind::StreamTrainer { stream, planner } => {
                let start = planner.describe(instances);
                let kept = (f64::from(instances / planner.tensor_parallel) * stream.keep).ceil();
                format!(
                    "stream_trainer: {start}, all but {kept} may be lent before the rollout ends; {}",
                    lent()
                )
            }
        })
    }
}

impl PlacementKind {
    /// Returns the options of the planner; `None` if an instance always has one device.
    #[must_use]
    pub fn planner(&self) -> Option<PlannerOptions> {
        let (Self::Planner(planner) | Self::StreamTrainer { planner, .. }) = *self else {
            return None;
        };
        (planner.rule != Rule::Fixed || planner.tensor_parallel > 1).then_some(planner)
    }
}

impl PlannerOptions {
    /// Returns a description of the instances on `devices` devices.
    fn describe(&self, devices: u32) -> String {
        let Self { rule, tensor_parallel } = *self;
        let instances = devices / tensor_parallel;
        let some = |count, noun| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let start = format!(
            "{} of {} generate",
            some(instances, "instance"),
            some(tensor_parallel, "device")
        );
        let cause = match rule {
            Rule::Fixed if tensor_parallel == 1 => {
                return format!("{instances} instances generate");
            }
            Rule::Fixed => return start,
            Rule::Paper { .. } => "preemptions",
            Rule::Predictive => "predicted time",
        };
        let largest = parallelisms(devices).last().unwrap_or(1);
        format!("{start} at the start and instances of 1 to {largest} devices later, by {cause}")
    }
}

/// Returns the numbers of devices that an instance of a planner may have: the powers of two that divide the number of instances.
pub(crate) fn parallelisms(instances: u32) -> impl Iterator<Item = u32> {
    let powers = std::iter::successors(Some(1_u32), |size| size.checked_mul(2));
    powers.take_while(move |size| instances.is_multiple_of(*size) && *size <= instances)
}

fn check_kind(kind: &str, placements: &Placements) -> Result<(), RecipeError> {
    let kinds: Vec<_> = placements.names().collect();
    if let Some((_, ours)) = SIMULATED.iter().find(|(simulated, _)| *simulated == kind) {
        let expected = format!("one of {} (did you mean `{ours}`?)", kinds.join(", "));
        return Err(out_of_bounds(KIND, expected, format!("`{kind}`")));
    }
    one_of(KIND, kind, &kinds)
}

fn refused(error: PlacementError) -> RecipeError {
    match error {
        PlacementError::Range { field, expected, found } => {
            let key = if field == "share" { "from" } else { field };
            out_of_bounds(format!("placement.{key}"), expected, found)
        }
        other => RecipeError::Type { key: KIND.to_owned(), reason: other.to_string() },
    }
}
