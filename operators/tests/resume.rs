//! A run that is resumed from the snapshot of any of its steps yields the same result as an uninterrupted one.

mod support;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::bridge::{Executor, produce_inline};
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::clock::{Clock, Nanos, VirtualClock};
use rollpacker_dataflow::fault::{Fault, raise};
use rollpacker_dataflow::feedback;
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::runtime::run_virtual;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::snapshot::{
    Cadence, Identity, OnError, RestoredSnapshot, SnapshotPlan, SnapshotStore, Snapshots,
    StoreOptions,
};
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step};
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::Concat;
use rollpacker_operators::advantage::{Grpo, KlControl, KlController};
use rollpacker_operators::curriculum::{
    Curriculum, CurriculumOptions, CurriculumStage, SkippedPrompts, reject_unused_state,
};
use rollpacker_operators::ledger::{LedgerInputs, ledger};
use rollpacker_operators::placement;
use rollpacker_operators::placement::planner::Rule;
use rollpacker_operators::placement::{
    Decision as Placed, Event as PlaceEvent, Job, PlacementPolicy, Planner, StepCost,
    StreamTrainer, StreamTrainerOptions,
};
use rollpacker_operators::policy::policy_batch;
use rollpacker_operators::prompts::{PromptRow, prompt_batch};
use rollpacker_operators::report::{
    Observer, ObserverState, ReportInputs, StepReport, observe, token_versions,
};
use rollpacker_operators::resume::Resumable;
use rollpacker_operators::reward::{AdaptiveLimits, LimitOptions};
use rollpacker_operators::schedule::operator::{Prompts, Scheduled, Stop};
use rollpacker_operators::schedule::snapshot::{last_prompt, reserve, restore};
use rollpacker_operators::schedule::{
    Builtin, Decision, Dynamic, Event, FrontierGroup, HistorySorted, OnExhausted, Partial,
    Schedule, Sorted, Synchronous, TailBatching, ZeroVarianceFilter, dynamic, frontier_group,
    history_sorted, longest_first, partial, sorted, sync, tail_batching,
};
use rollpacker_operators::trainer::{TrainerThread, check_current, state_file};
use rollpacker_operators::{
    AdvantageExt, GradientExt, GroupExt, InferenceExt, RewardExt, RolloutExt, ScheduleExt,
    UpdateExt,
};
use rollpacker_stages::reward::{Context, Execution, Reward, RewardError, Router, Sample, Score};
use rollpacker_stages::rollout::{Placement, Policy};
use rollpacker_stages::train::{Inferred, Metrics, Sequence, TrainError, Trainer};
use support::in_virtual_time::Timed;

/// The number of prompts of an epoch.
const EPOCH: u64 = 22;
const PROMPTS: u64 = 2 * EPOCH;
/// The number of prompts admitted in a round.
const P0: usize = 4;
const R0: u32 = 2;

fn tail(adjust: impl FnOnce(&mut tail_batching::Config)) -> Builtin {
    let mut config = support::tail(P0, R0, 1.5, 1.5);
    adjust(&mut config);
    TailBatching::new(config).expect("valid").into()
}

fn sorted(mode: sorted::Mode) -> Builtin {
    let carry_over = mode == sorted::Mode::Partial;
    let harvest = carry_over.then_some(P0 + 1);
    let config = sorted::Config {
        prompts: P0,
        responses: R0,
        group_size: 2,
        slots: 6,
        harvest,
        mode,
        carry_over,
        total_steps: None,
    };
    Sorted::new(config).expect("valid").into()
}

/// Returns every built-in schedule; each keeps some state between rounds.
fn schedules() -> Vec<(&'static str, Builtin)> {
    let (prompts, responses, total_steps) = (P0, R0, None);
    let on_exhausted = OnExhausted::SmallerStep;
    let filter = ZeroVarianceFilter { max_generated_batches: 3, on_exhausted };
    let slots = 5;
    let order = frontier_group::Order::GroupMajor;
    let sync = sync::Config { prompts, responses, total_steps };
    let history = history_sorted::Config { prompts, responses, window: Some(2), total_steps };
    let dynamic = dynamic::Config {
        prompts,
        responses,
        gen_prompts: Some(5),
        max_generated_batches: 3,
        on_exhausted,
        total_steps,
    };
    let partial =
        partial::Config { prompts, responses, oversubscription: 1.5, max_versions: 3, total_steps };
    let frontier = frontier_group::Config { prompts, responses, slots, order, total_steps };
    let longest = longest_first::Config { prompts, responses, slots, total_steps };
    vec![
        ("sync", Synchronous::new(sync).expect("valid").into()),
        ("history_sorted", HistorySorted::new(history).expect("valid").into()),
        ("tail_batching", tail(|_| {})),
        ("tail_batching, old", tail(|config| config.max_queue_age = Some(1))),
        ("tail_batching, partial", tail(|config| config.keep_partial = true)),
        ("tail_batching, filter", tail(|config| config.filter_zero_variance = Some(filter))),
        (
            "tail_batching, weighted",
            tail(|config| {
                config.eta_responses = 1.0;
                config.selection = tail_batching::Selection::Weighted;
            }),
        ),
        (
            "tail_batching, quotas",
            tail(|config| config.quotas = BTreeMap::from([("math".into(), P0)])),
        ),
        ("dynamic", Dynamic::new(dynamic).expect("valid").into()),
        ("sorted, on policy", sorted(sorted::Mode::OnPolicy)),
        ("sorted, partial", sorted(sorted::Mode::Partial)),
        ("partial", Partial::new(partial).expect("valid").into()),
        ("frontier_group", FrontierGroup::new(frontier).expect("valid").into()),
        ("longest_first", Synchronous::longest_first(longest).expect("valid").into()),
    ]
}

