//! Errors as rows on separate streams, and how they end a run.
//!
//! An operator that fails emits an error row at the step that failed and keeps its capability, so that no frontier reports the step as
//! complete. [`raise`] hands the rows to the runtime, which tears the graph down and returns the first error. Dropping the capability on an
//! error would lose data silently. A panic is a bug. Binaries end the process at a panic ([`stop_on_panic`]), because the peers of a worker
//! that unwinds would wait forever.

pub(crate) mod kind;
pub(crate) mod origin;
pub(crate) mod record;

use std::cell::{Cell, RefCell};
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;

use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array, BooleanArray, StringArray, UInt32Array, UInt64Array};
use timely::dataflow::Scope;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;

pub use self::kind::FaultKind;
pub use self::origin::{HasOrigin, Origin, UnknownOrigin, WithOrigin};
pub use self::record::Fault;
use crate::batch::{Batch, BatchStream};
use crate::exit::exit_now;
use crate::operator::{Operator, Output};
use crate::schema::{self, column};
use crate::step::{PromptId, Step};

/// Converts faults to a batch of [`schema::ERRORS`]; returns the default batch if there are none. [`Fault::step`] is ignored: the receiver
/// takes the step from the timestamp of the batch.
#[must_use]
pub fn faults_batch(faults: &[Fault]) -> Batch {
    batch(faults, true)
}

/// Emits `fault` on `output`, which has the schema [`schema::ERRORS`], at the step of `capability`.
pub fn give_fault(output: &mut Output, capability: &Capability<Step>, fault: Fault) {
    output.give(capability, faults_batch(&[fault]));
}

/// Converts a fault that belongs to no step to a batch of [`schema::ERRORS`].
pub(crate) fn stepless_batch(fault: Fault) -> Batch {
    batch(&[fault], false)
}

fn batch(faults: &[Fault], in_step: bool) -> Batch {
    if faults.is_empty() {
        return Batch::default();
    }
    Batch::from_columns(
        &schema::ERRORS,
        vec![
            Arc::new(faults.iter().map(|fault| Some(&fault.operator)).collect::<StringArray>()),
            Arc::new(
                faults.iter().map(|fault| Some(fault.origin.as_str())).collect::<StringArray>(),
            ),
            Arc::new(faults.iter().map(|fault| Some(fault.kind.as_str())).collect::<StringArray>()),
            Arc::new(BooleanArray::from(vec![in_step; faults.len()])),
            Arc::new(
                faults
                    .iter()
                    .map(|fault| fault.prompt.map(|prompt| prompt.0))
                    .collect::<UInt64Array>(),
            ),
            Arc::new(faults.iter().map(|fault| fault.sample).collect::<UInt32Array>()),
            Arc::new(faults.iter().map(|fault| Some(&fault.message)).collect::<StringArray>()),
        ],
    )
}

/// The first fault that this worker has received on the streams given to [`raise`].
#[derive(Clone, Default)]
pub struct Faults(Rc<RefCell<FaultState>>);

type FaultCallback = Box<dyn FnOnce(&Fault)>;

#[derive(Default)]
struct FaultState {
    first: Option<Fault>,
    callback: Option<FaultCallback>,
}

impl Faults {
    /// Returns the first fault, if any.
    #[must_use]
    pub fn first(&self) -> Option<Fault> {
        self.0.borrow().first.clone()
    }

    /// Sets the callback for the fault of this worker that ends the run. Replaces an earlier callback. A fault of another worker does not
    /// call it. The callback runs before the graph is torn down, because the teardown waits for threads that operators own, and the failed
    /// thread may be one of these threads.
    pub fn on_fault(&self, callback: impl FnOnce(&Fault) + 'static) {
        self.0.borrow_mut().callback = Some(Box::new(callback));
    }

    pub(crate) fn notify(&self, fault: &Fault) {
        let callback = self.0.borrow_mut().callback.take();
        if let Some(callback) = callback {
            callback(fault);
        }
    }
}

