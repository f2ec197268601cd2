//! The times at which rewards and gradients are computed: according to the section `[pipeline]`, or to the default of the schedule.

use rollpacker_operators::overlap::{GroupDelivery, Scoring};

use super::choices::check_choice;
use super::error::{RecipeError, out_of_bounds};
use super::{limits, raw, schedule};

impl raw::Pipeline {
    pub(crate) fn scoring(
        &self,
        schedule: &schedule::ScheduleSection,
    ) -> Result<Scoring, RecipeError> {
        self.reward.map_or_else(|| schedule.scoring(), Ok)
    }

    pub(crate) fn fetch(
        &self,
        schedule: &schedule::ScheduleSection,
    ) -> Result<GroupDelivery, RecipeError> {
        let key = "pipeline.gradient";
        let fetch = match self.gradient.as_deref() {
            None => schedule.fetch()?,
            Some("streamed") => GroupDelivery::default(),
            Some("once") => GroupDelivery::Once,
            Some("whole_step") => GroupDelivery::WholeStep,
            Some(other) => {
                check_choice(key, other)?;
                unreachable!("invariant: every name is matched above")
            }
        };
        match (fetch, self.max_groups) {
            (fetch, None) => Ok(fetch),
            (_, Some(0)) => Err(out_of_bounds("pipeline.max_groups", "at least 1", 0)),
            (_, Some(found)) if found > limits::CONCURRENT => Err(out_of_bounds(
                "pipeline.max_groups",
                format!("at most {}", limits::CONCURRENT),
                found,
            )),
            (GroupDelivery::Streamed { .. }, max_groups) => {
                Ok(GroupDelivery::Streamed { max_groups })
            }
            (_, Some(found)) => Err(out_of_bounds(
                "pipeline.max_groups",
                "`pipeline.gradient = \"streamed\"` when it is set",
                found,
            )),
        }
    }
}
