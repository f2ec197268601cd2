//! The parts that an operator contributes to snapshots, and the capability that it holds until they are on disk.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use timely::dataflow::operators::Capability;

use super::cadence::Wake;
use super::descriptor::Descriptor;
use super::error::SnapshotError;
use super::manifest::PartRecord;
use super::part::{Draft, Part};
use super::plan::{OnError, SnapshotPlan};
use super::store::SnapshotStore;
use crate::bridge::{Reply, Service};
use crate::operator::Output;
use crate::step::Step;
use crate::watchdog::WaitHandle;

/// The writer of a worker's parts. Writes them in the order in which they are handed over.
pub(crate) struct Writer {
    pub(crate) plan: SnapshotPlan,
    service: Service<Arc<SnapshotStore>>,
    /// The number of files being written, for each snapshot with at least one such file.
    writing: RefCell<BTreeMap<Step, usize>>,
    /// Wakers of the operators that wait until fewer snapshots are being written.
    waiting: RefCell<Vec<Wake>>,
}

impl Writer {
    pub(crate) fn new(
        peers: usize,
        plan: &SnapshotPlan,
        service: Service<Arc<SnapshotStore>>,
    ) -> Self {
        plan.cadence.join(peers, plan.resumed);
        let (writing, waiting) = (RefCell::default(), RefCell::default());
        Self { plan: plan.clone(), service, writing, waiting }
    }

    /// Counts a file of the snapshot of `step` that will be written.
    pub(crate) fn begin(&self, step: Step) {
        *self.writing.borrow_mut().entry(step).or_default() += 1;
    }

    /// Records that a file of the snapshot of `step` is written or has failed.
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

    /// Runs `work` with the store on the writer thread, or at once in virtual time. `wake` is called when the reply is ready; see
    /// [`Service::call`].
    pub(crate) fn call<R: Send + 'static>(
        &self,
        wake: impl Fn() + Send + Sync + 'static,
        work: impl FnOnce(&SnapshotStore) -> R + Send + 'static,
    ) -> Reply<R> {
        self.service.call(wake, move |store| work(store))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.plan.cadence.leave();
    }
}

/// The snapshot parts of one operator on one worker: hands them to the writer, and reports them on an output of the operator.
///
/// It holds a capability for the first step at whose end a part may still be written. The frontier of its output therefore passes a step
/// only when the part of that step is on disk or has failed, or when no part of that step is due.
pub struct Parts {
    name: &'static str,
    worker: u32,
    output: Output,
    wake: Wake,
    waiting: WaitHandle,
    writer: Rc<Writer>,
    capability: Option<Capability<Step>>,
    /// The last step that is included in the state; `None` before the first call of [`begin_step`](Self::begin_step).
    reached: Option<Step>,
    /// The last step at whose end the state was handed to the writer; `None` before the first part.
    last_handed_over: Option<Step>,
    pending: VecDeque<PendingPart>,
    /// The state at the end of the last step, if it is held.
    held: Option<HeldPart>,
    /// The result of the last write: the record of the file, `None` if the part has no file, or the message of the error.
    written: Result<Option<PartRecord>, String>,
}

/// The state at the end of a step of which no snapshot is due.
struct HeldPart {
    capability: Capability<Step>,
    reached: Option<Step>,
    /// `None` if another writer produces the file. That writer keeps the state of the last step until the next step ends, so the part can
    /// still be requested from it.
    part: Option<Part>,
}

/// A part that is being written, or the repeated report of an unchanged part.
struct PendingPart {
    capability: Capability<Step>,
    reached: Option<Step>,
    /// `None` if the state is unchanged and the previous result is used again.
    reply: Option<PartReply>,
}

type PartReply = Reply<Result<Option<PartRecord>, SnapshotError>>;

