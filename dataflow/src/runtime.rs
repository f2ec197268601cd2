//! Runs a graph until it ends or fails.

use std::ops::ControlFlow;

use timely::WorkerConfig;
use timely::communication::allocator::Allocator;
use timely::communication::allocator::thread::Thread;
use timely::dataflow::Scope;
use timely::worker::Worker;

use crate::clock::VirtualClock;
use crate::fault::{Fault, Faults, Origin};
use crate::step::Step;
use crate::telemetry;
use crate::watchdog::{self, Watchdog};

/// Builds a graph on this thread and runs it to its end. Returns the result of `build`.
///
/// `build` connects the graph's error streams to the given [`Faults`] by [`crate::fault::raise`].
///
/// # Errors
/// If a fault is raised. The first fault is returned. The graph is torn down, and all values that its operators own are dropped.
pub fn run<R>(build: impl FnOnce(Scope<'_, Step>, &Faults) -> R) -> Result<R, Fault> {
    run_watched(None, build)
}

/// Builds and runs a graph as [`run`] does, under an optional watchdog.
///
/// # Errors
/// If a fault is raised, or the watchdog ends the run.
pub fn run_watched<R>(
    watchdog: Option<Watchdog>,
    build: impl FnOnce(Scope<'_, Step>, &Faults) -> R,
) -> Result<R, Fault> {
    run_with(
        single_worker_allocator(),
        watchdog,
        build,
        |_| {},
        |worker, watchdog| {
            worker.step_or_park(watchdog.map(Watchdog::park_timeout));
            ControlFlow::Continue(())
        },
    )
}

/// Builds and runs a graph as [`run`] does, in virtual time: whenever no work is left at the current time, `clock` advances to its earliest
/// alarm.
///
/// The graph may wait for nothing but `clock`: no thread and no tokio runtime.
///
/// # Errors
/// If a fault is raised, or the run stalls: no alarm is set, and the graph has not ended.
pub fn run_virtual<R>(
    clock: &VirtualClock,
    build: impl FnOnce(Scope<'_, Step>, &Faults) -> R,
) -> Result<R, Fault> {
    run_with(
        single_worker_allocator(),
        None,
        build,
        |_| {},
        |worker, _| {
            worker.step();
            // After a worker step without activations, nothing is in flight, not even in channels.
            let quiet = worker.activations().borrow().empty_for().is_none();
            if quiet && worker.has_dataflows() && !clock.advance() {
                return ControlFlow::Break(Some(Fault::new("runtime", Origin::Program, STALLED)));
            }
            ControlFlow::Continue(())
        },
    )
}

const STALLED: &str = "the run is stalled: no alarm is set, and the graph has not ended";

fn single_worker_allocator() -> Allocator {
    Allocator::Thread(Thread::default())
}

/// Runs a graph by calling `step` until the graph ends, a fault is raised, the watchdog ends the run, or `step` breaks. `step` breaks with
/// the fault of this worker, or with `None` if the run failed elsewhere. `failing` receives this worker's fault before the graph is torn
/// down, because the teardown may take long.
#[allow(clippy::disallowed_methods, reason = "timely takes its own start time, for its logs only")]
pub(crate) fn run_with<R>(
    allocator: Allocator,
    mut watchdog: Option<Watchdog>,
    build: impl FnOnce(Scope<'_, Step>, &Faults) -> R,
    failing: impl FnOnce(&Fault),
    mut step: impl FnMut(&mut Worker, Option<&Watchdog>) -> ControlFlow<Option<Fault>>,
) -> Result<R, Fault> {
    telemetry::reset();
    watchdog::begin(watchdog.as_ref().map(Watchdog::clock));
    let faults = Faults::default();
    let mut worker =
        Worker::new(WorkerConfig::default(), allocator, Some(std::time::Instant::now()));
    let result = worker.dataflow(|scope| build(scope, &faults));
    let mut stuck = None;
    while worker.has_dataflows() && faults.first().is_none() && stuck.is_none() {
        if let ControlFlow::Break(fault) = step(&mut worker, watchdog.as_ref()) {
            stuck = fault;
            break;
        }
        stuck = watchdog.as_mut().and_then(Watchdog::check);
    }
    let fault = faults.first().or(stuck);
    if let Some(fault) = &fault {
        failing(fault);
        faults.notify(fault);
    }
    for dataflow in worker.installed_dataflows() {
        worker.drop_dataflow(dataflow);
    }
    telemetry::end_steps();
    fault.map_or(Ok(result), Err)
}
