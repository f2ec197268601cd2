//! The one way in which operators of ours are put on streams.
//!
//! [`Operator`] wraps timely's builder: every input and output knows the schema of its batches and checks it in debug builds, counts
//! rows, and opens the span of its stage at the first batch of a step; the logic's busy time is counted. Escape hatch: timely's own
//! `OperatorBuilder`, for operators that are not about batches.
//!
//! Architecture invariant: no operator of ours reads an input or writes an output past this wrapper.

use std::rc::Rc;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use timely::container::{CapacityContainerBuilder, NoopBuilder};
use timely::dataflow::channels::pact::ParallelizationContract;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::generic::{InputHandleCore, OutputBuilder};
use timely::dataflow::operators::{Capability, InputCapability};
use timely::dataflow::{Scope, Stream};
use timely::progress::Antichain;
use timely::progress::frontier::MutableAntichain;
use timely::progress::operate::FrontierInterest;
use timely::scheduling::SyncActivator;

use crate::batch::{Batch, BatchStream};
use crate::schema;
use crate::step::Step;
use crate::telemetry::{self, Meter, StageSpans, close_spans};
use crate::watchdog::{self, Waiting, Watched};

/// Builds one operator over batches.
pub struct Operator<'scope> {
    builder: OperatorBuilder<'scope, Step>,
    scope: Scope<'scope, Step>,
    meter: Rc<Meter>,
    spans: StageSpans,
    watched: Rc<Watched>,
}

impl<'scope> Operator<'scope> {
    /// Begins an operator; `name` is the name of its stage in metrics and spans.
    #[must_use]
    pub fn new(name: &'static str, scope: Scope<'scope, Step>) -> Self {
        Self {
            builder: OperatorBuilder::new(name.to_owned(), scope),
            scope,
            meter: Meter::register(name),
            spans: StageSpans::new(name),
            watched: Watched::register(name),
        }
    }

    /// An input of batches of `schema`. All inputs are made before the first output, and count from 0.
    pub fn input<P>(
        &mut self,
        stream: BatchStream<'scope>,
        pact: P,
        schema: &SchemaRef,
    ) -> Input<P::Puller>
    where
        P: ParallelizationContract<Step, Batch>,
    {
        debug_assert_eq!(
            self.builder.shape().outputs(),
            0,
            "inputs come first, so that `follows` says all"
        );
        let handle = self.builder.new_input(stream, pact);
        Input {
            handle,
            precedes: Arc::ptr_eq(schema, &schema::POLICIES),
            schema: schema.clone(),
            meter: self.meter.clone(),
            spans: self.spans.clone(),
        }
    }

    /// An output of batches of `schema`, which may follow from the inputs at the positions `follows`, at the same step.
    ///
    /// An input that an output does not follow from holds nothing back there and lends no capability for it; what arrives on it may
    /// still be acted on at every step for which the operator holds a capability of its own.
    pub fn output(
        &mut self,
        schema: &SchemaRef,
        follows: &[usize],
    ) -> (Output, BatchStream<'scope>) {
        let index = self.builder.shape().outputs();
        let connection: Vec<_> = follows
            .iter()
            .map(|&input| (input, Antichain::from_elem(Default::default())))
            .collect();
        let (output, stream) = self.builder.new_output_connection(connection);
        let output = Output {
            builder: OutputBuilder::from(output),
            index,
            schema: schema.clone(),
            meter: self.meter.clone(),
        };
        (output, stream)
    }

