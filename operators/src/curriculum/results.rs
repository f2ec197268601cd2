//! The results of steps that the curriculum does not use yet: the responses of each step with their results, and the groups to which they
//! belong.

use std::collections::BTreeMap;

use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use serde::{Deserialize, Serialize};

/// The pass rate of a group, as the number of passed responses and the number of all responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PassRate {
    passed: u32,
    /// The number of all responses; at least 1.
    responses: u32,
}

impl PassRate {
    /// Returns the share of the responses that passed.
    pub(super) fn share(&self) -> f64 {
        f64::from(self.passed) / f64::from(self.responses)
    }
}

/// The results that the curriculum does not use yet, by step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Results {
    steps: BTreeMap<Step, StepResults>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct StepResults {
    /// The result of each response, by prompt and sample index: `Some(true)` if the response passed, `Some(false)` if it did not, `None` if
    /// it could not be scored.
    passed: BTreeMap<PromptId, BTreeMap<u32, Option<bool>>>,
    groups: BTreeMap<PromptId, CountedGroup>,
    is_closed: bool,
}

/// The responses that count for the pass rate of a dataset row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CountedGroup {
    row: u64,
    samples: Vec<u32>,
}

impl Results {
    pub(super) fn on_open(&mut self, step: Step) {
        self.steps.entry(step).or_default();
    }

    /// Records the result of a response. Ignores responses of a step that has not opened or whose results have been taken. Once the round
    /// of the step has closed, only responses of groups are recorded, because it depends on arrival times whether a dropped response is
    /// still scored.
    pub(super) fn on_score(&mut self, id: SampleId, passed: Option<bool>) {
        let Some(step) = self.steps.get_mut(&id.step) else { return };
        if !step.is_closed || step.counts(id.prompt, id.sample) {
            step.passed.entry(id.prompt).or_default().insert(id.sample, passed);
        }
    }

    pub(super) fn on_admit(&mut self, step: Step, prompt: PromptId, row: u64, samples: Vec<u32>) {
        self.steps.entry(step).or_default().groups.insert(prompt, CountedGroup { row, samples });
    }

    pub(super) fn on_reject(&mut self, step: Step, prompt: PromptId, row: u64) {
        let results = self.steps.entry(step).or_default();
        let scored = results.passed.get(&prompt);
        let samples = scored.map(|scored| scored.keys().copied().collect()).unwrap_or_default();
        results.groups.insert(prompt, CountedGroup { row, samples });
    }

    pub(super) fn on_close(&mut self, step: Step) {
        let Some(results) = self.steps.get_mut(&step) else { return };
        results.is_closed = true;
        let mut passed = std::mem::take(&mut results.passed);
        for (prompt, samples) in &mut passed {
            samples.retain(|sample, _| results.counts(*prompt, *sample));
        }
        passed.retain(|_, samples| !samples.is_empty());
        results.passed = passed;
    }

    /// Removes the results of all steps up to and including `last`. Returns the dataset row and the pass rate of each group whose responses
    /// are all scored, in the order of the steps.
    pub(super) fn take_until(&mut self, last: Step) -> impl Iterator<Item = (u64, PassRate)> {
        let later = self.steps.split_off(&last.next());
        let taken = std::mem::replace(&mut self.steps, later);
        taken.into_values().flat_map(StepResults::pass_rates)
    }
}

impl StepResults {
    /// Returns `true` if a response belongs to a group.
    fn counts(&self, prompt: PromptId, sample: u32) -> bool {
        self.groups.get(&prompt).is_some_and(|group| group.samples.contains(&sample))
    }

    fn pass_rates(self) -> impl Iterator<Item = (u64, PassRate)> {
        let Self { passed, groups, .. } = self;
        let known = move |(prompt, group): (PromptId, CountedGroup)| {
            Some((group.row, group.pass_rate(passed.get(&prompt)?)?))
        };
        groups.into_iter().filter_map(known)
    }
}

impl CountedGroup {
    /// Returns the pass rate, or `None` if the group is empty or one of its responses was not scored.
    fn pass_rate(&self, scored: &BTreeMap<u32, Option<bool>>) -> Option<PassRate> {
        let passed = self.samples.iter().map(|sample| scored.get(sample).copied().flatten());
        let passed: Vec<bool> = passed.collect::<Option<_>>()?;
        let count = |count: usize| u32::try_from(count).ok();
        let passes = passed.iter().filter(|passed| **passed).count();
        let rate = PassRate { passed: count(passes)?, responses: count(passed.len())? };
        (rate.responses > 0).then_some(rate)
    }
}
