//! Reports: what happened in each step, once all of it has happened.

mod lag;
mod measure;
mod order;
mod saved;
mod stages;
mod statistics;
mod timed;
mod values;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use arrow::datatypes::Float64Type;
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::fault::Fault;
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::telemetry::{self, Reading};
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_stages::train::Metrics;

use crate::resume::Resumable;

pub use measure::{Lengths, measure};
pub use order::by_id;
pub use saved::Saved;
pub use stages::{Instants, Stages};
pub use timed::hangs_on_time;

/// The streams of a step that a report is made of.
pub struct Observed<'scope> {
    /// Every response, aborted ones too.
    pub responses: BatchStream<'scope>,
    /// The groups that were trained on.
    pub groups: BatchStream<'scope>,
    /// What the schedule decided.
    pub decisions: BatchStream<'scope>,
    /// Metrics of operators; streams of several are concatenated.
    pub metrics: BatchStream<'scope>,
    /// What the observer keeps in snapshots.
    pub resumable: Resumable<'scope>,
}

/// All that flowed in one step.
#[derive(Clone, Debug, Default)]
pub struct StepReport {
    /// The step.
    pub step: Step,
    /// When its round opened.
    pub opened: Nanos,
    /// When the frontier passed it.
    pub closed: Nanos,
    /// When the frontier passed the step before it; with staleness after this one opened. Of the first step, when it opened.
    pub before: Nanos,
    /// Batches of [`schema::RESPONSES`].
    pub responses: Vec<Batch>,
    /// Batches of [`schema::GROUPS`]: one a group, in the order of their prompts, so that sums over rows have one value.
    pub groups: Vec<Batch>,
    /// Batches of [`schema::DECISIONS`].
    pub decisions: Vec<Batch>,
    /// What operators measured; [`measure`] adds what follows from the rows.
    pub metrics: Metrics,
    progress: Progress,
}

/// What is told while a step is under way, for people who watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The step.
    pub step: Step,
    /// Responses that have ended by themselves.
    pub finished: usize,
    /// Responses in complete groups.
    pub trained: usize,
    /// Tokens sampled in responses that have ended.
    pub tokens: usize,
    /// Kind of the round, once it has opened.
    pub round: String,
    /// Time since the round opened.
    pub elapsed: Nanos,
}

/// Someone who is told of steps.
pub trait Observer {
    /// Something arrived for a step that is under way.
    fn progress(&mut self, progress: &Progress) {
        let _ = progress;
    }

    /// Something went wrong that does not end the run.
    fn warning(&mut self, warning: &Fault) {
        let _ = warning;
    }

    /// The run fails: its graph is about to be torn down, which waits for what the threads of its stages are at.
    fn failed(&mut self, fault: &Fault) {
        let _ = fault;
    }

    /// A step is over. Steps come in order, each once.
    fn step(&mut self, report: StepReport);

    /// Adds what a run that is resumed behind the last step that was told needs of the observer.
    fn save(&self, saved: &mut Saved) {
        let _ = saved;
    }

    /// A snapshot is on the disk: that of the end of `step`, or that of the end of the run ([`Step::END`]). `metrics` are
    /// `snapshot/bytes` and `snapshot/parts`.
    fn snapshot(&mut self, step: Step, metrics: &Metrics) {
        let _ = (step, metrics);
    }
}

