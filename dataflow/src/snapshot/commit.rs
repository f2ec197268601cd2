//! The commit operator: collects descriptors and commits the snapshots that are complete.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use arrow_array::{Float64Array, StringArray};
use timely::dataflow::operators::Capability;
use timely::progress::frontier::MutableAntichain;

use super::descriptor::Descriptor;
use super::error::SnapshotError;
use super::manifest::PartRecord;
use super::parts::Writer;
use super::plan::{OnError, SnapshotPlan};
use super::store::{Committed, SnapshotStore};
use crate::batch::{Batch, BatchStream};
use crate::bridge::Reply;
use crate::fault::{Fault, Origin, give_fault};
use crate::operator::{Operator, Output};
use crate::route::to_first;
use crate::schema;
use crate::step::Step;
use crate::watchdog::WaitHandle;

const NAME: &str = "snapshots";
/// The maximum number of snapshots that wait for parts. More waiting snapshots show that an operator fails to report its parts, which is a
/// bug.
const MAX_INCOMPLETE: usize = 64;

/// The output streams of a graph's snapshots.
pub struct Commits<'scope> {
    /// Batches of [`schema::ERRORS`] that end the run. Pass them to [`fault::raise`](crate::fault::raise).
    pub errors: BatchStream<'scope>,
    /// Batches of [`schema::ERRORS`] that do not end the run. Pass them to [`fault::warn`](crate::fault::warn).
    pub warnings: BatchStream<'scope>,
    /// Batches of [`schema::METRICS`] with `snapshot/bytes` and `snapshot/parts`, at the step of each committed snapshot. The metrics of
    /// the snapshot at the end of the run are at [`Step::END`].
    pub metrics: BatchStream<'scope>,
}

/// The capabilities for errors, warnings and metrics.
type CommitCapabilities = [Capability<Step>; 3];

/// The parts of a snapshot that have been reported so far.
struct IncompleteSnapshot {
    capabilities: CommitCapabilities,
    parts: BTreeMap<(String, u32), Descriptor>,
}

impl IncompleteSnapshot {
    /// Returns the last step that is included in any of the parts; `None` if no part includes a step.
    fn reached(&self) -> Option<Step> {
        self.parts.values().filter_map(|part| part.reached).max()
    }
}

struct CommitInFlight {
    step: Step,
    capabilities: CommitCapabilities,
    reply: Reply<CommitResult>,
}

/// The reason why there is no snapshot, and the way to handle it.
type CommitFailure = (Fault, OnError);

type CommitResult = Result<Committed, CommitFailure>;

/// Installs the commit operator, which acts on worker 0. `names` are the operators that report parts, one part per worker and snapshot.
pub(crate) fn commit<'scope>(
    parts: BatchStream<'scope>,
    names: &[&'static str],
    plan: &SnapshotPlan,
    writer: Rc<Writer>,
) -> Commits<'scope> {
    let scope = parts.scope();
    let mut operator = Operator::new(NAME, scope);
    let mut parts = operator.input(parts, to_first(), &schema::PARTS);
    let (errors, error_stream) = operator.output(&schema::ERRORS, &[0]);
    let (warnings, warning_stream) = operator.output(&schema::ERRORS, &[0]);
    let (metrics, metric_stream) = operator.output(&schema::METRICS, &[0]);
    let mut committer = Committer {
        expected: expected(names, scope.peers()),
        workers: u32::try_from(scope.peers()).expect("invariant: workers are few"),
        plan: plan.clone(),
        writer,
        wake: Arc::new(operator.waker()),
        waiting: operator.wait_handle(),
        open: BTreeMap::new(),
        running: Vec::new(),
        committed: None,
        failed: None,
        outputs: [errors, warnings, metrics],
    };
    operator.build(move |_capabilities| {
        move |frontiers| {
            parts.for_each(|capability, batch| {
                let capabilities = committer.outputs.each_ref().map(|output| output.index());
                let capabilities = capabilities.map(|output| capability.retain(output));
                committer.collect(capabilities, &batch);
            });
            committer.finish_commits();
            committer.start_complete(&frontiers[0]);
        }
    });
    Commits { errors: error_stream, warnings: warning_stream, metrics: metric_stream }
}

