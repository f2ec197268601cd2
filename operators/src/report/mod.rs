//! Reports: everything that happened in a step, reported when the step is complete.

mod lag;
mod measure;
mod occupancy;
mod order;
mod recorded;
mod saved;
mod stages;
pub(crate) mod statistics;
mod values;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use arrow_array::types::{Float64Type, Int32Type};
use arrow_select::concat::concat_batches;
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::fault::Fault;
use rollpacker_dataflow::frontier::{earliest, may_arrive};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::snapshot::Part;
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::telemetry::{self, MeterReading};
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_stages::train::Metrics;

use crate::placement::StepPlacement;
use crate::prompt_texts::PromptTexts;
use crate::resume::Resumable;

pub use measure::{Lengths, measure};
pub use order::rows_by_id;
pub use recorded::{recorded_fields, token_versions};
pub use rollpacker_stages::metrics::depends_on_time;
pub use saved::ObserverState;
pub use stages::{StageInstants, StageTimes};

pub use crate::wire::rows::ids;

/// The streams from which reports are assembled, and the access to snapshots.
pub struct ReportInputs<'scope> {
    /// Batches of [`schema::RESPONSES`]: all responses, including aborted ones.
    pub responses: BatchStream<'scope>,
    /// Batches of [`schema::GROUPS`]: the groups that were trained on.
    pub groups: BatchStream<'scope>,
    /// Batches of [`schema::DECISIONS`]: the decisions of the schedule.
    pub decisions: BatchStream<'scope>,
    /// Batches of [`schema::TEXTS`]: the texts of the prompts. Without them, [`StepReport::texts`] is empty.
    pub texts: BatchStream<'scope>,
    /// Batches of [`schema::METRICS`]: the metrics of all operators.
    pub metrics: BatchStream<'scope>,
    /// The access to snapshots, in which the state of the observer is saved.
    pub resumable: Resumable<'scope>,
}

/// All data of one step.
#[derive(Clone, Debug, Default)]
pub struct StepReport {
    /// The step that is reported.
    pub step: Step,
    /// The time at which the round opened: when the first data of the step arrived at the observer.
    pub opened: Nanos,
    /// The time at which the frontier passed the step.
    pub closed: Nanos,
    /// The time at which the frontier passed the previous step. With staleness, this may be after the step opened. For the first reported
    /// step, equal to `opened`.
    pub before: Nanos,
    /// Batches of [`schema::RESPONSES`], in the order of arrival. Small batches may be merged.
    pub responses: Vec<Batch>,
    /// Batches of [`schema::GROUPS`]: one per group, sorted by prompt, so that sums over rows do not depend on the order of arrival.
    pub groups: Vec<Batch>,
    /// Batches of [`schema::DECISIONS`], in the order in which the decisions were taken.
    pub decisions: Vec<Batch>,
    /// The texts of the prompts of the responses. Texts of prompts without responses may be included.
    pub texts: PromptTexts,
    /// The metrics of operators. They do not include the metrics that [`measure()`] computes from the rows.
    pub metrics: Metrics,
    /// The placements of the step. `None` unless an observer with access to the [log](crate::placement::PlacementLog) of the policy adds
    /// them.
    pub placement: Option<StepPlacement>,
    progress: StepProgress,
    /// The number of small batches at the end of `responses` that are not merged yet; see [`MAX_MERGED_BATCHES`].
    unmerged: usize,
}

/// The number of small batches of responses without tokens that are merged into one. A batch is small if it has fewer rows than this
/// number. An engine that only counts tokens returns most responses one by one, and a batch has more than a hundred allocations, however
/// few its rows are.
const MAX_MERGED_BATCHES: usize = 64;

/// The progress of a step that is not complete, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepProgress {
    /// The step in progress.
    pub step: Step,
    /// The number of responses that ended by themselves.
    pub finished: usize,
    /// The number of responses in groups that were trained on.
    pub trained: usize,
    /// The number of tokens in the responses that ended by themselves or were aborted.
    pub tokens: usize,
    /// The kind of the round. Empty until a decision of the round has arrived.
    pub round: String,
    /// The time from the opening of the round to the report of the progress.
    pub elapsed: Nanos,
}