fn prompts(ids: std::ops::Range<u64>) -> Batch {
    let row = |id| PromptRow {
        prompt: PromptId(id),
        epoch: u32::try_from(id / EPOCH).expect("small"),
        row: id % EPOCH,
        domain: if id.is_multiple_of(7) { "other".into() } else { "math".into() },
        prompt_ids: vec![1, 2, 3],
        prompt_length: 3,
        data_source: "odd".into(),
        messages: "[]".into(),
        ground_truth: Some(format!("answer {id}")),
        extra_info: None,
    };
    prompt_batch(&ids.map(row).collect::<Vec<_>>())
}

/// Returns the duration of a response, which depends on the step, the prompt and the sample. Durations have a long tail.
fn seconds(id: SampleId) -> u64 {
    let mut hash = id.step.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ id.prompt.0.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ u64::from(id.sample)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let long = if id.prompt.0.is_multiple_of(5) { 20 } else { 0 };
    1 + (hash >> 33) % 9 + long
}

/// A trainer that folds its inputs into a number. Its state consists of the number and the last `kept` policies.
struct Folding {
    folded: u64,
    step: u64,
    policies: Vec<(u64, u64)>,
    /// The number of policies that later steps may sample with.
    kept: usize,
    clock: VirtualClock,
}

impl Folding {
    fn new(staleness: u64, clock: &VirtualClock) -> Self {
        let kept = usize::try_from(staleness).expect("small") + 1;
        Self { folded: 7, step: 0, policies: Vec::new(), kept, clock: clock.clone() }
    }

    fn policy((version, digest): (u64, u64)) -> Policy {
        Policy { version: PolicyVersion(version), location: "nowhere".into(), digest }
    }

    fn failed(operation: &'static str, error: impl std::fmt::Display) -> TrainError {
        TrainError::Backend { operation, reason: error.to_string() }
    }
}

impl Trainer for Folding {
    fn publish(&mut self, version: PolicyVersion) -> Result<Policy, TrainError> {
        self.policies.push((version.0, self.folded));
        Ok(Self::policy((version.0, self.folded)))
    }

    fn infer(&mut self, _: Step, sequences: &[Sequence<'_>]) -> Result<Vec<Inferred>, TrainError> {
        let share = (self.folded % 97) as f32 / 970.0;
        let kl = |sequence: &Sequence<'_>| Inferred {
            reward_kl: vec![share; sequence.response_ids.len()],
            ..Inferred::default()
        };
        Ok(sequences.iter().map(kl).collect())
    }

