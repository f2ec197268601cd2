//! Groups that teach nothing: all of their responses have the same reward.

use serde::{Deserialize, Serialize};

use super::ScheduleError;
use super::error::{at_least, positive};
use super::round::Vacancy;

/// How groups without variance of reward are replaced (DAPO, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZeroVarianceFilter {
    /// Prompts that a round may launch, in batches as large as what it admits.
    pub max_generated_batches: usize,
    /// What happens when these do not hold enough groups with variance.
    pub on_exhausted: OnExhausted,
}

/// What happens when a round may launch no further prompt and lacks groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExhausted {
    /// The run ends with an error.
    Fail,
    /// The step trains on the groups that there are.
    SmallerStep,
}

impl ZeroVarianceFilter {
    /// Whether a lane that has launched `prompts` may launch another.
    pub(super) fn allows(&self, prompts: usize, quota: usize) -> bool {
        prompts < self.max_generated_batches.saturating_mul(quota)
    }

    /// The error, if the bound leaves a lane with too few groups and that is one.
    pub(super) fn failure(&self, vacancy: &Vacancy) -> Option<String> {
        let fails = vacancy.is_needed && self.on_exhausted == OnExhausted::Fail;
        fails.then(|| {
            let of = if vacancy.lane.is_empty() {
                String::new()
            } else {
                format!(" of domain `{}`", vacancy.lane)
            };
            format!(
                "too few of {} prompts{of} have groups with variance of reward: `max_generated_batches` = {} allows no more; \
                 raise it, or set `on_exhausted = \"smaller_step\"`",
                vacancy.prompts, self.max_generated_batches
            )
        })
    }

    /// Refuses a bound below what a round launches at once, and groups too small to vary.
    pub(super) fn check(
        &self,
        responses: u32,
        launched: usize,
        quota: usize,
    ) -> Result<(), ScheduleError> {
        positive("max_generated_batches", self.max_generated_batches as u64)?;
        at_least("responses", responses.into(), 2, "for rewards to vary within a group")?;
        let least = launched.div_ceil(quota.max(1)) as u64;
        let found = self.max_generated_batches as u64;
        at_least("max_generated_batches", found, least, "what a round launches at once")
    }
}
