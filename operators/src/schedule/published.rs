//! Published policies: a step may begin once all workers have the policy of the step and the weights of all replicas are equal.

use std::collections::BTreeMap;

use rollpacker_dataflow::fault::{Fault, Origin};
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_stages::rollout::Policy;

/// The policy and the capabilities that the operator holds for a step whose round is open or may open.
#[derive(Clone)]
pub(super) struct OpenStep {
    pub(super) policy: Policy,
    pub(super) requests: Capability<Step>,
    pub(super) texts: Capability<Step>,
    pub(super) decisions: Capability<Step>,
    pub(super) errors: Capability<Step>,
    /// The capability for metrics, if there is a curriculum to report.
    pub(super) metrics: Option<Capability<Step>>,
}

/// The policies that workers have announced and that were not delivered to the schedule, by step.
#[derive(Default)]
pub(super) struct PublishedPolicies {
    /// Policies that some workers have, with the number of these workers.
    announced: BTreeMap<Step, (OpenStep, usize)>,
    /// Policies that all workers have and that were not delivered yet.
    ready: BTreeMap<Step, OpenStep>,
    /// The step at which the digests of the replicas differ, and the error message until it is reported.
    diverged: Option<(OpenStep, String)>,
}

impl PublishedPolicies {
    /// Records that one more of `workers` workers has the policy of a step. No further step becomes ready once replicas differ.
    pub(super) fn announce(&mut self, step: Step, open: OpenStep, workers: usize) {
        if self.diverged.is_some() {
            return;
        }
        let (first, count) = self.announced.entry(step).or_insert_with(|| (open.clone(), 0));
        *count += 1;
        if first.policy.digest != open.policy.digest {
            let [one, other] = [&*first, &open].map(|open| open.policy.digest);
            let message = format!(
                "the replicas of the trainer have different weights at policy {}: digests {one:016x} and {other:016x}",
                open.policy.version
            );
            self.diverged = Some((open, message));
        } else if *count == workers
            && let Some((open, _)) = self.announced.remove(&step)
        {
            self.ready.insert(step, open);
        }
    }

    /// Returns the first step whose policy all workers have and that was not taken; `None` if there is none.
    pub(super) fn first(&self) -> Option<Step> {
        self.ready.keys().next().copied()
    }

    /// Removes and returns the policy of a step; `None` if not all workers have it, or if it was taken before.
    pub(super) fn take(&mut self, step: Step) -> Option<OpenStep> {
        self.ready.remove(&step)
    }

    /// Drops the policies that all workers have and that were not delivered.
    pub(super) fn clear(&mut self) {
        self.ready.clear();
    }

    /// Returns the fault about replicas with different weights; `None` if the weights are equal, and after the first call that returned the
    /// fault. The capabilities of the step are kept, so that no frontier marks the step as complete.
    pub(super) fn take_fault(&mut self) -> Option<(&OpenStep, Fault)> {
        let (open, message) = self.diverged.as_mut().filter(|(_, message)| !message.is_empty())?;
        Some((open, Fault::new("schedule", Origin::Program, std::mem::take(message))))
    }
}
