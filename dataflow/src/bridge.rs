//! Between operators and the world that waits: tokio tasks, threads that own something, threads that produce.
//!
//! The shape is always the same: the operator keeps a capability for each thing under way, hands the work out, and is woken by a
//! [`SyncActivator`] when an answer is there; it gives the answer out at the capability that it kept. Capabilities never leave the
//! worker. What was handed out is given up when its owner is dropped. An operator that awaits futures itself was rejected: the
//! worker's thread then runs an executor, and a slow future stalls every operator on it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle};

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use timely::scheduling::SyncActivator;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::batch::{Batch, BatchStream};
use crate::budget::Budget;
use crate::clock::{Alarm, Clock, Nanos, VirtualClock};
use crate::fault::{Fault, faults_batch};
use crate::operator::Operator;
use crate::schema;
use crate::step::Step;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use timely::dataflow::Scope;

/// The thread or task that should have answered is gone: it panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread or task that was asked panicked")]
pub struct Lost;

/// Where the futures of an operator run.
#[derive(Clone, Debug)]
pub enum Executor {
    /// On a tokio runtime.
    Tokio(Handle),
    /// On the worker's own thread, where they wait for virtual time and for nothing else.
    Inline,
}

/// Futures of one operator, each known by a key. Dropping it drops them.
pub struct Tasks<K, R> {
    sender: mpsc::Sender<(K, Result<R, Lost>)>,
    receiver: mpsc::Receiver<(K, Result<R, Lost>)>,
    activator: SyncActivator,
    running: Running,
}

enum Running {
    Tokio(Handle, JoinSet<()>),
    Inline(FuturesUnordered<BoxFuture<'static, ()>>, Waker),
}

impl<K: Send + 'static, R: Send + 'static> Tasks<K, R> {
    /// No tasks yet; `activator` wakes the operator that polls them.
    #[must_use]
    pub fn new(executor: Executor, activator: SyncActivator) -> Self {
        let (sender, receiver) = mpsc::channel();
        let running = match executor {
            Executor::Tokio(handle) => Running::Tokio(handle, JoinSet::new()),
            Executor::Inline => {
                let waker = Arc::new(Activate(Mutex::new(activator.clone())));
                Running::Inline(FuturesUnordered::new(), waker.into())
            }
        };
        Self { sender, receiver, activator, running }
    }

    /// Starts a task.
    pub fn spawn(&mut self, key: K, work: impl Future<Output = R> + Send + 'static) {
        let mut answer = Answer {
            key: Some(key),
            sender: self.sender.clone(),
            activator: self.activator.clone(),
        };
        let task = async move { answer.send(Ok(work.await)) };
        match &mut self.running {
            Running::Tokio(runtime, tasks) => drop(tasks.spawn_on(task, runtime)),
            Running::Inline(futures, _) => futures.push(task.boxed()),
        }
    }

    /// The next answer, if there is one now.
    pub fn try_next(&mut self) -> Option<(K, Result<R, Lost>)> {
        match &mut self.running {
            Running::Tokio(_, tasks) => while tasks.try_join_next().is_some() {},
            Running::Inline(futures, waker) => {
                let mut context = Context::from_waker(waker);
                while let Poll::Ready(Some(())) = futures.poll_next_unpin(&mut context) {}
            }
        }
        self.receiver.try_recv().ok()
    }
}

/// Wakes an operator in the words of a future.
struct Activate(Mutex<SyncActivator>);

impl Wake for Activate {
    fn wake(self: Arc<Self>) {
        // It fails only when the worker is gone, and then nobody waits.
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).activate();
    }
}

/// Sends exactly one answer and wakes the operator: the result, or `Lost` if the task unwinds before it.
struct Answer<K, R> {
    key: Option<K>,
    sender: mpsc::Sender<(K, Result<R, Lost>)>,
    activator: SyncActivator,
}

impl<K, R> Answer<K, R> {
    fn send(&mut self, result: Result<R, Lost>) {
        if let Some(key) = self.key.take() {
            // Both fail only when the operator is gone, and then nobody waits.
            drop(self.sender.send((key, result)));
            let _ = self.activator.activate();
        }
    }
}

impl<K, R> Drop for Answer<K, R> {
    fn drop(&mut self) {
        self.send(Err(Lost));
    }
}

type Command<T> = Box<dyn FnOnce(&mut T) + Send>;

