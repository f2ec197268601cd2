//! The whole step in virtual time: how long it takes follows from what its stages say that they take, and from how they overlap.

mod support;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use rollpacker_dataflow::bridge::{Executor, produce_inline};
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::clock::{Alarm, Clock, Nanos, VirtualClock};
use rollpacker_dataflow::fault::raise;
use rollpacker_dataflow::runtime::run_virtual;
use rollpacker_dataflow::step::{PolicyVersion, SampleId};
use rollpacker_dataflow::{feedback, schema, step::Step};
use rollpacker_operators::advantage::Grpo;
use rollpacker_operators::gradient::Fetch;
use rollpacker_operators::placement::{Colocated, Place, Separate};
use rollpacker_operators::policy::policy_batch;
use rollpacker_operators::report::{Observed, StepReport, measure, observe};
use rollpacker_operators::reward::Scoring;
use rollpacker_operators::schedule::operator::Prompts;
use rollpacker_operators::schedule::{Synchronous, sync};
use rollpacker_operators::trainer::TrainerThread;
use rollpacker_operators::{
    AdvantageExt, GradientExt, GroupExt, RewardExt, RolloutExt, ScheduleExt, UpdateExt,
};
use rollpacker_stages::reward::{Reward, RewardError, Router, Sample, Score};
use rollpacker_stages::rollout::{
    Completion, FinishReason, Placement, Policy, Request, RolloutEngine, RolloutEvent, Waker,
};
use rollpacker_stages::train::{Metrics, Sequence, TrainError, Trainer};
use support::{Reports, prompts};

const SECOND: u64 = 1_000_000_000;

/// Sample `s` of prompt `p` takes `10 p + s + 1` seconds; it has as many tokens.
struct Timed {
    clock: VirtualClock,
    running: BTreeSet<(Nanos, SampleId)>,
    begun: BTreeMap<SampleId, Nanos>,
    alarm: Option<Alarm>,
}

impl Timed {
    fn set(&self) {
        if let (Some(alarm), Some((at, _))) = (&self.alarm, self.running.first()) {
            alarm.set(*at);
        }
    }
}

impl RolloutEngine for Timed {
    fn load(&mut self, _policy: &Policy) {}

    fn generate(&mut self, Request { step, prompt, samples, .. }: Request) {
        for sample in samples {
            let id = SampleId { step, prompt, sample };
            let seconds = 10 * (prompt.0 % 4) + u64::from(sample) + 1;
            self.running.insert((Nanos(self.clock.now().0 + seconds * SECOND), id));
            self.begun.insert(id, self.clock.now());
        }
        self.set();
    }

    fn abort(&mut self, id: SampleId) {
        panic!("a synchronous schedule aborts nothing: {id}");
    }

    fn poll(&mut self) -> Option<RolloutEvent> {
        let &(at, id) = self.running.first().filter(|(at, _)| *at <= self.clock.now())?;
        self.running.pop_first();
        self.set();
        let started = self.begun[&id];
        Some(RolloutEvent::Completed(Completion {
            id,
            response_length: u32::try_from(at.since(started).0 / SECOND).expect("short"),
            response_ids: Vec::new(),
            logprobs: Vec::new(),
            token_versions: Vec::new(),
            text: String::new(),
            finish_reason: FinishReason::Stop,
            started,
            finished: at,
            preemptions: 0,
            instance: 0,
        }))
    }

    fn wake_by(&mut self, waker: Waker) {
        self.alarm = Some(self.clock.alarm(move || waker()));
        self.set();
    }
}

/// Takes 8 seconds for a sequence on one device, and 3 for an update.
struct Spending {
    clock: VirtualClock,
    devices: u32,
    updates: u64,
}

impl Trainer for Spending {
    fn publish_initial(&mut self) -> Result<Policy, TrainError> {
        Ok(Policy { version: PolicyVersion(0), location: "nowhere".into(), digest: 0 })
    }

