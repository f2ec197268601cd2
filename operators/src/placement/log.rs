//! A log of the decisions of a placement policy, from which the metrics of each step follow.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use rollpacker_dataflow::BoxError;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::Step;
use rollpacker_stages::rollout::Placement;
use rollpacker_stages::train::Metrics;
use serde::Serialize;

use super::{Decision, Event, PlacementPolicy, Reason};

/// A decision and the time at which it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TimedDecision {
    /// The time, in nanoseconds of the clock of the run.
    #[serde(rename = "at_ns")]
    pub at: Nanos,
    /// The number of instances that generate from then on.
    pub rollout_instances: u32,
    /// The number of devices of each rollout instance.
    pub tensor_parallel: u32,
    /// The number of devices that train from then on.
    pub training_devices: u32,
    /// The reason for the decision.
    pub reason: Reason,
}

/// The placements of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StepPlacement {
    /// The number of the step, from 1.
    pub step: u64,
    /// The number of instances of the engine.
    pub instances: u32,
    /// The decisions, in order. If the step has no decision for its round, the first entry is the last decision of an earlier step, with
    /// the time at which the round opened.
    pub decisions: Vec<TimedDecision>,
    /// The time at which all responses of the step had ended; `None` if the rollout did not drain.
    #[serde(rename = "drained_ns")]
    pub drained: Option<Nanos>,
    /// The time of the first decision of a later step. It is the time at which the step was complete if that was earlier, or if no later
    /// step has a decision.
    #[serde(rename = "until_ns")]
    pub until: Nanos,
}

impl StepPlacement {
    /// Returns the metrics of the step.
    ///
    /// - `placement/rollout_instances`: the number of instances that generate at the start of the round.
    /// - `placement/tensor_parallel`: the number of devices of each of these instances. The engine joins this number of its instances to
    ///   form one.
    /// - `placement/lent_instances`: the maximum number of instances that are lent at the same time. A lent instance neither generates nor
    ///   is joined to an instance that generates.
    /// - `placement/lent_s`: the sum of the times for which instances are lent, in seconds times instances.
    /// - `placement/overlap_instances` and `placement/overlap_s`: the same as `placement/lent_instances` and `placement/lent_s`, restricted
    ///   to the time in which responses of the step were in flight.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let first = self.decisions.first();
        let rollout = first.map_or(self.instances, |first| first.rollout_instances);
        let tensor_parallel = first.map_or(1, |first| first.tensor_parallel);
        let (lent, seconds) = self.lent_instances(self.until);
        let (overlapping, overlap) =
            self.lent_instances(self.drained.unwrap_or(self.until).min(self.until));
        let named = |name: &str, value| (format!("placement/{name}"), value);
        Metrics::from([
            named("rollout_instances", f64::from(rollout)),
            named("tensor_parallel", f64::from(tensor_parallel)),
            named("lent_instances", f64::from(lent)),
            named("lent_s", seconds),
            named("overlap_instances", f64::from(overlapping)),
            named("overlap_s", overlap),
        ])
    }

    /// Returns the maximum number of instances that are lent at the same time before `until`, and the lent time in seconds times instances.
    fn lent_instances(&self, until: Nanos) -> (u32, f64) {
        let ends = self.decisions.iter().skip(1).map(|next| next.at).chain([until]);
        let spans = self.decisions.iter().zip(ends).filter(|(decision, _)| decision.at < until);
        spans.fold((0, 0.0), |(max, seconds), (decision, end)| {
            let used = decision.rollout_instances.saturating_mul(decision.tensor_parallel);
            let lent = self.instances.saturating_sub(used);
            let span = end.min(until).since(decision.at).as_secs_f64();
            (max.max(lent), seconds + f64::from(lent) * span)
        })
    }
}

/// The decisions of a [`LoggedPlacement`], by step, until [`take`](Self::take) removes them. A clone is a handle to the same log.
#[derive(Clone, Debug, Default)]
pub struct PlacementLog(Rc<RefCell<LogState>>);

#[derive(Debug, Default)]
struct LogState {
    instances: u32,
    steps: BTreeMap<Step, LoggedStep>,
    /// The last decision of the steps that were taken.
    last: Option<TimedDecision>,
}

#[derive(Debug, Default)]
struct LoggedStep {
    opened: Option<Nanos>,
    decisions: Vec<TimedDecision>,
    drained: Option<Nanos>,
}

impl PlacementLog {
    /// Removes and returns the placements of `step`, which was complete at the time `closed`. Must be called for each step, in ascending
    /// order.
    #[must_use]
    pub fn take(&self, step: Step, closed: Nanos) -> StepPlacement {
        let mut state = self.0.borrow_mut();
        let logged = state.steps.remove(&step).unwrap_or_default();
        let next = state.steps.values().find_map(|next| next.decisions.first());
        let until = next.map_or(closed, |next| next.at.min(closed));
        let carried = logged.opened.and_then(|at| Some(TimedDecision { at, ..state.last? }));
        let placed = logged.decisions.first().is_some_and(|first| first.reason != Reason::Drained);
        let carried = carried.filter(|_| !placed);
        let decisions: Vec<_> = carried.into_iter().chain(logged.decisions).collect();
        state.last = decisions.last().copied().or(state.last);
        let (instances, drained) = (state.instances, logged.drained);
        StepPlacement { step: step.next().0, instances, decisions, drained, until }
    }

