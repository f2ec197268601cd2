//! The whole step over stages without work, on several workers: the results equal those on one worker.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use arrow_array::types::{UInt32Type, UInt64Type};
use rollpacker_dataflow::bridge::{Emitter, Executor, produce};
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::cluster::{Cluster, ClusterError, RunFacts, WorkerHandle};
use rollpacker_dataflow::fault::{Fault, raise};
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::{PolicyVersion, Step};
use rollpacker_dataflow::timely::dataflow::operators::Concat;
use rollpacker_dataflow::{feedback, route};
use rollpacker_operators::advantage::{Estimator, Grpo, ReinforcePlusPlusBaseline};
use rollpacker_operators::ledger::{LedgerInputs, ledger};
use rollpacker_operators::merge::merge_metrics;
use rollpacker_operators::policy::policy_batch;
use rollpacker_operators::report::{ReportInputs, StepReport, measure, observe};
use rollpacker_operators::resume::Resumable;
use rollpacker_operators::schedule::operator::Prompts;
use rollpacker_operators::schedule::{
    Dynamic, OnExhausted, Partial as PartialSchedule, Schedule, Synchronous, TailBatching, dynamic,
    partial, sync,
};
use rollpacker_operators::trainer::TrainerThread;
use rollpacker_operators::{
    AdvantageExt, GradientExt, GroupExt, ReduceExt, RewardExt, RolloutExt, ScheduleExt, UpdateExt,
};
use rollpacker_stages::reward::Limits;
use rollpacker_stages::rollout::Policy;
use rollpacker_stages::train::{Metrics, Numbers, Partial, Sequence, Total, TrainError, Trainer};
use support::{Reports, ShortestFirst, prompts, router};

/// The number of parameters of the model, which is not a whole number of chunks.
const PARAMETERS: usize = (1 << 16) + 1000;
const PROMPTS: u64 = 40;

/// The updates that a replica applied, and the sequences that it trained on.
#[derive(Clone, Debug, Default, PartialEq)]
struct Updated {
    /// The digest of the weights after each update.
    digests: Vec<u64>,
    /// The number of sequences of each step over all replicas, according to the totals.
    sequences: Vec<f64>,
    /// The number of sequences that this replica trained on.
    own: usize,
}

/// A replica whose gradient encodes which tokens and advantages it saw.
struct Replica {
    weights: Vec<i64>,
    gradient: Vec<i64>,
    totals: Vec<Total>,
    updates: u64,
    log: Arc<Mutex<Updated>>,
    fails_at: Option<Step>,
    /// The error that each update adds to the first weight; 0 for a correct replica.
    error: i64,
}

impl Replica {
    fn new(log: &Arc<Mutex<Updated>>) -> Self {
        let (weights, gradient) = (vec![0; PARAMETERS], Vec::new());
        let (totals, updates, log) = (Vec::new(), 0, log.clone());
        Self { weights, gradient, totals, updates, log, fails_at: None, error: 0 }
    }

