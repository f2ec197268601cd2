//! The parallelism planner: the number of devices over which an engine instance of the next round is sharded.
//!
//! Wider instances hold more tokens in addition to the weights and decode a single response faster; narrower instances lose less to
//! communication. The better choice changes as responses grow over a run, and differs between short and long rounds, so each kind of round
//! has its own state.

use std::collections::BTreeMap;

use rollpacker_stages::rollout::Placement;
use serde::{Deserialize, Serialize};

use super::cost::{Job, StepCost};
use super::error::within;
use super::forecast::{Change, Forecast, Layout};
use super::round_progress::RoundLoad;
use super::{PlacementError, Reason};
use crate::survival::Curve;
use crate::wire::decision::RoundKind;

/// The rule by which the planner decides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case", deny_unknown_fields)]
pub enum Rule {
    /// Keeps the initial parallelism.
    Fixed,
    /// RollPacker's reactive rule (section 4.3). Doubles the parallelism after a round with more than `excess` times the preemptions of the
    /// previous round of the same kind. Halves the parallelism after `idle_rounds` consecutive rounds of the kind without preemptions. A
    /// parallelism that the job cannot run is not adopted.
    Paper {
        /// The maximum tolerated ratio of the preemptions of a round to those of the previous round of the kind, at least 1. The paper uses
        /// 1.05.
        excess: f64,
        /// The number of consecutive rounds without preemptions that halves the parallelism, at least 1. The paper uses 4.
        idle_rounds: u32,
    },
    /// Selects the parallelism with the shortest predicted round, reconfiguration included. The candidates are the current parallelism and
    /// all powers of two that the job can run. The prediction assumes the load of the last round of the kind and the lengths observed for
    /// the kind. Until a round of the kind has ended, the initial parallelism is kept.
    Predictive,
}

/// A planner that decides the tensor parallelism of each round, separately for each kind of round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planner {
    rule: Rule,
    job: Job,
    start: u32,
    kinds: PlannerState,
}

/// The learned state of a planner, by kind of round.
pub(super) type PlannerState = BTreeMap<RoundKind, KindState>;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct KindState {
    tensor_parallel: u32,
    /// The number of preemptions in the last round that has ended; `None` if none has ended.
    preemptions: Option<u64>,
    /// The number of consecutive rounds without preemptions since the last change of parallelism.
    idle: u32,
    /// The reason why the parallelism of the next round differs from the last round of the kind; `None` if it does not differ.
    changed: Option<Reason>,
}

/// The observations of earlier rounds from which a planner decides.
#[derive(Clone, Copy, Debug)]
pub struct Outlook<'a> {
    /// The load of the last round of the kind; `None` if there was none.
    pub last: Option<RoundLoad>,
    /// The length distribution of the kind. It is used only if `last` is `Some`.
    pub lengths: &'a Curve,
    /// The last placement that generated; `None` if there was none.
    pub current: Option<Placement>,
}

impl Rule {
    /// Returns the paper's rule with the paper's numbers.
    #[must_use]
    pub fn paper() -> Self {
        Self::Paper { excess: 1.05, idle_rounds: 4 }
    }
}

impl Planner {
    /// Creates a planner that starts with instances of `tensor_parallel` devices.
    ///
    /// # Errors
    /// If the job is invalid, `tensor_parallel` does not divide the devices of a server or exceeds the devices of the job, or a value of
    /// the rule is out of range.
    pub fn new(rule: Rule, job: Job, tensor_parallel: u32) -> Result<Self, PlacementError> {
        let job = job.validated()?;
        if let Rule::Paper { excess, idle_rounds } = rule {
            within("excess", "at least 1", 1.0..=f64::MAX, excess)?;
            if idle_rounds == 0 {
                return Err(PlacementError::Zero { field: "idle_rounds" });
            }
        }
        let Job { devices_per_server, devices, .. } = job;
        if job.allows(tensor_parallel) {
            Ok(Self { rule, job, start: tensor_parallel, kinds: BTreeMap::new() })
        } else {
            Err(PlacementError::TensorParallel { tensor_parallel, devices_per_server, devices })
        }
    }

    /// Returns the job for which the planner plans.
    #[must_use]
    pub fn job(&self) -> Job {
        self.job
    }

    /// Returns the initial number of devices of an instance.
    #[must_use]
    pub fn start(&self) -> u32 {
        self.start
    }

    pub(super) fn kinds(&self) -> &PlannerState {
        &self.kinds
    }

