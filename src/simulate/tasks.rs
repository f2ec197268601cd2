//! Rewards of a job's tasks.

use std::sync::Arc;

use rollpacker_dataflow::clock::{Nanos, VirtualClock};
use rollpacker_operators::overlap::Scoring;
use rollpacker_operators::reward::AdaptiveLimits;
use rollpacker_simulated::cluster::Calibration;
use rollpacker_simulated::reward::{self, SimulatedRewardsConfig, Workers, simulated_router};
use rollpacker_simulated::rollout::lengths::LengthModel;
use rollpacker_stages::reward::Router;

use super::job::Job;
use super::raw::{Judge, JudgeSharing, SandboxWorkers};

/// Sandbox slots per GPU: the CPU workers that a server has for each of its GPUs.
const SLOTS_PER_GPU: usize = 8;

/// Returns the simulated rewards of a job, with random draws by `seed`.
#[must_use]
pub(super) fn router(
    job: &Job,
    seed: u64,
    calibration: &Calibration,
    lengths: &Arc<dyn LengthModel>,
    clock: &VirtualClock,
) -> Router {
    let tasks = &job.raw.tasks;
    let after_rollout = job.scoring == Scoring::AfterRollout;
    let config = SimulatedRewardsConfig {
        seed,
        slots: tasks.sandbox_slots.unwrap_or(SLOTS_PER_GPU * job.raw.cluster.gpus as usize),
        workers: match tasks.sandbox_workers {
            SandboxWorkers::InTurn => Workers::InTurn,
            SandboxWorkers::FirstFree => Workers::FirstFree,
        },
        reference_time: tasks.reference_time.unwrap_or(true),
        judge: match job.judge {
            Judge::Dedicated => reward::Judge::Dedicated,
            Judge::Colocated => reward::Judge::Colocated,
        },
        after_rollout,
        report_interval: Nanos::from_secs_f64(job.raw.rollout.report_interval_s),
    };
    simulated_router(&config, calibration, lengths.clone(), clock)
}

/// Returns the time limits of the sandbox.
///
/// # Errors
/// If an option is out of bounds.
pub(super) fn limit(job: &Job, seed: u64) -> anyhow::Result<AdaptiveLimits> {
    Ok(AdaptiveLimits::new(job.limits(), seed)?)
}

/// Returns the factor by which a judge slows down decoding. It is 1 unless the judge shares the devices of the rollout and responses are
/// scored during the rollout.
#[must_use]
pub(super) fn slowdown(job: &Job, calibration: &Calibration) -> f64 {
    let tasks = &job.raw.tasks;
    let is_colocated =
        tasks.judge > 0.0 && job.judge == Judge::Colocated && job.scoring == Scoring::Streamed;
    match tasks.judge_sharing {
        _ if !is_colocated => 1.0,
        JudgeSharing::Mps => calibration.judge_slowdown,
        JudgeSharing::TimeSlicing => calibration.judge_time_slicing,
    }
}
