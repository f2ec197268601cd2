//! Effective setup of a configuration: parallelism, placement and hand-out, as written or as chosen during its runs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use rollpacker_dataflow::BoxError;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::Step;
use rollpacker_operators::overlap::Scoring;
use rollpacker_operators::placement::{Decision, Event, PlacementPolicy};
use rollpacker_operators::schedule::RoundKind;
use rollpacker_stages::rollout::Placement as Instances;
use serde::Serialize;

use super::job::Job;
use super::outcome::{RoundCounts, RunOutcome};
use super::placement::initial_placement;
use super::raw::{Dispatch, HandOut, Judge};
use crate::placements::PlannerRule;

/// The effective setup of a configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setup {
    /// The name of the placement: the assignment of GPUs to generation and training.
    pub placement: String,
    /// The engine instances that rounds began with, the most frequent first.
    pub rollout: Vec<RolloutSetup>,
    /// The layout of the trainer.
    pub training: TrainingSetup,
    /// The rule that chooses the rollout's tensor parallelism.
    pub planner: PlannerRule,
    /// The rule that selects the instance of a response.
    pub dispatch: Dispatch,
    /// The time at which instances receive requests that are launched together.
    pub hand_out: HandOut,
    /// The time of scoring: during the rollout or after it.
    pub reward: Scoring,
    /// The placement of the judge; `None` without judged tasks.
    pub judge: Option<Judge>,
    /// Maximum number of steps by which the sampling policy may lag behind the trained policy.
    pub staleness: u64,
}

/// Engine instances with which rounds began.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RolloutSetup {
    /// The kind of round: `full`, `short` or `long`.
    pub round: String,
    /// The number of engine instances.
    pub instances: u32,
    /// The number of GPUs of an instance.
    pub tensor_parallel: u32,
    /// The number of rounds of this kind that began with these instances, divided by the number of rounds of all kinds.
    pub share: f64,
}

/// The layout of the trainer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TrainingSetup {
    /// The number of GPUs that train.
    pub gpus: u32,
    /// The number of copies of the model.
    pub replicas: u32,
    /// The number of GPUs of a tensor-parallel group.
    pub tensor_parallel: u32,
    /// The number of pipeline stages.
    pub pipeline_parallel: u32,
    /// The number of GPUs over which a sequence is split.
    pub context_parallel: u32,
}

impl Setup {
    /// Collects the setup of a job and the instances that its runs chose. If no rounds were counted, these are the initial instances.
    #[must_use]
    pub fn of(job: &Job, outcomes: &[RunOutcome]) -> Self {
        let layout = job.training_layout;
        let gpus = job.training_gpus;
        Self {
            placement: job.placement.name().to_owned(),
            rollout: rollout(job, outcomes),
            training: TrainingSetup {
                gpus,
                replicas: gpus / layout.devices(),
                tensor_parallel: layout.tensor_parallel,
                pipeline_parallel: layout.pipeline,
                context_parallel: layout.context,
            },
            planner: job.raw.planner.rule,
            dispatch: job.dispatch,
            hand_out: job.raw.rollout.hand_out,
            reward: job.scoring,
            judge: (job.raw.tasks.judge > 0.0).then_some(job.judge),
            staleness: job.raw.pipeline.staleness,
        }
    }

    /// Describes the instances in short. If all rounds began with the same instances, these are named once. Otherwise the most frequent
    /// instances of each kind of round are named, with their share of that kind unless it rounds to 100 %.
    #[must_use]
    pub fn rollout_text(&self) -> String {
        let Some(first) = self.rollout.first() else { return "-".to_owned() };
        let same = |one: &RolloutSetup| one.to_string() == first.to_string();
        if self.rollout.iter().all(same) {
            return first.to_string();
        }
        let mut shares: BTreeMap<&str, (f64, &RolloutSetup)> = BTreeMap::new();
        for one in &self.rollout {
            shares.entry(&one.round).or_insert((0.0, one)).0 += one.share;
        }
        let shown = |(round, (share, one)): (&str, (f64, &RolloutSetup))| {
            let part = 100.0 * one.share / share;
            if part > 99.5 {
                format!("{round} {one}")
            } else {
                format!("{round} {one} ({part:.0} %)")
            }
        };
        shares.into_iter().map(shown).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for RolloutSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x TP{}", self.instances, self.tensor_parallel)
    }
}

impl fmt::Display for TrainingSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x TP{}", self.replicas, self.tensor_parallel)?;
        if self.pipeline_parallel > 1 {
            write!(f, " PP{}", self.pipeline_parallel)?;
        }
        if self.context_parallel > 1 {
            write!(f, " CP{}", self.context_parallel)?;
        }
        Ok(())
    }
}

