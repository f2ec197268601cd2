//! The prompts that were offered and not launched yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rollpacker_dataflow::step::PromptId;
use serde::{Deserialize, Serialize};

use super::plan::LeftoverPrompt;
use super::rounds::NextAction;

/// Fresh prompts by epoch and lane, in the order in which they were offered.
///
/// A lane is a set of prompts with a quota of its own: a domain, or `""` for all prompts if no quotas are set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    epochs: BTreeMap<u32, BTreeMap<Arc<str>, VecDeque<PromptId>>>,
    latest: u32,
    ended: bool,
}

impl Pool {
    /// Adds a prompt at the end of its lane.
    pub fn put(&mut self, epoch: u32, lane: &Arc<str>, prompt: PromptId) {
        self.reach_epoch(epoch);
        self.epochs
            .entry(epoch)
            .or_default()
            .entry(Arc::clone(lane))
            .or_default()
            .push_back(prompt);
    }

    /// Records that the reader has reached `epoch`.
    pub(super) fn reach_epoch(&mut self, epoch: u32) {
        self.latest = self.latest.max(epoch);
    }

    /// Records that no prompt follows.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Records that prompts may follow again, because a resumed run may be longer.
    pub(super) fn reopen(&mut self) {
        self.ended = false;
    }

    /// Returns the earliest epoch with a prompt in the pool; `None` if the pool is empty.
    #[must_use]
    pub fn first_epoch(&self) -> Option<u32> {
        self.epochs.keys().next().copied()
    }

    /// Returns `true` if no further prompt of `epoch` will be offered.
    pub(super) fn has_whole_epoch(&self, epoch: u32) -> bool {
        self.ended || self.latest > epoch
    }

    /// Returns `true` if the pool is empty and no prompt will be offered.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ended && self.epochs.is_empty()
    }

    /// Returns the number of prompts of a lane in an epoch.
    pub(super) fn len(&self, epoch: u32, lane: &str) -> usize {
        self.epochs.get(&epoch).and_then(|lanes| lanes.get(lane)).map_or(0, VecDeque::len)
    }

    /// Returns the number of prompts of `epoch` that a lane has, at most `wanted`. Returns `None` if the lane has fewer than `wanted` and
    /// further prompts of `epoch` may still be offered.
    #[must_use]
    pub fn available(&self, epoch: u32, lane: &str, wanted: usize) -> Option<usize> {
        let fresh = self.len(epoch, lane).min(wanted);
        (fresh == wanted || self.has_whole_epoch(epoch)).then_some(fresh)
    }

    /// Removes and returns the first prompt of `epoch` in a lane. If the lane has none, returns `Prompts` if a prompt of `epoch` may still
    /// be offered, and `Finish` otherwise.
    pub fn take_one(&mut self, epoch: u32, lane: &str) -> NextAction<LeftoverPrompt> {
        match self.available(epoch, lane, 1) {
            None => NextAction::Prompts,
            Some(count) => match self.take(epoch, lane, count).pop() {
                None => NextAction::Finish,
                Some(prompt) => NextAction::Round(LeftoverPrompt::fresh(prompt)),
            },
        }
    }

    /// Removes and returns the first `count` prompts of `epoch` in a lane, or all if there are fewer, in the order in which they were
    /// offered.
    pub fn take(&mut self, epoch: u32, lane: &str, count: usize) -> Vec<PromptId> {
        let Some(lanes) = self.epochs.get_mut(&epoch) else { return Vec::new() };
        let Some(prompts) = lanes.get_mut(lane) else { return Vec::new() };
        let taken = prompts.drain(..count.min(prompts.len())).collect();
        if prompts.is_empty() {
            lanes.remove(lane);
        }
        if lanes.is_empty() {
            self.epochs.remove(&epoch);
        }
        taken
    }
}
