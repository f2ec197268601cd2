//! The builder of operators over streams of batches.
//!
//! [`Operator`] wraps timely's builder. Every input and output checks the schema of its batches in debug builds and counts their rows. An
//! input also opens the span of the operator's stage at the first batch of a step. The busy time of the logic is measured. For operators
//! that do not process batches, use timely's own `OperatorBuilder`.
//!
//! Architecture invariant: no operator of ours reads or writes a stream of batches except through this wrapper. Two operators are
//! exceptions: the operator that ends the spans of a stage ([`crate::telemetry`]), and the operator that turns the ledger's differential
//! updates into batches, whose input has no batches.

use std::rc::Rc;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use timely::container::{CapacityContainerBuilder, NoopBuilder};
use timely::dataflow::channels::pact::ParallelizationContract;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::generic::{InputHandleCore, OutputBuilder};
use timely::dataflow::operators::{Capability, InputCapability};
use timely::dataflow::{Scope, Stream};
use timely::progress::frontier::MutableAntichain;
use timely::progress::operate::FrontierInterest;
use timely::progress::{Antichain, Timestamp};
use timely::scheduling::SyncActivator;

use crate::batch::{Batch, BatchStream};
use crate::schema;
use crate::step::Step;
use crate::telemetry::{self, Meter, StageSpans, close_spans};
use crate::watchdog::{self, OperatorWaits, WaitHandle};

/// A builder of one operator over batches.
///
/// ```
/// # use std::sync::{Arc, Mutex};
/// # use arrow_array::{ArrayRef, Float64Array, StringArray, UInt64Array};
/// # use arrow_array::types::Float64Type;
/// use rollpacker_dataflow::batch::{Batch, BatchStream};
/// use rollpacker_dataflow::operator::Operator;
/// use rollpacker_dataflow::schema::{self, column};
/// use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
/// use rollpacker_dataflow::timely::dataflow::operators::InspectCore;
/// use rollpacker_dataflow::{feedback, runtime};
///
/// /// Emits the number of rows of each batch of policies as a metric.
/// fn count(policies: BatchStream<'_>) -> BatchStream<'_> {
///     let mut operator = Operator::new("count", policies.scope());
///     let mut policies = operator.input(policies, Pipeline, &schema::POLICIES);
///     // The output follows from input 0: the frontier of the output is that of the input.
///     let (mut counts, stream) = operator.output(&schema::METRICS, &[0]);
///     operator.build(move |_capabilities| {
///         move |_frontiers| {
///             policies.for_each(|capability, batch| {
///                 let name = StringArray::from(vec!["policies"]);
///                 let rows = Float64Array::from(vec![batch.num_rows() as f64]);
///                 let metrics: Vec<ArrayRef> = vec![Arc::new(name), Arc::new(rows)];
///                 let capability = capability.retain(counts.index());
///                 counts.give(&capability, Batch::from_columns(&schema::METRICS, metrics));
///             });
///         }
///     });
///     stream
/// }
///
/// let seen = Arc::new(Mutex::new(Vec::new()));
/// let counted = seen.clone();
/// runtime::run(|scope, _faults| {
/// #     let policy = Batch::from_columns(
/// #         &schema::POLICIES,
/// #         vec![
/// #             Arc::new(UInt64Array::from(vec![0])),
/// #             Arc::new(StringArray::from(vec!["memory"])),
/// #             Arc::new(UInt64Array::from(vec![0])),
/// #         ],
/// #     );
///     // With a staleness of 1, the first two steps have this policy.
///     let (policies, weights) = feedback::policies(scope, 1, policy);
///     count(policies).inspect_container(move |event| {
///         if let Ok((step, batch)) = event {
///             let rows = batch.values::<Float64Type>(column::VALUE).value(0);
///             counted.lock().expect("no panic").push((step.0, rows));
///         }
///     });
/// #     let none = rollpacker_dataflow::timely::dataflow::operators::generic::operator::empty(scope);
/// #     weights.connect(none);
/// })
/// .expect("no fault");
/// assert_eq!(*seen.lock().expect("no panic"), [(0, 1.0), (1, 1.0)]);
/// ```
pub struct Operator<'scope> {
    builder: OperatorBuilder<'scope, Step>,
    scope: Scope<'scope, Step>,
    meter: Rc<Meter>,
    spans: StageSpans,
    waits: Rc<OperatorWaits>,
}