    fn accumulate(&mut self, _: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError> {
        let seconds = 8 * sequences.len() as u64 / u64::from(self.devices);
        self.clock.spend(Nanos(seconds * SECOND));
        Ok(())
    }

    fn update(&mut self, _: Step) -> Result<(Policy, Metrics), TrainError> {
        self.updates += 1;
        self.clock.spend(Nanos(3 * SECOND));
        let version = PolicyVersion(self.updates);
        Ok((Policy { version, location: "nowhere".into(), digest: 0 }, Metrics::new()))
    }

    fn place(&mut self, devices: u32) {
        self.devices = devices;
    }

    fn save(&mut self, _folder: &Path) -> Result<(), TrainError> {
        Ok(())
    }
}

/// Takes 5 seconds a response.
struct Slow(VirtualClock);

impl Reward for Slow {
    async fn score(&self, sample: &Sample) -> Result<Score, RewardError> {
        self.0.sleep(Nanos(5 * SECOND)).await;
        Ok(f64::from(sample.response_length).into())
    }
}

fn run(
    placement: impl Place + 'static,
    scoring: Scoring,
    fetch: Fetch,
    staleness: u64,
) -> Vec<StepReport> {
    let clock = VirtualClock::default();
    let time: Arc<dyn Clock> = Arc::new(clock.clone());
    let reports = Reports(Rc::new(RefCell::default()));
    let observer = reports.clone();
    let outcome = run_virtual(&clock, |scope, faults| {
        let trainer = Spending { clock: clock.clone(), devices: 0, updates: 0 };
        let trainer = Rc::new(TrainerThread::in_virtual_time(clock.clone(), Box::new(trainer)));
        let budget = Budget::new(3);
        let batches = (0..4).map(|first| prompts(2 * first..2 * first + 2, |_| 0, "slow"));
        let (rows, errors) =
            produce_inline(scope, "prompts", &schema::PROMPTS, budget.clone(), batches);
        let initial = policy_batch(&trainer.publish_initial().expect("published"));
        let (policies, edge) = feedback::policies(scope, staleness, initial);
        let engine = Timed {
            clock: clock.clone(),
            running: BTreeSet::new(),
            begun: BTreeMap::new(),
            alarm: None,
        };
        let config = sync::Config { prompts: 4, responses: 2, total_steps: None };
        let rollouts = Prompts { rows, errors, budget }
            .schedule(Synchronous::new(config).expect("valid"))
            .placed(placement)
            .rollout(engine, &policies, time.clone());
        let (responses, decisions) = (rollouts.responses.clone(), rollouts.decisions.clone());
        let router = Router::default().route("slow", Slow(clock.clone()));
        let gradients = rollouts
            .scored(scoring)
            .reward(router, Executor::Inline, time.clone())
            .group()
            .advantage(Grpo::default())
            .fetched(fetch)
            .gradient(trainer);
        let groups = gradients.accumulated.clone();
        let updates = gradients.update();
        raise(updates.errors, faults);
        observe(
            Observed { responses, groups, decisions, metrics: updates.metrics },
            time,
            observer,
        );
        edge.connect(updates.policies);
    });
    outcome.expect("no fault");
    reports.0.take()
}

fn seconds(reports: &[StepReport]) -> Vec<f64> {
    reports.iter().map(|report| report.closed.since(report.opened).as_secs_f64()).collect()
}

const ALL: Placement = Placement { instances: 4, tensor_parallel: 1 };
const STREAMED: Fetch = Fetch::Streamed { max_groups: None };

// The longest response takes 32 s, its reward 5, eight sequences on four devices 16, and the update 3.
#[test]
fn nothing_overlaps_in_a_synchronous_step() {
    let reports = run(Colocated::new(ALL), Scoring::AfterRollout, Fetch::WholeStep, 0);
    assert_eq!(seconds(&reports), [56.0, 56.0]);
    let metrics = measure(&reports[1]);
    let stages = ["timing_s/gen", "timing_s/reward_exposed", "timing_s/training_exposed"];
    assert_eq!(stages.map(|name| metrics[name]), [32.0, 5.0, 19.0]);
}

// Three prompts are scored when the rollout ends; they are trained on for 12 s, while the last is scored, which then takes 4.
#[test]
fn rewards_beside_the_rollout_leave_the_last_one_to_wait_for() {
    let reports = run(Colocated::new(ALL), Scoring::Streamed, STREAMED, 0);
    assert_eq!(seconds(&reports), [32.0 + 12.0 + 4.0 + 3.0; 2]);
}

// Groups of two sequences are complete at 2, 12, 22 and 32 s, and scored 5 s later; each is trained on for 4 s.
#[test]
fn a_trainer_with_devices_of_its_own_hides_all_but_the_last_group() {
    let reports = run(Separate::new(ALL, 4), Scoring::Streamed, STREAMED, 0);
    assert_eq!(seconds(&reports), [37.0 + 4.0 + 3.0; 2]);
}

// The second rollout begins when the first one ends, and its groups are trained on after the first update.
#[test]
fn a_stale_step_overlaps_with_the_training_of_the_one_before() {
    let reports = run(Separate::new(ALL, 4), Scoring::Streamed, STREAMED, 1);
    assert_eq!(reports[1].closed.as_secs_f64(), 32.0 + 44.0);
}
