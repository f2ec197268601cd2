//! Stages without work, for tests and benches of the graph. The responses of the engine end in the order of their lengths, and the trainer
//! records how much it trains on. The module also builds the whole step over these stages.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "tests and benches share the module and use different parts"
)]

pub mod in_virtual_time;
pub mod racer;
pub mod rewarded;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::bridge::{Executor, produce};
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::clock::{Nanos, VirtualClock};
use rollpacker_dataflow::fault::{Fault, raise};
use rollpacker_dataflow::runtime::run;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step};
use rollpacker_dataflow::timely::dataflow::operators::Concat;
use rollpacker_dataflow::{feedback, schema};
use rollpacker_operators::advantage::{Estimator, Grpo};
use rollpacker_operators::curriculum::CurriculumStage;
use rollpacker_operators::ledger::{LedgerInputs, ledger};
use rollpacker_operators::placement::PlacementPolicy;
use rollpacker_operators::policy::policy_batch;
use rollpacker_operators::prompts::{PromptRow, prompt_batch};
use rollpacker_operators::report::{Observer, ReportInputs, StepReport, observe};
use rollpacker_operators::resume::Resumable;
use rollpacker_operators::schedule::operator::{Prompts, Stop};
use rollpacker_operators::schedule::{Schedule, tail_batching};
use rollpacker_operators::trainer::TrainerThread;
use rollpacker_operators::{
    AdvantageExt, GradientExt, GroupExt, RewardExt, RolloutExt, ScheduleExt, UpdateExt,
};
use rollpacker_stages::reward::{Context, Limits, Reward, RewardError, Router, Sample, Score};
use rollpacker_stages::rollout::{
    Completion, FinishReason, Partial, Policy, Request, RolloutEngine, RolloutError, RolloutEvent,
    Waker,
};
use rollpacker_stages::train::{Metrics, Sequence, TrainError, Trainer};

/// Returns the options of tail batching with surplus prompts and responses, and with defaults for all other options.
pub fn tail(
    prompts: usize,
    responses: u32,
    eta_prompts: f64,
    eta_responses: f64,
) -> tail_batching::Config {
    tail_batching::Config {
        prompts,
        responses,
        eta_prompts,
        eta_responses,
        quotas: BTreeMap::new(),
        max_queue_age: None,
        total_steps: None,
        filter_zero_variance: None,
        keep_partial: false,
        selection: tail_batching::Selection::Fastest,
        max_weight: tail_batching::MAX_WEIGHT,
    }
}

/// Returns the response length of a sample; any fixed function with a long tail would do.
pub fn length(id: SampleId) -> u32 {
    let mut hash = id.step.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ id.prompt.0.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ u64::from(id.sample)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let die = (hash >> 33) % 100;
    1 + u32::try_from(if die < 90 { die % 10 } else { die }).expect("small")
}

/// An engine that ends its responses one after the other, the shortest first, as if each token took a tick. Unless it is instant, it ends
/// one response each time it is polled until `None`.
#[derive(Default)]
pub struct ShortestFirst {
    version: PolicyVersion,
    /// The function that returns the length of a response. If `None`, [`length`] is used.
    pub lengths: Option<fn(SampleId) -> u32>,
    /// The current tick: the number of tokens of the response that ended last, or 0 at the start of a round.
    now: u32,
    pending: BTreeSet<(u32, SampleId)>,
    /// For each response in flight: its length, the policy with which it is requested, and the tokens with which it was resumed.
    in_flight: BTreeMap<SampleId, (u32, PolicyVersion, Partial)>,
    ended: Vec<RolloutEvent>,
    waker: Option<Waker>,
    yielded: bool,
    /// The prompt whose response causes a failure instead of ending.
    pub fails_at: Option<PromptId>,
    /// Requests a stop when this prompt is launched.
    pub stops_at: Option<(PromptId, Stop)>,
    /// `true` to count tokens without sampling them.
    pub counts: bool,
    /// `true` to end all requests within one poll loop.
    instant: bool,
}

impl ShortestFirst {
    pub fn instant() -> Self {
        Self { instant: true, ..Self::default() }
    }