    /// Accumulates sequences; the result is independent of their order.
    fn accumulate(&mut self, _: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError> {
        for sequence in sequences {
            let advantage = sequence.advantages.first().map_or(0, |advantage| advantage.to_bits());
            let seen = u64::from(sequence.response_length) << 32 | u64::from(advantage);
            self.step = self.step.wrapping_add(seen.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        self.clock.spend(Nanos(1_000_000_000));
        Ok(())
    }

    fn update(&mut self, step: Step) -> Result<(Policy, Metrics), TrainError> {
        self.folded = self.folded.wrapping_mul(31).wrapping_add(std::mem::take(&mut self.step));
        self.policies.push((step.0 + 1, self.folded));
        self.policies.drain(..self.policies.len().saturating_sub(self.kept));
        let metrics = Metrics::from([("actor/folded".to_owned(), self.folded as f64)]);
        Ok((Self::policy((step.0 + 1, self.folded)), metrics))
    }

    fn save(&mut self, _: &Path) -> Result<(), TrainError> {
        Ok(())
    }

    fn save_state(&mut self, file: &Path) -> Result<(), TrainError> {
        let state = serde_json::to_vec(&(self.folded, &self.policies)).expect("numbers");
        std::fs::write(file, state).map_err(|error| Self::failed("saving", error))
    }

    fn load_state(&mut self, file: &Path) -> Result<Vec<Policy>, TrainError> {
        let bytes = std::fs::read(file).map_err(|error| Self::failed("loading", error))?;
        let state = serde_json::from_slice(&bytes);
        (self.folded, self.policies) = state.map_err(|error| Self::failed("loading", error))?;
        Ok(self.policies.iter().copied().map(Self::policy).collect())
    }
}

/// A reward that takes 5 seconds, gives one point for an odd length, and runs one test case.
struct Odd(VirtualClock);

impl Reward for Odd {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        let truth = format!("answer {}", sample.id.prompt.0);
        assert_eq!(sample.ground_truth, Some(truth), "the prompt of the response");
        self.0.sleep(Nanos(5_000_000_000)).await;
        let limit = context.limits.of(0, None);
        let took = Nanos(u64::from(sample.response_length) * 200_000_000);
        let execution = Execution { case: 0, took, limit, correct: took < limit, audited: false };
        let value = f64::from(sample.response_length % 2);
        Ok(Score { value, executions: vec![execution], ..Score::default() })
    }
}

/// Costs in which wider instances are faster with many responses, and a change takes three seconds.
struct Cost;

impl StepCost for Cost {
    fn decode_iteration(&self, tensor_parallel: u32, running: f64, _: f64) -> f64 {
        0.2 + running / f64::from(tensor_parallel)
    }

    fn training(&self, devices: u32, tokens: f64) -> f64 {
        tokens / f64::from(devices)
    }

    fn kv_capacity(&self, tensor_parallel: u32) -> u64 {
        50 * u64::from(tensor_parallel)
    }

    fn reconfiguration(&self, from: Placement, to: Placement, _: f64) -> f64 {
        if from == to { 0.0 } else { 3.0 }
    }
}

/// Returns a stream trainer with a predictive planner, whose decisions depend on the lengths of earlier rounds.
fn placing() -> Box<dyn PlacementPolicy> {
    let job = Job { devices: 4, devices_per_server: 4, training_replica: 1, response_length: 40 };
    let planner = Planner::new(Rule::Predictive, job, 1).expect("valid");
    Box::new(StreamTrainer::new(StreamTrainerOptions::predicted(), planner, Cost).expect("valid"))
}

/// The results of a step that do not depend on time.
#[derive(Debug, PartialEq)]
struct StepResult {
    step: Step,
    decisions: Vec<String>,
    placements: Vec<String>,
    responses: BTreeSet<String>,
    groups: BTreeSet<String>,
    metrics: BTreeMap<String, u64>,
}

impl StepResult {
    fn of(report: &StepReport, staleness: u64) -> Self {
        let is_of_time = |name: &str| {
            let parts = ["operator/", "timing_s/", "perf/", "rollout/load_s"];
            // With staleness, a step may be scored before the previous one has updated the limits.
            let limits = staleness > 0
                && (name.starts_with("reward/") || name.starts_with("ledger/mean_anchor"));
            limits
                || name.starts_with("ledger/anchored") && staleness > 0
                || parts.iter().any(|part| name.starts_with(part))
        };
        let metrics = report.metrics.iter().filter(|(name, _)| !is_of_time(name));
        Self {
            step: report.step,
            decisions: report.decisions.iter().flat_map(decisions).collect(),
            placements: Vec::new(),
            responses: report.responses.iter().flat_map(|batch| names(batch, report)).collect(),
            groups: report.groups.iter().flat_map(|batch| groups(batch, report)).collect(),
            metrics: metrics.map(|(name, value)| (name.clone(), value.to_bits())).collect(),
        }
    }

    fn trained(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|group| group.split('.').next().unwrap_or_default())
    }
}

fn decisions(batch: &Batch) -> Vec<String> {
    let of = |name: &'static str, row| batch.text(name).value(row).to_owned();
    let prompts = batch.values::<UInt64Type>(column::PROMPT_ID);
    let samples = batch.lists::<UInt32Type>(column::ADMITTED);
    let weights = batch.lists::<Float32Type>(column::WEIGHTS);
    let queue = batch.values::<UInt64Type>(column::QUEUE_LENGTH);
    let age = batch.values::<UInt64Type>(column::QUEUE_AGE);
    (0..batch.num_rows())
        .map(|row| {
            format!(
                "{} {} p{} {:?} {:?} ({}) {} {}",
                of(column::ROUND, row),
                of(column::DECISION, row),
                prompts.value(row),
                samples.get(row),
                weights.get(row),
                of(column::REASON, row),
                queue.value(row),
                age.value(row)
            )
        })
        .collect()
}

fn name(batch: &Batch, row: usize, truth: &str) -> String {
    let prompt = batch.values::<UInt64Type>(column::PROMPT_ID).value(row);
    let sample = batch.values::<UInt32Type>(column::SAMPLE).value(row);
    let tokens = batch.values::<UInt32Type>(column::RESPONSE_LENGTH).value(row);
    let resumed = batch.values::<UInt32Type>(column::RESUMED_LENGTH).value(row);
    let version = batch.values::<UInt64Type>(column::POLICY_VERSION).value(row);
    let versions = token_versions(batch, row);
    let versions: Vec<u64> = versions.iter().map(|version| version.0).collect();
    let reason = batch.text(column::FINISH_REASON).value(row);
    format!("{prompt}.{sample} {tokens} ({resumed}) v{version} {versions:?} {reason} {truth}")
}

/// Returns the names of responses, each with the ground truth of its prompt.
fn names(batch: &Batch, report: &StepReport) -> Vec<String> {
    let Some(rows) = batch.rows() else { return Vec::new() };
    let texts = report.texts.columns(rows);
    let truths = texts.iter().find(|(name, _)| *name == column::GROUND_TRUTH);
    let truths = truths.expect("a joined column").1.as_string::<i32>();
    let each = truths.iter().flatten().enumerate();
    each.map(|(row, truth)| name(batch, row, truth)).collect()
}

fn groups(batch: &Batch, report: &StepReport) -> Vec<String> {
    let advantages = batch.lists::<Float32Type>(column::ADVANTAGES);
    let weights = batch.values::<Float32Type>(column::WEIGHT);
    let names = names(batch, report).into_iter().enumerate();
    names
        .map(|(row, name)| {
            let advantage = advantages.get(row).first().map(|advantage| advantage.to_bits());
            format!("{name} x{} {advantage:?}", weights.value(row))
        })
        .collect()
}

/// An observer that records the results of the steps of one part of a run. Snapshots hold the number of steps over all parts.
#[derive(Clone, Default)]
struct ResultObserver {
    results: Rc<RefCell<Vec<StepResult>>>,
    steps: Rc<RefCell<u64>>,
    placements: Rc<RefCell<BTreeMap<Step, Vec<String>>>>,
    staleness: u64,
}

impl ResultObserver {
    /// Records the placements of each step.
    fn place(&self, placements: BatchStream<'_>) {
        let mut operator = Operator::new("placed", placements.scope());
        let mut input = operator.input(placements, Pipeline, &schema::PLACEMENTS);
        let placed = self.placements.clone();
        operator.build(move |_| {
            move |_| {
                input.for_each(|capability, batch| {
                    let mut placed = placed.borrow_mut();
                    placed.entry(*capability.time()).or_default().extend(placements_of(&batch));
                });
            }
        });
    }