impl<'scope> Operator<'scope> {
    /// Creates an operator; `name` is the name of its stage in metrics and spans.
    #[must_use]
    pub fn new(name: &'static str, scope: Scope<'scope, Step>) -> Self {
        Self {
            builder: OperatorBuilder::new(name.to_owned(), scope),
            scope,
            meter: Meter::register(name),
            spans: StageSpans::new(name),
            waits: OperatorWaits::register(name),
        }
    }

    /// Adds an input of batches of `schema`, which `pact` distributes over the workers. Add all inputs before the first output; their
    /// indices count from 0.
    ///
    /// # Panics
    /// In debug builds, if the operator already has an output.
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
            "add all inputs before the first output, so that `follows` can name any of them"
        );
        let handle = self.builder.new_input(stream, pact);
        Input {
            handle,
            before_step: Arc::ptr_eq(schema, &schema::POLICIES),
            schema: schema.clone(),
            meter: self.meter.clone(),
            spans: self.spans.clone(),
        }
    }

    /// Adds an output of batches of `schema`. Its batches may follow from the inputs with the indices `follows`, at the same step.
    ///
    /// An input outside of `follows` does not hold back the output's frontier and provides no capability for it. The operator may still act
    /// on its batches at every step for which it holds a capability of its own.
    pub fn output(
        &mut self,
        schema: &SchemaRef,
        follows: &[usize],
    ) -> (Output, BatchStream<'scope>) {
        let index = self.builder.shape().outputs();
        let (output, stream) = self.builder.new_output_connection(connection(follows));
        let output = Output {
            builder: OutputBuilder::from(output),
            index,
            schema: schema.clone(),
            meter: self.meter.clone(),
        };
        (output, stream)
    }

    /// Adds an output of updates to a differential dataflow collection; `follows` has the same meaning as in [`output`](Self::output).
    pub fn updates<D: Clone + 'static>(
        &mut self,
        follows: &[usize],
    ) -> (Updates<D>, Stream<'scope, Step, Vec<D>>) {
        let index = self.builder.shape().outputs();
        let (output, stream) = self.builder.new_output_connection(connection(follows));
        let output =
            Updates { builder: OutputBuilder::from(output), index, meter: self.meter.clone() };
        (output, stream)
    }

    /// Runs the logic at every change of a frontier, even while the operator holds no capability. Use it for operators that react to
    /// frontiers and emit nothing. Applies to the inputs that were added before the call.
    pub fn notify_always(&mut self) {
        for input in 0..self.builder.shape().inputs() {
            self.builder.set_notify_for(input, FrontierInterest::Always);
        }
    }

    /// Returns a handle that wakes the operator from any thread.
    #[must_use]
    pub fn activator(&self) -> SyncActivator {
        self.scope.worker().sync_activator_for(self.builder.operator_info().address.to_vec())
    }

    /// Returns the [`activator`](Self::activator) as a function.
    pub fn waker(&self) -> impl Fn() + Clone + Send + Sync + use<> {
        let activator = self.activator();
        move || {
            // Activation fails only when the worker has ended, and then there is nothing to wake.
            let _ = activator.activate();
        }
    }

    /// Returns a handle with which the operator reports what it waits for; the watchdog prints it on a stall. Each call returns a new
    /// handle.
    #[must_use]
    pub fn wait_handle(&self) -> WaitHandle {
        self.waits.wait_handle()
    }

    /// Counts every change of the value of `count` as progress of the graph, for work on a thread that this worker does not own. The
    /// function is called often and must be cheap.
    pub fn count_progress(&self, count: impl Fn() -> u64 + 'static) {
        watchdog::count_progress(count);
    }

    /// Ends the stage's span of a step once the frontier of `stream`, an output of this operator, has passed the step. Does nothing if no
    /// subscriber receives spans. Returns `stream`.
    #[must_use]
    pub fn end_spans_by(&self, stream: BatchStream<'scope>) -> BatchStream<'scope> {
        if telemetry::is_traced() {
            close_spans(stream.clone(), self.spans.clone());
        }
        stream
    }

    /// Installs the logic. `constructor` receives the initial capabilities, one per output, and returns the closure that runs at each
    /// activation with the frontiers of the inputs.
    pub fn build<L>(self, constructor: impl FnOnce(Vec<Capability<Step>>) -> L)
    where
        L: FnMut(&[MutableAntichain<Step>]) + 'static,
    {
        let (meter, spans, waits) = (self.meter, self.spans, self.waits);
        self.builder.build(move |capabilities| {
            let mut logic = constructor(capabilities);
            move |frontiers| {
                waits.record_frontiers(frontiers);
                meter.time(|| logic(frontiers));
                spans.close_by_inputs(frontiers);
            }
        });
    }
}