    fn complete(&self, id: SampleId, tokens: u32, finish_reason: FinishReason) -> RolloutEvent {
        let count = if self.counts { 0 } else { usize::try_from(tokens).expect("small") };
        let (_, version, partial) = &self.in_flight[&id];
        let mut token_versions = partial.token_versions.clone();
        token_versions.resize(count, *version);
        RolloutEvent::Completed(Completion {
            id,
            response_length: tokens,
            response_ids: vec![7; count],
            logprobs: vec![-0.5; count],
            token_versions,
            text: "7".repeat(count),
            finish_reason,
            started: Nanos(0),
            finished: Nanos(u64::from(tokens)),
            preemptions: 0,
            instance: 0,
        })
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker();
        }
    }
}

impl RolloutEngine for ShortestFirst {
    fn load(&mut self, policy: &Policy) {
        self.version = policy.version;
    }

    fn generate(&mut self, request: Request) {
        let Request { step, prompt, samples, resumed, .. } = request;
        if let Some((_, stop)) = self.stops_at.as_ref().filter(|(at, _)| *at == prompt) {
            stop.request();
        }
        if self.pending.is_empty() {
            self.now = 0;
        }
        let length = self.lengths.unwrap_or(length);
        for sample in samples {
            let id = SampleId { step, prompt, sample };
            let partial = resumed.iter().find(|partial| partial.sample == sample);
            let launched = partial.map_or(step, |partial| partial.launched);
            let partial = partial.cloned().unwrap_or_default();
            let tokens = length(SampleId { step: launched, ..id }).max(partial.response_length + 1);
            self.pending.insert((tokens, id));
            self.in_flight.insert(id, (tokens, self.version, partial));
        }
        self.wake();
    }

    fn abort(&mut self, id: SampleId) {
        let Some((length, _, partial)) = self.in_flight.get(&id) else { return };
        if self.pending.remove(&(*length, id)) {
            let tokens = self.now.max(partial.response_length).min(*length);
            self.ended.push(self.complete(id, tokens, FinishReason::Abort));
            self.wake();
        }
    }

    fn poll(&mut self) -> Option<RolloutEvent> {
        self.yielded = !self.yielded && !self.instant;
        if !self.yielded && !self.instant {
            return None;
        }
        let event = self.ended.pop().or_else(|| {
            let (tokens, id) = self.pending.pop_first()?;
            self.now = tokens;
            if self.fails_at == Some(id.prompt) {
                return Some(RolloutEvent::Failed(RolloutError::Engine {
                    instance: 3,
                    reason: "out of memory".into(),
                }));
            }
            Some(self.complete(id, tokens, FinishReason::Stop))
        });
        self.wake();
        event.or_else(|| {
            self.yielded = false;
            None
        })
    }

    fn wake_by(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }
}

/// The amounts of data that a step trained on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trained {
    pub sequences: usize,
    pub tokens: usize,
    pub calls: usize,
}

/// A trainer that records how much it trains on in each step.
#[derive(Clone, Default)]
pub struct Remembering {
    pub steps: Arc<Mutex<BTreeMap<Step, Trained>>>,
    pub fails_at: Option<Step>,
    updates: u64,
}

impl Remembering {
    fn policy(&self) -> Policy {
        Policy {
            version: PolicyVersion(self.updates),
            location: "nowhere".into(),
            digest: self.updates,
        }
    }
}

impl Trainer for Remembering {
    fn publish(&mut self, _version: PolicyVersion) -> Result<Policy, TrainError> {
        Ok(self.policy())
    }

    fn accumulate(&mut self, step: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError> {
        if self.fails_at == Some(step) {
            return Err(TrainError::NotFinite { step, quantity: "loss" });
        }
        assert_eq!(step.0, self.updates, "a step trains on groups of its own update");
        let mut steps = self.steps.lock().expect("unpoisoned");
        let trained = steps.entry(step).or_default();
        trained.calls += 1;
        trained.sequences += sequences.len();
        trained.tokens +=
            sequences.iter().map(|sequence| sequence.response_ids.len()).sum::<usize>();
        Ok(())
    }

    fn update(&mut self, step: Step) -> Result<(Policy, Metrics), TrainError> {
        self.steps.lock().expect("unpoisoned").entry(step).or_default();
        self.updates += 1;
        Ok((self.policy(), Metrics::from([("actor/lr".to_owned(), 0.1)])))
    }

    fn save(&mut self, _folder: &Path) -> Result<(), TrainError> {
        Ok(())
    }
}

/// A reward of one point for an odd length.
pub struct Odd;

impl Reward for Odd {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        check_truth(sample);
        Ok(((sample.response_ids.len() % 2) as f64).into())
    }
}