/// Receives the reports of a run. All methods except [`step`](Self::step) do nothing by default.
///
/// ```
/// # mod step {
/// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/step.rs"));
/// # }
/// # use step::{clock, lengths, rollouts, run, trainer};
/// use std::cell::RefCell;
/// use std::rc::Rc;
///
/// use rollpacker_operators::report::{Observer, ReportInputs, StepReport, measure, observe};
/// use rollpacker_operators::resume::Resumable;
/// # use rollpacker_dataflow::bridge::Executor;
/// # use rollpacker_operators::advantage::Grpo;
/// # use rollpacker_operators::{AdvantageExt, GradientExt, GroupExt, RewardExt, UpdateExt};
/// # use rollpacker_stages::reward::Limits;
///
/// /// Collects the mean score of each step.
/// #[derive(Default)]
/// struct MeanScores(Vec<f64>);
///
/// impl Observer for MeanScores {
///     fn step(&mut self, report: StepReport) {
///         // A step that trained on no response has no scores.
///         self.0.extend(measure(&report).get("critic/score/mean"));
///     }
/// }
///
/// let scores = Rc::new(RefCell::new(MeanScores::default()));
/// # let (trainer, _gradients) = trainer();
/// run(|scope, _| {
///     let rollouts = rollouts(scope);
///     let (responses, decisions) = (rollouts.responses.clone(), rollouts.decisions.clone());
///     let texts = rollouts.texts.clone();
///     let gradients = rollouts
///         .reward(lengths(), Limits::default(), Executor::Inline, clock())
///         .group()
///         .advantage(Grpo::default())
///         .gradient(trainer);
///     let groups = gradients.accumulated.clone();
///     let updates = gradients.update();
///     let (metrics, resumable) = (updates.metrics, Resumable::default());
///     let inputs = ReportInputs { responses, groups, decisions, texts, metrics, resumable };
///     observe(inputs, clock(), scores.clone());
///     updates.policies
/// });
/// assert_eq!(scores.borrow().0, [1.5], "two prompts with responses that score 1 and 2");
/// ```
pub trait Observer {
    /// Receives the progress of the earliest step that is not reported, whenever the report operator runs and there is such a step.
    fn progress(&mut self, progress: &StepProgress) {
        let _ = progress;
    }

    /// Receives an error that does not end the run, or a stall that the watchdog detected.
    fn warning(&mut self, warning: &Fault) {
        let _ = warning;
    }

    /// Receives the fault of this worker that ends the run, before the graph is torn down. The teardown waits for the current work of the
    /// stages' threads. A fault of another worker is not received.
    fn failed(&mut self, fault: &Fault) {
        let _ = fault;
    }

    /// Receives the report of a complete step. Steps are reported in order, each once.
    fn step(&mut self, report: StepReport);

    /// Adds the state that the observer needs if the run is resumed after the last reported step.
    fn save(&self, saved: &mut ObserverState) {
        let _ = saved;
    }

    /// Receives the metrics `snapshot/bytes` and `snapshot/parts` of a snapshot that is on disk. `step` is the step after which the
    /// snapshot was taken, or [`Step::END`] for the snapshot at the end of the run.
    fn snapshot(&mut self, step: Step, metrics: &Metrics) {
        let _ = (step, metrics);
    }
}

/// Shares an observer, so that it outlives the graph that reports to it.
impl<O: Observer + ?Sized> Observer for Rc<RefCell<O>> {
    fn progress(&mut self, progress: &StepProgress) {
        self.borrow_mut().progress(progress);
    }

    fn warning(&mut self, warning: &Fault) {
        self.borrow_mut().warning(warning);
    }

    fn failed(&mut self, fault: &Fault) {
        self.borrow_mut().failed(fault);
    }