fn expected(names: &[&'static str], workers: usize) -> BTreeSet<(String, u32)> {
    (0_u32..)
        .take(workers)
        .flat_map(|worker| names.iter().map(move |&name| (name.to_owned(), worker)))
        .collect()
}

struct Committer {
    expected: BTreeSet<(String, u32)>,
    workers: u32,
    plan: SnapshotPlan,
    writer: Rc<Writer>,
    wake: Arc<dyn Fn() + Send + Sync>,
    waiting: WaitHandle,
    open: BTreeMap<Step, IncompleteSnapshot>,
    running: Vec<CommitInFlight>,
    /// The last step of the snapshot that this run committed last; `None` before its first commit.
    committed: Option<Step>,
    /// The capabilities of the failed snapshot, kept forever so that its step never completes. `None` unless a snapshot failed with
    /// [`OnError::Fail`].
    failed: Option<CommitCapabilities>,
    outputs: [Output; 3],
}

impl Committer {
    fn collect(&mut self, capabilities: CommitCapabilities, batch: &Batch) {
        let step = *capabilities[0].time();
        self.waiting.begin(step, "the other parts of a snapshot");
        let collected = self
            .open
            .entry(step)
            .or_insert_with(|| IncompleteSnapshot { capabilities, parts: BTreeMap::new() });
        for descriptor in Descriptor::all(batch) {
            let key = (descriptor.operator.clone(), descriptor.worker);
            collected.parts.insert(key, descriptor);
        }
    }

    /// Starts to commit the snapshots that are complete by `frontier`, in the order of steps.
    ///
    /// A snapshot is complete once the frontier of the parts has passed its step. Two cases need care at the end of a run. First, the
    /// snapshot of the end, or of a step without rounds, has parts that include no new step. It can duplicate the snapshot that is being
    /// committed, so it waits for that commit. Second, an operator whose inputs have ended reports its next part at [`Step::END`] and no
    /// parts for earlier steps. The snapshot of such an earlier step is incomplete without a bug, and the snapshot of the end replaces it.
    /// Until the frontier shows that the run is ending, an incomplete snapshot therefore waits. The incomplete snapshot is started anyway,
    /// and fails in `check`, in two cases: an operator without a part in it has reported a part of a later snapshot, or too many snapshots
    /// wait.
    fn start_complete(&mut self, frontier: &MutableAntichain<Step>) {
        while self.failed.is_none()
            && let Some(first) = self.open.first_entry()
            && !frontier.less_equal(first.key())
        {
            if first.get().reached() != Some(*first.key()) && !self.running.is_empty() {
                return;
            }
            let lacks = first.get().parts.len() < self.expected.len() && *first.key() != Step::END;
            let is_over = frontier.frontier().iter().all(|&open| open == Step::END);
            if lacks && !is_over && !self.has_missing_part() {
                return;
            }
            let Some((step, collected)) = self.open.pop_first() else { return };
            self.waiting.end(step);
            if !(lacks && is_over) {
                self.start(step, collected);
            }
        }
    }

    /// Returns `true` if the first snapshot is incomplete for a reason other than the end of the run. Either an operator without a part in
    /// it has reported a part of a later snapshot, or too many snapshots wait.
    fn has_missing_part(&self) -> bool {
        let mut later = self.open.iter().filter(|(step, _)| **step != Step::END);
        let Some((_, first)) = later.next() else { return false };
        let lacks = |key: &&(String, u32)| !first.parts.contains_key(*key);
        self.open.len() > MAX_INCOMPLETE
            || later.any(|(_, later)| later.parts.keys().any(|key| lacks(&key)))
    }

    fn start(&mut self, step: Step, collected: IncompleteSnapshot) {
        let reached = collected.reached();
        let IncompleteSnapshot { capabilities, parts } = collected;
        // Skip snapshots that contain nothing new: the run has done no step at all, or its last step is already committed. The second case
        // occurs at the end, and for steps without rounds before it.
        let Some(of) = reached.filter(|&of| self.committed != Some(of)) else {
            // If the removal fails, the folder is removed when the store is opened next.
            drop(self.writer.call(|| {}, move |store| drop(store.discard(step))));
            self.plan.cadence.settle(step);
            return;
        };
        let (found, wake) = (self.check(parts), self.wake.clone());
        let (workers, on_error) = (self.workers, self.plan.on_error);
        let work = move |store: &SnapshotStore| {
            commit_or_discard(store, step, of, found, workers, on_error)
        };
        let reply = self.writer.call(move || wake(), work);
        self.writer.begin(step);
        self.running.push(CommitInFlight { step, capabilities, reply });
    }

    /// Returns the parts of a complete snapshot. A missing part is a bug in the graph and always ends the run.
    fn check(
        &self,
        parts: BTreeMap<(String, u32), Descriptor>,
    ) -> Result<Vec<PartRecord>, CommitFailure> {
        let found: BTreeSet<_> = parts.keys().cloned().collect();
        if let Some((operator, worker)) = self.expected.symmetric_difference(&found).next() {
            let (expected, found) = (self.expected.len(), found.len());
            let message = format!(
                "expected {expected} parts, found {found}: `{operator}` on worker {worker} reported no part, or is not registered"
            );
            return Err((Fault::new(NAME, Origin::Program, message), OnError::Fail));
        }
        let outcomes = parts.into_values().map(|part| part.outcome);
        let records: Result<Vec<_>, _> = outcomes.filter_map(Result::transpose).collect();
        let fault = |message| (Fault::new(NAME, Origin::Environment, message), self.plan.on_error);
        records.map_err(fault)
    }

    fn finish_commits(&mut self) {
        let (outputs, failed) = (&mut self.outputs, &mut self.failed);
        let (plan, writer, committed) = (&self.plan, &self.writer, &mut self.committed);
        self.running.retain(|running| {
            let Some(outcome) = running.reply.poll() else { return true };
            let outcome =
                outcome.unwrap_or_else(|lost| Err((Fault::of(NAME, &lost), OnError::Fail)));
            writer.end(running.step);
            let [errors, warnings, metrics] = outputs;
            let capabilities = &running.capabilities;
            match outcome {
                Ok(done) => {
                    metrics.give(&capabilities[2], metrics_batch(&done));
                    *committed = Some(done.step);
                    plan.cadence.settle(running.step);
                    if let Some(error) = done.cleanup_error {
                        give_fault(warnings, &capabilities[1], Fault::of(NAME, &error));
                    }
                }
                Err((fault, OnError::Warn)) => {
                    give_fault(warnings, &capabilities[1], fault);
                    plan.cadence.settle(running.step);
                    // If the request is rejected (several processes), the next attempt is at the next step of the cadence.
                    let _ = plan.cadence.request().now();
                }
                Err((fault, OnError::Fail)) => {
                    give_fault(errors, &capabilities[0], fault);
                    *failed = Some(capabilities.clone());
                }
            }
            false
        });
    }
}

/// Commits the parts of a complete snapshot. If a part could not be written or the commit fails, removes the parts, but only with
/// [`OnError::Warn`] and while no newer generation is claimed. `folder` is the step for which the parts were written, and `step` is the
/// last step that they include.
fn commit_or_discard(
    store: &SnapshotStore,
    folder: Step,
    step: Step,
    found: Result<Vec<PartRecord>, CommitFailure>,
    workers: u32,
    on_error: OnError,
) -> CommitResult {
    let fault = |error| (Fault::of(NAME, &error), on_error);
    let commit = |parts| store.commit(step, parts, workers).map_err(fault);
    let (fault, on_error) = match found.and_then(commit) {
        Ok(committed) => return Ok(committed),
        Err(failure) => failure,
    };
    if let Err(error @ SnapshotError::Fenced { .. }) = store.fence() {
        return Err((Fault::of(NAME, &error), OnError::Fail));
    }
    if on_error == OnError::Warn
        && let Err(error) = store.discard(folder)
    {
        let message = format!("{}; then the removal of its parts failed: {error}", fault.message);
        return Err((Fault { message, ..fault }, on_error));
    }
    Err((fault, on_error))
}

fn metrics_batch(committed: &Committed) -> Batch {
    let names = StringArray::from(vec!["snapshot/bytes", "snapshot/parts"]);
    let values = Float64Array::from(vec![committed.bytes as f64, committed.parts as f64]);
    Batch::from_columns(&schema::METRICS, vec![Arc::new(names), Arc::new(values)])
}