/// A thread that owns a value and does what it is asked, in order. Dropping it lets the thread finish what it was asked, and waits.
///
/// For what is bound to a thread or must not be shared: a model and its optimizer, a device.
pub struct OwnerThread<T> {
    commands: Option<mpsc::Sender<Command<T>>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: 'static> OwnerThread<T> {
    /// Starts the thread `name`, which makes the value itself; waits until it is made.
    ///
    /// # Errors
    /// What `make` returns.
    ///
    /// # Panics
    /// If the system cannot start a thread, or `make` panics.
    pub fn spawn<E: Send + 'static>(
        name: &str,
        make: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<Self, E> {
        let (commands, inbox) = mpsc::channel::<Command<T>>();
        let (ready, made) = mpsc::sync_channel(1);
        let body = move || match make() {
            Ok(mut value) => {
                drop(ready.send(Ok(())));
                inbox.into_iter().for_each(|command| command(&mut value));
            }
            Err(error) => drop(ready.send(Err(error))),
        };
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .expect("the system starts a thread");
        made.recv().expect("the value of an owner thread is made without a panic")?;
        Ok(Self { commands: Some(commands), thread: Some(thread) })
    }

    /// Asks the thread to run `work`; `wake` is called once the reply is there, also if the thread panicked.
    pub fn call<R: Send + 'static>(
        &self,
        wake: impl FnOnce() + Send + 'static,
        work: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Reply<R> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let asked = Asked { sender, _wake: WakeOnDrop(Some(wake)) };
        let command: Command<T> = Box::new(move |value| {
            let asked = asked;
            drop(asked.sender.send(work(value)));
        });
        if let Some(commands) = &self.commands {
            // A thread that is gone drops the command, and with it the sender: the reply then reads `Lost`.
            drop(commands.send(command));
        }
        Reply::Thread(receiver)
    }
}

impl<T> Drop for OwnerThread<T> {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was reported by the panic hook, and by `Lost` to whoever asked.
            drop(thread.join());
        }
    }
}

/// Something that owns a value and does what it is asked, in order: a thread, or nobody, in virtual time.
pub enum Owner<T> {
    /// On a thread of its own.
    Thread(OwnerThread<T>),
    /// At once, and answered when as much virtual time has passed as the work [spent](VirtualClock::spend).
    Virtual(VirtualOwner<T>),
}

/// See [`Owner::Virtual`].
pub struct VirtualOwner<T> {
    value: RefCell<T>,
    clock: VirtualClock,
    busy_until: Cell<Nanos>,
}

impl<T: 'static> Owner<T> {
    /// Owns `value` in virtual time.
    pub fn in_virtual_time(clock: VirtualClock, value: T) -> Self {
        Self::Virtual(VirtualOwner {
            value: RefCell::new(value),
            clock,
            busy_until: Cell::default(),
        })
    }

    /// Asks for `work`; `wake` is called once the reply is there.
    pub fn call<R: Send + 'static>(
        &self,
        wake: impl Fn() + Send + Sync + 'static,
        work: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Reply<R> {
        match self {
            Self::Thread(thread) => thread.call(wake, work),
            Self::Virtual(owner) => owner.call(wake, work),
        }
    }
}

impl<T: 'static> VirtualOwner<T> {
    fn call<R: Send + 'static>(
        &self,
        wake: impl Fn() + Send + Sync + 'static,
        work: impl FnOnce(&mut T) -> R,
    ) -> Reply<R> {
        // What is asked while the owner is busy begins when it is done.
        self.clock.spend(self.busy_until.get().since(self.clock.now()));
        let answer = work(&mut self.value.borrow_mut());
        let ready = self.clock.now();
        self.clock.take_spent();
        self.busy_until.set(ready);
        let alarm = self.clock.alarm(wake);
        alarm.set(ready);
        Reply::Later {
            clock: self.clock.clone(),
            ready,
            answer: Cell::new(Some(answer)),
            _alarm: alarm,
        }
    }
}

/// What a command owes. The fields are dropped in this order, whether the command ran, unwound or was never run: the wake-up comes
/// when the answer, or its absence, can be read.
struct Asked<R, F: FnOnce()> {
    sender: mpsc::SyncSender<R>,
    _wake: WakeOnDrop<F>,
}

struct WakeOnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for WakeOnDrop<F> {
    fn drop(&mut self) {
        if let Some(wake) = self.0.take() {
            wake();
        }
    }
}

/// An answer that an [`Owner`] owes.
pub enum Reply<R> {
    /// A thread will send it.
    Thread(mpsc::Receiver<R>),
    /// It is known, and cannot be read before its time.
    Later {
        /// What tells the time.
        clock: VirtualClock,
        /// When it can be read.
        ready: Nanos,
        /// The answer, until it is read.
        answer: Cell<Option<R>>,
        #[doc(hidden)]
        _alarm: Alarm,
    },
}

