//! Defaults of a job that depend on its schedule.

use rollpacker_operators::overlap::{GroupDelivery, Scoring};
use rollpacker_operators::reward::LimitMode;

use super::placement::SimulatedPlacement;
use super::raw::{Dispatch, Judge, RawJob};
use crate::recipe::{Pipeline, RecipeError};

/// The settings that depend on the schedule if the job does not set them.
struct ScheduleDefaults {
    placement: &'static str,
    dispatch: Dispatch,
    judge: Judge,
    timeout: LimitMode,
}

impl ScheduleDefaults {
    fn of(schedule: &str) -> Self {
        let (judge, timeout) = match schedule {
            "sync" | "fused" | "longest_first" => (Judge::Dedicated, LimitMode::Fixed),
            _ => (Judge::Colocated, LimitMode::Adaptive),
        };
        let dispatch = match schedule {
            "sync" => Dispatch::PromptChunks,
            "longest_first" => Dispatch::LeastLoaded,
            _ => Dispatch::RoundRobin,
        };
        let placement = match schedule {
            "tail_batching" => "stream",
            "frontier_group" => "separate",
            _ => "colocated",
        };
        Self { placement, dispatch, judge, timeout }
    }
}

impl RawJob {
    fn defaults(&self) -> ScheduleDefaults {
        ScheduleDefaults::of(&self.schedule.name)
    }

    /// Returns the placement that the job sets, or the default of its schedule: which GPUs generate and which train.
    ///
    /// # Errors
    /// If there is no placement of that name, or it rejects an option.
    pub(super) fn placement(&self) -> Result<SimulatedPlacement, RecipeError> {
        let default = || self.defaults().placement;
        self.named_placement(self.pipeline.placement.as_deref().unwrap_or_else(default))
    }

    /// Returns the dispatch that the job sets, or the default of its schedule: which instance receives a response.
    pub(super) fn dispatch(&self) -> Dispatch {
        self.rollout.dispatch.unwrap_or(self.defaults().dispatch)
    }

    /// Returns the placement of the judge that the job sets, or the default of its schedule.
    pub(super) fn judge(&self) -> Judge {
        self.tasks.judge_placement.unwrap_or(self.defaults().judge)
    }

    /// Returns `true` if a judge takes its share of the GPUs of the rollout while responses are generated.
    pub(super) fn judges_beside_rollout(&self) -> bool {
        let shares = self.tasks.judge > 0.0 && self.judge() == Judge::Colocated;
        shares && self.scoring() == Scoring::Streamed
    }

    /// Returns the mode of the sandbox's time limits. With scoring after the rollout, limits are fixed by default, because no execution
    /// time of a task is known when its responses are scored.
    pub(super) fn timeout(&self) -> LimitMode {
        let default = match self.scoring() {
            Scoring::AfterRollout => LimitMode::Fixed,
            Scoring::Streamed => self.defaults().timeout,
        };
        self.tasks.timeout.unwrap_or(default)
    }

    /// Returns the time at which responses are scored: as the job sets it, or the default of its schedule.
    pub(super) fn scoring(&self) -> Scoring {
        self.overlap().scoring(&self.schedule)
    }

    /// Returns the rule by which groups are passed to the trainer: as the job sets it, or the default of its schedule.
    ///
    /// # Errors
    /// If `pipeline.max_groups` is out of bounds, or is set although groups are not streamed.
    pub(super) fn delivery(&self) -> Result<GroupDelivery, RecipeError> {
        self.overlap().delivery(&self.schedule)
    }

    /// Returns the overlap of the stages as a section of a recipe.
    fn overlap(&self) -> Pipeline {
        Pipeline {
            reward: self.pipeline.reward,
            gradient: self.pipeline.gradient,
            max_groups: self.pipeline.max_groups,
        }
    }
}