    /// Returns the results of steps with their placements.
    fn take(&self) -> Vec<StepResult> {
        let mut placements = self.placements.take();
        let mut results = self.results.take();
        for result in &mut results {
            result.placements = placements.remove(&result.step).unwrap_or_default();
        }
        results
    }
}

fn placements_of(batch: &Batch) -> Vec<String> {
    let [instances, wide, training] =
        [column::INSTANCES, column::TENSOR_PARALLEL, column::TRAINING_DEVICES]
            .map(|name| batch.values::<UInt32Type>(name));
    let reasons = batch.text(column::REASON);
    (0..batch.num_rows())
        .map(|row| {
            let [instances, wide, training] =
                [instances, wide, training].map(|count| count.value(row));
            format!("{instances} x {wide}, {training} train: {}", reasons.value(row))
        })
        .collect()
}

impl Observer for ResultObserver {
    fn step(&mut self, report: StepReport) {
        *self.steps.borrow_mut() += 1;
        assert_eq!(report.step.next().0, *self.steps.borrow(), "steps are reported in order");
        self.results.borrow_mut().push(StepResult::of(&report, self.staleness));
    }

    fn save(&self, saved: &mut ObserverState) {
        saved.keep("steps", &*self.steps.borrow());
    }
}

#[derive(Clone)]
struct Run {
    schedule: Builtin,
    staleness: u64,
    /// The number of steps between snapshots. If it is 0, snapshots are taken only on request and at the end of the run.
    every: u64,
    stop: Stop,
    prompts: u64,
    placement: Option<fn() -> Box<dyn PlacementPolicy>>,
    curriculum: Option<CurriculumStage>,
}

impl Run {
    fn of(schedule: &Builtin, staleness: u64) -> Self {
        let (schedule, stop) = (schedule.clone(), Stop::default());
        let (placement, curriculum) = (None, None);
        Self { schedule, staleness, every: 0, stop, prompts: PROMPTS, placement, curriculum }
    }

