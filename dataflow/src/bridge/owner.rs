//! Owners: something that holds a value and does what it is asked, in order.

use std::cell::{Cell, RefCell};
use std::sync::mpsc::{self, TryRecvError};
use std::thread::{self, JoinHandle};

use super::{Lost, WakeOnDrop};
use crate::clock::{Alarm, Clock, Nanos, VirtualClock};

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
