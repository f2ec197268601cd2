//! Services: threads, or their equivalents in virtual time, that own a value and run requests on it in order.

use std::cell::{Cell, RefCell};
use std::sync::mpsc::{self, TryRecvError};
use std::thread::{self, JoinHandle};

use super::panicked::{CallError, Panicked, WakeOnDrop};
use crate::clock::{Alarm, Clock, Nanos, VirtualClock};

type ServiceCommand<T> = Box<dyn FnOnce(&mut T) + Send>;

/// A thread that owns a value and runs requests on it in order. Dropping the handle waits until the thread has finished all pending
/// requests.
///
/// Meant for values that are bound to a thread or must not be shared, such as a model with its optimizer, or a device.
pub struct ServiceThread<T> {
    commands: Option<mpsc::Sender<ServiceCommand<T>>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: 'static> ServiceThread<T> {
    /// Starts the thread `name`, which constructs the value itself, and waits until the value exists.
    ///
    /// # Errors
    /// If `make` returns an error.
    ///
    /// # Panics
    /// If the system cannot start a thread, or `make` panics.
    pub fn spawn<E: Send + 'static>(
        name: &str,
        make: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<Self, E> {
        let (commands, inbox) = mpsc::channel::<ServiceCommand<T>>();
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
        made.recv().expect("the value of a service thread is created without a panic")?;
        Ok(Self { commands: Some(commands), thread: Some(thread) })
    }

    /// Queues `work` to run on the thread, and returns the pending reply without waiting. `wake` is called once the reply is ready, also if
    /// the thread panicked.
    pub fn call<R: Send + 'static>(
        &self,
        wake: impl FnOnce() + Send + 'static,
        work: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Reply<R> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let pending = PendingReply { sender, _wake: WakeOnDrop(Some(wake)) };
        let command: ServiceCommand<T> = Box::new(move |value| {
            let pending = pending;
            drop(pending.sender.send(work(value)));
        });
        if let Some(commands) = &self.commands {
            // If the thread has ended, the command is dropped with its sender, and the reply reads `Panicked`.
            drop(commands.send(command));
        }
        Reply::Thread(receiver)
    }
}

impl<T> Drop for ServiceThread<T> {
    fn drop(&mut self) {
        // Without a sender the thread's loop ends after the pending commands.
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread, and pending replies read `Panicked`.
            drop(thread.join());
        }
    }
}

/// A service that owns a value and runs requests on it in order: a thread, or the worker itself in virtual time.
pub enum Service<T> {
    /// Requests run one after the other on a thread that owns the value.
    Thread(ServiceThread<T>),
    /// Requests run immediately. The reply becomes readable after as much virtual time as the work [spent](VirtualClock::spend). This time
    /// is counted from the request or, if the reply to an earlier request is not readable yet, from the time at which that reply becomes
    /// readable.
    Virtual(VirtualService<T>),
}

/// A service in virtual time; see [`Service::Virtual`].
pub struct VirtualService<T> {
    value: RefCell<T>,
    clock: VirtualClock,
    busy_until: Cell<Nanos>,
}

impl<T: 'static> Service<T> {
    /// Creates a service that owns `value` in virtual time.
    pub fn in_virtual_time(clock: VirtualClock, value: T) -> Self {
        Self::Virtual(VirtualService {
            value: RefCell::new(value),
            clock,
            busy_until: Cell::default(),
        })
    }

    /// Requests `work`. `wake` is called once the reply is ready, also if the thread panicked. In virtual time, `work` runs before this
    /// returns, and dropping the reply cancels the call of `wake`.
    pub fn call<R: Send + 'static>(
        &self,
        wake: impl Fn() + Send + Sync + 'static,
        work: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Reply<R> {
        match self {
            Self::Thread(thread) => thread.call(wake, work),
            Self::Virtual(service) => service.call(wake, work),
        }
    }
}

impl<T: 'static> VirtualService<T> {
    fn call<R: Send + 'static>(
        &self,
        wake: impl Fn() + Send + Sync + 'static,
        work: impl FnOnce(&mut T) -> R,
    ) -> Reply<R> {
        // A request that arrives while the service is busy starts when the service becomes free.
        self.clock.spend(self.busy_until.get().since(self.clock.now()));
        let reply = work(&mut self.value.borrow_mut());
        // `now` includes the time spent on this thread, so `ready` is the end of the work. Reset the time spent, so that later calls of
        // `now` do not include it.
        let ready = self.clock.now();
        self.clock.take_spent();
        self.busy_until.set(ready);
        let alarm = self.clock.alarm(wake);
        alarm.set(ready);
        Reply::Virtual {
            clock: self.clock.clone(),
            ready,
            reply: Cell::new(Some(reply)),
            _alarm: alarm,
        }
    }
}

/// The sender of a reply and the wake-up that must follow the reply. The fields are dropped in this order, whether the command ran,
/// panicked or was dropped without running. The operator is therefore woken only when it can read the reply or the disconnection.
struct PendingReply<R, F: FnOnce()> {
    sender: mpsc::SyncSender<R>,
    _wake: WakeOnDrop<F>,
}

/// The pending reply of a [`Service`].
pub enum Reply<R> {
    /// The reply arrives from a thread.
    Thread(mpsc::Receiver<R>),
    /// The reply is known but not readable before its time.
    Virtual {
        /// The clock that decides when the reply is readable.
        clock: VirtualClock,
        /// The time at which the reply becomes readable.
        ready: Nanos,
        /// The reply, until it is read.
        reply: Cell<Option<R>>,
        #[doc(hidden)]
        _alarm: Alarm,
    },
}

impl<R> Reply<R> {
    /// Returns the reply, or [`Panicked`] if the thread panicked; `None` while the reply is not ready. Do not call this again after it has
    /// returned a reply.
    #[must_use]
    pub fn poll(&self) -> Option<Result<R, Panicked>> {
        match self {
            Self::Thread(receiver) => match receiver.try_recv() {
                Ok(reply) => Some(Ok(reply)),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Err(Panicked)),
            },
            Self::Virtual { clock, ready, reply, .. } => {
                if clock.now() < *ready {
                    None
                } else {
                    reply.take().map(Ok)
                }
            }
        }
    }

    /// Waits for the reply. In virtual time, returns it immediately, even before its time.
    ///
    /// # Errors
    /// If the thread panicked, or the reply was already read.
    pub fn wait(self) -> Result<R, Panicked> {
        match self {
            Self::Thread(receiver) => receiver.recv().map_err(|_| Panicked),
            Self::Virtual { reply, .. } => reply.take().ok_or(Panicked),
        }
    }
}

impl<R, E> Reply<Result<R, E>> {
    /// Returns the result, or `None` while it is not ready. A panic of the thread is returned as [`CallError::Panicked`].
    #[must_use]
    pub fn poll_outcome(&self) -> Option<Result<R, CallError<E>>> {
        self.poll().map(outcome)
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// If the work returned an error, the thread panicked, or the result was already read.
    pub fn wait_outcome(self) -> Result<R, CallError<E>> {
        outcome(self.wait())
    }
}

fn outcome<R, E>(reply: Result<Result<R, E>, Panicked>) -> Result<R, CallError<E>> {
    reply?.map_err(CallError::Failed)
}