    /// Returns the run with a curriculum that skips prompts without reward variance.
    fn with_curriculum(self) -> Self {
        let options = CurriculumOptions { exploration: 0.25, ..CurriculumOptions::default() };
        let curriculum = Curriculum::new(options, 5).expect("valid").with_staleness(self.staleness);
        let curriculum = CurriculumStage { curriculum, skipped: SkippedPrompts::default() };
        Self { curriculum: Some(curriculum), ..self }
    }

    /// Returns the number of prompts skipped by the last run.
    fn skipped(&self) -> usize {
        let count = |stage: &CurriculumStage| stage.skipped.too_easy() + stage.skipped.too_hard();
        self.curriculum.as_ref().map_or(0, |stage| usize::try_from(count(stage)).expect("small"))
    }

    /// Runs the graph from the snapshot of step `from` in `folder`. If `from` is `None`, runs it from the newest snapshot, or from the
    /// first step if there is none. Writes snapshots to `folder`.
    fn go(&self, folder: &Path, from: Option<Step>) -> Result<Vec<StepResult>, Fault> {
        let store = open(folder);
        let found = from.map_or_else(|| store.latest(), |step| store.at(step)).expect("readable");
        assert!(found.damage.is_empty(), "{:?}", found.damage);
        self.resume(store, found.restored.as_ref())
    }

    fn resume(
        &self,
        store: SnapshotStore,
        from: Option<&RestoredSnapshot>,
    ) -> Result<Vec<StepResult>, Fault> {
        let clock = VirtualClock::default();
        let plan = SnapshotPlan {
            store: Arc::new(store),
            cadence: Cadence::every(self.every),
            on_error: OnError::Fail,
            resumed: from.map(RestoredSnapshot::step),
        };
        let steps = from.map(|from| ObserverState::read(from, "steps").expect("kept"));
        let steps = Rc::new(RefCell::new(steps.flatten().unwrap_or(0)));
        let watching =
            ResultObserver { steps, staleness: self.staleness, ..ResultObserver::default() };
        run_virtual(&clock, |scope, faults| {
            let snapshots = Snapshots::in_virtual_time(scope, &plan, clock.clone());
            let resumable = Resumable::new(Some(snapshots), from.cloned());
            self.lay(scope, &clock, resumable.clone(), from, faults, watching.clone());
            raise(resumable.errors(scope), faults);
            let commits = resumable.commit().expect("snapshots are taken");
            raise(commits.errors, faults);
        })?;
        Ok(watching.take())
    }

    fn lay<'scope>(
        &self,
        scope: rollpacker_dataflow::timely::dataflow::Scope<'scope, Step>,
        clock: &VirtualClock,
        resumable: Resumable<'scope>,
        from: Option<&RestoredSnapshot>,
        faults: &rollpacker_dataflow::fault::Faults,
        observer: ResultObserver,
    ) {
        let time: Arc<dyn Clock> = Arc::new(clock.clone());
        let trainer = Box::new(Folding::new(self.staleness, clock));
        let trainer = Rc::new(TrainerThread::in_virtual_time(clock.clone(), trainer));
        let mut schedule = self.schedule.clone();
        let budget = Budget::new(9);
        let (first, policies) = match from {
            None => (Step(0), vec![trainer.publish_initial().expect("published")]),
            Some(from) => {
                restore(from, &mut schedule).expect("its own state");
                reserve(from, &budget).expect("readable");
                let file = state_file(from).expect("there is one");
                (from.step().next(), trainer.load_state(file).expect("loaded"))
            }
        };
        // The reader starts over; prompts that the schedule has already received are skipped.
        let all = self.prompts;
        let batches = (0..all).step_by(3).map(move |first| prompts(first..(first + 3).min(all)));
        let (rows, errors) =
            produce_inline(scope, "prompts", &schema::PROMPTS, budget.clone(), batches);
        let policies = policies.iter().map(policy_batch).collect();
        let (policies, edge) = feedback::policies_from(scope, self.staleness, first, policies);
        let mut scheduled = Prompts { rows, errors, budget }
            .schedule(schedule)
            .with_stop(&self.stop)
            .resumable(&resumable);
        if let Some(mut placement) = self.placement.map(|placement| placement()) {
            let restored = from.map(|from| placement::restore(from, &mut placement));
            restored.unwrap_or(Ok(())).expect("its own state");
            scheduled = scheduled.with_placement(placement);
        }
        if let Some(curriculum) = &self.curriculum {
            scheduled = scheduled.with_curriculum(curriculum.clone());
        }
        let rollouts = scheduled.rollout(Timed::new(clock, seconds), &policies, time.clone());
        rollouts.streams.placements.iter().for_each(|placed| observer.place(placed.clone()));
        let (responses, decisions) = (rollouts.responses.clone(), rollouts.decisions.clone());
        let texts = rollouts.texts.clone();
        let router = Router::default().route("odd", Odd(clock.clone()));
        let limit = AdaptiveLimits::new(LimitOptions::default(), 1).expect("valid");
        let adaptive = KlControl::Adaptive { target_kl: 0.05, horizon: 100.0 };
        let gradients = rollouts
            .reward(router, limit, Executor::Inline, time.clone())
            .group()
            .with_kl_penalty(KlController::new(adaptive, 0.1))
            .infer(&trainer)
            .advantage(Grpo::default())
            .gradient(trainer);
        let groups = gradients.accumulated.clone();
        let updates = gradients.update();
        raise(updates.errors, faults);
        let recorded = LedgerInputs {
            responses: responses.clone(),
            groups: groups.clone(),
            decisions: decisions.clone(),
            warmup_steps: 1,
            resumable: resumable.clone(),
        };
        let metrics = updates.metrics.concat(ledger(recorded, 40));
        let observed = ReportInputs { responses, groups, decisions, texts, metrics, resumable };
        observe(observed, time, observer);
        edge.connect(updates.policies);
    }
}

