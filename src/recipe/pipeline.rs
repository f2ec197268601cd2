//! The times at which rewards and gradients are computed: according to the section `[pipeline]`, or to the default of the schedule.

use rollpacker_operators::overlap::{GroupDelivery, Scoring};

use super::error::{RecipeError, out_of_bounds};
use super::{limits, raw, schedule};

impl raw::Pipeline {
    pub(crate) fn scoring(&self, schedule: &schedule::ScheduleSection) -> Scoring {
        self.reward.unwrap_or_else(|| schedule.scoring())
    }

    pub(crate) fn delivery(
        &self,
        schedule: &schedule::ScheduleSection,
    ) -> Result<GroupDelivery, RecipeError> {
        let delivery = match self.gradient {
            None => schedule.delivery(),
            Some(raw::Gradient::Streamed) => GroupDelivery::default(),
            Some(raw::Gradient::Once) => GroupDelivery::Once,
            Some(raw::Gradient::WholeStep) => GroupDelivery::WholeStep,
        };
        match (delivery, self.max_groups) {
            (delivery, None) => Ok(delivery),
            (_, Some(0)) => Err(out_of_bounds("pipeline.max_groups", "at least 1", 0)),
            (_, Some(found)) if found > limits::MAX_CONCURRENT => Err(out_of_bounds(
                "pipeline.max_groups",
                format!("at most {}", limits::MAX_CONCURRENT),
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
