//! Futures that run on behalf of an operator.

use std::collections::VecDeque;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use rustc_hash::FxHashMap;
use timely::scheduling::SyncActivator;
use tokio::runtime::{EnterGuard, Handle};

use super::cancellable::{Cancellable, Canceller};
use super::panicked::Panicked;

/// The executor that runs an operator's futures.
#[derive(Clone, Debug)]
pub enum Executor {
    /// The futures run on the threads of this tokio runtime.
    Tokio(Handle),
    /// The futures run on the worker's own thread. They may wait for virtual time only.
    Inline,
}

/// The futures of one operator, each under a unique key. Dropping the collection [cancels](Tasks::cancel) them.
pub struct Tasks<K, R> {
    /// The tasks that were not cancelled and whose results [`try_next`](Self::try_next) has not returned.
    wanted: FxHashMap<K, Canceller>,
    replies: Arc<Replies<K, R>>,
    /// Replies that were taken from `replies` and not returned yet.
    taken: VecDeque<TaskReply<K, R>>,
    running: TaskRunner,
}

enum TaskRunner {
    Tokio(Handle),
    Inline(FuturesUnordered<BoxFuture<'static, ()>>, Waker),
}

impl<K: Eq + Hash + Clone + Send + 'static, R: Send + 'static> Tasks<K, R> {
    /// Creates an empty collection; `activator` wakes the operator that polls it.
    #[must_use]
    pub fn new(executor: Executor, activator: SyncActivator) -> Self {
        let (running, activator) = match executor {
            Executor::Tokio(handle) => (TaskRunner::Tokio(handle), Some(activator)),
            // Inline tasks reply while the operator polls them.
            Executor::Inline => {
                let waker = Arc::new(Activate(Mutex::new(activator)));
                (TaskRunner::Inline(FuturesUnordered::new(), waker.into()), None)
            }
        };
        let replies = Arc::new(Replies { arrived: Mutex::default(), activator });
        Self { wanted: FxHashMap::default(), replies, taken: VecDeque::new(), running }
    }

    /// Starts a task. `key` must not have been used before, not even for a cancelled task, whose late reply would be taken for the reply of
    /// this one.
    pub fn spawn(&mut self, key: K, work: impl Future<Output = R> + Send + 'static) {
        let (work, canceller) = Cancellable::new(work);
        self.wanted.insert(key.clone(), canceller);
        let mut answer = ReplySender { key: Some(key), replies: self.replies.clone() };
        let task = async move {
            match work.await {
                Some(result) => answer.send(Ok(result)),
                None => answer.withdraw(),
            }
        };
        match &mut self.running {
            TaskRunner::Tokio(runtime) => drop(runtime.spawn(task)),
            TaskRunner::Inline(futures, _) => futures.push(task.boxed()),
        }
    }

    /// Cancels a task and discards its result if the result was not yet taken. The future is dropped immediately, unless a thread is
    /// polling it. Does nothing if there is no such task.
    pub fn cancel(&mut self, key: &K) {
        let Some(canceller) = self.wanted.remove(key) else { return };
        let _entered = self.running.enter();
        canceller.cancel();
    }

    /// Returns the key and the result of the next task that has ended, if any; the result is [`Panicked`] if the task panicked. With
    /// [`Executor::Inline`], the tasks run within this call, and a panic of a task unwinds through it.
    ///
    /// Call it until it returns `None`: the operator is woken only for results that arrive after all earlier results were taken.
    pub fn try_next(&mut self) -> Option<(K, Result<R, Panicked>)> {
        if let TaskRunner::Inline(futures, waker) = &mut self.running {
            let mut context = Context::from_waker(waker);
            while let Poll::Ready(Some(())) = futures.poll_next_unpin(&mut context) {}
        }
        loop {
            if self.taken.is_empty() {
                std::mem::swap(&mut self.taken, &mut *self.replies.lock());
            }
            let (key, result) = self.taken.pop_front()?;
            // A result whose key is no longer wanted belongs to a cancelled task: skip it.
            if self.wanted.remove(&key).is_some() {
                return Some((key, result));
            }
        }
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
            Self::Tokio(runtime) => Some(runtime.enter()),
            Self::Inline(..) => None,
        }
    }
}

type TaskReply<K, R> = (K, Result<R, Panicked>);

/// The replies that the operator has not taken.
struct Replies<K, R> {
    arrived: Mutex<VecDeque<TaskReply<K, R>>>,
    /// Wakes the operator. `None` for inline tasks, which reply only while the operator polls them.
    activator: Option<SyncActivator>,
}

impl<K, R> Replies<K, R> {
    fn lock(&self) -> MutexGuard<'_, VecDeque<TaskReply<K, R>>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, reply: TaskReply<K, R>) {
        let mut arrived = self.lock();
        // The operator takes all replies at once. Only the first reply after that has to wake it.
        let wakes = arrived.is_empty();
        arrived.push_back(reply);
        drop(arrived);
        if let Some(activator) = self.activator.as_ref().filter(|_| wakes) {
            // Activation fails only when the worker has ended, and then nothing waits for the reply.
            let _ = activator.activate();
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

/// The sender of a task's reply, which also wakes the operator. It sends the result of the task, or `Panicked` if the sender is dropped
/// before the task completes. A cancelled task sends nothing.
struct ReplySender<K, R> {
    key: Option<K>,
    replies: Arc<Replies<K, R>>,
}

impl<K, R> ReplySender<K, R> {
    fn send(&mut self, result: Result<R, Panicked>) {
        if let Some(key) = self.key.take() {
            self.replies.send((key, result));
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