/// An observer that outlives the graph which tells it.
impl<O: Observer> Observer for Rc<RefCell<O>> {
    fn progress(&mut self, progress: &Progress) {
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

    fn save(&self, saved: &mut Saved) {
        self.borrow().save(saved);
    }

    fn snapshot(&mut self, step: Step, metrics: &Metrics) {
        self.borrow_mut().snapshot(step, metrics);
    }
}

/// Tells `observer` of each step. Where there are several workers, the streams are those of all of them at the first
/// ([`route::first`](rollpacker_dataflow::route::first), [`merged`](crate::merge::merged)), and the observers of the others are told nothing.
pub fn observe(
    streams: Observed<'_>,
    clock: Arc<dyn Clock>,
    mut observer: impl Observer + 'static,
) {
    let leads = streams.responses.scope().index() == 0;
    let mut operator = Operator::new("report", streams.responses.scope());
    let mut inputs = [
        operator.input(streams.responses, Pipeline, &schema::RESPONSES),
        operator.input(streams.groups, Pipeline, &schema::GROUPS),
        operator.input(streams.decisions, Pipeline, &schema::DECISIONS),
        operator.input(streams.metrics, Pipeline, &schema::METRICS),
    ];
    operator.notify_always();
    let mut parts = streams.resumable.keep_first(saved::PART, &mut operator);
    operator.build(move |capabilities| {
        parts.start(&capabilities);
        drop(capabilities);
        let mut open: BTreeMap<Step, StepReport> = BTreeMap::new();
        let mut before = Vec::new();
        let mut closed = None;
        move |frontiers| {
            for (kind, input) in inputs.iter_mut().enumerate() {
                input.for_each(|capability, batch| {
                    let step = *capability.time();
                    open.entry(step)
                        .or_insert_with(|| StepReport::open(step, clock.now()))
                        .take(kind, batch);
                });
            }
            if let Some(report) = open.values_mut().next() {
                report.progress.elapsed = clock.now().since(report.opened);
                observer.progress(&report.progress);
            }
            while let Some(first) = open.first_entry() {
                if frontiers.iter().any(|frontier| frontier.less_equal(first.key())) {
                    break;
                }
                let mut report = first.remove();
                report.groups = order::groups(&report.groups);
                report.closed = clock.now();
                report.before = closed.replace(report.closed).unwrap_or(report.opened);
                let now = telemetry::readings();
                report.metrics.extend(since(&before, &now));
                before = now;
                telemetry::close_step(report.step);
                parts.before(report.step, |_| saved::part(&observer));
                observer.step(report);
            }
            if !leads {
                let open = frontiers.iter().filter_map(|input| input.frontier().first().copied());
                telemetry::close_steps_before(open.min().unwrap_or(Step::END));
            }
            parts.passed(frontiers, |_| saved::part(&observer));
        }
    });
}

/// Tells `observer` of each snapshot; `metrics` are those of [`Commits`](rollpacker_dataflow::snapshot::Commits).
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

/// The metrics of a batch.
fn named(batch: &Batch) -> impl Iterator<Item = (String, f64)> {
    let (names, values) = (batch.text(column::NAME), batch.values::<Float64Type>(column::VALUE));
    names.iter().flatten().map(str::to_owned).zip(values.values().iter().copied())
}

/// What the operators of this worker did between two readings: rows in and out, and busy time, under `operator/<name>/`.
fn since(before: &[Reading], now: &[Reading]) -> Metrics {
    let mut metrics = Metrics::new();
    for (index, now) in now.iter().enumerate() {
        // Operators are read in the order in which they were built, and none goes.
        let before = before.get(index);
        let rows = |of: fn(&Reading) -> u64| (of(now) - before.map_or(0, of)) as f64;
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
        Self { step, opened, progress: Progress { step, ..Progress::default() }, ..Self::default() }
    }

    fn take(&mut self, kind: usize, batch: Batch) {
        match kind {
            0 => {
                let lengths = Lengths::of(std::slice::from_ref(&batch));
                self.progress.finished += lengths.finished.len();
                self.progress.tokens += lengths.total();
                self.responses.push(batch);
            }
            1 => {
                self.progress.trained += batch.num_rows();
                self.groups.push(batch);
            }
            2 => {
                batch.text(column::ROUND).value(0).clone_into(&mut self.progress.round);
                self.decisions.push(batch);
            }
            _ => self.metrics.extend(named(&batch)),
        }
    }
}
