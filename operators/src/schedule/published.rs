//! Policies on their way to a schedule: a step may begin once all workers have its policy, and the same.

use std::collections::BTreeMap;

use rollpacker_dataflow::fault::Fault;
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_stages::rollout::Policy;

/// What the operator holds for a step whose round may open, or is open.
#[derive(Clone)]
pub(super) struct Open {
    pub(super) policy: Policy,
    pub(super) requests: Capability<Step>,
    pub(super) decisions: Capability<Step>,
    pub(super) errors: Capability<Step>,
}

/// Policies that workers have, by step.
#[derive(Default)]
pub(super) struct Published {
    /// Those that some have, and how many.
    announced: BTreeMap<Step, (Open, usize)>,
    /// Those that all have, and that were not told.
    ready: BTreeMap<Step, Open>,
    /// A step whose policy is not the same on all, and how they differ, until it is told.
    diverged: Option<(Open, String)>,
}

impl Published {
    /// One more of `workers` has the policy of a step.
    pub(super) fn announce(&mut self, step: Step, open: Open, workers: usize) {
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

    /// The first step whose policy all have.
    pub(super) fn first(&self) -> Option<Step> {
        self.ready.keys().next().copied()
    }

    /// Takes the policy of a step out.
    pub(super) fn take(&mut self, step: Step) -> Option<Open> {
        self.ready.remove(&step)
    }

    /// Lets go of what was not told.
    pub(super) fn clear(&mut self) {
        self.ready.clear();
    }

    /// That replicas differ, once. What is held for their step stays: no frontier may say that it is done.
    pub(super) fn take_fault(&mut self) -> Option<(&Open, Fault)> {
        let (open, message) = self.diverged.as_mut().filter(|(_, message)| !message.is_empty())?;
        Some((open, Fault::new("schedule", std::mem::take(message))))
    }
}