impl Parts {
    pub(crate) fn new(
        (name, worker): (&'static str, u32),
        output: Output,
        wake: impl Fn() + Send + Sync + 'static,
        waiting: WaitHandle,
        writer: Rc<Writer>,
    ) -> Self {
        let (wake, cadence): (Wake, _) = (Arc::new(wake), &writer.plan.cadence);
        if cadence.holds_states() {
            cadence.wake_by(wake.clone());
        }
        Self {
            name,
            worker,
            output,
            wake,
            waiting,
            writer,
            capability: None,
            reached: None,
            last_handed_over: None,
            pending: VecDeque::new(),
            held: None,
            written: Ok(None),
        }
    }

    /// Takes the capability for parts from the initial capabilities of the operator. Call this before all other methods.
    pub fn start(&mut self, capabilities: &[Capability<Step>]) {
        let mut capability = capabilities[self.output.index()].clone();
        if let Some(resumed) = self.writer.plan.resumed {
            capability.downgrade(&resumed.next());
        }
        self.capability = Some(capability);
    }

    /// Returns `true` if this worker is writing parts of `limit` snapshots or more. An operator that starts steps should then wait, or
    /// parts pile up on a slow disk. The operator is activated when the number has fallen.
    #[must_use]
    pub fn writes_pending(&self, limit: usize) -> bool {
        let is_behind = self.writer.writing.borrow().len() >= limit;
        let mut waiting = self.writer.waiting.borrow_mut();
        if is_behind && !waiting.iter().any(|wake| Arc::ptr_eq(wake, &self.wake)) {
            waiting.push(self.wake.clone());
        }
        is_behind
    }

    /// Announces that data of `step` is about to change the state. For each earlier step whose snapshot is due and not yet written, hands
    /// the result of `state` to the writer. If the state has not changed since its last part, `state` is usually not called, and the
    /// snapshot uses that part again. If the cadence holds states in memory, also keeps the state before `step`.
    ///
    /// # Contract
    /// At the first call for a step, the state includes all earlier steps and nothing of `step`. Steps never decrease; further
    /// calls for the same step have no effect. Every step that changes the state is announced before its first change.
    pub fn begin_step(&mut self, step: Step, state: impl FnMut(&Draft<'_>) -> Part) {
        debug_assert!(self.reached <= Some(step), "steps are applied in order");
        self.hand_over(step, state);
        self.reached = Some(step);
    }

    /// Writes the result of `state` for each step before `frontier` whose snapshot is due and not yet written. Also writes it for the end
    /// of the run if `frontier` is `None`. Writes the held state if a snapshot of its step was requested. Then reports the parts that are
    /// on disk or have failed. Call this at the end of each activation, when the state includes everything before `frontier`: usually the
    /// [earliest](crate::frontier::earliest) frontier of the inputs that determine the state.
    pub fn advance_to(
        &mut self,
        frontier: Option<Step>,
        mut state: impl FnMut(&Draft<'_>) -> Part,
    ) {
        match frontier {
            Some(step) => self.hand_over(step, &mut state),
            None => self.end(&mut state),
        }
        self.write_held(&mut state);
        self.emit_written();
    }

    /// Requests a snapshot of the completed step before `step`, from the states that all operators
    /// [hold](super::Cadence::with_held_states). Returns `false` until the snapshot is committed or given up; the operator is activated
    /// then. Returns `true` immediately if `step` is the first step, or the cadence holds no states.
    ///
    /// # Contract
    /// No operator has completed `step`.
    #[must_use]
    pub fn save_held(&self, step: Step) -> bool {
        let cadence = &self.writer.plan.cadence;
        let before = step.0.checked_sub(1).filter(|_| cadence.holds_states()).map(Step);
        before.is_none_or(|step| cadence.is_settled(step))
    }

    /// Writes the state for each due step before `to`, and moves the capability past it.
    ///
    /// The part of a step gets a clone of the capability before the downgrade. The output's frontier thus passes the step only when the
    /// clone is dropped, which happens in [`emit_written`](Self::emit_written) after the part is on disk.
    fn hand_over(&mut self, to: Step, mut state: impl FnMut(&Draft<'_>) -> Part) {
        while let Some(step) = self.capability.as_ref().map(|open| *open.time()) {
            if step >= to {
                return;
            }
            self.held = None;
            if self.writer.plan.cadence.is_due(step) {
                self.write_or_keep(step, &mut state);
                self.last_handed_over = Some(step);
            } else if step.next() == to && self.writer.plan.cadence.holds_states() {
                self.hold(step, &mut state);
            }
            if let Some(capability) = &mut self.capability {
                capability.downgrade(&step.next());
            }
        }
    }

    /// Writes the state for the remaining due steps and for the end of the run, and drops the capability.
    fn end(&mut self, mut state: impl FnMut(&Draft<'_>) -> Part) {
        if let Some(reached) = self.reached {
            self.hand_over(reached.next(), &mut state);
        }
        self.held = None;
        let Some(mut capability) = self.capability.take() else { return };
        capability.downgrade(&Step::END);
        self.capability = Some(capability);
        self.write_or_keep(Step::END, &mut state);
        self.capability = None;
    }

    /// Hands the state to the writer, or reuses the previous part if the state has not changed since.
    fn write_or_keep(&mut self, step: Step, state: &mut impl FnMut(&Draft<'_>) -> Part) {
        if self.is_unchanged() {
            self.push_pending(None);
        } else {
            self.write(step, state);
        }
    }

    /// Returns `true` if the state has not changed since it was last handed to the writer. Returns `false` before the first step changes
    /// the state, and always with [`OnError::Warn`], because the parts of a failed snapshot are removed.
    fn is_unchanged(&self) -> bool {
        self.writer.plan.on_error == OnError::Fail
            && self.reached.is_some()
            && self.reached <= self.last_handed_over
    }

    fn write(&mut self, step: Step, state: &mut impl FnMut(&Draft<'_>) -> Part) {
        let part = state(&self.draft(step, None));
        let reply = self.send(step, part);
        self.push_pending(Some(reply));
    }

    fn draft(&self, step: Step, held: Option<Cell<bool>>) -> Draft<'_> {
        let (store, operator, worker) = (&self.writer.plan.store, self.name, self.worker);
        Draft { store, step, operator, worker, held }
    }

    fn send(&self, step: Step, part: Part) -> PartReply {
        let (operator, worker, wake) = (self.name, self.worker, self.wake.clone());
        self.writer.begin(step);
        self.writer.call(move || wake(), move |store| store.write(step, operator, worker, part))
    }

    /// Holds the state at the end of `step`, with a capability for its part.
    fn hold(&mut self, step: Step, state: &mut impl FnMut(&Draft<'_>) -> Part) {
        let draft = self.draft(step, Some(Cell::new(false)));
        let part = state(&draft);
        let is_external = draft.held.as_ref().is_some_and(Cell::get);
        let part = Some(part).filter(|_| !is_external);
        let (capability, reached) = (self.capability.clone(), self.reached);
        self.held = capability.map(|capability| HeldPart { capability, reached, part });
    }

    /// Writes the held state, if a snapshot of its step was requested.
    fn write_held(&mut self, state: &mut impl FnMut(&Draft<'_>) -> Part) {
        let cadence = self.writer.plan.cadence.clone();
        let is_requested = |held: &mut HeldPart| cadence.is_requested(*held.capability.time());
        let Some(held) = self.held.take_if(is_requested) else { return };
        let HeldPart { capability, reached, part } = held;
        let step = *capability.time();
        let part = part.unwrap_or_else(|| state(&self.draft(step, None)));
        let reply = Some(self.send(step, part));
        self.last_handed_over = Some(step);
        self.waiting.begin(step, "the disk to take its part of a snapshot");
        self.pending.push_back(PendingPart { capability, reached, reply });
    }

    fn push_pending(&mut self, reply: Option<PartReply>) {
        if let Some(capability) = self.capability.clone() {
            self.waiting.begin(*capability.time(), "the disk to take its part of a snapshot");
            self.pending.push_back(PendingPart { capability, reached: self.reached, reply });
        }
    }

    /// Emits the descriptors of parts that are on disk or have failed, in order, and drops their capabilities.
    fn emit_written(&mut self) {
        while let Some(first) = self.pending.front() {
            // A part without a reply reuses the result of the part before it, which is why the order matters.
            let outcome = match &first.reply {
                None => self.written.clone(),
                Some(reply) => match reply.poll_outcome() {
                    None => return,
                    Some(outcome) => outcome.map_err(|error| error.to_string()),
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
