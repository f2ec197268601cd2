//! Futures that can be dropped from outside, independent of the thread that polls them.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures::future::BoxFuture;

/// A future that completes without a result once it is cancelled.
pub(super) struct Cancellable<R>(Arc<SharedFuture<R>>);

/// The handle that cancels a [`Cancellable`], without the type of its result.
pub(super) type Canceller = Arc<dyn Cancel>;

pub(super) trait Cancel: Send + Sync {
    /// Drops the future immediately. If a thread is polling the future at this moment, that thread drops it as soon as the poll returns.
    ///
    /// Aborting a task of a tokio runtime is not enough. The runtime drops the task later, on one of its own threads, so the resources of
    /// the task could outlive the call.
    fn cancel(&self);
}

struct SharedFuture<R> {
    cancelled: AtomicBool,
    state: Mutex<CancelState<R>>,
}

struct CancelState<R> {
    /// `None` once the future has completed or was cancelled.
    work: Option<BoxFuture<'static, R>>,
    waker: Option<Waker>,
}

impl<R: Send + 'static> Cancellable<R> {
    pub(super) fn new(work: impl Future<Output = R> + Send + 'static) -> (Self, Canceller) {
        let state = Mutex::new(CancelState { work: Some(Box::pin(work)), waker: None });
        let shared = Arc::new(SharedFuture { cancelled: AtomicBool::new(false), state });
        (Self(shared.clone()), shared)
    }
}

impl<R> SharedFuture<R> {
    fn lock(&self) -> MutexGuard<'_, CancelState<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Send> Cancel for SharedFuture<R> {
    fn cancel(&self) {
        // Set the flag before trying the lock: a thread that holds the lock checks the flag after it has released the lock. In the other
        // order, a cancellation during a poll could be missed by both threads.
        self.cancelled.store(true, Ordering::SeqCst);
        let Ok(mut state) = self.state.try_lock() else { return };
        let (work, waker) = (state.work.take(), state.waker.take());
        drop(state);
        drop(work);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<R> Future for Cancellable<R> {
    /// The result of the future; `None` if it was cancelled.
    type Output = Option<R>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<R>> {
        let mut state = self.0.lock();
        let Some(work) = state.work.as_mut() else { return Poll::Ready(None) };
        if let Poll::Ready(result) = work.as_mut().poll(context) {
            state.work = None;
            return Poll::Ready(Some(result));
        }
        // Store the waker before the lock is released, so that a cancellation from now on wakes the task.
        state.waker = Some(context.waker().clone());
        drop(state);
        // A cancellation during the poll could not take the lock, and left the work for this thread to drop.
        if self.0.cancelled.load(Ordering::SeqCst) {
            let work = self.0.lock().work.take();
            drop(work);
            return Poll::Ready(None);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::task::noop_waker;

    use super::*;

    /// A guard that sets its flag when it is dropped.
    struct Gone(Arc<AtomicBool>);

    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn pending() -> (impl Future<Output = ()> + Send + 'static, Arc<AtomicBool>) {
        let gone = Arc::new(AtomicBool::new(false));
        let guard = Gone(gone.clone());
        let work = async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        };
        (work, gone)
    }

    #[test]
    fn cancelling_a_pending_task_drops_it_at_once() {
        for begun in [false, true] {
            let (work, gone) = pending();
            let (mut task, canceller) = Cancellable::new(work);
            if begun {
                assert!(task.poll_unpin(&mut Context::from_waker(&noop_waker())).is_pending());
            }
            assert!(!gone.load(Ordering::SeqCst));
            canceller.cancel();
            assert!(gone.load(Ordering::SeqCst));
            assert_eq!(task.now_or_never(), Some(None));
        }
    }

    #[test]
    fn a_task_cancelled_while_polled_is_dropped_when_it_yields() {
        let (waiting, gone) = pending();
        let slot: Arc<Mutex<Option<Canceller>>> = Arc::default();
        let own = slot.clone();
        let work = async move {
            // In production, one thread cancels while another polls. Here both are the same thread.
            own.lock().expect("unpoisoned").take().expect("set").cancel();
            waiting.await;
        };
        let (task, canceller) = Cancellable::new(work);
        *slot.lock().expect("unpoisoned") = Some(canceller);
        assert_eq!(task.now_or_never(), Some(None));
        assert!(gone.load(Ordering::SeqCst));
    }

    #[test]
    fn cancelling_a_completed_task_has_no_effect() {
        let (task, canceller) = Cancellable::new(async { 7 });
        assert_eq!(task.now_or_never(), Some(Some(7)));
        canceller.cancel();
    }
}
