//! Bounds of the settings of a job.

use super::raw::RawJob;
use crate::recipe::error::{out_of_bounds, reject, within};
use crate::recipe::limits;
use crate::recipe::range::{self, Integer, Numbers, Range, integer, number};
use crate::recipe::{RecipeError, check_curriculum};

/// Maximum number of GPUs of a cluster.
const MAX_GPUS: u32 = 1 << 17;
/// Maximum number of prompts of an epoch.
const MAX_PROMPTS: u64 = 1 << 40;
/// Maximum number of CPU slots of the sandbox.
const MAX_SLOTS: usize = 1 << 20;
/// Maximum number of measured steps, and of warm-up steps. Virtual time is counted in 64-bit nanoseconds, which overflow after 584 years.
const MAX_STEPS: u64 = 1_000_000;
/// Maximum number of seeds of a configuration.
const MAX_SEEDS: u64 = 1_000_000;

pub(super) static RANGES: &[Range<RawJob>] = &[
    integer!(cluster.gpus: 1, MAX_GPUS),
    integer!(cluster.controllers: 1, MAX_GPUS),
    integer!(cluster.gpus_per_server: 1, MAX_GPUS),
    integer!(rollout.n: 1, limits::MAX_RESPONSES),
    integer!(rollout.tensor_parallel: 1, MAX_GPUS),
    integer!(rollout.max_num_seqs: 1, limits::MAX_POSITIONS),
    number!(rollout.gpu_memory_utilization: |share| (1e-3..=1.0).contains(&share), "from 0.001 to 1"),
    number!(rollout.report_interval_s: |s| (0.0..=60.0).contains(&s), "from 0 to 60"),
    integer!(training.tensor_parallel: 1, MAX_GPUS),
    integer!(training.pipeline_parallel: 1, MAX_GPUS),
    integer!(training.context_parallel: 1, MAX_GPUS),
    integer!(training.micro_batch_tokens: 1, limits::MAX_POSITIONS),
    integer!(data.prompts: 1, MAX_PROMPTS),
    integer!(data.epoch_rounds: 1, limits::MAX_STEPS),
    integer!(data.train_batch_size: 1, limits::MAX_PROMPTS),
    integer!(data.max_response_length: 1, limits::MAX_POSITIONS),
    number!(lengths.correlation: |correlation| (0.0..=0.99).contains(&correlation), "from 0 to 0.99"),
    number!(tasks.math: not_negative, "a finite number, at least 0"),
    number!(tasks.code: not_negative, "a finite number, at least 0"),
    number!(tasks.judge: not_negative, "a finite number, at least 0"),
    integer!(tasks.sandbox_slots: 1, MAX_SLOTS),
    number!(tasks.timeout_s: |s| s > 0.0 && s <= 86_400.0, "above 0, at most 86400"),
    number!(tasks.audit_share: |share| (0.0..=1.0).contains(&share), "in [0, 1]"),
    integer!(pipeline.max_groups: 1, limits::MAX_CONCURRENT),
    integer!(pipeline.training_gpus: 1, MAX_GPUS),
    integer!(pipeline.staleness: 0, limits::MAX_STALENESS),
    number!(stream.from: share, "in (0, 1]"),
    number!(stream.to: share, "in (0, 1]"),
    number!(stream.every: share, "in (0, 1]"),
    number!(stream.keep: share, "in (0, 1]"),
    number!(stream.headroom: share, "in (0, 1]"),
    number!(stream.kv_transfer_bandwidth: |b| b == 0.0 || (1e6..=1e15).contains(&b), "0, or from 1e6 to 1e15"),
    integer!(sim.steps: 1, MAX_STEPS),
    integer!(sim.warmup_steps: 0, MAX_STEPS),
    integer!(sim.seeds: 1, MAX_SEEDS),
];

fn not_negative(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

fn share(value: f64) -> bool {
    value > 0.0 && value <= 1.0
}

impl RawJob {
    /// Checks that settings are within their bounds. The options of schedules, length models and placements, and the numbers that describe
    /// devices, models and the cost model, are checked elsewhere.
    ///
    /// # Errors
    /// If settings are out of their own ranges, returns an error for each of them. Otherwise, if a setting conflicts with another, returns
    /// the first such error.
    pub(super) fn check(&self) -> Result<(), RecipeError> {
        reject(range::errors(RANGES, self).collect())?;
        self.check_groups()?;
        self.check_curriculum()?;
        let tasks = &self.tasks;
        within(
            "tasks.math",
            tasks.math + tasks.code + tasks.judge,
            |sum| sum > 0.0,
            "a sum with tasks.code and tasks.judge above 0",
        )?;
        self.check_layout()
    }

    /// Checks the curriculum, and that the job sets the length of an epoch: pass rates are known only when a run reads prompts again.
    fn check_curriculum(&self) -> Result<(), RecipeError> {
        let Some(options) = &self.data.curriculum else { return Ok(()) };
        check_curriculum(options)?;
        if self.data.prompts.or(self.data.epoch_rounds).is_some() {
            return Ok(());
        }
        let expected =
            "data.prompts or data.epoch_rounds, so that the run reads prompts more than once";
        Err(out_of_bounds("data.curriculum", expected, "neither"))
    }

    /// Checks that no group of GPUs is larger than the cluster.
    fn check_groups(&self) -> Result<(), RecipeError> {
        let Self { cluster, rollout, training, .. } = self;
        for (key, gpus) in [
            ("rollout.tensor_parallel", rollout.tensor_parallel),
            ("training.tensor_parallel", training.tensor_parallel),
            ("training.pipeline_parallel", training.pipeline_parallel),
            ("training.context_parallel", training.context_parallel),
        ] {
            if gpus > cluster.gpus {
                return Err(out_of_bounds(
                    key,
                    format!("at most cluster.gpus = {}", cluster.gpus),
                    gpus,
                ));
            }
        }
        Ok(())
    }

    /// Checks that the GPUs of an instance, and of a copy of the trained model, divide the GPUs of the cluster.
    fn check_layout(&self) -> Result<(), RecipeError> {
        let Self { cluster, rollout, training, .. } = self;
        let whole = |key, gpus: u64, expected| match u64::from(cluster.gpus) % gpus {
            0 => Ok(()),
            _ => {
                Err(out_of_bounds(key, format!("{expected} cluster.gpus = {}", cluster.gpus), gpus))
            }
        };
        whole("rollout.tensor_parallel", rollout.tensor_parallel.into(), "a divisor of")?;
        whole(
            "training.tensor_parallel",
            training.replica(),
            "a product with pipeline_parallel and context_parallel that divides",
        )
    }
}