    /// Restores a learned state, except for kinds of rounds whose parallelism this planner cannot choose.
    pub(super) fn resume<C: StepCost>(&mut self, mut kinds: PlannerState, cost: &C) {
        kinds.retain(|_, kind| match self.rule {
            Rule::Fixed => kind.tensor_parallel == self.start,
            Rule::Paper { .. } | Rule::Predictive => runs(self.job, kind.tensor_parallel, cost),
        });
        self.kinds = kinds;
    }

    /// Returns the parallelism of a round of kind `round` that opens now, and the reason: [`Reason::Round`] if the parallelism is that of
    /// the last round of the kind, or the initial one for the first round of the kind.
    pub fn plan<C: StepCost>(
        &mut self,
        round: RoundKind,
        outlook: Outlook<'_>,
        cost: &C,
    ) -> (u32, Reason) {
        if self.rule == Rule::Predictive {
            let before = self.kind(round).tensor_parallel;
            let next = self.shortest(before, outlook, cost);
            let kind = self.kind(round);
            kind.changed = (next != before).then_some(Reason::Predicted);
            kind.tensor_parallel = next;
        }
        let kind = self.kind(round);
        (kind.tensor_parallel, kind.changed.take().unwrap_or(Reason::Round))
    }

    /// Records the number of preemptions of a round that has ended, and applies [`Rule::Paper`] if the planner uses it. Must be called for
    /// every round.
    pub fn observe<C: StepCost>(&mut self, round: RoundKind, preemptions: u64, cost: &C) {
        let (rule, job) = (self.rule, self.job);
        let kind = self.kind(round);
        if let Rule::Paper { excess, idle_rounds } = rule {
            kind.react(preemptions, excess, idle_rounds, |tensor_parallel| {
                runs(job, tensor_parallel, cost)
            });
        }
        kind.preemptions = Some(preemptions);
    }

    fn kind(&mut self, round: RoundKind) -> &mut KindState {
        let start = self.start;
        self.kinds.entry(round).or_insert(KindState {
            tensor_parallel: start,
            preemptions: None,
            idle: 0,
            changed: None,
        })
    }

    /// Returns the parallelism with the shortest predicted round among `before` and the powers of two that the job can run. Returns
    /// `before` if there is no prediction, or no other candidate is predicted to be shorter.
    fn shortest<C: StepCost>(&self, before: u32, outlook: Outlook<'_>, cost: &C) -> u32 {
        let Some(last) = outlook.last.filter(|last| last.launched > 0) else { return before };
        let forecast = Forecast::of_round(last, outlook.lengths, self.job);
        let seconds = |tensor_parallel| {
            let to = self.job.rollout(tensor_parallel);
            let from = outlook.current.unwrap_or(to);
            let moved = cost.reconfiguration(from, to, 0.0);
            let layout = Layout { rollout: to, training_devices: 0 };
            let change = Change { from: layout, to: layout, after: usize::MAX };
            moved + forecast.simulate_rollout(cost, change, |_, _, _| {})
        };
        let others = (0..32)
            .map(|power| 1 << power)
            .take_while(|tensor_parallel| *tensor_parallel <= self.job.devices_per_server)
            .filter(|tensor_parallel| runs(self.job, *tensor_parallel, cost));
        let first = (before, seconds(before));
        others
            .map(|tensor_parallel| (tensor_parallel, seconds(tensor_parallel)))
            .fold(first, |best, next| if next.1 < best.1 { next } else { best })
            .0
    }
}

impl KindState {
    /// Applies the reactive rule to the preemptions of a round. A parallelism that the job cannot run is not adopted.
    fn react(
        &mut self,
        preemptions: u64,
        excess: f64,
        idle_rounds: u32,
        runs: impl Fn(u32) -> bool,
    ) {
        self.idle = if preemptions == 0 { self.idle + 1 } else { 0 };
        let above = self.preemptions.is_some_and(|last| preemptions as f64 > last as f64 * excess);
        let (next, reason) = match (above, self.idle >= idle_rounds) {
            (true, _) => (self.tensor_parallel * 2, Reason::Preemptions),
            (_, true) => (self.tensor_parallel / 2, Reason::Idle),
            _ => return,
        };
        if runs(next) {
            (self.tensor_parallel, self.changed, self.idle) = (next, Some(reason), 0);
        }
    }
}

/// Returns `true` if the job allows instances of this many devices and they hold at least one response of maximum length.
fn runs<C: StepCost>(job: Job, tensor_parallel: u32, cost: &C) -> bool {
    job.allows(tensor_parallel)
        && cost.kv_capacity(tensor_parallel) >= u64::from(job.response_length)
}