fn open(folder: &Path) -> SnapshotStore {
    let options = StoreOptions { identity: Identity::default(), keep: 100 };
    SnapshotStore::open(folder, options).expect("opens")
}

/// Creates a temporary folder, in memory if possible: these tests do not depend on durability.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
        .expect("a folder")
}

fn copied(from: &Path) -> tempfile::TempDir {
    let to = folder();
    copy(from, to.path());
    to
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("readable") {
        let path = entry.expect("readable").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).expect("copied");
        }
    }
}

fn check(name: &str, run: &Run) {
    let all = folder();
    let straight = Run { every: 1, ..run.clone() };
    let expected = straight.go(all.path(), None).expect("no fault");
    let skipped = run.skipped();
    conserved(name, &expected, skipped);
    let steps: Vec<Step> = expected.iter().rev().map(|result| result.step).collect();
    assert_eq!(SnapshotStore::steps_in(all.path()).expect("readable"), steps, "{name}");
    let folders = std::fs::read_dir(all.path()).expect("readable");
    let folders = folders.filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().is_dir()));
    assert_eq!(folders.count(), steps.len(), "{name}: of no other step, nor of the end");
    for (done, result) in expected.iter().enumerate() {
        let again = copied(all.path());
        let found = run.go(again.path(), Some(result.step));
        let found = found.unwrap_or_else(|fault| panic!("{name}, step {}: {fault}", result.step));
        let staleness = run.staleness;
        let what = format!("{name}, staleness {staleness}, resumed after step {}", result.step);
        same(&what, &found, &expected[done + 1..]);
        assert_eq!(run.skipped(), skipped, "{what}");
    }
}

fn same(what: &str, found: &[StepResult], expected: &[StepResult]) {
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected, "{what}");
    }
    assert_eq!(found.len(), expected.len(), "{what}: steps");
}

/// Checks that every prompt is trained on, rejected or skipped exactly once, and that the run has at least 5 steps, or 3 if prompts were
/// skipped. `skipped` is the number of skipped prompts.
fn conserved(name: &str, all: &[StepResult], skipped: usize) {
    let mut seen = BTreeMap::<&str, u64>::new();
    for result in all {
        let trained: BTreeSet<&str> = result.trained().collect();
        trained.into_iter().for_each(|prompt| *seen.entry(prompt).or_default() += 1);
    }
    let rejected = all.iter().flat_map(|result| &result.decisions);
    let rejected = rejected.filter(|decision| decision.contains(" reject ")).count();
    assert!(seen.values().all(|count| *count == 1), "{name}: {seen:?}");
    assert_eq!(seen.len() + rejected + skipped, PROMPTS as usize, "{name}");
    let min = if skipped > 0 { 3 } else { 5 };
    assert!(all.len() >= min, "{name}: {} steps", all.len());
}

#[test]
fn every_schedule_resumes_from_every_step_on_policy() {
    for (name, schedule) in schedules() {
        check(name, &Run::of(&schedule, 0));
    }
}

