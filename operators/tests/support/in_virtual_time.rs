//! Stages that take virtual time, and the whole step over them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::{Reports, check_truth, prompts};
use rollpacker_dataflow::bridge::{Executor, produce_inline};
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::clock::{Alarm, Clock, Nanos, VirtualClock};
use rollpacker_dataflow::fault::raise;
use rollpacker_dataflow::runtime::run_virtual;
use rollpacker_dataflow::step::{PolicyVersion, SampleId};
use rollpacker_dataflow::{feedback, schema, step::Step};
use rollpacker_operators::advantage::Grpo;
use rollpacker_operators::overlap::{GroupDelivery, Scoring};
use rollpacker_operators::placement::PlacementPolicy;
use rollpacker_operators::policy::policy_batch;
use rollpacker_operators::report::{ReportInputs, StepReport, observe};
use rollpacker_operators::resume::Resumable;
use rollpacker_operators::schedule::operator::Prompts;
use rollpacker_operators::schedule::{Synchronous, sync};
use rollpacker_operators::trainer::TrainerThread;
use rollpacker_operators::{
    AdvantageExt, GradientExt, GroupExt, RewardExt, RolloutExt, ScheduleExt, UpdateExt,
};
use rollpacker_stages::reward::{Context, Limits, Reward, RewardError, Router, Sample, Score};
use rollpacker_stages::rollout::{
    Completion, FinishReason, Policy, Request, RolloutEngine, RolloutEvent, TokenVersions, Waker,
};
use rollpacker_stages::train::{Metrics, Sequence, TrainError, Trainer};

pub const SECOND: u64 = 1_000_000_000;

/// An engine that samples one token per second. It generates a response for the number of seconds that `seconds` returns, in addition to
/// the tokens with which the response is resumed.
pub struct Timed {
    clock: VirtualClock,
    seconds: Box<dyn Fn(SampleId) -> u64>,
    version: PolicyVersion,
    /// For each response, the policy with which it is requested and the versions of the tokens that it was resumed with.
    resumed: BTreeMap<SampleId, (PolicyVersion, TokenVersions)>,
    running: BTreeSet<(Nanos, SampleId)>,
    begun: BTreeMap<SampleId, Nanos>,
    aborted: VecDeque<RolloutEvent>,
    /// The time that loading weights takes, if the engine reports it.
    pub load: Option<Nanos>,
    loaded: Option<(PolicyVersion, Nanos)>,
    alarm: Option<Alarm>,
}

impl Timed {
    pub fn new(clock: &VirtualClock, seconds: impl Fn(SampleId) -> u64 + 'static) -> Self {
        Self {
            clock: clock.clone(),
            seconds: Box::new(seconds),
            version: PolicyVersion::default(),
            resumed: BTreeMap::new(),
            running: BTreeSet::new(),
            begun: BTreeMap::new(),
            aborted: VecDeque::new(),
            load: None,
            loaded: None,
            alarm: None,
        }
    }

    fn end(&mut self, at: Nanos, id: SampleId, finish_reason: FinishReason) -> RolloutEvent {
        self.running.remove(&(at, id));
        self.set();
        let (started, finished) = (self.begun[&id], at.min(self.clock.now()));
        let sampled = u32::try_from(finished.since(started).0 / SECOND).expect("short");
        let (version, mut token_versions) = self.resumed[&id].clone();
        let tokens = token_versions.len() + sampled as usize;
        token_versions.resize(tokens, version);
        RolloutEvent::Completed(Completion {
            id,
            response_length: tokens as u32,
            response_ids: vec![7; tokens],
            logprobs: vec![-0.5; tokens],
            token_versions,
            text: String::new(),
            finish_reason,
            started,
            finished,
            preemptions: 0,
            instance: 0,
        })
    }

    fn set(&self) {
        let next = self.running.first().map(|(at, _)| *at);
        let now = (!self.aborted.is_empty()).then(|| self.clock.now());
        if let (Some(alarm), Some(at)) = (&self.alarm, now.or(next)) {
            alarm.set(at);
        }
    }
}

impl RolloutEngine for Timed {
    fn load(&mut self, policy: &Policy) {
        let now = self.clock.now();
        self.version = policy.version;
        self.loaded = self.load.map(|load| (policy.version, Nanos(now.0 + load.0)));
    }

    fn loaded_at(&self, version: PolicyVersion) -> Option<Nanos> {
        self.loaded.filter(|(loaded, _)| *loaded == version).map(|(_, at)| at)
    }

