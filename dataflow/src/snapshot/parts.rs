//! The operator's end of the protocol: its parts, and the capability that says that they are not all on the disk.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use timely::dataflow::operators::Capability;
use timely::progress::frontier::MutableAntichain;

use super::descriptor::Descriptor;
use super::manifest::PartRecord;
use super::part::{Draft, Part};
use super::plan::{OnError, SnapshotPlan};
use super::store::SnapshotStore;
use crate::bridge::{Owner, Reply};
use crate::operator::Output;
use crate::step::Step;
use crate::watchdog::Waiting;

/// What writes the parts of one worker, in the order in which they are handed to it.
pub(crate) struct Writer {
    pub(crate) plan: SnapshotPlan,
    owner: Owner<Arc<SnapshotStore>>,
    /// The snapshots that something is being written of, and how many files.
    writing: RefCell<BTreeMap<Step, usize>>,
    /// Whoever waits for fewer of them.
    waiting: RefCell<Vec<Wake>>,
}

type Wake = Arc<dyn Fn() + Send + Sync>;

impl Writer {
    pub(crate) fn new(peers: usize, plan: &SnapshotPlan, owner: Owner<Arc<SnapshotStore>>) -> Self {
        plan.cadence.join(peers, plan.resumed);
        let (writing, waiting) = (RefCell::default(), RefCell::default());
        Self { plan: plan.clone(), owner, writing, waiting }
    }

    /// Counts a file of the snapshot of `step` that is to be written.
    pub(crate) fn begin(&self, step: Step) {
        *self.writing.borrow_mut().entry(step).or_default() += 1;
    }

    /// One of them is written, or will not be.
    pub(crate) fn end(&self, step: Step) {
        let mut writing = self.writing.borrow_mut();
        if let Some(files) = writing.get_mut(&step) {
            *files -= 1;
            if *files == 0 {
                writing.remove(&step);
                self.waiting.take().iter().for_each(|wake| wake());
            }
        }
    }

    /// Asks for something to be done with the store.
    pub(crate) fn call<R: Send + 'static>(
        &self,
        wake: impl Fn() + Send + Sync + 'static,
        work: impl FnOnce(&SnapshotStore) -> R + Send + 'static,
    ) -> Reply<R> {
        self.owner.call(wake, move |store| work(store))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.plan.cadence.leave();
    }
}

/// The parts of one operator on one worker.
///
/// It holds a capability of its own for the first step at whose end a part may still be written, so that the frontier of its output passes
/// a step only when the part of that step is on the disk, or when the step had none.
pub struct Parts {
    name: &'static str,
    worker: u32,
    output: Output,
    wake: Wake,
    waiting: Waiting,
    writer: Rc<Writer>,
    capability: Option<Capability<Step>>,
    /// The last step that is in the state.
    reached: Option<Step>,
    /// The last step at whose end the state was handed to the writer.
    handed: Option<Step>,
    pending: VecDeque<Pending>,
    /// What came of what was written last.
    written: Result<Option<PartRecord>, String>,
}

/// A part that is on its way to the disk.
struct Pending {
    capability: Capability<Step>,
    reached: Option<Step>,
    /// `None` if it is what was written before.
    reply: Option<Reply<Result<Option<PartRecord>, String>>>,
}

