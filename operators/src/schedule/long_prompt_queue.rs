//! The long-prompt queue: the prompts that short rounds of tail batching deferred.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rollpacker_dataflow::step::{PromptId, Step};
use serde::{Deserialize, Serialize};

use super::Queue;
use super::plan::LeftoverPrompt;

/// Deferred prompts by lane, in the order in which they were launched.
///
/// All queued prompts belong to one epoch: the queue drains before the next epoch begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LongPromptQueue {
    epoch: u32,
    lanes: BTreeMap<Arc<str>, VecDeque<Deferred>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Deferred {
    left: LeftoverPrompt,
    /// The step whose round deferred the prompt.
    step: Step,
}

impl LongPromptQueue {
    /// Adds a prompt at the end of its lane. `step` is the step whose round deferred the prompt.
    pub(super) fn put(&mut self, epoch: u32, lane: Arc<str>, left: LeftoverPrompt, step: Step) {
        self.epoch = epoch;
        self.lanes.entry(lane).or_default().push_back(Deferred { left, step });
    }

    /// Returns the epoch of the queued prompts, or `None` if the queue is empty.
    pub(super) fn epoch(&self) -> Option<u32> {
        (!self.lanes.is_empty()).then_some(self.epoch)
    }

    pub(super) fn len(&self, lane: &str) -> usize {
        self.lanes.get(lane).map_or(0, VecDeque::len)
    }

    /// Removes and returns the first `count` prompts of a lane, or all prompts if the lane has fewer.
    pub(super) fn take(&mut self, lane: &str, count: usize) -> Vec<LeftoverPrompt> {
        let Some(prompts) = self.lanes.get_mut(lane) else { return Vec::new() };
        let taken =
            prompts.drain(..count.min(prompts.len())).map(|deferred| deferred.left).collect();
        if prompts.is_empty() {
            self.lanes.remove(lane);
        }
        taken
    }

    /// Removes and returns all prompts, by lane.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = PromptId> + use<> {
        let lanes = std::mem::take(&mut self.lanes).into_values();
        lanes.flatten().map(|deferred| deferred.left.prompt)
    }

    /// Returns `true` if some prompt of a lane would wait more than `age` rounds, assuming that the round of `step` takes none and each
    /// later round takes `quota`.
    ///
    /// Deferral steps ascend along the lane, so it suffices to check the first prompt of each quota.
    pub(super) fn is_overdue(&self, lane: &str, quota: usize, step: Step, age: u64) -> bool {
        let Some(prompts) = self.lanes.get(lane) else { return false };
        let heads = prompts.iter().step_by(quota);
        heads.zip(step.0..).any(|(head, waited_until)| waited_until - head.step.0 > age)
    }

    /// Returns the length of the queue and the age of its oldest prompt, as reported when the round of `step` closes.
    pub(super) fn report(&self, step: Step) -> Queue {
        let oldest =
            self.lanes.values().filter_map(|prompts| prompts.front()).map(|head| head.step).min();
        Queue {
            length: self.lanes.values().map(VecDeque::len).sum(),
            age: oldest.map_or(0, |oldest| step.0 - oldest.0),
        }
    }
}
