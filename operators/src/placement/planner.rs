//! The parallelism planner: over how many devices an engine instance of the next round is sharded.
//!
//! Wider instances hold more tokens beside the weights and decode a single response sooner; narrower ones lose less to communication.
//! Which is better changes as responses grow over a run, and differs between short and long rounds, so each kind has its own state.

use std::collections::BTreeMap;

use rollpacker_stages::rollout::Placement;
use serde::{Deserialize, Serialize};

use super::cost::{Job, StepCost};
use super::error::within;
use super::forecast::{Change, Forecast, Layout};
use super::progress::Load;
use super::{PlacementError, Reason};
use crate::schedule::Round;
use crate::survival::Curve;

/// How the planner decides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case", deny_unknown_fields)]
pub enum Rule {
    /// As it was started.
    Fixed,
    /// RollPacker's reactive rule (section 4.3): preemptions above `excess` times those of the last round of the kind double the
    /// parallelism, `idle_rounds` rounds of the kind without any halve it.
    Paper {
        /// Factor; the paper has 1.05.
        excess: f64,
        /// Rounds; the paper has 4.
        idle_rounds: u32,
    },
    /// The shortest predicted round, reconfiguration included, of a load like the last round's of the kind with the lengths known of the
    /// kind.
    Predictive,
}

/// Decides the tensor parallelism of each round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planner {
    rule: Rule,
    job: Job,
    start: u32,
    kinds: Kinds,
}

/// What a planner has learned.
pub(super) type Kinds = BTreeMap<Round, Kind>;

/// What is known of the rounds of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Kind {
    tensor_parallel: u32,
    /// Of the last round.
    preemptions: Option<u64>,
    /// Rounds without preemptions since the last with some, or the last change.
    idle: u32,
    /// Why the next round differs from the last.
    changed: Option<Reason>,
}

/// What the planner knows when it is asked.
#[derive(Clone, Copy, Debug)]
pub struct Outlook<'a> {
    /// The last round of the kind; `None`: there was none.
    pub last: Option<Load>,
    /// Lengths of the kind.
    pub lengths: &'a Curve,
    /// What generated last; `None`: nothing did.
    pub current: Option<Placement>,
}

impl Rule {
    /// The paper's rule with the paper's numbers.
    #[must_use]
    pub fn paper() -> Self {
        Self::Paper { excess: 1.05, idle_rounds: 4 }
    }
}

impl Planner {
    /// A planner that starts from instances of `tensor_parallel` devices.
    ///
    /// # Errors
    /// If the numbers of the job do not go together, instances would straddle servers, or a factor is out of its range.
    pub fn new(rule: Rule, job: Job, tensor_parallel: u32) -> Result<Self, PlacementError> {
        let job = job.validated()?;
        if let Rule::Paper { excess, idle_rounds } = rule {
            within("excess", "at least 1", 1.0..=f64::MAX, excess)?;
            if idle_rounds == 0 {
                return Err(PlacementError::Zero { field: "idle_rounds" });
            }
        }
        let Job { devices_per_server, devices, .. } = job;
        match job.allows(tensor_parallel) {
            true => Ok(Self { rule, job, start: tensor_parallel, kinds: BTreeMap::new() }),
            false => {
                Err(PlacementError::TensorParallel { tensor_parallel, devices_per_server, devices })
            }
        }
    }

    /// The job that it plans for.
    #[must_use]
    pub fn job(&self) -> Job {
        self.job
    }

    /// The parallelism that it was started with.
    #[must_use]
    pub fn start(&self) -> u32 {
        self.start
    }

    /// What it has learned.
    pub(super) fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// Goes on from that, but for kinds whose instances this planner would not have.
    pub(super) fn resume<C: StepCost>(&mut self, mut kinds: Kinds, cost: &C) {
        kinds.retain(|_, kind| match self.rule {
            Rule::Fixed => kind.tensor_parallel == self.start,
            Rule::Paper { .. } | Rule::Predictive => runs(self.job, kind.tensor_parallel, cost),
        });
        self.kinds = kinds;
    }

    /// The parallelism of a round of the kind that opens now, and why.
    pub fn plan<C: StepCost>(
        &mut self,
        round: Round,
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

    /// Takes in a round that is over.
    pub fn observe<C: StepCost>(&mut self, round: Round, preemptions: u64, cost: &C) {
        let (rule, job) = (self.rule, self.job);
        let kind = self.kind(round);
        if let Rule::Paper { excess, idle_rounds } = rule {
            kind.react(preemptions, excess, idle_rounds, |tensor_parallel| {
                runs(job, tensor_parallel, cost)
            });
        }
        kind.preemptions = Some(preemptions);
    }

    fn kind(&mut self, round: Round) -> &mut Kind {
        let start = self.start;
        self.kinds.entry(round).or_insert(Kind {
            tensor_parallel: start,
            preemptions: None,
            idle: 0,
            changed: None,
        })
    }

    /// The parallelism with the shortest predicted round; `before` where nothing is known, or nothing is shorter.
    fn shortest<C: StepCost>(&self, before: u32, outlook: Outlook<'_>, cost: &C) -> u32 {
        let Some(last) = outlook.last.filter(|last| last.launched > 0) else { return before };
        let forecast = Forecast::of_round(last, outlook.lengths, self.job);
        let seconds = |tensor_parallel| {
            let to = self.job.rollout(tensor_parallel);
            let from = outlook.current.unwrap_or(to);
            let moved = cost.reconfiguration(from, to, 0.0);
            let layout = Layout { rollout: to, training_devices: 0 };
            let change = Change { from: layout, to: layout, after: usize::MAX };
            moved + forecast.walk(cost, change, |_, _, _| {})
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

impl Kind {
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

/// Whether instances of so many devices can be, and hold at least one longest response.
fn runs<C: StepCost>(job: Job, tensor_parallel: u32, cost: &C) -> bool {
    job.allows(tensor_parallel)
        && cost.kv_capacity(tensor_parallel) >= u64::from(job.response_length)
}
