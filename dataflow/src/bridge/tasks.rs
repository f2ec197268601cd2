//! Futures that run on behalf of an operator.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use timely::scheduling::SyncActivator;
use tokio::runtime::{EnterGuard, Handle};
use tokio::task::JoinSet;

use super::cancellable::{Cancellable, Canceller};
use super::panicked::Panicked;

/// The executor that runs an operator's futures.
#[derive(Clone, Debug)]
pub enum Executor {
    /// A tokio runtime.
    Tokio(Handle),
    /// The worker's own thread. Futures may wait for virtual time only.
    Inline,
}

/// The futures of one operator, each under a unique key. Dropping the collection [cancels](Tasks::cancel) them.
pub struct Tasks<K, R> {
    /// The tasks that have neither replied nor been cancelled.
    wanted: BTreeMap<K, Canceller>,
    sender: mpsc::Sender<(K, Result<R, Panicked>)>,
    receiver: mpsc::Receiver<(K, Result<R, Panicked>)>,
    running: TaskRunner,
}

enum TaskRunner {
    /// Runs the futures on tokio; the activator wakes the operator.
    Tokio(Handle, JoinSet<()>, SyncActivator),
    Inline(FuturesUnordered<BoxFuture<'static, ()>>, Waker),
}

impl<K: Ord + Clone + Send + 'static, R: Send + 'static> Tasks<K, R> {
    /// Creates an empty collection; `activator` wakes the operator that polls it.
    #[must_use]
    pub fn new(executor: Executor, activator: SyncActivator) -> Self {
        let (sender, receiver) = mpsc::channel();
        let running = match executor {
            Executor::Tokio(handle) => TaskRunner::Tokio(handle, JoinSet::new(), activator),
            Executor::Inline => {
                let waker = Arc::new(Activate(Mutex::new(activator)));
                TaskRunner::Inline(FuturesUnordered::new(), waker.into())
            }
        };
        Self { wanted: BTreeMap::new(), sender, receiver, running }
    }

    /// Starts a task under a key that has never been used before.
    pub fn spawn(&mut self, key: K, work: impl Future<Output = R> + Send + 'static) {
        let (work, canceller) = Cancellable::new(work);
        self.wanted.insert(key.clone(), canceller);
        let mut answer = ReplySender {
            key: Some(key),
            sender: self.sender.clone(),
            wakes: self.running.wakes(),
        };
        let task = async move {
            match work.await {
                Some(result) => answer.send(Ok(result)),
                None => answer.withdraw(),
            }
        };
        match &mut self.running {
            TaskRunner::Tokio(runtime, tasks, _) => drop(tasks.spawn_on(task, runtime)),
            TaskRunner::Inline(futures, _) => futures.push(task.boxed()),
        }
    }

    /// Cancels a task and discards its result if that was not yet taken. The future is dropped immediately, unless a thread is polling it.
    /// Does nothing if there is no such task.
    pub fn cancel(&mut self, key: &K) {
        let Some(canceller) = self.wanted.remove(key) else { return };
        let _entered = self.running.enter();
        canceller.cancel();
    }

    /// Returns the next result if one is ready.
    pub fn try_next(&mut self) -> Option<(K, Result<R, Panicked>)> {
        match &mut self.running {
            TaskRunner::Tokio(_, tasks, _) => while tasks.try_join_next().is_some() {},
            TaskRunner::Inline(futures, waker) => {
                let mut context = Context::from_waker(waker);
                while let Poll::Ready(Some(())) = futures.poll_next_unpin(&mut context) {}
            }
        }
        // A result whose key is no longer wanted belongs to a cancelled task: skip it.
        let wanted = &mut self.wanted;
        self.receiver.try_iter().find(|(key, _)| wanted.remove(key).is_some())
    }
}

impl<K, R> Drop for Tasks<K, R> {
    fn drop(&mut self) {
        let _entered = self.running.enter();
        self.wanted.values().for_each(|canceller| canceller.cancel());
    }
}

impl TaskRunner {
    /// Enters the runtime: destructors of a tokio future may need it.
    fn enter(&self) -> Option<EnterGuard<'_>> {
        match self {
            Self::Tokio(runtime, ..) => Some(runtime.enter()),
            Self::Inline(..) => None,
        }
    }

    /// Returns the activator that wakes the operator when a task has answered; `None` for inline tasks, which answer while the operator
    /// polls them.
    fn wakes(&self) -> Option<SyncActivator> {
        match self {
            Self::Tokio(.., activator) => Some(activator.clone()),
            Self::Inline(..) => None,
        }
    }
}

/// A waker of an operator, for futures.
struct Activate(Mutex<SyncActivator>);

impl Wake for Activate {
    fn wake(self: Arc<Self>) {
        // Activation fails only when the worker has ended, and then there is nothing to wake.
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).activate();
    }
}

/// A sender of exactly one reply, which also wakes the operator: the result, or `Panicked` if the task unwinds first. A cancelled task
/// sends none.
struct ReplySender<K, R> {
    key: Option<K>,
    sender: mpsc::Sender<(K, Result<R, Panicked>)>,
    wakes: Option<SyncActivator>,
}

impl<K, R> ReplySender<K, R> {
    fn send(&mut self, result: Result<R, Panicked>) {
        if let Some(key) = self.key.take() {
            // Both fail only when the operator has ended, and then nothing waits for the reply.
            drop(self.sender.send((key, result)));
            if let Some(activator) = &self.wakes {
                let _ = activator.activate();
            }
        }
    }

    fn withdraw(&mut self) {
        self.key = None;
    }
}

impl<K, R> Drop for ReplySender<K, R> {
    fn drop(&mut self) {
        self.send(Err(Panicked));
    }
}
