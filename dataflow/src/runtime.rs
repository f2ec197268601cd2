//! Runs a graph until it ends or fails.

use timely::WorkerConfig;
use timely::communication::allocator::Allocator;
use timely::communication::allocator::thread::Thread;
use timely::dataflow::Scope;
use timely::worker::Worker;

use crate::clock::VirtualClock;
use crate::fault::{Fault, Faults};
use crate::step::Step;
use crate::telemetry;
use crate::watchdog::{self, Watchdog};

/// Builds a graph on this thread and runs it to its end; returns what `build` returned.
///
/// `build` connects the graph's error streams to the given [`Faults`] by [`crate::fault::raise`].
///
/// # Errors
/// The first fault that was raised; the graph is torn down, and what its operators own is dropped with it.
pub fn run<R>(build: impl FnOnce(Scope<'_, Step>, &Faults) -> R) -> Result<R, Fault> {
    run_with(
        alone(),
        None,
        build,
        |_| {},
        |worker, _| {
            worker.step_or_park(None);
            true
        },
    )
}

/// The same under a watchdog, if there is one.
///
/// # Errors
/// The first fault that was raised, or that of the watchdog, if it is to end the run.
pub fn run_watched<R>(
    watchdog: Option<Watchdog>,
    build: impl FnOnce(Scope<'_, Step>, &Faults) -> R,
) -> Result<R, Fault> {
    run_with(
        alone(),
        watchdog,
        build,
        |_| {},
        |worker, watchdog| {
            worker.step_or_park(watchdog.map(Watchdog::patience));
            true
        },
    )
}

/// The same in virtual time: whenever nothing is left to do now, `clock` moves to its earliest alarm.
///
/// Nothing in the graph may wait for anything but `clock`: no thread, no tokio runtime.
///
/// # Errors
/// The first fault that was raised, or that nothing is left to wait for and the graph has not ended.
pub fn run_virtual<R>(
    clock: &VirtualClock,
    build: impl FnOnce(Scope<'_, Step>, &Faults) -> R,
) -> Result<R, Fault> {
    let mut stalled = false;
    let result = run_with(
        alone(),
        None,
        build,
        |_| {},
        |worker, _| {
            worker.step();
            // A step without anything to do leaves nothing under way, in channels neither.
            let quiet = worker.activations().borrow().empty_for().is_none();
            stalled = quiet && worker.has_dataflows() && !clock.advance();
            !stalled
        },
    )?;
    if stalled { Err(Fault::new("runtime", STALLED)) } else { Ok(result) }
}

const STALLED: &str = "nothing is left to wait for, and the graph has not ended";

/// The worker of a graph that has one.
fn alone() -> Allocator {
    Allocator::Thread(Thread::default())
}

/// Runs a graph by `step` until it ends, a fault is raised, or `step` says that it cannot go on. `failing` hears of the fault of this
/// worker before the graph is torn down, which may take long.
#[allow(clippy::disallowed_methods, reason = "timely takes its own start time, for its logs only")]
pub(crate) fn run_with<R>(
    allocator: Allocator,
    mut watchdog: Option<Watchdog>,
    build: impl FnOnce(Scope<'_, Step>, &Faults) -> R,
    failing: impl FnOnce(&Fault),
    mut step: impl FnMut(&mut Worker, Option<&Watchdog>) -> bool,
) -> Result<R, Fault> {
    telemetry::reset();
    watchdog::begin(watchdog.as_ref().map(Watchdog::clock));
    let faults = Faults::default();
    let mut worker =
        Worker::new(WorkerConfig::default(), allocator, Some(std::time::Instant::now()));
    let result = worker.dataflow(|scope| build(scope, &faults));
    let mut stuck = None;
    while worker.has_dataflows()
        && faults.first().is_none()
        && stuck.is_none()
        && step(&mut worker, watchdog.as_ref())
    {
        stuck = watchdog.as_mut().and_then(Watchdog::check);
    }
    let fault = faults.first().or(stuck);
    if let Some(fault) = &fault {
        failing(fault);
        faults.tell(fault);
    }
    for dataflow in worker.installed_dataflows() {
        worker.drop_dataflow(dataflow);
    }
    telemetry::end_steps();
    fault.map_or(Ok(result), Err)
}
