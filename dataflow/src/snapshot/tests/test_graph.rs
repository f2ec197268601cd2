//! A graph with state: a source and two folds, whose results depend on the order of steps and on every row.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::types::UInt64Type;
use arrow_array::{ArrayRef, StringArray, UInt64Array};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::Probe;
use timely::progress::frontier::MutableAntichain;
use timely::{CommunicationConfig, Config, WorkerConfig};

use super::memory::Memory;
use super::open;
use crate::batch::{Batch, BatchStream};
use crate::clock::VirtualClock;
use crate::fault::{Faults, raise, warn};
use crate::frontier::earliest;
use crate::operator::Operator;
use crate::route::by_key;
use crate::runtime::run_virtual;
use crate::schema::{self, column};
use crate::snapshot::{
    Cadence, OnError, Part, RestoredSnapshot, SnapshotPlan, SnapshotRequest, Snapshots,
};
use crate::step::Step;

/// The result of a run: the state of each fold by key.
pub(super) type FoldStates = BTreeMap<(&'static str, u64), u64>;

/// The number of rows per step.
const ROWS: u64 = 13;
const KEYS: u64 = 5;

#[derive(Clone)]
pub(super) struct TestGraph {
    pub(super) workers: usize,
    pub(super) steps: u64,
    pub(super) every: u64,
    pub(super) on_error: OnError,
    /// All workers are dropped when one has applied this step.
    pub(super) dropped_at: Option<Step>,
    /// The step after which a snapshot is requested.
    pub(super) requested_at: Option<Step>,
    /// The step after which another process opens the folder.
    pub(super) newer_process_at: Option<Step>,
    /// The source emits the rows of all steps at once, and operators close several steps in one activation.
    pub(super) bursts: bool,
    /// The source waits until no snapshot is being written.
    pub(super) waits_for_writes: bool,
    /// `true` to apply rows as they arrive, which is wrong.
    pub(super) on_arrival: bool,
}

impl TestGraph {
    pub(super) fn new(workers: usize, steps: u64, every: u64) -> Self {
        Self {
            workers,
            steps,
            every,
            on_error: OnError::Fail,
            dropped_at: None,
            requested_at: None,
            newer_process_at: None,
            bursts: false,
            waits_for_writes: false,
            on_arrival: false,
        }
    }

    /// Runs from the newest snapshot on disk until the end, a fault, or the drop.
    pub(super) fn run(&self, files: &Memory) -> GraphOutcome {
        let shared = Arc::new(SharedState::default());
        shared.lock().disk = Some(files.clone());
        match self.plan(files) {
            Err(message) => shared.lock().fault = Some(message),
            Ok((plan, restored)) => self.execute(plan, restored, &shared),
        }
        std::mem::take(&mut *shared.lock())
    }

    fn plan(&self, files: &Memory) -> Result<(SnapshotPlan, Option<RestoredSnapshot>), String> {
        let store = open(files, 2).map_err(|error| error.to_string())?;
        let restored = store.latest().map_err(|error| error.to_string())?.restored;
        let plan = SnapshotPlan {
            store: Arc::new(store),
            cadence: Cadence::every(self.every),
            on_error: self.on_error,
            resumed: restored.as_ref().map(RestoredSnapshot::step),
        };
        Ok((plan, restored))
    }

    fn execute(
        &self,
        plan: SnapshotPlan,
        restored: Option<RestoredSnapshot>,
        shared: &Arc<SharedState>,
    ) {
        shared.lock().resumed = plan.resumed;
        let (test_graph, shared) = (self.clone(), shared.clone());
        let communication = CommunicationConfig::Process(self.workers);
        let config = Config { communication, worker: WorkerConfig::default() };
        let workers = timely::execute(config, move |worker| {
            let _guard = StopOnPanic(shared.clone());
            let faults = Faults::default();
            worker.dataflow(|scope| {
                test_graph.build(
                    Snapshots::new(scope, &plan),
                    &plan,
                    restored.as_ref(),
                    &shared,
                    &faults,
                );
            });
            while worker.has_dataflows() && !shared.stop.load(Ordering::Acquire) {
                worker.step_or_park(Some(Duration::from_millis(1)));
                if let Some(fault) = faults.first() {
                    shared.lock().fault = Some(fault.to_string());
                    shared.stop.store(true, Ordering::Release);
                }
            }
            for dataflow in worker.installed_dataflows() {
                worker.drop_dataflow(dataflow);
            }
        });
        for result in workers.expect("the workers start").join() {
            result.expect("no worker panics");
        }
    }

    /// Runs as [`run`](Self::run) does, on this thread in virtual time.
    pub(super) fn run_virtual(&self, files: &Memory) -> GraphOutcome {
        let (shared, clock) = (Arc::new(SharedState::default()), VirtualClock::default());
        let (plan, restored) = self.plan(files).expect("opens");
        let ran = run_virtual(&clock, |scope, faults| {
            let snapshots = Snapshots::in_virtual_time(scope, &plan, clock.clone());
            self.build(snapshots, &plan, restored.as_ref(), &shared, faults);
        });
        let mut outcome = std::mem::take(&mut *shared.lock());
        outcome.fault = ran.err().map(|fault| fault.to_string());
        outcome
    }

    fn build(
        &self,
        snapshots: Snapshots<'_>,
        plan: &SnapshotPlan,
        restored: Option<&RestoredSnapshot>,
        shared: &Arc<SharedState>,
        faults: &Faults,
    ) {
        let trained = ProbeHandle::new();
        let rows = self.source(&snapshots, plan, trained.clone(), shared);
        let first = self.fold("first", rows, &snapshots, plan, restored, shared);
        let second = self.fold("second", first, &snapshots, plan, restored, shared);
        second.probe_with(&trained);
        let commits = snapshots.commit();
        raise(commits.errors, faults);
        let sink = shared.clone();
        warn(commits.warnings, move |fault| sink.lock().warnings.push(fault.message));
    }

    /// Emits the rows of each step, distributed over the workers. Unless `bursts` is set, emits at most two steps ahead of the last fold.
    fn source<'scope>(
        &self,
        snapshots: &Snapshots<'scope>,
        plan: &SnapshotPlan,
        trained: ProbeHandle<Step>,
        shared: &Arc<SharedState>,
    ) -> BatchStream<'scope> {
        let scope = snapshots.scope();
        let mut operator = Operator::new("source", scope);
        let (mut output, stream) = operator.output(&schema::POLICIES, &[]);
        let mut parts = snapshots.parts("source", &mut operator);
        let (wake, test_graph, resumed) = (operator.waker(), self.clone(), plan.resumed);
        let (store, shared) = (plan.store.clone(), shared.clone());
        let (worker, workers) = (scope.index() as u64, scope.peers() as u64);
        operator.build(move |mut capabilities| {
            parts.start(&capabilities);
            let mut next = resumed.map_or(Step(0), Step::next);
            capabilities.truncate(1);
            let mut open = capabilities.pop();
            open.iter_mut().for_each(|open| open.downgrade(&next));
            move |_| {
                // The position in the dataset is the same on all workers.
                let state = |next: Step| {
                    let part = Part::bytes("txt", next.to_string().into_bytes());
                    if worker == 0 { part.fact("cursor", next.0 * ROWS) } else { Part::nothing() }
                };
                open = open.take().filter(|_| next.0 < test_graph.steps);
                let mut waits = false;
                while next.0 < test_graph.steps
                    && let Some(capability) = &mut open
                    && (test_graph.bursts || next.0 < 2 || !trained.less_equal(&Step(next.0 - 2)))
                {
                    waits = test_graph.waits_for_writes && parts.writes_pending(1);
                    if waits {
                        break;
                    }
                    // Errors of a failed disk are ignored.
                    if worker == 0
                        && let Ok(ids) = store.manifests()
                    {
                        let done = ids.into_iter().map(|id| id.step).max();
                        let mut outcome = shared.lock();
                        outcome.ahead =
                            outcome.ahead.max(next.0.saturating_sub(done.map_or(0, |done| done.0)));
                    }
                    parts.begin_step(next, |_| state(next));
                    capability.downgrade(&next);
                    let rows = (0..ROWS).filter(|row| row % workers == worker);
                    output.give(capability, batch(rows.map(|row| (row % KEYS, row * 13 + next.0))));
                    next = next.next();
                }
                parts.advance_to(open.as_ref().map(|_| next), |_| state(next));
                if open.is_some() && !waits {
                    wake();
                }
            }
        });
        stream
    }

    /// Folds the rows of each step into one number per key, and emits that number as a row for another key.
    fn fold<'scope>(
        &self,
        name: &'static str,
        rows: BatchStream<'scope>,
        snapshots: &Snapshots<'scope>,
        plan: &SnapshotPlan,
        restored: Option<&RestoredSnapshot>,
        shared: &Arc<SharedState>,
    ) -> BatchStream<'scope> {
        let (index, peers) = (rows.scope().index() as u64, rows.scope().peers() as u64);
        let mut operator = Operator::new(name, rows.scope());
        let mut input = operator.input(rows, by_key(column::POLICY_VERSION), &schema::POLICIES);
        let (mut output, stream) = operator.output(&schema::POLICIES, &[0]);
        let mut parts = snapshots.parts(name, &mut operator);
        let (test_graph, shared, request) = (self.clone(), shared.clone(), plan.cadence.request());
        let mut state = restored.map(|from| load(from, name, index, peers)).unwrap_or_default();
        operator.build(move |capabilities| {
            parts.start(&capabilities);
            let mut stashed = BTreeMap::new();
            move |frontiers| {
                input.for_each(|capability, batch| {
                    let (_, stash) = stashed
                        .entry(*capability.time())
                        .or_insert_with(|| (capability.retain(output.index()), Vec::new()));
                    stash.extend(rows_of(&batch));
                });
                while let Some(first) = stashed
                    .first_entry()
                    .filter(|first| test_graph.is_ready(first.key(), frontiers))
                {
                    let (step, (capability, mut rows)) = first.remove_entry();
                    parts.begin_step(step, |_| save(name, &state));
                    rows.sort_unstable();
                    apply(&mut state, &rows, step);
                    rows.dedup_by_key(|row| row.0);
                    output.give(
                        &capability,
                        batch(rows.iter().map(|&(key, _)| (key + 1, state[&key]))),
                    );
                    test_graph.on_step(step, &shared, &request);
                }
                parts.advance_to(earliest(frontiers), |_| save(name, &state));
                if frontiers[0].is_empty() && stashed.is_empty() {
                    shared
                        .lock()
                        .states
                        .extend(state.iter().map(|(&key, &value)| ((name, key), value)));
                }
            }
        });
        stream
    }

    fn is_ready(&self, step: &Step, frontiers: &[MutableAntichain<Step>]) -> bool {
        self.on_arrival || !frontiers[0].less_equal(step)
    }

    fn on_step(&self, step: Step, shared: &SharedState, request: &SnapshotRequest) {
        if self.dropped_at.is_some_and(|at| step >= at) {
            shared.stop.store(true, Ordering::Release);
        }
        if self.requested_at == Some(step) {
            let requested_now = request.now();
            let mut outcome = shared.lock();
            outcome.requested = outcome.requested.max(requested_now);
        }
        if self.newer_process_at == Some(step)
            && !shared.newer_process_started.swap(true, Ordering::AcqRel)
        {
            let disk = shared.lock().disk.clone().expect("it runs");
            drop(open(&disk, 2).expect("opens"));
        }
    }
}

