//! What the authors of a schedule do where a job does not say.

use rollpacker_operators::overlap::{Fetch, Scoring};
use rollpacker_operators::reward::Timeout;

use super::raw::{Dispatch, Judge, Placement, RawJob};
use crate::recipe::{RecipeError, raw};

/// How the authors of a schedule run it.
struct Habits {
    placement: Placement,
    dispatch: Dispatch,
    judge: Judge,
    timeout: Timeout,
}

impl Habits {
    fn of(schedule: &str) -> Self {
        let (judge, timeout) = match schedule {
            "sync" | "fused" => (Judge::Dedicated, Timeout::Fixed),
            _ => (Judge::Colocated, Timeout::Adaptive),
        };
        let dispatch = match schedule {
            "sync" => Dispatch::PromptChunks,
            _ => Dispatch::RoundRobin,
        };
        let placement = match schedule {
            "tail_batching" => Placement::Stream,
            "frontier_group" => Placement::Separate,
            _ => Placement::Colocated,
        };
        Self { placement, dispatch, judge, timeout }
    }
}

impl RawJob {
    fn habits(&self) -> Habits {
        Habits::of(&self.schedule.name)
    }

    /// Which GPUs generate and which train.
    pub(super) fn placement(&self) -> Placement {
        self.pipeline.placement.unwrap_or(self.habits().placement)
    }

    /// Which instance a response goes to.
    pub(super) fn dispatch(&self) -> Dispatch {
        self.rollout.dispatch.unwrap_or(self.habits().dispatch)
    }

    /// Where the judge runs.
    pub(super) fn judge(&self) -> Judge {
        self.tasks.judge_placement.unwrap_or(self.habits().judge)
    }

    /// Returns `true` if a judge takes its share of the GPUs of the rollout while responses are generated.
    pub(super) fn judges_beside_rollout(&self) -> Result<bool, RecipeError> {
        let shares = self.tasks.judge > 0.0 && self.judge() == Judge::Colocated;
        Ok(shares && self.scoring()? == Scoring::Streamed)
    }

    /// How long a sandbox waits. What scores after the rollout knows no times of the task yet.
    pub(super) fn timeout(&self) -> Result<Timeout, RecipeError> {
        let habit = match self.scoring()? {
            Scoring::AfterRollout => Timeout::Fixed,
            Scoring::Streamed => self.habits().timeout,
        };
        Ok(self.tasks.timeout.unwrap_or(habit))
    }

    /// When responses are scored.
    pub(super) fn scoring(&self) -> Result<Scoring, RecipeError> {
        self.overlap().scoring(&self.schedule)
    }

    /// When groups are trained on.
    pub(super) fn fetch(&self) -> Result<Fetch, RecipeError> {
        self.overlap().fetch(&self.schedule)
    }

    /// How stages overlap, as recipes have it.
    fn overlap(&self) -> raw::Pipeline {
        raw::Pipeline {
            reward: self.pipeline.reward,
            gradient: self.pipeline.gradient.clone(),
            max_groups: self.pipeline.max_groups,
        }
    }
}