/// Returns the connection of an output whose data may follow from the inputs `follows`, at the same step.
fn connection(follows: &[usize]) -> Vec<(usize, Antichain<<Step as Timestamp>::Summary>)> {
    follows.iter().map(|&input| (input, Antichain::from_elem(Default::default()))).collect()
}

/// An input of batches of one schema; see [`Operator::input`].
pub struct Input<P>
where
    P: timely::communication::Pull<timely::dataflow::channels::Message<Step, Batch>>,
{
    handle: InputHandleCore<Step, Batch, P>,
    /// `true` if batches arrive before their step begins, or at a step that never begins. This is the case for policies.
    before_step: bool,
    schema: SchemaRef,
    meter: Rc<Meter>,
    spans: StageSpans,
}

impl<P> Input<P>
where
    P: timely::communication::Pull<timely::dataflow::channels::Message<Step, Batch>>,
{
    /// Processes every batch that has arrived, in the order of arrival.
    ///
    /// # Panics
    /// In debug builds, if a batch does not have the schema of this input.
    pub fn for_each(&mut self, mut logic: impl FnMut(InputCapability<Step>, Batch)) {
        let Self { handle, before_step, schema, meter, spans } = self;
        handle.for_each(|capability, batch| {
            let batch = batch.take();
            check(&batch, schema, meter.name());
            meter.count_in(batch.num_rows());
            if *before_step {
                watchdog::record_event();
            } else {
                watchdog::record_rows(*capability.time());
            }
            spans.open(*capability.time());
            logic(capability, batch);
        });
    }
}

/// An output of batches of one schema; see [`Operator::output`].
pub struct Output {
    builder: OutputBuilder<Step, NoopBuilder<Batch>>,
    index: usize,
    schema: SchemaRef,
    meter: Rc<Meter>,
}

impl Output {
    /// Emits a batch at the step of `capability`. A batch without rows is dropped.
    ///
    /// # Panics
    /// In debug builds, if a batch with rows does not have the schema of this output.
    pub fn give(&mut self, capability: &Capability<Step>, mut batch: Batch) {
        if batch.num_rows() > 0 {
            check(&batch, &self.schema, self.meter.name());
            self.meter.count_out(batch.num_rows());
            watchdog::record_event();
            self.builder.activate().session_with_builder(capability).give_container(&mut batch);
        }
    }

    /// Returns the index of this output, the argument of `InputCapability::retain`.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }
}

/// An output of updates to a differential dataflow collection.
pub struct Updates<D: 'static> {
    builder: OutputBuilder<Step, CapacityContainerBuilder<Vec<D>>>,
    index: usize,
    meter: Rc<Meter>,
}

impl<D: Clone + 'static> Updates<D> {
    /// Emits updates at the step of `capability`.
    pub fn give(&mut self, capability: &Capability<Step>, updates: impl Iterator<Item = D>) {
        let updates: Vec<D> = updates.collect();
        if !updates.is_empty() {
            self.meter.count_out(updates.len());
            watchdog::record_event();
            self.builder.activate().session(capability).give_iterator(updates.into_iter());
        }
    }

    /// Returns the index of this output, the argument of `InputCapability::retain`.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }
}

/// Checks in debug builds that a batch has the expected schema.
///
/// # Panics
/// If the schema differs, which is a bug in the operator that built the batch.
fn check(batch: &Batch, schema: &SchemaRef, operator: &str) {
    if cfg!(debug_assertions) {
        let found = batch.rows().map(arrow_array::RecordBatch::schema);
        assert!(
            found.as_ref().is_some_and(|found| found.fields() == schema.fields()),
            "operator `{operator}` expected batches of {schema:?}, found {found:?}"
        );
    }
}