    fn generate(&mut self, Request { step, prompt, samples, resumed, .. }: Request) {
        for sample in samples {
            let id = SampleId { step, prompt, sample };
            let partial = resumed.iter().find(|partial| partial.sample == sample);
            let kept = partial.map(|partial| partial.token_versions.clone()).unwrap_or_default();
            self.resumed.insert(id, (self.version, kept));
            let seconds = (self.seconds)(id);
            self.running.insert((Nanos(self.clock.now().0 + seconds * SECOND), id));
            self.begun.insert(id, self.clock.now());
        }
        self.set();
    }

    fn abort(&mut self, id: SampleId) {
        let Some(&(at, _)) = self.running.iter().find(|(_, of)| *of == id) else { return };
        let aborted = self.end(at, id, FinishReason::Abort);
        self.aborted.push_back(aborted);
        self.set();
    }

    fn poll(&mut self) -> Option<RolloutEvent> {
        if let Some(aborted) = self.aborted.pop_front() {
            self.set();
            return Some(aborted);
        }
        let &(at, id) = self.running.first().filter(|(at, _)| *at <= self.clock.now())?;
        Some(self.end(at, id, FinishReason::Stop))
    }

    fn wake_by(&mut self, waker: Waker) {
        self.alarm = Some(self.clock.alarm(move || waker()));
        self.set();
    }
}

/// A trainer that takes 8 seconds per sequence on one device, and 3 for an update.
pub struct Spending {
    clock: VirtualClock,
    devices: u32,
    updates: u64,
}

impl Spending {
    /// Creates a trainer on `devices` devices, until it is placed.
    pub fn on(clock: &VirtualClock, devices: u32) -> Self {
        Self { clock: clock.clone(), devices, updates: 0 }
    }
}

impl Trainer for Spending {
    fn publish(&mut self, version: PolicyVersion) -> Result<Policy, TrainError> {
        Ok(Policy { version, location: "nowhere".into(), digest: 0 })
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

/// A reward that takes 5 seconds per response.
struct Slow(VirtualClock);

impl Reward for Slow {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        check_truth(sample);
        self.0.sleep(Nanos(5 * SECOND)).await;
        Ok(f64::from(sample.response_length).into())
    }
}

/// A run of synchronous rounds.
pub struct VirtualRun<P> {
    pub placement: P,
    pub scoring: Scoring,
    pub delivery: GroupDelivery,
    pub staleness: u64,
    /// The number of prompts of a round.
    pub prompts: usize,
    pub responses: u32,
    pub steps: u64,
    pub seconds: fn(SampleId) -> u64,
    /// The time that new weights take, if the engine reports it.
    pub load: Option<Nanos>,
}

impl<P: PlacementPolicy + 'static> VirtualRun<P> {
    pub fn run(self) -> Vec<StepReport> {
        let clock = VirtualClock::default();
        let time: Arc<dyn Clock> = Arc::new(clock.clone());
        let reports = Reports(Rc::new(RefCell::default()));
        let observer = reports.clone();
        let outcome = run_virtual(&clock, |scope, faults| {
            let trainer = Spending::on(&clock, 0);
            let trainer = Rc::new(TrainerThread::in_virtual_time(clock.clone(), Box::new(trainer)));
            let budget = Budget::new(2 * self.prompts - 1);
            let count = self.prompts as u64 * self.steps;
            let batches =
                (0..count / 2).map(|first| prompts(2 * first..2 * first + 2, |_| 0, "slow"));
            let (rows, errors) =
                produce_inline(scope, "prompts", &schema::PROMPTS, budget.clone(), batches);
            let initial = policy_batch(&trainer.publish_initial().expect("published"));
            let (policies, edge) = feedback::policies(scope, self.staleness, initial);
            let engine = Timed { load: self.load, ..Timed::new(&clock, self.seconds) };
            let config = sync::Config {
                prompts: self.prompts,
                responses: self.responses,
                total_steps: None,
            };
            let rollouts = Prompts { rows, errors, budget }
                .schedule(Synchronous::new(config).expect("valid"))
                .with_placement(self.placement)
                .rollout(engine, &policies, time.clone());
            let (responses, decisions) = (rollouts.responses.clone(), rollouts.decisions.clone());
            let texts = rollouts.texts.clone();
            let router = Router::default().route("slow", Slow(clock.clone()));
            let gradients = rollouts
                .score_when(self.scoring)
                .reward(router, Limits::default(), Executor::Inline, time.clone())
                .group()
                .advantage(Grpo::default())
                .deliver_when(self.delivery)
                .gradient(trainer);
            let groups = gradients.accumulated.clone();
            let updates = gradients.update();
            raise(updates.errors, faults);
            let (metrics, resumable) = (updates.metrics, Resumable::default());
            let observed = ReportInputs { responses, groups, decisions, texts, metrics, resumable };
            observe(observed, time, observer);
            edge.connect(updates.policies);
        });
        outcome.expect("no fault");
        reports.0.take()
    }
}
