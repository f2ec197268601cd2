//! The engine's side of an instance: its thread, and what goes there.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::step::Tick;
use tch::TchError;

use super::backlog::Backlog;
use super::counters::Counters;
use super::generator::{Capacity, Generator};
use super::instance::{Command, Instance, Report, Reports};
use super::invariance;
use super::iterations::Busy;
use super::options::{Detokenize, TorchEngineConfig, TorchEngineError};
use super::passes::Passes;
use super::race::{Progress, Underway};
use super::sequence::Sequence;
use super::{RolloutError, Waker};
use crate::model::Decoder;
use crate::model::device::set_threads_of_this_thread;

/// The engine's end of an instance.
pub(super) struct Owner {
    /// Closed to end the thread: the only one for longer than it takes to send.
    commands: Option<Arc<Sender<Command>>>,
    thread: Option<JoinHandle<()>>,
    pub(super) counters: Arc<Counters>,
    progress: Arc<Progress>,
    underway: Underway,
}

/// What all instances share.
pub(super) struct Shared {
    pub(super) config: TorchEngineConfig,
    pub(super) detokenize: Detokenize,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) reports: Reports,
    /// Instances that have something to do.
    pub(super) busy: Arc<AtomicU32>,
    /// How passes are cut, if that must not show.
    pub(super) passes: Option<Passes>,
}

impl Owner {
    /// An instance that is gone has said why, in an event that is still to be polled.
    pub(super) fn tell(&self, command: Command) {
        if let Some(commands) = &self.commands {
            let _gone = commands.send(command);
        }
    }

    /// Hands it what it is to generate.
    pub(super) fn give(&mut self, share: Vec<Sequence>) {
        self.underway.send(share.iter().map(Sequence::tick).min().unwrap_or(Tick::MAX));
        self.tell(Command::Generate(share));
    }

    /// What it has, and what is on its way there, ends later than this.
    pub(super) fn floor(&mut self) -> Tick {
        self.underway.floor(self.progress.read())
    }

    /// What is on its way there, as far as [`floor`](Self::floor) knew or was sent since, ends later than this.
    pub(super) fn floor_on_the_way(&self) -> Tick {
        self.underway.not_taken()
    }

    /// Has the thread look for work of its guests.
    pub(super) fn waker(&self) -> Waker {
        let commands = self.commands.as_ref().map(Arc::downgrade).unwrap_or_default();
        Arc::new(move || {
            if let Some(commands) = commands.upgrade() {
                let _gone = commands.send(Command::Look);
            }
        })
    }

    /// Lets the thread end after its current iteration.
    pub(super) fn close(&mut self) {
        self.commands = None;
    }

    /// Waits until the thread has ended; a panic of it has been reported as an event.
    pub(super) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _panic = thread.join();
        }
    }
}

impl Shared {
    /// Starts instance `number` on a thread of its own.
    pub(super) fn start(
        &self,
        number: u32,
        decoder: Decoder,
        token_limit: usize,
    ) -> Result<Owner, TorchEngineError> {
        let (mut owner, instance) = self.owned(number, decoder, token_limit)?;
        let (threads, reports) = (self.config.threads_per_instance, self.reports.clone());
        let work = move || {
            set_threads_of_this_thread(threads);
            reports.send(outcome(instance).err().map(Report::Failed));
        };
        let thread = std::thread::Builder::new()
            .name(format!("rollout-{number}"))
            .spawn(work)
            .map_err(|source| TorchEngineError::Thread { instance: number, source })?;
        owner.thread = Some(thread);
        Ok(owner)
    }

    /// Returns an instance that has no thread, and its owner.
    pub(super) fn owned(
        &self,
        number: u32,
        decoder: Decoder,
        token_limit: usize,
    ) -> Result<(Owner, Instance), TchError> {
        let (commands, received) = channel();
        let counters = Arc::new(Counters::default());
        let instance = self.instance(number, decoder, token_limit, &counters, received)?;
        let owner = Owner {
            commands: Some(Arc::new(commands)),
            thread: None,
            counters,
            progress: Arc::clone(&instance.progress),
            underway: Underway::default(),
        };
        Ok((owner, instance))
    }

    pub(super) fn instance(
        &self,
        number: u32,
        decoder: Decoder,
        token_limit: usize,
        counters: &Arc<Counters>,
        commands: Receiver<Command>,
    ) -> Result<Instance, TchError> {
        let TorchEngineConfig { max_running, kv_cache_tokens, .. } = self.config;
        let capacity = Capacity { max_running, kv_cache_tokens, token_limit };
        let generator = match self.passes {
            Some(passes) => Generator::invariant(decoder, capacity, passes)?,
            None => Generator::new(decoder, capacity)?,
        };
        Ok(Instance {
            number,
            generator,
            detokenize: Arc::clone(&self.detokenize),
            clock: Arc::clone(&self.clock),
            counters: Arc::clone(counters),
            commands,
            reports: self.reports.clone(),
            busy: Busy::new(&self.busy),
            lodgers: Vec::new(),
            deterministic: self.passes.is_some(),
            progress: Arc::default(),
            shares: 0,
            backlog: Backlog::default(),
        })
    }
}

/// How instances of `config` cut passes, tried on `decoder` by a thread like theirs; `None` if it does not matter.
pub(super) fn passes(
    config: &TorchEngineConfig,
    decoder: &mut Decoder,
) -> Result<Option<Passes>, TorchEngineError> {
    if !config.deterministic {
        return Ok(None);
    }
    let passes = std::thread::scope(|scope| {
        let tried = scope.spawn(|| {
            set_threads_of_this_thread(config.threads_per_instance);
            invariance::passes(decoder)
        });
        tried.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    tracing::debug!(?passes, "deterministic generation");
    Ok(Some(passes))
}

/// Runs an instance to its end; a panic is an error too, so that nobody waits for a thread that is gone.
fn outcome(instance: Instance) -> Result<(), RolloutError> {
    let number = instance.number;
    match catch_unwind(AssertUnwindSafe(|| instance.run())) {
        Ok(ended) => ended.map_err(|fault| fault.of(number)),
        Err(panic) => {
            let reason = format!("panicked: {}", panic_message(&*panic));
            Err(RolloutError::Engine { instance: number, reason })
        }
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}
