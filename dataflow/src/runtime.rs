//! Runs a graph until it ends or fails.

use timely::WorkerConfig;
use timely::communication::allocator::Allocator;
use timely::communication::allocator::thread::Thread;
use timely::dataflow::Scope;
use timely::worker::Worker;

use crate::fault::{Fault, Faults};
use crate::step::Step;
use crate::telemetry;

/// Builds a graph on this thread and runs it to its end; returns what `build` returned.
///
/// `build` connects the graph's error streams to the given [`Faults`] by [`crate::fault::raise`].
///
/// # Errors
/// The first fault that was raised; the graph is torn down, and what its operators own is dropped with it.
#[allow(clippy::disallowed_methods, reason = "timely takes its own start time, for its logs only")]
pub fn run<R>(build: impl FnOnce(Scope<'_, Step>, &Faults) -> R) -> Result<R, Fault> {
    telemetry::reset();
    let faults = Faults::default();
    let allocator = Allocator::Thread(Thread::default());
    let mut worker =
        Worker::new(WorkerConfig::default(), allocator, Some(std::time::Instant::now()));
    let result = worker.dataflow(|scope| build(scope, &faults));
    while worker.has_dataflows() && faults.first().is_none() {
        worker.step_or_park(None);
    }
    for dataflow in worker.installed_dataflows() {
        worker.drop_dataflow(dataflow);
    }
    telemetry::end_steps();
    faults.first().map_or(Ok(result), Err)
}