    fn step(&mut self, report: StepReport) {
        self.borrow_mut().step(report);
    }

    fn save(&self, saved: &mut ObserverState) {
        self.borrow().save(saved);
    }

    fn snapshot(&mut self, step: Step, metrics: &Metrics) {
        self.borrow_mut().snapshot(step, metrics);
    }
}

/// A function that adds a batch to the report of its step.
type TakeBatch = fn(&mut StepReport, Batch);

/// Reports the progress and the completion of each step to `observer`, and saves the state of `observer` in snapshots. `clock` gives the
/// times in the reports. This function does not report warnings, faults and snapshots; [`observe_snapshots`] reports snapshots.
///
/// With several workers, the streams must be routed to the first worker
/// ([`route::gather_at_first`](rollpacker_dataflow::route::gather_at_first), [`merge_metrics`](crate::merge::merge_metrics)). The observers
/// of the other workers receive nothing.
pub fn observe(
    streams: ReportInputs<'_>,
    clock: Arc<dyn Clock>,
    mut observer: impl Observer + 'static,
) {
    let leads = streams.responses.scope().index() == 0;
    let mut operator = Operator::new("report", streams.responses.scope());
    let mut inputs: [(_, TakeBatch); 5] = [
        (
            operator.input(streams.responses, Pipeline, &schema::RESPONSES),
            StepReport::take_responses,
        ),
        (operator.input(streams.groups, Pipeline, &schema::GROUPS), StepReport::take_groups),
        (
            operator.input(streams.decisions, Pipeline, &schema::DECISIONS),
            StepReport::take_decisions,
        ),
        (operator.input(streams.texts, Pipeline, &schema::TEXTS), StepReport::take_texts),
        (operator.input(streams.metrics, Pipeline, &schema::METRICS), StepReport::take_metrics),
    ];
    operator.notify_always();
    let mut parts = streams.resumable.register_first(saved::PART, &mut operator);
    operator.build(move |capabilities| {
        parts.start(&capabilities);
        drop(capabilities);
        let mut open: BTreeMap<Step, StepReport> = BTreeMap::new();
        let mut before = Vec::new();
        let mut closed = None;
        move |frontiers| {
            for (input, take) in &mut inputs {
                input.for_each(|capability, batch| {
                    let step = *capability.time();
                    let report = open.entry(step);
                    take(report.or_insert_with(|| StepReport::open(step, clock.now())), batch);
                });
            }
            if let Some(report) = open.values_mut().next() {
                report.progress.elapsed = clock.now().since(report.opened);
                observer.progress(&report.progress);
            }
            while let Some(first) = open.first_entry() {
                if may_arrive(frontiers, first.key()) {
                    break;
                }
                let mut report = first.remove();
                report.groups = order::groups(&report.groups);
                report.closed = clock.now();
                report.before = closed.replace(report.closed).unwrap_or(report.opened);
                let now = telemetry::readings();
                report.metrics.extend(since(&before, &now));
                before = now;
                telemetry::describe_step(report.step, &report.progress.round, mean_score(&report));
                telemetry::close_step(report.step);
                parts.begin_step(report.step, |_| saved_part(&observer));
                observer.step(report);
            }
            if !leads {
                telemetry::close_steps_before(earliest(frontiers).unwrap_or(Step::END));
            }
            parts.advance_to(earliest(frontiers), |_| saved_part(&observer));
        }
    });
}

/// Reports each snapshot to `observer`. `metrics` is the metrics stream of [`Commits`](rollpacker_dataflow::snapshot::Commits).
pub fn observe_snapshots(metrics: BatchStream<'_>, mut observer: impl Observer + 'static) {
    let mut operator = Operator::new("snapshot report", metrics.scope());
    let mut metrics = operator.input(metrics, Pipeline, &schema::METRICS);
    operator.build(move |_capabilities| {
        move |_frontiers| {
            metrics.for_each(|capability, batch| {
                observer.snapshot(*capability.time(), &named(&batch).collect());
            });
        }
    });
}

