//! The results of a run.

use rollpacker_operators::curriculum::SkippedPrompts;
use rollpacker_stages::train::Metrics;
use serde::Serialize;

use crate::lifetime::EndReason;

/// The results of a run, except those that its observer receives during the run. With several workers, only the first worker has results;
/// those of the others have the default values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunResult {
    /// The metrics of the validation before the first step; `None` without such a validation and in a resumed run.
    pub warm_start: Option<Metrics>,
    /// The metrics of the validation after the last step; `None` without validation data and if the run ended early.
    pub last: Option<Metrics>,
    /// The numbers of validation prompts, used and left out; 0 without validation data.
    pub validation_prompts: ValidationPrompts,
    /// The number of training prompts left out because of their length, counted once per epoch.
    pub overlong_prompts: u64,
    /// The numbers of prompts that the curriculum skipped; `None` without a curriculum.
    pub skipped: Option<SkippedCounts>,
    /// The reason why the run ended.
    pub ended: EndReason,
}

/// The numbers of prompts that a curriculum skipped. A prompt counts once for each epoch in which it is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedCounts {
    /// The number of prompts skipped as too easy.
    pub too_easy: u64,
    /// The number of prompts skipped as too hard.
    pub too_hard: u64,
}

impl From<&SkippedPrompts> for SkippedCounts {
    fn from(skipped: &SkippedPrompts) -> Self {
        Self { too_easy: skipped.too_easy(), too_hard: skipped.too_hard() }
    }
}

/// The numbers of validation prompts, used and left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValidationPrompts {
    /// The number of prompts that are validated on.
    pub prompts: usize,
    /// The number of prompts left out because of their length.
    pub overlong_prompts: u64,
}