impl<R> Reply<R> {
    /// The answer, if it is there now.
    #[must_use]
    pub fn poll(&self) -> Option<Result<R, Lost>> {
        match self {
            Self::Thread(receiver) => match receiver.try_recv() {
                Ok(answer) => Some(Ok(answer)),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Err(Lost)),
            },
            Self::Later { clock, ready, answer, .. } => {
                if clock.now() < *ready {
                    None
                } else {
                    answer.take().map(Ok)
                }
            }
        }
    }

    /// Waits for the answer; in virtual time it is not waited for, but read early.
    ///
    /// # Errors
    /// If the thread panicked.
    pub fn wait(self) -> Result<R, Lost> {
        match self {
            Self::Thread(receiver) => receiver.recv().map_err(|_| Lost),
            Self::Later { answer, .. } => answer.take().ok_or(Lost),
        }
    }
}

impl<R> Reply<Result<R, String>> {
    /// The outcome, if it is there now; a panic of the thread is an error like its own.
    #[must_use]
    pub fn poll_outcome(&self) -> Option<Result<R, String>> {
        self.poll().map(outcome)
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    /// What the thread says, or that it panicked.
    pub fn wait_outcome(self) -> Result<R, String> {
        outcome(self.wait())
    }
}

fn outcome<R>(answer: Result<Result<R, String>, Lost>) -> Result<R, String> {
    answer.unwrap_or_else(|lost| Err(lost.to_string()))
}

/// Where a producing thread hands over its batches.
pub struct Emitter {
    sender: mpsc::Sender<Batch>,
    budget: Budget,
    activator: SyncActivator,
}

impl Emitter {
    /// Hands a batch over, in pieces as the budget allows; waits while the budget is spent. `false` when nothing more is wanted.
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

/// Streams what a thread produces, at step 0: the first step at which any of it may be used.
///
/// The thread runs ahead of its consumers by what `budget` allows; they release the rows that they are done with. The output ends
/// when the thread does. An error that it returns is a row on the second stream. On a cluster the thread runs on worker 0 only.
pub fn produce<'scope, E>(
    scope: Scope<'scope, Step>,
    name: &'static str,
    schema: &SchemaRef,
    budget: Budget,
    body: impl FnOnce(&Emitter) -> Result<(), E> + Send + 'static,
) -> (BatchStream<'scope>, BatchStream<'scope>)
where
    E: std::fmt::Display + Send + 'static,
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
                Progress::Running => {}
                Progress::Ended => running = None,
                Progress::Failed(message) => {
                    errors.give(&capabilities[1], faults_batch(&[Fault::new(name, message)]));
                    running = None;
                }
            }
        }
    });
    (stream, error_stream)
}

/// Streams what an iterator gives, at step 0, on the worker's own thread: as many rows as `budget` allows, and more when it is widened.
///
/// For runs in virtual time, where a thread that produces would be a race. The second stream is that of errors, of which there are none.
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
    budget.wake_by(operator.waker());
    operator.build(move |mut capabilities| {
        capabilities.truncate(1);
        let mut capability = capabilities.pop();
        let mut rest: Option<RecordBatch> = None;
        move |_frontiers| {
            while let Some(open) = &capability {
                let next = rest.take().or_else(|| batches.next().and_then(Batch::into_rows));
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

enum Progress {
    Running,
    Ended,
    Failed(String),
}

struct Producer {
    batches: mpsc::Receiver<Batch>,
    outcome: mpsc::Receiver<Result<(), String>>,
    budget: Budget,
    thread: Option<JoinHandle<()>>,
}

impl Producer {
    fn start<E: std::fmt::Display>(
        name: &str,
        budget: Budget,
        activator: SyncActivator,
        body: impl FnOnce(&Emitter) -> Result<(), E> + Send + 'static,
    ) -> Self {
        let (sender, batches) = mpsc::channel();
        let (report, outcome) = mpsc::sync_channel(1);
        let emitter = Emitter { sender, budget: budget.clone(), activator: activator.clone() };
        let body = move || {
            // Also when `body` unwinds, the operator is woken after both channels are closed.
            let _wake = WakeOnDrop(Some(move || {
                let _ = activator.activate();
            }));
            let (report, emitter) = (report, emitter);
            drop(report.send(body(&emitter).map_err(|error| error.to_string())));
        };
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .expect("the system starts a thread");
        Self { batches, outcome, budget, thread: Some(thread) }
    }

    fn drain(&self, mut give: impl FnMut(Batch)) -> Progress {
        // The outcome is asked for first: all batches were sent before it.
        let outcome = self.outcome.try_recv();
        self.batches.try_iter().for_each(&mut give);
        match outcome {
            Ok(Ok(())) => Progress::Ended,
            Ok(Err(message)) => Progress::Failed(message),
            Err(TryRecvError::Disconnected) => Progress::Failed(Lost.to_string()),
            Err(TryRecvError::Empty) => Progress::Running,
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.budget.close();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