impl Parts {
    pub(crate) fn new(
        (name, worker): (&'static str, u32),
        output: Output,
        wake: impl Fn() + Send + Sync + 'static,
        waiting: Waiting,
        writer: Rc<Writer>,
    ) -> Self {
        Self {
            name,
            worker,
            output,
            wake: Arc::new(wake),
            waiting,
            writer,
            capability: None,
            reached: None,
            handed: None,
            pending: VecDeque::new(),
            written: Ok(None),
        }
    }

    /// Takes its own of the capabilities that the operator begins with.
    pub fn start(&mut self, capabilities: &[Capability<Step>]) {
        let mut capability = capabilities[self.output.index()].clone();
        if let Some(resumed) = self.writer.plan.resumed {
            capability.downgrade(&resumed.next());
        }
        self.capability = Some(capability);
    }

    /// Whether this worker is writing parts of `limit` snapshots or more: an operator that brings steps about does well to wait, or parts
    /// pile up where the disk is slower than the steps are. It is activated when there are fewer.
    #[must_use]
    pub fn are_behind(&self, limit: usize) -> bool {
        let behind = self.writer.writing.borrow().len() >= limit;
        let mut waiting = self.writer.waiting.borrow_mut();
        if behind && !waiting.iter().any(|wake| Arc::ptr_eq(wake, &self.wake)) {
            waiting.push(self.wake.clone());
        }
        behind
    }

    /// To be called before anything of `step` changes the state, when all earlier steps have: what `state` makes is written for each step
    /// before `step` at whose end a snapshot is taken.
    ///
    /// # Contract
    /// Steps are announced in order, and every step that changes the state is.
    pub fn before(&mut self, step: Step, state: impl FnMut(&Draft<'_>) -> Part) {
        debug_assert!(self.reached <= Some(step), "steps are applied in order");
        self.hand_over(step, state);
        self.reached = Some(step);
    }

    /// To be called at the end of each activation, when the state holds all of what is complete by `frontiers`, those of the inputs that
    /// the state follows from: [`closed`](Self::closed) by the least of them.
    pub fn passed(
        &mut self,
        frontiers: &[MutableAntichain<Step>],
        state: impl FnMut(&Draft<'_>) -> Part,
    ) {
        self.closed(
            frontiers.iter().filter_map(|input| input.frontier().first().copied()).min(),
            state,
        );
    }

    /// To be called at the end of each activation, when the state holds all of what is before `frontier`: what `state` makes is written
    /// for each of these steps at whose end a snapshot is taken and none was written, and for the end when no step is left.
    pub fn closed(&mut self, frontier: Option<Step>, state: impl FnMut(&Draft<'_>) -> Part) {
        match frontier {
            Some(step) => self.hand_over(step, state),
            None => self.end(state),
        }
        self.tell();
    }

    fn hand_over(&mut self, to: Step, mut state: impl FnMut(&Draft<'_>) -> Part) {
        while let Some(step) = self.capability.as_ref().map(|open| *open.time()) {
            if step >= to {
                return;
            }
            if self.writer.plan.cadence.is_due(step) {
                self.write_or_keep(step, &mut state);
                self.handed = Some(step);
            }
            if let Some(capability) = &mut self.capability {
                capability.downgrade(&step.next());
            }
        }
    }

    fn end(&mut self, mut state: impl FnMut(&Draft<'_>) -> Part) {
        if let Some(reached) = self.reached {
            self.hand_over(reached.next(), &mut state);
        }
        let Some(mut capability) = self.capability.take() else { return };
        capability.downgrade(&Step::END);
        self.capability = Some(capability);
        self.write_or_keep(Step::END, &mut state);
        self.capability = None;
    }

    /// Hands the state to the writer, unless it has it already: the operator has done nothing since.
    fn write_or_keep(&mut self, step: Step, state: &mut impl FnMut(&Draft<'_>) -> Part) {
        if self.is_unchanged() {
            self.pend(None);
        } else {
            self.write(step, state);
        }
    }

    /// Whether what was handed to the writer last is the state still. Where a snapshot that fails is passed over, its parts are gone.
    fn is_unchanged(&self) -> bool {
        self.writer.plan.on_error == OnError::Fail
            && self.reached.is_some()
            && self.reached <= self.handed
    }

    fn write(&mut self, step: Step, state: &mut impl FnMut(&Draft<'_>) -> Part) {
        let (operator, worker) = (self.name, self.worker);
        let part = state(&Draft { store: &self.writer.plan.store, step, operator, worker });
        let wake = self.wake.clone();
        let reply = self.writer.call(
            move || wake(),
            move |store| {
                store.write(step, operator, worker, part).map_err(|error| error.to_string())
            },
        );
        self.writer.begin(step);
        self.pend(Some(reply));
    }

    fn pend(&mut self, reply: Option<Reply<Result<Option<PartRecord>, String>>>) {
        if let Some(capability) = self.capability.clone() {
            self.waiting.begin(*capability.time(), "the disk to take its part of a snapshot");
            self.pending.push_back(Pending { capability, reached: self.reached, reply });
        }
    }

    /// Gives out what is on the disk, in order, and with it the capability.
    fn tell(&mut self) {
        while let Some(first) = self.pending.front() {
            let outcome = match &first.reply {
                None => self.written.clone(),
                Some(reply) => match reply.poll_outcome() {
                    None => return,
                    Some(outcome) => outcome,
                },
            };
            self.written = outcome.clone();
            let Some(done) = self.pending.pop_front() else { return };
            let step = *done.capability.time();
            self.waiting.end(step);
            if done.reply.is_some() {
                self.writer.end(step);
            }
            let (operator, worker) = (self.name.to_owned(), self.worker);
            let descriptor = Descriptor { operator, worker, reached: done.reached, outcome };
            self.output.give(&done.capability, descriptor.batch());
        }
    }
}