#[test]
fn every_schedule_resumes_from_every_step_with_a_staleness() {
    for (name, schedule) in schedules() {
        check(name, &Run::of(&schedule, 1));
    }
    for (name, schedule) in schedules().into_iter().filter(|(name, _)| name.contains("partial")) {
        check(name, &Run::of(&schedule, 2));
    }
}

/// The prompts of the second epoch depend on the pass rates of the first.
#[test]
fn a_curriculum_resumes_from_every_step() {
    for (name, schedule) in schedules() {
        for staleness in 0..2 {
            let run = Run::of(&schedule, staleness).with_curriculum();
            check(name, &run);
            assert!(run.skipped() >= 4, "{name}: {} skipped", run.skipped());
        }
    }
}

#[test]
fn only_a_snapshot_of_a_curriculum_requires_a_curriculum() {
    let (with, without) = (folder(), folder());
    let plain = Run { every: 1, ..Run::of(&schedules().remove(0).1, 0) };
    let judged = plain.clone().with_curriculum();
    judged.go(with.path(), None).expect("no fault");
    plain.go(without.path(), None).expect("no fault");
    let at = |folder: &Path, step| open(folder).at(Step(step)).expect("readable").restored;
    let error = reject_unused_state(&at(with.path(), 3).expect("one")).expect_err("refused");
    let expected = "snapshot after step 4, part `curriculum`: the run had a curriculum and is resumed without one";
    assert!(error.to_string().starts_with(expected), "{error}");
    reject_unused_state(&at(without.path(), 3).expect("one")).expect("no curriculum");
    // The curriculum begins without history: it skips what the steps after the snapshot have shown.
    let judged = Run { every: 0, ..judged };
    let rest = judged.go(without.path(), Some(Step(3))).expect("no fault");
    assert!(!rest.is_empty() && judged.skipped() > 0);
}

#[test]
fn a_trainer_that_restores_no_current_policy_is_refused() {
    let folder = folder();
    let run = Run { every: 1, ..Run::of(&schedules().remove(0).1, 0) };
    run.go(folder.path(), None).expect("no fault");
    let restored = open(folder.path()).at(Step(3)).expect("readable").restored.expect("one");
    let policies = [3, 4].map(|version| Folding::policy((version, 7)));
    check_current(&restored, &policies).expect("the next step samples with version 4");
    for (policies, found) in [(&policies[..1], "v3"), (&[], "no policy")] {
        let error = check_current(&restored, policies).expect_err("refused").to_string();
        let expected = "snapshot after step 4, part `trainer`: expected the trainer to restore policies up to v4, found";
        assert_eq!(error, format!("{expected} {found}"));
    }
}

/// The placements of later rounds depend on the state of the planner after earlier ones.
#[test]
fn a_planner_resumes_from_every_step() {
    for (name, schedule) in schedules() {
        check(name, &Run { placement: Some(placing), ..Run::of(&schedule, 0) });
    }
}

/// The run is stopped after each step with a snapshot, and the next part resumes from there.
#[test]
fn a_run_resumed_after_every_step_equals_an_uninterrupted_run() {
    for (name, schedule) in schedules() {
        for staleness in [0, 2] {
            let expected = Run::of(&schedule, staleness).go(folder().path(), None);
            let (expected, pieces) = (expected.expect("no fault"), folder());
            let mut found = Vec::new();
            while found.len() < expected.len() {
                let run = Run::of(&schedule, staleness);
                let next = Step(found.len() as u64);
                run.stop.set_deadline_check(move |step| step <= next);
                let piece = run.go(pieces.path(), None).expect("no fault");
                assert_eq!(piece.len(), 1, "{name}, staleness {staleness}, step {next}");
                found.extend(piece);
            }
            same(&format!("{name}, staleness {staleness}"), &found, &expected);
            let rest = Run::of(&schedule, staleness).go(pieces.path(), None).expect("no fault");
            assert!(rest.is_empty(), "{name}: nothing is left");
        }
    }
}

/// A run whose prompts have ended continues when it is given more.
#[test]
fn a_completed_run_is_extended() {
    let schedule = schedules().remove(0).1;
    for (staleness, every) in [(0, 0), (0, 1), (1, 1), (2, 1), (2, 3), (2, 4)] {
        let (whole, pieces) = (folder(), folder());
        let run = Run { every, ..Run::of(&schedule, staleness) };
        let expected = run.go(whole.path(), None).expect("no fault");
        // If a step ends together with an epoch, the longer run is the same up to there.
        let short = Run { prompts: EPOCH, ..run.clone() };
        let mut found = short.go(pieces.path(), None).expect("no fault");
        assert!(found.len() < expected.len());
        found.extend(run.go(pieces.path(), None).expect("no fault"));
        same(&format!("staleness {staleness}, snapshots every {every}"), &found, &expected);
    }
}

