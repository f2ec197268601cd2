//! The memory of simulated jobs.

use super::part::{MemoryPart, setting};
use crate::simulate::Job;

/// Bytes of a simulated response: its entries in the schedule, the engine and the stream.
const BYTES_PER_RESPONSE: u64 = 256;

/// Bytes of a simulated engine instance.
const BYTES_PER_INSTANCE: u64 = 128;

/// Bytes of a simulated step in the results of its run.
const BYTES_PER_STEP: u64 = 64;

/// Returns the memory parts of the runs of a job, of which at most `max_concurrent` are concurrent.
pub(crate) fn simulation_parts(job: &Job, max_concurrent: u64) -> Vec<MemoryPart> {
    let (data, rollout, sim) = (&job.raw.data, &job.raw.rollout, &job.raw.sim);
    let runs = max_concurrent.min(sim.seeds);
    let batch =
        [setting("data.train_batch_size", data.train_batch_size), setting("rollout.n", rollout.n)];
    let responses = [runs, data.train_batch_size as u64, rollout.n.into(), BYTES_PER_RESPONSE];
    let instances = u64::from(job.rollout_gpus() / rollout.tensor_parallel);
    let steps = [setting("sim.steps", sim.steps), setting("sim.seeds", sim.seeds)];
    vec![
        MemoryPart::new("the responses of a step", batch, responses),
        MemoryPart::new(
            "engine instances",
            [setting("cluster.gpus", job.raw.cluster.gpus)],
            [runs, instances, BYTES_PER_INSTANCE],
        ),
        MemoryPart::new("the steps of all runs", steps, [sim.steps, sim.seeds, BYTES_PER_STEP]),
    ]
}
