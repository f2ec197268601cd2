//! The placement `stream_trainer`: instances are lent to training during the tail of a round (RollPacker, Algorithm 1).

use std::sync::Arc;

use rollpacker_operators::placement::{
    PlacementError, PlacementPolicy, RoundFilter, StreamTrainerOptions, Trigger,
};
use rollpacker_stages::catalog::About;
use serde::{Deserialize, Serialize};

use super::live::{BuiltIn, LivePlacement, LiveRun, PlacementInputs, TrainerThreads};
use super::planner::{planned_policy, recipe_error};
use super::planner_options::{PlannerOptions, PlannerRule};
use crate::recipe::error::{RecipeError, out_of_bounds};
use crate::recipe::section::section;

section! {
    /// The options of `stream_trainer`.
    StreamTrainer {
        /// Rounds in which instances may be lent before the rollout has ended: `long` for all but speculative short rounds, or `all`.
        rounds: RoundFilter = RoundFilter::Long,
        /// Condition to lend instances: `adaptive` at the first milestone at which the remaining responses are projected to fit into the KV
        /// caches of fewer instances, or `fixed` at the share `from` of ended responses.
        trigger: TriggerKind = TriggerKind::Adaptive,
        /// First milestone of the trigger `adaptive`, or the share at which the trigger `fixed` lends instances. It is a share of the
        /// responses that are expected to end by themselves, in (0, 1].
        from: f64 = 0.2,
        /// Last milestone of the trigger `adaptive`, from `from` to 1. Default: 0.5.
        to: Option<f64> = None,
        /// Distance between two milestones of the trigger `adaptive`, in (0, 1]. Default: 0.05.
        every: Option<f64> = None,
        /// Minimum share of the instances that keeps generating, in (0, 1]. It must leave an instance to lend.
        keep: f64 = StreamTrainerOptions::paper().keep,
        /// Share of the remaining KV caches that the projected tokens may fill with the trigger `adaptive`, in (0, 1]. Default: 0.95.
        headroom: Option<f64> = None,
        /// Rule that chooses the number of devices of an instance for each round, as with `planner`; `fixed` keeps `tensor_parallel`.
        rule: PlannerRule = PlannerRule::Fixed,
        /// Number of devices of an instance in the first full, the first short and the first long round, as with `planner`. From 1 to
        /// `rollout.instances`.
        tensor_parallel: u32 [devices] = 1,
    }
}

/// The condition to lend instances. A live run has no predicted training times, which the simulator's trigger `predicted` compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TriggerKind {
    /// Instances are lent at the first milestone at which the remaining responses are projected to fit on fewer instances.
    Adaptive,
    /// Instances are lent at a fixed share of ended responses.
    Fixed,
}

impl StreamTrainer {
    /// Returns the options of the policy.
    fn options(&self) -> Result<StreamTrainerOptions, RecipeError> {
        let Self { rounds, trigger, from, to, every, keep, headroom, .. } = *self;
        let trigger = match trigger {
            TriggerKind::Adaptive => {
                Trigger::Adaptive { from, to: to.unwrap_or(0.5), every: every.unwrap_or(0.05) }
            }
            TriggerKind::Fixed => {
                let of_adaptive = [("to", to), ("every", every), ("headroom", headroom)];
                let written = of_adaptive.into_iter().find_map(|(key, value)| Some((key, value?)));
                if let Some((key, found)) = written {
                    let expected = "no value unless placement.trigger = adaptive";
                    return Err(out_of_bounds(format!("placement.{key}"), expected, found));
                }
                Trigger::Fixed { share: from }
            }
        };
        let paper = StreamTrainerOptions::paper();
        let headroom = headroom.unwrap_or(paper.headroom);
        let options = StreamTrainerOptions { rounds, trigger, keep, headroom, ..paper };
        options.validated().map_err(|error| match error {
            PlacementError::Range { field: "to", found, .. } => {
                let expected = format!("at least placement.from = {from}, and at most 1");
                out_of_bounds("placement.to", expected, found)
            }
            error => recipe_error(error),
        })
    }
}

impl BuiltIn for StreamTrainer {
    const NAME: &'static str = "stream_trainer";
    const ABOUT: About = About::new(
        &[],
        "instances are lent to training during the tail of a round",
        "RollPacker, Algorithm 1",
    );

    fn check(self, recipe: &PlacementInputs<'_>) -> Result<Arc<dyn LivePlacement>, RecipeError> {
        let planner = recipe.planner(self.rule, self.tensor_parallel)?;
        let (options, devices) = (self.options()?, recipe.context.devices);
        // Rules other than `fixed` may choose instances of a single device.
        let width = if self.rule == PlannerRule::Fixed { self.tensor_parallel } else { 1 };
        let instances = f64::from(devices / width);
        if (instances * options.keep).ceil() >= instances {
            let expected = format!(
                "a share that leaves one of {instances} instances of {width} devices to lend"
            );
            return Err(out_of_bounds("placement.keep", expected, options.keep));
        }
        Ok(Arc::new(Streamed { options, planner }))
    }
}

/// The checked options of a stream trainer and of its planner.
#[derive(Debug)]
struct Streamed {
    options: StreamTrainerOptions,
    planner: PlannerOptions,
}

impl LivePlacement for Streamed {
    fn policy(&self, run: LiveRun) -> Result<Option<Box<dyn PlacementPolicy>>, RecipeError> {
        planned_policy(self.options, self.planner, run)
    }

    fn trainer_threads(&self) -> TrainerThreads {
        TrainerThreads::Lent
    }

    fn needs_streamed_groups(&self) -> bool {
        true
    }

    fn planner(&self) -> Option<PlannerOptions> {
        self.planner.if_several()
    }

    fn describe(&self, devices: u32, training: &str) -> Option<String> {
        let instances = f64::from(devices / self.planner.tensor_parallel);
        let (start, kept) =
            (self.planner.describe(devices), (instances * self.options.keep).ceil());
        Some(format!("{start}, all but {kept} may be lent before the rollout ends; {training}"))
    }
}
