//! The times at which rewards and gradients are computed: as the section `[pipeline]` says, or as the schedule does by default.

use rollpacker_operators::overlap::{GroupDelivery, Scoring};

use super::error::{RecipeError, bound, one_of};
use super::{most, raw, schedule};

impl raw::Pipeline {
    pub(crate) fn scoring(&self, schedule: &schedule::Section) -> Result<Scoring, RecipeError> {
        self.reward.map_or_else(|| schedule.scoring(), Ok)
    }

    pub(crate) fn fetch(&self, schedule: &schedule::Section) -> Result<GroupDelivery, RecipeError> {
        let key = "pipeline.gradient";
        let fetch = match self.gradient.as_deref() {
            None => schedule.fetch()?,
            Some("streamed") => GroupDelivery::default(),
            Some("once") => GroupDelivery::Once,
            Some("whole_step") => GroupDelivery::WholeStep,
            Some(other) => {
                one_of(key, other, &["streamed", "once", "whole_step"])?;
                unreachable!("invariant: every name is matched above")
            }
        };
        match (fetch, self.max_groups) {
            (fetch, None) => Ok(fetch),
            (_, Some(0)) => Err(bound("pipeline.max_groups", "at least 1", 0)),
            (_, Some(found)) if found > most::AT_ONCE => {
                Err(bound("pipeline.max_groups", format!("at most {}", most::AT_ONCE), found))
            }
            (GroupDelivery::Streamed { .. }, max_groups) => {
                Ok(GroupDelivery::Streamed { max_groups })
            }
            (_, Some(found)) => Err(bound(
                "pipeline.max_groups",
                "`pipeline.gradient = \"streamed\"` when it is set",
                found,
            )),
        }
    }
}