    fn policy(&self) -> Policy {
        let digest = self.weights.iter().fold(7_u64, |digest, weight| {
            (digest.rotate_left(5) ^ weight.cast_unsigned()).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        let version = PolicyVersion(self.updates);
        Policy { version, location: "nowhere".into(), digest }
    }
}

impl Trainer for Replica {
    fn publish(&mut self, _version: PolicyVersion) -> Result<Policy, TrainError> {
        Ok(self.policy())
    }

    fn accumulate(&mut self, step: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError> {
        if self.fails_at == Some(step) {
            return Err(TrainError::NotFinite { step, quantity: "loss" });
        }
        assert_eq!(step.0, self.updates, "a step trains on groups of its own update");
        self.gradient.resize(PARAMETERS, 0);
        self.log.lock().expect("unpoisoned").own += sequences.len();
        for sequence in sequences {
            let tokens = sequence.response_ids.len();
            let advantage: f64 = sequence.advantages.iter().copied().map(f64::from).sum();
            let seen = (advantage * 1e6) as i64 + tokens as i64;
            // Writes to the first chunk and to the last.
            for at in [tokens, PARAMETERS - 1 - tokens] {
                self.gradient[at] += seen;
            }
            let (prompt, sample) = Default::default();
            self.totals.push(Total { prompt, sample, name: "sequences".into(), value: 1.0 });
        }
        Ok(())
    }

    fn take_partial(&mut self, _: Step) -> Result<Partial, TrainError> {
        let gradient = Numbers::Fixed(std::mem::take(&mut self.gradient));
        Ok(Partial { gradient, totals: std::mem::take(&mut self.totals) })
    }

    fn put_sum(&mut self, _: Step, sum: Partial) -> Result<(), TrainError> {
        assert!(self.gradient.is_empty(), "the delivered gradient is the sum over all replicas");
        let Numbers::Fixed(gradient) = sum.gradient else { panic!("of the kind that was taken") };
        (self.gradient, self.totals) = (gradient, sum.totals);
        Ok(())
    }

    fn update(&mut self, _: Step) -> Result<(Policy, Metrics), TrainError> {
        let gradient = std::mem::take(&mut self.gradient);
        self.weights.iter_mut().zip(gradient).for_each(|(weight, more)| *weight += more);
        self.weights[0] += self.error;
        self.updates += 1;
        let sequences = std::mem::take(&mut self.totals).iter().map(|total| total.value).sum();
        let mut log = self.log.lock().expect("unpoisoned");
        log.digests.push(self.policy().digest);
        log.sequences.push(sequences);
        Ok((self.policy(), Metrics::from([("actor/lr".to_owned(), 0.1)])))
    }

    fn save(&mut self, _folder: &Path) -> Result<(), TrainError> {
        Ok(())
    }
}

#[derive(Clone)]
struct Run {
    schedule: fn() -> Box<dyn Schedule>,
    estimator: fn() -> Estimator,
    staleness: u64,
    /// The worker whose trainer fails, and the step.
    fails_at: Option<(usize, Step)>,
    /// The worker whose updates are wrong.
    errs: Option<usize>,
}

impl Run {
    fn of(schedule: fn() -> Box<dyn Schedule>) -> Self {
        let estimator = || Grpo::default().into();
        Self { schedule, estimator, staleness: 0, fails_at: None, errs: None }
    }

    fn on(&self, cluster: &Cluster) -> Result<Ran, ClusterError> {
        let run = self.clone();
        let workers =
            cluster.run(&RunFacts::new(), "", move |worker_handle| run.worker(worker_handle))?;
        let (mut reports, updated): (Vec<_>, Vec<_>) = workers.into_iter().unzip();
        let others: usize = reports.iter().skip(1).map(Vec::len).sum();
        assert_eq!(others, 0, "the first worker receives all events");
        Ok(Ran { reports: reports.swap_remove(0), updated })
    }

    fn worker(&self, worker_handle: WorkerHandle) -> Result<(Vec<StepReport>, Updated), Fault> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .expect("a runtime");
        let handle = runtime.handle().clone();
        let clock: Arc<dyn Clock> = Arc::new(worker_handle.clock());
        let (log, reports) = (Arc::<Mutex<Updated>>::default(), Reports::default());
        let (observer, logged, worker) = (reports.clone(), log.clone(), worker_handle.index());
        let fails_at = self.fails_at.filter(|(of, _)| *of == worker).map(|(_, step)| step);
        let error = i64::from(self.errs == Some(worker));
        worker_handle.run(None, |scope, faults| {
            let trainer = TrainerThread::spawn(clock.clone(), move || {
                let replica = Replica { fails_at, error, ..Replica::new(&logged) };
                Ok::<_, Infallible>(Box::new(replica) as Box<dyn Trainer>)
            });
            let trainer = Rc::new(trainer.expect("made"));
            let budget = Budget::new(16);
            let body = |emitter: &Emitter| {
                for first in (0..PROMPTS).step_by(7) {
                    if !emitter.send(prompts(first..(first + 7).min(PROMPTS), |_| 0, "odd")) {
                        break;
                    }
                }
                Ok::<_, Infallible>(())
            };
            let (rows, errors) = produce(scope, "prompts", &schema::PROMPTS, budget.clone(), body);
            let initial = policy_batch(&trainer.publish_initial().expect("published"));
            let (policies, edge) = feedback::policies(scope, self.staleness, initial);
            let rollouts = Prompts { rows, errors, budget }.schedule((self.schedule)()).rollout(
                ShortestFirst::default(),
                &policies,
                clock.clone(),
            );
            let (responses, decisions) = (rollouts.responses.clone(), rollouts.decisions.clone());
            let texts = rollouts.texts.clone();
            let gradients = rollouts
                .reward(router(), Limits::default(), Executor::Tokio(handle), clock.clone())
                .group()
                .advantage((self.estimator)())
                .gradient(trainer);
            let groups = gradients.accumulated.clone();
            let updates = gradients.reduce(clock.clone()).update();
            raise(updates.errors, faults);
            let responses = route::gather_at_first("responses", responses, &schema::RESPONSES);
            let groups = route::gather_at_first("groups", groups, &schema::GROUPS);
            let recorded = LedgerInputs {
                responses: responses.clone(),
                groups: groups.clone(),
                decisions: decisions.clone(),
                warmup_steps: 0,
                resumable: Resumable::default(),
            };
            let metrics = merge_metrics(updates.metrics.concat(ledger(recorded, 100)));
            let resumable = Resumable::default();
            observe(
                ReportInputs { responses, groups, decisions, texts, metrics, resumable },
                clock,
                observer,
            );
            edge.connect(updates.policies);
        })?;
        let updated = log.lock().expect("unpoisoned").clone();
        Ok((reports.0.take(), updated))
    }
}

struct Ran {
    reports: Vec<StepReport>,
    updated: Vec<Updated>,
}

impl Ran {
    /// Returns the responses that each step trained on.
    fn trained(&self) -> Vec<BTreeSet<(u64, u32)>> {
        let of = |report: &StepReport| {
            let ids = report.groups.iter().flat_map(|batch| {
                let prompts = batch.values::<UInt64Type>(column::PROMPT_ID).values();
                let samples = batch.values::<UInt32Type>(column::SAMPLE).values();
                prompts.iter().copied().zip(samples.iter().copied()).collect::<Vec<_>>()
            });
            ids.collect()
        };
        self.reports.iter().map(of).collect()
    }

    /// Checks that every replica applied the same updates, one per step, computed from the sequences of all replicas.
    fn check_replicas(&self) {
        for replica in &self.updated {
            assert_eq!(replica.digests, self.updated[0].digests);
            assert_eq!(replica.digests.len(), self.reports.len());
            let trained: Vec<f64> =
                self.trained().iter().map(|responses| responses.len() as f64).collect();
            assert_eq!(replica.sequences, trained);
        }
    }

    /// Checks that every prompt is trained on once, with all its responses.
    fn check_conservation(&self) {
        let mut trained: BTreeMap<u64, usize> = BTreeMap::new();
        for (prompt, _) in self.trained().into_iter().flatten() {
            *trained.entry(prompt).or_default() += 1;
        }
        assert_eq!(trained, (0..PROMPTS).map(|prompt| (prompt, 4)).collect());
    }

    /// Returns the numbers of the engine instances that generated.
    fn instances(&self) -> BTreeSet<u32> {
        let batches = self.reports.iter().flat_map(|report| &report.responses);
        batches
            .flat_map(|batch| batch.values::<UInt32Type>(column::INSTANCE).values())
            .copied()
            .collect()
    }

    fn sum(&self, name: &str) -> f64 {
        self.reports.iter().map(|report| measure(report).get(name).copied().unwrap_or(0.0)).sum()
    }
}

fn clusters() -> [Cluster; 3] {
    [
        Cluster::with_threads(2),
        Cluster::with_serialized_batches(2),
        Cluster::with_serialized_batches(3),
    ]
}

fn synchronous() -> Box<dyn Schedule> {
    let config = sync::Config { prompts: 8, responses: 4, total_steps: None };
    Box::new(Synchronous::new(config).expect("valid"))
}

fn two_prompts() -> Box<dyn Schedule> {
    let config = sync::Config { prompts: 2, responses: 4, total_steps: None };
    Box::new(Synchronous::new(config).expect("valid"))
}

fn tail_batching() -> Box<dyn Schedule> {
    let config = support::tail(8, 4, 1.25, 1.5);
    Box::new(TailBatching::new(config).expect("valid"))
}

fn check_same_as_one(run: &Run) {
    let one = run.on(&Cluster::with_threads(1)).expect("no fault");
    one.check_conservation();
    for cluster in clusters() {
        let ran = run.on(&cluster).expect("no fault");
        ran.check_replicas();
        assert_eq!(ran.trained(), one.trained(), "{cluster:?}");
        assert_eq!(ran.updated[0].digests, one.updated[0].digests, "{cluster:?}");
        for name in ["rollout/launched_responses", "schedule/admitted_prompts", "reward/skipped"] {
            assert_eq!(ran.sum(name), one.sum(name), "{name}");
        }
        let idle = ran.updated.iter().filter(|replica| replica.own == 0).count();
        assert_eq!(idle, 0, "every worker has a share: {cluster:?}");
        assert_eq!(ran.instances().len(), ran.updated.len(), "each worker has one: {cluster:?}");
        assert!(ran.sum("reduce/bytes") > 0.0 && one.sum("reduce/bytes") == 0.0);
    }
}

#[test]
fn several_workers_match_one_worker() {
    check_same_as_one(&Run::of(synchronous));
}

#[test]
fn several_workers_match_one_worker_with_staleness() {
    check_same_as_one(&Run { staleness: 2, ..Run::of(synchronous) });
}

#[test]
fn an_estimator_of_whole_steps_receives_the_groups_of_all_workers() {
    let estimator = || Estimator::of_tokens(ReinforcePlusPlusBaseline);
    check_same_as_one(&Run { estimator, ..Run::of(synchronous) });
}

#[test]
fn a_round_of_fewer_prompts_than_workers_leaves_one_without_a_share() {
    let ran = Run::of(two_prompts).on(&Cluster::with_serialized_batches(3)).expect("no fault");
    ran.check_replicas();
    ran.check_conservation();
    assert_eq!(ran.reports.len(), 20);
}

#[test]
fn races_over_workers_lose_no_prompt() {
    for cluster in clusters() {
        let ran = Run::of(tail_batching).on(&cluster).expect("no fault");
        ran.check_replicas();
        ran.check_conservation();
        assert!(ran.sum("schedule/deferred_prompts") > 0.0, "something was deferred");
    }
}

#[test]
fn kept_tokens_are_resumed_on_their_worker() {
    let schedule: fn() -> Box<dyn Schedule> = || {
        let config = partial::Config {
            prompts: 8,
            responses: 4,
            oversubscription: 1.5,
            max_versions: 8,
            total_steps: None,
        };
        Box::new(PartialSchedule::new(config).expect("valid"))
    };
    for cluster in clusters() {
        let ran = Run::of(schedule).on(&cluster).expect("no fault");
        ran.check_replicas();
        ran.check_conservation();
        let resumed =
            ran.reports.iter().flat_map(|report| &report.groups).flat_map(|batch| {
                batch.values::<UInt32Type>(column::RESUMED_LENGTH).values().to_vec()
            });
        assert!(resumed.into_iter().any(|tokens| tokens > 0), "something was kept");
    }
}

#[test]
fn a_schedule_that_decides_by_scores_receives_those_of_all_workers() {
    let schedule: fn() -> Box<dyn Schedule> = || {
        let config = dynamic::Config {
            prompts: 4,
            responses: 4,
            gen_prompts: Some(6),
            max_generated_batches: 8,
            on_exhausted: OnExhausted::SmallerStep,
            total_steps: Some(3),
        };
        Box::new(Dynamic::new(config).expect("valid"))
    };
    for cluster in clusters() {
        let ran = Run::of(schedule).on(&cluster).expect("no fault");
        ran.check_replicas();
        assert_eq!(ran.reports.len(), 3);
        let zero: f64 = ran.sum("reward/frac_zero_std");
        assert_eq!(zero, 0.0, "every group that is trained on has a spread");
    }
}

#[test]
fn a_fault_on_one_worker_ends_all() {
    for cluster in clusters() {
        let run = Run { fails_at: Some((1, Step(2))), ..Run::of(synchronous) };
        let error = run.on(&cluster).map(|_| ()).expect_err("it fails").to_string();
        assert_eq!(error, "gradient on worker 1, step 3: loss is not finite at step 3");
    }
}

#[test]
fn replicas_whose_weights_differ_are_a_fault() {
    let run = Run { errs: Some(1), ..Run::of(synchronous) };
    let error = run.on(&Cluster::with_threads(2)).map(|_| ()).expect_err("they differ").to_string();
    let expected = "schedule on worker 0, step 2: the replicas of the trainer have different weights at policy v1";
    assert!(error.starts_with(expected), "{error}");
}