fn rollout(job: &Job, outcomes: &[RunOutcome]) -> Vec<RolloutSetup> {
    let mut counts: BTreeMap<(RoundKind, Instances), u64> = BTreeMap::new();
    for (&chosen, &count) in outcomes.iter().flat_map(|outcome| &outcome.instances) {
        *counts.entry(chosen).or_default() += count;
    }
    if counts.is_empty() {
        counts.insert((RoundKind::Full, initial_placement(job)), 1);
    }
    let all: u64 = counts.values().sum();
    let mut rollout: Vec<_> = counts
        .into_iter()
        .map(|((round, instances), count)| RolloutSetup {
            round: round.as_str().to_owned(),
            instances: instances.instances,
            tensor_parallel: instances.tensor_parallel,
            share: count as f64 / all as f64,
        })
        .collect();
    rollout.sort_by(|a, b| b.share.total_cmp(&a.share));
    rollout
}

/// A counter of the instances that rounds begin with. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub(super) struct InstanceLog(Rc<RefCell<RoundCounts>>);

impl InstanceLog {
    /// Returns the counts so far and clears them.
    pub(super) fn take(&self) -> RoundCounts {
        self.0.take()
    }

    /// Wraps `policy` so that its rounds are counted, except the rounds of the first `warmup_steps` steps.
    pub(super) fn count_rounds(
        &self,
        policy: Box<dyn PlacementPolicy>,
        warmup_steps: u64,
    ) -> CountedPlacement {
        CountedPlacement { policy, log: self.clone(), warmup_steps, current: None, opened: None }
    }
}

pub(super) struct CountedPlacement {
    policy: Box<dyn PlacementPolicy>,
    log: InstanceLog,
    warmup_steps: u64,
    /// The instances of the last decision; `None` before the first decision.
    current: Option<Instances>,
    /// The last opened round, until its first response is launched.
    opened: Option<(Step, RoundKind)>,
}

impl PlacementPolicy for CountedPlacement {
    fn on(&mut self, now: Nanos, event: Event) {
        match &event {
            Event::Opened { step, round } => self.opened = Some((*step, *round)),
            // A round is counted at its first launch rather than when it opens, because only then has the policy decided its instances.
            Event::Launched { .. } => {
                let opened = self.opened.take().filter(|(step, _)| step.0 >= self.warmup_steps);
                if let (Some((_, round)), Some(instances)) = (opened, self.current) {
                    *self.log.0.borrow_mut().entry((round, instances)).or_default() += 1;
                }
            }
            _ => {}
        }
        self.policy.on(now, event);
    }

    fn poll(&mut self) -> Option<Decision> {
        let decision = self.policy.poll()?;
        self.current = Some(decision.rollout);
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
pub(crate) mod tests {
    use super::super::raw::RawJob;
    use super::super::run::run;
    use super::*;
    use crate::recipe::{from_table, overlay};

    fn job(settings: &[&str]) -> Job {
        let mut table = toml::Table::new();
        settings.iter().for_each(|setting| overlay(&mut table, setting).expect("valid"));
        Job::resolve(from_table::<RawJob>(table).expect("valid"), None).expect("valid")
    }

    /// Returns the setup of the default job with the schedule `sync`.
    pub(crate) fn setup() -> Setup {
        Setup::of(&job(&["schedule.name=sync"]), &[])
    }

    #[test]
    fn instances_are_those_that_rounds_began_with() {
        let job = job(&[
            "data.train_batch_size=16",
            "sim.steps=6",
            "sim.warmup_steps=1",
            "cluster.gpus=8",
            "training.pipeline_parallel=2",
            "schedule.eta_prompts=1.25",
        ]);
        let outcome = run(&job, 1).expect("simulated");
        assert_eq!(outcome.instances.values().sum::<u64>(), 6, "{:?}", outcome.instances);
        let setup = Setup::of(&job, &[outcome]);
        assert_eq!(setup.rollout_text(), "8 x TP1");
        assert_eq!(setup.training.to_string(), "2 x TP2 PP2");
        assert!((setup.rollout.iter().map(|one| one.share).sum::<f64>() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn instances_that_differ_are_listed_by_kind_of_round() {
        let one = |round: &str, instances, tensor_parallel, share| RolloutSetup {
            round: round.to_owned(),
            instances,
            tensor_parallel,
            share,
        };
        let rollout =
            vec![one("short", 16, 1, 0.6), one("long", 8, 2, 0.25), one("short", 8, 2, 0.15)];
        let setup = Setup { rollout, ..setup() };
        assert_eq!(setup.rollout_text(), "long 8 x TP2, short 16 x TP1 (80 %)");
    }

    #[test]
    fn separate_pools_have_gpus_of_their_own() {
        let setup = Setup::of(&job(&["schedule.name=sync", "pipeline.placement=separate"]), &[]);
        assert_eq!((setup.training.gpus, setup.training.replicas), (16, 8));
        assert_eq!(setup.rollout_text(), "16 x TP1");
    }
}
