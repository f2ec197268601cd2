//! Telemetry of operators: rows, busy time, and one span per stage and step.
//!
//! Spans go to `tracing` under the target [`TARGET`]; without a subscriber they cost one branch. The root of a step's trace is the span
//! that [`step_span`] returns. The span of a stage opens at the first batch of the step that reaches the stage. It closes when the frontier
//! of the stage's output passes the step or, if no output is watched, when the frontiers of the stage's inputs pass the step. A timely log
//! of every activation would contain the same information, at a hundred thousand events per second.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::progress::frontier::MutableAntichain;
use tracing::Span;
use tracing::field::Empty;

use crate::batch::BatchStream;
use crate::clock::{Clock, Nanos, WallClock};
use crate::frontier::earliest;
use crate::step::Step;

/// The target of the spans of steps and stages.
pub const TARGET: &str = "rollpacker";

thread_local! {
    static METERS: RefCell<Vec<Rc<Meter>>> = const { RefCell::new(Vec::new()) };
    static STEPS: RefCell<BTreeMap<Step, Span>> = const { RefCell::new(BTreeMap::new()) };
    // Busy time is measured by the wall clock, regardless of the clock that policies use.
    static CLOCK: WallClock = WallClock::start();
}

/// The row counts and the busy time of one operator on one worker.
#[derive(Debug)]
pub struct Meter {
    name: &'static str,
    rows_in: Cell<u64>,
    rows_out: Cell<u64>,
    busy: Cell<u64>,
}

/// The counts of a [`Meter`] since the operator was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterReading {
    /// The name of the operator.
    pub operator: &'static str,
    /// The number of rows received.
    pub rows_in: u64,
    /// The number of rows and differential updates emitted.
    pub rows_out: u64,
    /// The wall time spent in the operator's logic.
    pub busy: Nanos,
}

impl Meter {
    pub(crate) fn register(name: &'static str) -> Rc<Self> {
        let meter = Rc::new(Self {
            name,
            rows_in: Cell::new(0),
            rows_out: Cell::new(0),
            busy: Cell::new(0),
        });
        METERS.with_borrow_mut(|meters| meters.push(meter.clone()));
        meter
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn count_in(&self, rows: usize) {
        self.rows_in.set(self.rows_in.get() + rows as u64);
    }

    pub(crate) fn count_out(&self, rows: usize) {
        self.rows_out.set(self.rows_out.get() + rows as u64);
    }

    pub(crate) fn time<R>(&self, logic: impl FnOnce() -> R) -> R {
        let begun = CLOCK.with(Clock::now);
        let result = logic();
        let spent = CLOCK.with(Clock::now).since(begun);
        self.busy.set(self.busy.get() + spent.0);
        result
    }

    fn read(&self) -> MeterReading {
        MeterReading {
            operator: self.name,
            rows_in: self.rows_in.get(),
            rows_out: self.rows_out.get(),
            busy: Nanos(self.busy.get()),
        }
    }
}

/// Returns the counts of this worker's operators, in the order in which they were built.
#[must_use]
pub fn readings() -> Vec<MeterReading> {
    METERS.with_borrow(|meters| meters.iter().map(|meter| meter.read()).collect())
}

/// Removes the meters of dataflows that this thread ran before, and ends the spans of their steps.
pub(crate) fn reset() {
    METERS.with_borrow_mut(Vec::clear);
    end_steps();
}

/// Ends the open spans of all steps, such as those that a fault left open.
pub(crate) fn end_steps() {
    STEPS.with_borrow_mut(BTreeMap::clear);
}

/// Returns [`Step::ordinal`] as a span field.
fn ordinal(step: Step) -> i64 {
    step.0.saturating_add(1).cast_signed()
}

/// Returns `true` if a subscriber receives spans.
pub(crate) fn is_traced() -> bool {
    tracing::span_enabled!(target: TARGET, tracing::Level::INFO)
}

/// Returns the span of a step on this worker; opens it at the first call for the step.
#[must_use]
pub fn step_span(step: Step) -> Span {
    STEPS.with_borrow_mut(|steps| {
        steps
            .entry(step)
            .or_insert_with(
                || tracing::info_span!(target: TARGET, parent: None, "step", step = ordinal(step), round = Empty, score = Empty),
            )
            .clone()
    })
}

/// Sets attributes of the span of a step: the kind of its round, and the mean score of the trained responses if there are any. Does nothing
/// if the span has not been opened.
pub fn describe_step(step: Step, round: &str, score: Option<f64>) {
    STEPS.with_borrow(|steps| {
        if let Some(span) = steps.get(&step) {
            span.record("round", round);
            if let Some(score) = score {
                span.record("score", score);
            }
        }
    });
}

/// Ends the span of a step, immediately or when the last open stage span of the step ends.
pub fn close_step(step: Step) {
    STEPS.with_borrow_mut(|steps| steps.remove(&step));
}

/// Ends the spans of all steps before `step`, for a worker that cannot detect when steps end.
pub fn close_steps_before(step: Step) {
    STEPS.with_borrow_mut(|steps| *steps = steps.split_off(&step));
}

/// The open spans of one stage, one per step.
#[derive(Clone, Debug)]
pub(crate) struct StageSpans {
    stage: &'static str,
    open: Rc<RefCell<BTreeMap<Step, Span>>>,
    closed_below: Rc<Cell<Step>>,
    by_output: Rc<Cell<bool>>,
}

impl StageSpans {
    pub(crate) fn new(stage: &'static str) -> Self {
        Self { stage, open: Rc::default(), closed_below: Rc::default(), by_output: Rc::default() }
    }

    pub(crate) fn open(&self, step: Step) {
        if step >= self.closed_below.get() && step != Step::END {
            self.open.borrow_mut().entry(step).or_insert_with(|| {
                tracing::info_span!(target: TARGET, parent: &step_span(step), "stage", otel.name = self.stage, step = ordinal(step))
            });
        }
    }

    /// Ends the spans of a stage by the frontiers of its inputs, unless an output is watched.
    pub(crate) fn close_by_inputs(&self, frontiers: &[MutableAntichain<Step>]) {
        if !self.by_output.get() {
            self.close_below(earliest(frontiers).unwrap_or(Step(u64::MAX)));
        }
    }

    fn close_below(&self, frontier: Step) {
        self.closed_below.set(frontier);
        let mut open = self.open.borrow_mut();
        // Most calls end no span; `split_off` would allocate a map in each.
        while let Some(first) = open.first_entry().filter(|first| *first.key() < frontier) {
            drop(first.remove());
        }
    }
}

/// Watches the frontier of a stage's output and ends the stage's spans when it passes their steps.
pub(crate) fn close_spans(stream: BatchStream<'_>, spans: StageSpans) {
    spans.by_output.set(true);
    let mut builder = OperatorBuilder::new(format!("span of {}", spans.stage), stream.scope());
    let mut input = builder.new_input(stream, Pipeline);
    builder.set_notify_for(0, timely::progress::operate::FrontierInterest::Always);
    builder.build(move |_capabilities| {
        move |frontiers| {
            input.for_each(|_capability, batch| drop(batch.take()));
            spans.close_below(earliest(frontiers).unwrap_or(Step(u64::MAX)));
        }
    });
}