    /// An output of updates to a collection of differential dataflow, which follows from the inputs like one of batches.
    pub fn updates<D: Clone + 'static>(
        &mut self,
        follows: &[usize],
    ) -> (Updates<D>, Stream<'scope, Step, Vec<D>>) {
        let index = self.builder.shape().outputs();
        let connection = follows
            .iter()
            .map(|&input| (input, Antichain::from_elem(Default::default())))
            .collect::<Vec<_>>();
        let (output, stream) = self.builder.new_output_connection(connection);
        let output =
            Updates { builder: OutputBuilder::from(output), index, meter: self.meter.clone() };
        (output, stream)
    }

    /// Runs the logic at every change of a frontier, also while the operator holds no capability: for operators that act on frontiers
    /// and give nothing out.
    pub fn notify_always(&mut self) {
        for input in 0..self.builder.shape().inputs() {
            self.builder.set_notify_for(input, FrontierInterest::Always);
        }
    }

    /// What wakes the operator, from any thread.
    #[must_use]
    pub fn activator(&self) -> SyncActivator {
        self.scope.worker().sync_activator_for(self.builder.operator_info().address.to_vec())
    }

    /// [`activator`](Self::activator) as something to call.
    pub fn waker(&self) -> impl Fn() + Clone + Send + Sync + use<> {
        let activator = self.activator();
        move || {
            // It fails only when the worker is gone, and then there is nobody to wake.
            let _ = activator.activate();
        }
    }

    /// Where the logic says what it waits for, so that a graph that stands still can say it. Each call gives another such place.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        self.watched.waiting()
    }

    /// Counts as a movement of the graph whatever changes `count`: the work of a thread that this worker does not own. It is asked often,
    /// and is to be cheap.
    pub fn moves_with(&self, count: impl Fn() -> u64 + 'static) {
        watchdog::moves_with(count);
    }

    /// Ends the stage's span of a step once the frontier of `stream`, an output of this operator, has passed the step.
    #[must_use]
    pub fn spanned(&self, stream: BatchStream<'scope>) -> BatchStream<'scope> {
        if telemetry::is_traced() {
            close_spans(stream.clone(), self.spans.clone());
        }
        stream
    }

    /// Installs the logic: `constructor` gets the initial capabilities, one per output, and returns what runs at each activation
    /// with the frontiers of the inputs.
    pub fn build<L>(self, constructor: impl FnOnce(Vec<Capability<Step>>) -> L)
    where
        L: FnMut(&[MutableAntichain<Step>]) + 'static,
    {
        let (meter, spans, watched) = (self.meter, self.spans, self.watched);
        self.builder.build(move |capabilities| {
            let mut logic = constructor(capabilities);
            move |frontiers| {
                watched.see(frontiers);
                meter.time(|| logic(frontiers));
                spans.close_by_inputs(frontiers);
            }
        });
    }
}

/// Where an operator takes batches in.
pub struct Input<P>
where
    P: timely::communication::Pull<timely::dataflow::channels::Message<Step, Batch>>,
{
    handle: InputHandleCore<Step, Batch, P>,
    /// Whether what arrives comes before its step begins, or where none ever does, as policies do.
    precedes: bool,
    schema: SchemaRef,
    meter: Rc<Meter>,
    spans: StageSpans,
}

impl<P> Input<P>
where
    P: timely::communication::Pull<timely::dataflow::channels::Message<Step, Batch>>,
{
    /// Takes every batch that has arrived, in the order of arrival.
    pub fn for_each(&mut self, mut logic: impl FnMut(InputCapability<Step>, Batch)) {
        let Self { handle, precedes, schema, meter, spans } = self;
        handle.for_each(|capability, batch| {
            let batch = batch.take();
            check(&batch, schema, meter.name());
            meter.count_in(batch.num_rows());
            match precedes {
                true => watchdog::moved(),
                false => watchdog::moved_at(*capability.time()),
            }
            spans.open(*capability.time());
            logic(capability, batch);
        });
    }
}

/// Where an operator gives batches out.
pub struct Output {
    builder: OutputBuilder<Step, NoopBuilder<Batch>>,
    index: usize,
    schema: SchemaRef,
    meter: Rc<Meter>,
}

impl Output {
    /// Gives a batch at the step of `capability`; a batch without rows is nothing and goes nowhere.
    pub fn give(&mut self, capability: &Capability<Step>, mut batch: Batch) {
        if batch.num_rows() > 0 {
            check(&batch, &self.schema, self.meter.name());
            self.meter.count_out(batch.num_rows());
            watchdog::moved();
            self.builder.activate().session_with_builder(capability).give_container(&mut batch);
        }
    }

    /// Which output this is: the index to retain a capability for.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }
}

/// Where an operator gives updates to a collection out.
pub struct Updates<D: 'static> {
    builder: OutputBuilder<Step, CapacityContainerBuilder<Vec<D>>>,
    index: usize,
    meter: Rc<Meter>,
}

impl<D: Clone + 'static> Updates<D> {
    /// Gives updates at the step of `capability`.
    pub fn give(&mut self, capability: &Capability<Step>, updates: impl Iterator<Item = D>) {
        let updates: Vec<D> = updates.collect();
        if !updates.is_empty() {
            self.meter.count_out(updates.len());
            watchdog::moved();
            self.builder.activate().session(capability).give_iterator(updates.into_iter());
        }
    }

    /// Which output this is: the index to retain a capability for.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }
}

/// # Panics
/// In debug builds, if the batch is not of the schema: a bug of the operator that made it.
fn check(batch: &Batch, schema: &SchemaRef, operator: &str) {
    if cfg!(debug_assertions) {
        let found = batch.rows().map(arrow::array::RecordBatch::schema);
        assert!(
            found.as_ref().is_some_and(|found| found.fields() == schema.fields()),
            "operator `{operator}` expected batches of {schema:?}, found {found:?}"
        );
    }
}