pub fn router() -> Router {
    Router::default().route("odd", Odd)
}

pub fn truth(prompt: PromptId) -> String {
    format!("the truth of {prompt}")
}

/// Checks, in debug builds, that a reward has the ground truth of the response's prompt.
pub fn check_truth(sample: &Sample) {
    let found = sample.ground_truth.as_deref();
    debug_assert_eq!(found, Some(&*truth(sample.id.prompt)), "the prompt of the response");
}

/// Checks, in debug builds, that a report has the ground truth of the prompt of each response.
pub fn check_truths(report: &StepReport) {
    let batches = report.responses.iter().chain(&report.groups);
    for rows in batches.filter_map(Batch::rows).filter(|_| cfg!(debug_assertions)) {
        let texts = report.texts.columns(rows);
        let joined = texts.iter().find(|(name, _)| *name == column::GROUND_TRUTH);
        let found = joined.expect("a joined column").1.as_string::<i32>().iter().flatten();
        let prompts = rows.column_by_name(column::PROMPT_ID).expect("a column");
        let prompts = prompts.as_primitive::<UInt64Type>().values();
        assert!(found.eq(prompts.iter().map(|id| truth(PromptId(*id)))), "{texts:?}");
    }
}

/// Returns a prompt of three tokens, which is the dataset row `id` of the first epoch.
fn prompt_row(id: u64, data_source: &str) -> PromptRow {
    PromptRow {
        prompt: PromptId(id),
        epoch: 0,
        row: id,
        domain: "math".into(),
        prompt_ids: vec![1, 2, 3],
        prompt_length: 3,
        data_source: data_source.into(),
        messages: "[]".into(),
        ground_truth: Some(truth(PromptId(id))),
        extra_info: None,
    }
}

/// Returns a batch of prompts with the given ids. `epoch_of` returns the epoch of an id.
pub fn prompts(
    ids: std::ops::Range<u64>,
    epoch_of: impl Fn(u64) -> u32,
    data_source: &str,
) -> Batch {
    let row = |id| PromptRow { epoch: epoch_of(id), ..prompt_row(id, data_source) };
    prompt_batch(&ids.map(row).collect::<Vec<_>>())
}

/// Returns a batch of prompts with `bytes` bytes of text each, at 4 bytes per token.
pub fn sized_prompts(ids: std::ops::Range<u64>, bytes: usize, data_source: &str) -> Batch {
    let tokens = bytes / 4;
    let row = |id| PromptRow {
        prompt_ids: vec![7; tokens],
        prompt_length: u32::try_from(tokens).expect("small"),
        messages: "x".repeat(bytes),
        extra_info: Some("{}".into()),
        ..prompt_row(id, data_source)
    };
    prompt_batch(&ids.map(row).collect::<Vec<_>>())
}

/// Returns a batch of prompts like [`prompts`], read from `rows` dataset rows epoch after epoch.
pub fn prompts_of_rows(ids: std::ops::Range<u64>, rows: u64, data_source: &str) -> Batch {
    let epoch = |id| u32::try_from(id / rows).expect("small");
    let row = |id| PromptRow { epoch: epoch(id), row: id % rows, ..prompt_row(id, data_source) };
    prompt_batch(&ids.map(row).collect::<Vec<_>>())
}

/// An observer that collects reports.
#[derive(Clone, Default)]
pub struct Reports(pub Rc<RefCell<Vec<StepReport>>>);

impl Observer for Reports {
    fn step(&mut self, report: StepReport) {
        check_truths(&report);
        self.0.borrow_mut().push(report);
    }
}

/// A run of the whole step.
pub struct Run<E = ShortestFirst> {
    pub schedule: Box<dyn Schedule>,
    pub engine: E,
    /// `true` if races are decided by tokens.
    pub in_lockstep: bool,
    pub estimator: Estimator,
    pub trainer: Remembering,
    /// With a curriculum, each epoch reads the same rows.
    pub curriculum: Option<CurriculumStage>,
    /// The placement, and the number of devices that it divides.
    pub placement: Option<(Box<dyn PlacementPolicy>, u32)>,
    pub staleness: u64,
    pub prompts: u64,
    pub epochs: u32,
    pub budget: usize,
    pub data_source: &'static str,
    pub stop: Stop,
    pub router: Router,
    /// The length of the longest response, in tokens.
    pub cap: u32,
    /// The number of steps that the ledger leaves out.
    pub warmup_steps: u64,
    /// The size of each prompt's text in bytes; see [`sized_prompts`]. If `None`, the prompts are those of [`prompts_of_rows`] with a
    /// curriculum, and of [`prompts`] without one.
    pub prompt_bytes: Option<usize>,
}