/// Reports the rows of `errors` to `faults`. The run ends at the first row.
pub fn raise(errors: BatchStream<'_>, faults: &Faults) {
    let faults = faults.clone();
    for_each_fault("errors", errors, move |fault| {
        faults.0.borrow_mut().first.get_or_insert(fault);
    });
}

/// Returns a stream that carries one fault, which belongs to no step, and keeps the first step open. Use it for a graph that turns out to
/// be invalid while it is built.
#[must_use]
pub fn fault_stream(scope: Scope<'_, Step>, fault: Fault) -> BatchStream<'_> {
    let mut operator = Operator::new("refusal", scope);
    let (mut refused, stream) = operator.output(&schema::ERRORS, &[]);
    operator.build(move |capabilities| {
        let mut fault = Some(fault);
        move |_frontiers| {
            if let Some(fault) = fault.take() {
                refused.give(&capabilities[refused.index()], stepless_batch(fault));
            }
        }
    });
    stream
}

/// Calls `callback` for each row of `warnings`, which are faults that do not end the run.
pub fn warn(warnings: BatchStream<'_>, callback: impl FnMut(Fault) + 'static) {
    for_each_fault("warnings", warnings, callback);
}

fn for_each_fault(
    name: &'static str,
    errors: BatchStream<'_>,
    mut callback: impl FnMut(Fault) + 'static,
) {
    let mut operator = Operator::new(name, errors.scope());
    let mut input = operator.input(errors, Pipeline, &schema::ERRORS);
    operator.build(move |_capabilities| {
        move |_frontiers| {
            input.for_each(|capability, batch| {
                rows(&batch, *capability.time()).for_each(&mut callback);
            });
        }
    });
}

fn rows(batch: &Batch, step: Step) -> impl Iterator<Item = Fault> {
    let (operators, messages) = (batch.text(column::OPERATOR), batch.text(column::MESSAGE));
    let (origins, kinds) = (batch.text(column::ORIGIN), batch.text(column::KIND));
    let in_step = batch.booleans(column::IN_STEP);
    let (prompts, samples) =
        (batch.values::<UInt64Type>(column::PROMPT_ID), batch.values::<UInt32Type>(column::SAMPLE));
    (0..batch.num_rows()).map(move |row| Fault {
        step: in_step.value(row).then_some(step),
        operator: operators.value(row).to_owned(),
        // Only this module writes the column, with names that parse.
        origin: origins.value(row).parse().unwrap_or(Origin::Program),
        kind: FaultKind::of_name(kinds.value(row)),
        prompt: prompts.is_valid(row).then(|| PromptId(prompts.value(row))),
        sample: samples.is_valid(row).then(|| samples.value(row)),
        message: messages.value(row).to_owned(),
    })
}

thread_local! {
    /// `true` while this thread runs the function of [`catch_panic`].
    static CATCHES_PANICS: Cell<bool> = const { Cell::new(false) };
}

/// Calls `read`, and returns the message of a panic as an error. For a reader of another crate that panics at damaged input.
pub(crate) fn catch_panic<T>(read: impl FnOnce() -> T) -> Result<T, String> {
    let before = CATCHES_PANICS.replace(true);
    // The function owns what it changes, and is dropped by the panic.
    let result = std::panic::catch_unwind(AssertUnwindSafe(read));
    CATCHES_PANICS.set(before);
    result.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref().cloned()).unwrap_or_default()
    })
}

/// Makes a panic in any thread end the process with exit status 101, after the panic is reported. Panics that this crate catches while it
/// reads the rows of a snapshot are exempt; they are not reported either.
///
/// Binaries call this function, because a worker that unwinds would leave its peers waiting forever.
pub fn stop_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !CATCHES_PANICS.get() {
            report(panic);
            exit_now(101);
        }
    }));
}