    /// Records an event. Returns the step to which later decisions belong, or `None` if the event does not change it.
    fn record_event(&self, now: Nanos, event: &Event) -> Option<Step> {
        let mut state = self.0.borrow_mut();
        match event {
            Event::Policy { step } | Event::Opened { step, .. } => {
                state.steps.entry(*step).or_default().opened = Some(now);
                Some(*step)
            }
            Event::Drained { step } => {
                state.steps.entry(*step).or_default().drained = Some(now);
                Some(*step)
            }
            _ => None,
        }
    }

    fn add(&self, step: Step, decision: TimedDecision) {
        self.0.borrow_mut().steps.entry(step).or_default().decisions.push(decision);
    }
}

/// A placement policy that logs its decisions.
#[derive(Debug)]
pub struct LoggedPlacement<P> {
    policy: P,
    log: PlacementLog,
    now: Nanos,
    /// The step that decisions belong to.
    step: Step,
}

impl<P: PlacementPolicy> LoggedPlacement<P> {
    /// Creates a policy that decides like `policy` and logs the decisions. `instances` is the number of instances of the engine.
    #[must_use]
    pub fn new(policy: P, instances: u32) -> Self {
        let log = PlacementLog::default();
        log.0.borrow_mut().instances = instances;
        Self { policy, log, now: Nanos(0), step: Step(0) }
    }

    /// Returns a handle to the log.
    #[must_use]
    pub fn log(&self) -> PlacementLog {
        self.log.clone()
    }
}

impl<P: PlacementPolicy> PlacementPolicy for LoggedPlacement<P> {
    fn on(&mut self, now: Nanos, event: Event) {
        self.now = now;
        self.step = self.log.record_event(now, &event).unwrap_or(self.step);
        self.policy.on(now, event);
    }

    fn poll(&mut self) -> Option<Decision> {
        let decision = self.policy.poll()?;
        let Decision { rollout, training_devices, reason } = decision;
        let Placement { instances: rollout_instances, tensor_parallel } = rollout;
        let at = self.now;
        let timed =
            TimedDecision { at, rollout_instances, tensor_parallel, training_devices, reason };
        self.log.add(self.step, timed);
        Some(decision)
    }

    fn save(&self) -> Option<Vec<u8>> {
        self.policy.save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        self.policy.restore(saved)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Colocated, Separate};
    use super::*;
    use crate::wire::decision::RoundKind;

    fn at(second: u64) -> Nanos {
        Nanos(second * 1_000_000_000)
    }

    fn deliver(policy: &mut impl PlacementPolicy, second: u64, event: Event) {
        policy.on(at(second), event);
        while policy.poll().is_some() {}
    }

    fn rounds(policy: &mut impl PlacementPolicy) {
        for (step, begins) in [(Step(0), 0), (Step(1), 10)] {
            deliver(policy, begins, Event::Policy { step });
            deliver(policy, begins + 1, Event::Opened { step, round: RoundKind::Full });
            deliver(policy, begins + 6, Event::Drained { step });
        }
    }

    fn values(placement: &StepPlacement) -> Vec<f64> {
        let names =
            ["rollout_instances", "lent_instances", "lent_s", "overlap_instances", "overlap_s"];
        let metrics = placement.metrics();
        names.iter().map(|name| metrics[&format!("placement/{name}")]).collect()
    }

    #[test]
    fn alternating_lends_all_from_the_end_of_a_rollout_to_the_next_round() {
        let all = Placement { instances: 2, tensor_parallel: 1 };
        let mut policy = LoggedPlacement::new(Colocated::new(all), 2);
        let log = policy.log();
        rounds(&mut policy);
        assert_eq!(values(&log.take(Step(0), at(12))), [2.0, 2.0, 8.0, 0.0, 0.0]);
        // No round follows, so the step ends when it is complete.
        let last = log.take(Step(1), at(19));
        assert_eq!(values(&last), [2.0, 2.0, 6.0, 0.0, 0.0]);
        assert_eq!((last.step, last.drained, last.until), (2, Some(at(16)), at(19)));
    }

    #[test]
    fn instances_that_are_joined_to_another_are_not_lent() {
        let wide = Placement { instances: 2, tensor_parallel: 2 };
        let mut policy = LoggedPlacement::new(Colocated::new(wide), 4);
        let log = policy.log();
        rounds(&mut policy);
        let placement = log.take(Step(0), at(12));
        assert_eq!(values(&placement), [2.0, 4.0, 16.0, 0.0, 0.0]);
        assert_eq!(placement.metrics()["placement/tensor_parallel"], 2.0);
    }

    #[test]
    fn a_placement_that_never_changes_holds_for_later_steps() {
        let pool = Placement { instances: 3, tensor_parallel: 1 };
        let mut policy = LoggedPlacement::new(Separate::new(pool, 1), 3);
        let log = policy.log();
        rounds(&mut policy);
        for step in [Step(0), Step(1)] {
            let placement = log.take(step, at(30));
            assert_eq!(values(&placement), [3.0, 0.0, 0.0, 0.0, 0.0]);
            assert_eq!(placement.decisions.len(), 1);
        }
    }
}