/// The last round of a run that is resumed with fewer steps rejects prompts whose responses it has paused.
#[test]
fn a_resumed_run_drops_the_responses_of_rejected_prompts() {
    let folder = folder();
    let run = |total_steps| {
        let config = partial::Config {
            prompts: P0,
            responses: R0,
            oversubscription: 3.0,
            max_versions: 3,
            total_steps,
        };
        Run::of(&Partial::new(config).expect("valid").into(), 0)
    };
    let kept = || -> usize {
        let restored = open(folder.path()).latest().expect("readable").restored.expect("one");
        restored.rows("rollout").expect("rows").iter().map(|(_, rows)| rows.num_rows()).sum()
    };
    let first = run(None);
    first.stop.set_deadline_check(|step| step <= Step(0));
    first.go(folder.path(), None).expect("no fault");
    let shortened = run(Some(2)).go(folder.path(), None).expect("no fault");
    let decided = || shortened.iter().flat_map(|result| &result.decisions);
    assert!(decided().any(|decision| decision.contains(" reject ")));
    assert!(kept() > 0, "the snapshot was taken before the rejections had an effect");
    run(Some(3)).go(folder.path(), None).expect("no fault");
    assert_eq!(kept(), 0);
}

/// A schedule that decides nothing and cannot be saved.
#[derive(Default)]
struct Unsaved(Vec<Decision>);

impl Schedule for Unsaved {
    fn on(&mut self, _: Nanos, _: Event) {}

    fn poll(&mut self) -> Option<Decision> {
        self.0.pop()
    }

    fn wants_prompts(&self) -> bool {
        false
    }
}

/// A placement policy that cannot be saved.
struct Unlearned;

impl PlacementPolicy for Unlearned {
    fn on(&mut self, _: Nanos, _: PlaceEvent) {}

    fn poll(&mut self) -> Option<Placed> {
        None
    }
}

/// Returns the error with which a graph with snapshots is rejected.
fn refused(scheduled: impl for<'scope> FnOnce(Prompts<'scope>) -> Scheduled<'scope>) -> String {
    let clock = VirtualClock::default();
    let kept = folder();
    let plan = SnapshotPlan {
        store: Arc::new(open(kept.path())),
        cadence: Cadence::every(1),
        on_error: OnError::Fail,
        resumed: None,
    };
    let ran = run_virtual(&clock, |scope, faults| {
        let snapshots = Snapshots::in_virtual_time(scope, &plan, clock.clone());
        let resumable = Resumable::new(Some(snapshots), None);
        let budget = Budget::new(1);
        let (rows, errors) =
            produce_inline(scope, "prompts", &schema::PROMPTS, budget.clone(), std::iter::empty());
        let initial = policy_batch(&Folding::policy((0, 0)));
        let (policies, edge) = feedback::policies(scope, 0, initial);
        let time: Arc<dyn Clock> = Arc::new(clock.clone());
        let limit = AdaptiveLimits::new(LimitOptions::default(), 1).expect("valid");
        let scored = scheduled(Prompts { rows, errors, budget })
            .resumable(&resumable)
            .rollout(Timed::new(&clock, seconds), &policies, time.clone())
            .reward(Router::default(), limit, Executor::Inline, time);
        raise(scored.streams.errors, faults);
        edge.connect(policies);
    });
    ran.expect_err("refused").to_string()
}

#[test]
fn stages_without_a_saved_state_are_refused() {
    let fault = refused(|prompts| prompts.schedule(Unsaved::default()));
    assert!(fault.contains("implement `save` and `restore` for it"), "{fault}");
    let schedule = schedules().remove(0).1;
    let fault = refused(|prompts| prompts.schedule(schedule).with_placement(Unlearned));
    assert!(fault.contains("the placement policy has no state"), "{fault}");
}

#[test]
fn the_state_of_another_schedule_is_refused() {
    let kept = folder();
    let run = Run::of(&schedules().remove(0).1, 0);
    run.stop.set_deadline_check(|step| step < Step(2));
    run.go(kept.path(), None).expect("no fault");
    let restored = open(kept.path()).latest().expect("readable").restored.expect("one");
    let mut other = tail(|_| {});
    let error = restore(&restored, &mut other).expect_err("of another").to_string();
    assert!(error.starts_with("snapshot after step 2, part `schedule`: missing field"), "{error}");
    let last = last_prompt(&restored).expect("readable").expect("it was offered some");
    assert!(last.prompt >= PromptId(8) && last.row == last.prompt.0 % EPOCH, "{last:?}");
}