#[derive(Default)]
pub(super) struct GraphOutcome {
    pub(super) states: FoldStates,
    pub(super) fault: Option<String>,
    pub(super) warnings: Vec<String>,
    pub(super) resumed: Option<Step>,
    pub(super) requested: Option<Step>,
    /// The largest number of steps by which the source was ahead of the last snapshot.
    pub(super) ahead: u64,
    disk: Option<Memory>,
}

#[derive(Default)]
struct SharedState {
    stop: AtomicBool,
    newer_process_started: AtomicBool,
    outcome: Mutex<GraphOutcome>,
}

/// Stops all workers on a panic, because the peers of a worker that unwinds would wait forever.
struct StopOnPanic(Arc<SharedState>);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop.store(true, Ordering::Release);
        }
    }
}

impl SharedState {
    fn lock(&self) -> std::sync::MutexGuard<'_, GraphOutcome> {
        self.outcome.lock().expect("unpoisoned")
    }
}

fn apply(state: &mut BTreeMap<u64, u64>, rows: &[(u64, u64)], step: Step) {
    for (key, value) in rows {
        let old = state.entry(*key).or_default();
        *old = old.wrapping_mul(31).wrapping_add(*value).wrapping_add(step.0 << 20);
    }
}

/// Writes rows for one fold and JSON for the other, to cover both kinds of parts.
fn save(name: &str, state: &BTreeMap<u64, u64>) -> Part {
    if name == "first" {
        let pairs = state.iter().map(|(&key, &value)| (key, value));
        batch(pairs).into_rows().map_or_else(Part::nothing, Part::rows)
    } else {
        Part::bytes("json", serde_json::to_vec(state).expect("numbers"))
    }
}

