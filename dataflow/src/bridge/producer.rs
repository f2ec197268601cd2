//! Producers: threads and iterators that feed batches from outside into the graph.

use std::sync::mpsc::{self, TryRecvError};
use std::thread::{self, JoinHandle};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use timely::dataflow::Scope;
use timely::scheduling::SyncActivator;

use super::panicked::{Panicked, WakeOnDrop};
use crate::batch::{Batch, BatchStream};
use crate::budget::Budget;
use crate::fault::{Fault, HasOrigin, stepless_batch};
use crate::operator::Operator;
use crate::schema;
use crate::step::Step;

/// The handle through which a producer thread sends its batches.
pub struct Emitter {
    sender: mpsc::Sender<Batch>,
    budget: Budget,
    activator: SyncActivator,
}

impl Emitter {
    /// Sends a batch, split into pieces that fit the budget; blocks while the budget is exhausted. Returns `false` once the consumer has
    /// closed the budget or ended; the pieces that were not sent are dropped. A batch without rows is not sent, and the result is `true`.
    #[must_use]
    pub fn send(&self, batch: Batch) -> bool {
        let Some(mut rows) = batch.into_rows() else { return true };
        while rows.num_rows() > 0 {
            let Some(granted) = self.budget.acquire(rows.num_rows()) else { return false };
            let piece = rows.slice(0, granted);
            rows = rows.slice(granted, rows.num_rows() - granted);
            if self.sender.send(Batch::new(piece)).is_err() || self.activator.activate().is_err() {
                return false;
            }
        }
        true
    }
}

/// Starts a thread that produces batches of `schema` and streams them, all at step 0, so that every step may use them. `name` is the name
/// of the thread, and of the operator in faults.
///
/// The thread runs ahead of its consumers by at most `budget`; consumers release the rows that they have finished with. The output ends
/// when the thread ends. An error that the thread returns, or a panic of the thread, becomes a row on the second stream. On a cluster, the
/// thread runs on worker 0 only.
///
/// # Panics
/// If the system cannot start the thread.
pub fn produce<'scope, E>(
    scope: Scope<'scope, Step>,
    name: &'static str,
    schema: &SchemaRef,
    budget: Budget,
    body: impl FnOnce(&Emitter) -> Result<(), E> + Send + 'static,
) -> (BatchStream<'scope>, BatchStream<'scope>)
where
    E: HasOrigin + Send + 'static,
{
    let mut operator = Operator::new(name, scope);
    let (mut output, stream) = operator.output(schema, &[]);
    let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[]);
    let activator = operator.activator();
    let producer = (scope.index() == 0).then(|| Producer::start(name, budget, activator, body));
    operator.build(move |capabilities| {
        let mut running = producer.map(|producer| (producer, capabilities));
        move |_frontiers| {
            let Some((producer, capabilities)) = &mut running else { return };
            match producer.drain(|batch| output.give(&capabilities[0], batch)) {
                ProducerState::Running => {}
                ProducerState::Ended => running = None,
                ProducerState::Failed(fault) => {
                    errors.give(&capabilities[1], stepless_batch(fault));
                    running = None;
                }
            }
        }
    });
    (stream, error_stream)
}

/// Streams the batches of an iterator, which have the schema `schema`, all at step 0, on the worker's own thread. Sends as many rows as
/// `budget` allows, and continues whenever rows are released. The output ends when the iterator ends or the budget is closed. The operator,
/// called `name`, sets itself as the [waker](Budget::set_waker) of `budget`, which replaces an earlier waker.
///
/// Use it for runs in virtual time, where the run would depend on the timing of a producer thread. The second stream carries errors and is
/// always empty.
pub fn produce_inline<'scope>(
    scope: Scope<'scope, Step>,
    name: &'static str,
    schema: &SchemaRef,
    budget: Budget,
    mut batches: impl Iterator<Item = Batch> + 'static,
) -> (BatchStream<'scope>, BatchStream<'scope>) {
    let mut operator = Operator::new(name, scope);
    let (mut output, stream) = operator.output(schema, &[]);
    let (_, error_stream) = operator.output(&schema::ERRORS, &[]);
    budget.set_waker(operator.waker());
    operator.build(move |mut capabilities| {
        capabilities.truncate(1);
        let mut capability = capabilities.pop();
        let mut rest: Option<RecordBatch> = None;
        move |_frontiers| {
            while let Some(open) = &capability {
                let next = rest.take().or_else(|| batches.by_ref().find_map(Batch::into_rows));
                let Some(rows) = next.filter(|_| !budget.is_closed()) else {
                    capability = None;
                    break;
                };
                let granted = budget.try_acquire(rows.num_rows());
                output.give(open, Batch::new(rows.slice(0, granted)));
                if granted < rows.num_rows() {
                    rest = Some(rows.slice(granted, rows.num_rows() - granted));
                    break;
                }
            }
        }
    });
    (stream, error_stream)
}

enum ProducerState {
    Running,
    Ended,
    Failed(Fault),
}

struct Producer {
    name: &'static str,
    batches: mpsc::Receiver<Batch>,
    outcome: mpsc::Receiver<Result<(), Fault>>,
    budget: Budget,
    thread: Option<JoinHandle<()>>,
}

impl Producer {
    fn start<E: HasOrigin>(
        name: &'static str,
        budget: Budget,
        activator: SyncActivator,
        body: impl FnOnce(&Emitter) -> Result<(), E> + Send + 'static,
    ) -> Self {
        let (sender, batches) = mpsc::channel();
        let (report, outcome) = mpsc::sync_channel(1);
        let emitter = Emitter { sender, budget: budget.clone(), activator: activator.clone() };
        let body = move || {
            // Dropped last, also when `body` unwinds, so that the operator wakes after both channels are closed.
            let _wake = WakeOnDrop(Some(move || {
                let _ = activator.activate();
            }));
            let (report, emitter) = (report, emitter);
            drop(report.send(body(&emitter).map_err(|error| Fault::of(name, &error))));
        };
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .expect("the system starts a thread");
        Self { name, batches, outcome, budget, thread: Some(thread) }
    }

    fn drain(&self, mut give: impl FnMut(Batch)) -> ProducerState {
        // Read the outcome first. The thread sends all batches before its outcome, so once the outcome has arrived, the drain below finds
        // them all.
        let outcome = self.outcome.try_recv();
        self.batches.try_iter().for_each(&mut give);
        match outcome {
            Ok(Ok(())) => ProducerState::Ended,
            Ok(Err(fault)) => ProducerState::Failed(fault),
            Err(TryRecvError::Disconnected) => {
                ProducerState::Failed(Fault::of(self.name, &Panicked))
            }
            Err(TryRecvError::Empty) => ProducerState::Running,
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // Close the budget first: it unblocks a thread that waits in `Emitter::send`.
        self.budget.close();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