impl Run {
    pub fn of(schedule: impl Schedule + 'static) -> Self {
        Self::with(schedule, ShortestFirst::default())
    }
}

impl<E: RolloutEngine + 'static> Run<E> {
    pub fn with(schedule: impl Schedule + 'static, engine: E) -> Self {
        Self {
            schedule: Box::new(schedule),
            engine,
            in_lockstep: false,
            estimator: Grpo::default().into(),
            trainer: Remembering::default(),
            curriculum: None,
            placement: None,
            staleness: 0,
            prompts: 40,
            epochs: 1,
            budget: 16,
            data_source: "odd",
            stop: Stop::default(),
            router: router(),
            cap: 100,
            warmup_steps: 0,
            prompt_bytes: None,
        }
    }

    pub fn run(self) -> Result<Vec<StepReport>, Fault> {
        let reports = Reports::default();
        self.observed_by(reports.clone())?;
        Ok(reports.0.take())
    }

    pub fn observed_by(self, observer: impl Observer + 'static) -> Result<(), Fault> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .expect("a runtime");
        let handle = runtime.handle().clone();
        let clock = Arc::new(VirtualClock::default());
        let Self {
            schedule,
            engine,
            in_lockstep,
            estimator,
            trainer,
            curriculum,
            placement,
            staleness,
            prompts: count,
            epochs,
            budget,
            data_source,
            stop,
            router,
            cap,
            warmup_steps,
            prompt_bytes,
        } = self;
        run(move |scope, faults| {
            let trainer = TrainerThread::spawn(clock.clone(), || {
                Ok::<_, Infallible>(Box::new(trainer) as Box<dyn Trainer>)
            });
            let trainer = Rc::new(trainer.expect("made"));
            let budget = Budget::new(budget);
            let repeats = curriculum.is_some();
            let body = move |emitter: &rollpacker_dataflow::bridge::Emitter| {
                let total = count * u64::from(epochs);
                for first in (0..total).step_by(7) {
                    let epoch_of = |id| u32::try_from(id / count).expect("small");
                    let ids = first..(first + 7).min(total);
                    let batch = match (prompt_bytes, repeats) {
                        (Some(bytes), _) => sized_prompts(ids, bytes, data_source),
                        (None, true) => prompts_of_rows(ids, count, data_source),
                        (None, false) => prompts(ids, epoch_of, data_source),
                    };
                    if !emitter.send(batch) {
                        break;
                    }
                }
                Ok::<_, Infallible>(())
            };
            let (rows, errors) = produce(scope, "prompts", &schema::PROMPTS, budget.clone(), body);
            let initial = policy_batch(&trainer.publish_initial().expect("published"));
            let (policies, edge) = feedback::policies(scope, staleness, initial);

            let mut scheduled = Prompts { rows, errors, budget }
                .schedule(schedule)
                .with_stop(&stop)
                .in_lockstep(in_lockstep);
            if let Some(curriculum) = curriculum {
                scheduled = scheduled.with_curriculum(curriculum);
            }
            if let Some((policy, devices)) = placement {
                scheduled = scheduled.with_placement(policy).with_devices(devices);
            }
            let rollouts = scheduled.rollout(engine, &policies, clock.clone());
            let (responses, decisions) = (rollouts.responses.clone(), rollouts.decisions.clone());
            let texts = rollouts.texts.clone();
            let gradients = rollouts
                .reward(router, Limits::default(), Executor::Tokio(handle), clock.clone())
                .group()
                .advantage(estimator)
                .gradient(trainer);
            let groups = gradients.accumulated.clone();
            let updates = gradients.update();
            raise(updates.errors, faults);
            let recorded = LedgerInputs {
                responses: responses.clone(),
                groups: groups.clone(),
                decisions: decisions.clone(),
                warmup_steps,
                resumable: Resumable::default(),
            };
            let metrics = updates.metrics.concat(ledger(recorded, cap));
            let resumable = Resumable::default();
            let observed = ReportInputs { responses, groups, decisions, texts, metrics, resumable };
            observe(observed, clock, observer);
            edge.connect(updates.policies);
        })
    }
}