/// Returns the entries of this worker's keys from the parts of all workers of the earlier run.
fn load(from: &RestoredSnapshot, name: &str, index: u64, peers: u64) -> BTreeMap<u64, u64> {
    let all: Vec<(u64, u64)> = if name == "first" {
        let parts = from.rows(name).expect("verified");
        parts.into_iter().flat_map(|(_, rows)| rows_of(&Batch::new(rows))).collect()
    } else {
        let parts = from.parts(name).expect("verified");
        let state = |bytes: Vec<u8>| -> BTreeMap<u64, u64> {
            serde_json::from_slice(&bytes).expect("what was written")
        };
        parts.into_iter().flat_map(|(_, bytes)| state(bytes)).collect()
    };
    all.into_iter().filter(|(key, _)| key % peers == index).collect()
}

fn batch(rows: impl Iterator<Item = (u64, u64)>) -> Batch {
    let (keys, values): (Vec<_>, Vec<_>) = rows.unzip();
    let text: ArrayRef = Arc::new(StringArray::from(vec!["toy"; keys.len()]));
    let columns = vec![
        Arc::new(UInt64Array::from(keys)) as _,
        text,
        Arc::new(UInt64Array::from(values)) as _,
    ];
    Batch::from_columns(&schema::POLICIES, columns)
}

fn rows_of(batch: &Batch) -> Vec<(u64, u64)> {
    let keys = batch.values::<UInt64Type>(column::POLICY_VERSION).values();
    let values = batch.values::<UInt64Type>(column::DIGEST).values();
    keys.iter().copied().zip(values.iter().copied()).collect()
}
