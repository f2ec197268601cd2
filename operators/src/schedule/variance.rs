//! Rejection of groups without gradient. The responses of such a group all have the same reward.

use serde::{Deserialize, Serialize};

use super::ScheduleError;
use super::error::{at_least, positive};
use super::round::Vacancy;

/// The filter that rejects and replaces groups without reward variance (DAPO, section 3.2), and groups with a response that could not be
/// scored. A schedule with the filter needs groups of at least 2 responses. (verl: `algorithm.filter_groups`)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZeroVarianceFilter {
    /// The maximum number of prompts that a round may launch, as a multiple of the number of groups that it admits, in each lane. At least
    /// 1, and large enough for the prompts that the round launches at once. (verl: `algorithm.filter_groups.max_num_gen_batches`)
    pub max_generated_batches: usize,
    /// The action of a round that has launched its maximum number of prompts and has too few groups with reward variance.
    pub on_exhausted: OnExhausted,
}

/// The action to take when a round may launch no further prompt and lacks groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExhausted {
    /// End the run with an error.
    Fail,
    /// Train on the groups that exist, possibly none.
    SmallerStep,
}

impl ZeroVarianceFilter {
    /// Returns `true` if a lane with `quota` groups per round that has launched `prompts` prompts may launch another prompt.
    pub(super) fn allows(&self, prompts: usize, quota: usize) -> bool {
        prompts < self.max_generated_batches.saturating_mul(quota)
    }

    /// Returns the error message if the lane of `vacancy`, which may launch no further prompt, has too few groups and `on_exhausted` is
    /// `fail`; `None` otherwise.
    pub(super) fn failure(&self, vacancy: &Vacancy) -> Option<String> {
        let fails = vacancy.is_needed && self.on_exhausted == OnExhausted::Fail;
        fails.then(|| {
            let of = if vacancy.lane.is_empty() {
                String::new()
            } else {
                format!(" of domain `{}`", vacancy.lane)
            };
            format!(
                "too few of {} prompts{of} have groups with reward variance: `max_generated_batches` = {} allows no further prompt; \
                 raise it, or set `on_exhausted = \"smaller_step\"`",
                vacancy.prompts, self.max_generated_batches
            )
        })
    }

    /// Returns an error if `max_generated_batches` does not allow the `launched` prompts that a lane of `quota` groups launches at the
    /// start of a round, or if groups of `responses` responses are too small to vary.
    pub(super) fn check(
        &self,
        responses: u32,
        launched: usize,
        quota: usize,
    ) -> Result<(), ScheduleError> {
        positive("max_generated_batches", self.max_generated_batches as u64)?;
        at_least("responses", responses.into(), 2, "for rewards to vary within a group")?;
        let min = launched.div_ceil(quota.max(1)) as u64;
        let found = self.max_generated_batches as u64;
        at_least(
            "max_generated_batches",
            found,
            min,
            "for the prompts that a round launches at once",
        )
    }
}
