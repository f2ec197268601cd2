//! Futures of an operator.

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

use super::Lost;
use super::cancellable::{Cancellable, Canceller};

/// Where the futures of an operator run.
#[derive(Clone, Debug)]
pub enum Executor {
    /// On a tokio runtime.
    Tokio(Handle),
    /// On the worker's own thread, where they wait for virtual time and for nothing else.
    Inline,
}

/// Futures of one operator, each known by a key of its own. Dropping it [cancels](Tasks::cancel) them.
pub struct Tasks<K, R> {
    /// Those that have neither answered nor been cancelled.
    wanted: BTreeMap<K, Canceller>,
    sender: mpsc::Sender<(K, Result<R, Lost>)>,
    receiver: mpsc::Receiver<(K, Result<R, Lost>)>,
    running: Running,
}

enum Running {
    /// With what wakes the operator.
    Tokio(Handle, JoinSet<()>, SyncActivator),
    Inline(FuturesUnordered<BoxFuture<'static, ()>>, Waker),
}

impl<K: Ord + Clone + Send + 'static, R: Send + 'static> Tasks<K, R> {
    /// No tasks yet; `activator` wakes the operator that polls them.
    #[must_use]
    pub fn new(executor: Executor, activator: SyncActivator) -> Self {
        let (sender, receiver) = mpsc::channel();
        let running = match executor {
            Executor::Tokio(handle) => Running::Tokio(handle, JoinSet::new(), activator),
            Executor::Inline => {
                let waker = Arc::new(Activate(Mutex::new(activator)));
                Running::Inline(FuturesUnordered::new(), waker.into())
            }
        };
        Self { wanted: BTreeMap::new(), sender, receiver, running }
    }

    /// Starts a task under a key that no other task has had.
    pub fn spawn(&mut self, key: K, work: impl Future<Output = R> + Send + 'static) {
        let (work, canceller) = Cancellable::new(work);
        self.wanted.insert(key.clone(), canceller);
        let mut answer =
            Answer { key: Some(key), sender: self.sender.clone(), wakes: self.running.wakes() };
        let task = async move {
            match work.await {
                Some(result) => answer.send(Ok(result)),
                None => answer.withdraw(),
            }
        };
        match &mut self.running {
            Running::Tokio(runtime, tasks, _) => drop(tasks.spawn_on(task, runtime)),
            Running::Inline(futures, _) => futures.push(task.boxed()),
        }
    }

    /// Drops a task, here and now unless a thread is polling it, and with it what it has answered and nobody has taken yet. Nothing
    /// happens if there is no such task any more.
    pub fn cancel(&mut self, key: &K) {
        let Some(canceller) = self.wanted.remove(key) else { return };
        let _entered = self.running.enter();
        canceller.cancel();
    }

    /// The next answer, if there is one now.
    pub fn try_next(&mut self) -> Option<(K, Result<R, Lost>)> {
        match &mut self.running {
            Running::Tokio(_, tasks, _) => while tasks.try_join_next().is_some() {},
            Running::Inline(futures, waker) => {
                let mut context = Context::from_waker(waker);
                while let Poll::Ready(Some(())) = futures.poll_next_unpin(&mut context) {}
            }
        }
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

impl Running {
    /// What a future of a runtime leaves behind as it goes may need the runtime.
    fn enter(&self) -> Option<EnterGuard<'_>> {
        match self {
            Self::Tokio(runtime, ..) => Some(runtime.enter()),
            Self::Inline(..) => None,
        }
    }

    /// What wakes the operator when a task has answered. One that runs inline answers while the operator polls it.
    fn wakes(&self) -> Option<SyncActivator> {
        match self {
            Self::Tokio(.., activator) => Some(activator.clone()),
            Self::Inline(..) => None,
        }
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

/// Sends exactly one answer and wakes the operator: the result, or `Lost` if the task unwinds before it. A task that is cancelled owes none.
struct Answer<K, R> {
    key: Option<K>,
    sender: mpsc::Sender<(K, Result<R, Lost>)>,
    wakes: Option<SyncActivator>,
}

impl<K, R> Answer<K, R> {
    fn send(&mut self, result: Result<R, Lost>) {
        if let Some(key) = self.key.take() {
            // Both fail only when the operator is gone, and then nobody waits.
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

impl<K, R> Drop for Answer<K, R> {
    fn drop(&mut self) {
        self.send(Err(Lost));
    }
}
