//! Stages that take virtual time, and the whole step over them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::{Reports, prompts};
use rollpacker_dataflow::bridge::{Executor, produce_inline};
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::clock::{Alarm, Clock, Nanos, VirtualClock};
use rollpacker_dataflow::fault::raise;
use rollpacker_dataflow::runtime::run_virtual;
use rollpacker_dataflow::step::{PolicyVersion, SampleId};
use rollpacker_dataflow::{feedback, schema, step::Step};
use rollpacker_operators::advantage::Grpo;
use rollpacker_operators::overlap::{Fetch, Scoring};
use rollpacker_operators::placement::Place;
use rollpacker_operators::policy::policy_batch;
use rollpacker_operators::report::{Observed, StepReport, observe};
use rollpacker_operators::schedule::operator::Prompts;
use rollpacker_operators::schedule::{Synchronous, sync};
use rollpacker_operators::trainer::TrainerThread;
use rollpacker_operators::{
    AdvantageExt, GradientExt, GroupExt, RewardExt, RolloutExt, ScheduleExt, UpdateExt,
};
use rollpacker_stages::reward::{Context, Reward, RewardError, Router, Sample, Score};
use rollpacker_stages::rollout::{
    Completion, FinishReason, Policy, Request, RolloutEngine, RolloutEvent, Waker,
};
use rollpacker_stages::train::{Metrics, Sequence, TrainError, Trainer};

const SECOND: u64 = 1_000_000_000;

/// Sample `s` of prompt `p` takes as many seconds as `seconds` says; it has as many tokens.
struct Timed {
    clock: VirtualClock,
    seconds: fn(SampleId) -> u64,
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
            let seconds = (self.seconds)(id);
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
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        self.0.sleep(Nanos(5 * SECOND)).await;
        Ok(f64::from(sample.response_length).into())
    }
}

/// A run of synchronous rounds.
pub struct VirtualRun<P> {
    pub placement: P,
    pub scoring: Scoring,
    pub fetch: Fetch,
    pub staleness: u64,
    /// Prompts of a round.
    pub prompts: usize,
    pub responses: u32,
    pub steps: u64,
    pub seconds: fn(SampleId) -> u64,
}

impl<P: Place + 'static> VirtualRun<P> {
    pub fn run(self) -> Vec<StepReport> {
        let clock = VirtualClock::default();
        let time: Arc<dyn Clock> = Arc::new(clock.clone());
        let reports = Reports(Rc::new(RefCell::default()));
        let observer = reports.clone();
        let outcome = run_virtual(&clock, |scope, faults| {
            let trainer = Spending { clock: clock.clone(), devices: 0, updates: 0 };
            let trainer = Rc::new(TrainerThread::in_virtual_time(clock.clone(), Box::new(trainer)));
            let budget = Budget::new(2 * self.prompts - 1);
            let count = self.prompts as u64 * self.steps;
            let batches =
                (0..count / 2).map(|first| prompts(2 * first..2 * first + 2, |_| 0, "slow"));
            let (rows, errors) =
                produce_inline(scope, "prompts", &schema::PROMPTS, budget.clone(), batches);
            let initial = policy_batch(&trainer.publish_initial().expect("published"));
            let (policies, edge) = feedback::policies(scope, self.staleness, initial);
            let engine = Timed {
                clock: clock.clone(),
                seconds: self.seconds,
                running: BTreeSet::new(),
                begun: BTreeMap::new(),
                alarm: None,
            };
            let config = sync::Config {
                prompts: self.prompts,
                responses: self.responses,
                total_steps: None,
            };
            let rollouts = Prompts { rows, errors, budget }
                .schedule(Synchronous::new(config).expect("valid"))
                .placed(self.placement)
                .rollout(engine, &policies, time.clone());
            let (responses, decisions) = (rollouts.responses.clone(), rollouts.decisions.clone());
            let router = Router::default().route("slow", Slow(clock.clone()));
            let gradients = rollouts
                .scored(self.scoring)
                .reward(router, Executor::Inline, time.clone())
                .group()
                .advantage(Grpo::default())
                .fetched(self.fetch)
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
}