/// Returns the mean score of the trained responses; `None` if there are none.
fn mean_score(report: &StepReport) -> Option<f64> {
    let scores = |batch: &Batch| batch.values::<Float64Type>(column::SCORE).values().clone();
    let scores: Vec<_> = report.groups.iter().map(scores).collect();
    let count: usize = scores.iter().map(|scores| scores.len()).sum();
    (count > 0).then(|| scores.iter().flatten().sum::<f64>() / count as f64)
}

/// Returns the metrics of a batch, by name.
fn named(batch: &Batch) -> impl Iterator<Item = (String, f64)> {
    let (names, values) = (batch.text(column::NAME), batch.values::<Float64Type>(column::VALUE));
    names.iter().flatten().map(str::to_owned).zip(values.values().iter().copied())
}

/// Returns the work of this worker's operators between two readings, under `operator/<name>/`: rows in, rows out, and busy time.
fn since(before: &[MeterReading], now: &[MeterReading]) -> Metrics {
    let mut metrics = Metrics::new();
    for (index, now) in now.iter().enumerate() {
        // Readings are in the order in which operators were built, and operators are never removed, so indices match.
        let before = before.get(index);
        let rows = |of: fn(&MeterReading) -> u64| (of(now) - before.map_or(0, of)) as f64;
        let busy = now.busy.since(before.map_or(Nanos(0), |before| before.busy)).as_secs_f64();
        metrics.extend(
            [
                ("rows_in", rows(|reading| reading.rows_in)),
                ("rows_out", rows(|reading| reading.rows_out)),
                ("busy_s", busy),
            ]
            .map(|(part, value)| (format!("operator/{}/{part}", now.operator), value)),
        );
    }
    metrics
}

impl StepReport {
    fn open(step: Step, opened: Nanos) -> Self {
        Self {
            step,
            opened,
            progress: StepProgress { step, ..StepProgress::default() },
            ..Self::default()
        }
    }

    fn take_responses(&mut self, batch: Batch) {
        let lengths = Lengths::of(std::slice::from_ref(&batch));
        self.progress.finished += lengths.finished.len();
        self.progress.tokens += lengths.total();
        self.push_responses(batch);
    }

    fn take_groups(&mut self, batch: Batch) {
        self.progress.trained += batch.num_rows();
        self.groups.push(batch);
    }

    fn take_decisions(&mut self, batch: Batch) {
        batch.text(column::ROUND).value(0).clone_into(&mut self.progress.round);
        self.decisions.push(batch);
    }

    fn take_texts(&mut self, batch: Batch) {
        self.texts.add(&batch);
    }

    fn take_metrics(&mut self, batch: Batch) {
        self.metrics.extend(named(&batch));
    }

    /// Appends a batch of responses. Merges the last [`MAX_MERGED_BATCHES`] batches into one if all of them are small and without tokens.
    fn push_responses(&mut self, batch: Batch) {
        let tokens = batch.lists::<Int32Type>(column::RESPONSE_IDS);
        let is_small = batch.num_rows() < MAX_MERGED_BATCHES
            && (0..batch.num_rows()).all(|row| tokens.get(row).is_empty());
        self.unmerged = if is_small { self.unmerged + 1 } else { 0 };
        self.responses.push(batch);
        if self.unmerged == MAX_MERGED_BATCHES {
            self.unmerged = 0;
            let small = self.responses.split_off(self.responses.len() - MAX_MERGED_BATCHES);
            let rows = concat_batches(&schema::RESPONSES, small.iter().filter_map(Batch::rows));
            let rows = rows.expect("invariant: batches of one stream have one schema");
            self.responses.push(Batch::new(rows));
        }
    }
}

fn saved_part(observer: &impl Observer) -> Part {
    let mut saved = ObserverState::default();
    observer.save(&mut saved);
    saved.part()
}
