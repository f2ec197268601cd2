//! Bounds of the settings of a job.

use super::raw::RawJob;
use crate::recipe::error::{at_least, between, out_of_bounds, within};
use crate::recipe::limits;
use crate::recipe::{RecipeError, check_curriculum};

/// Maximum number of GPUs of a cluster.
const MOST_GPUS: u32 = 1 << 17;
/// Maximum number of prompts of an epoch.
const MOST_PROMPTS: u64 = 1 << 40;
/// Maximum number of CPU slots of the sandbox.
const MOST_SLOTS: usize = 1 << 20;
/// Maximum number of steps of a run, whose virtual time is counted in nanoseconds.
const MOST_STEPS: u64 = 1_000_000;
/// Maximum number of seeds of a configuration.
const MOST_SEEDS: u64 = 1_000_000;

impl RawJob {
    /// Checks that every setting is within its bounds; schedules and length models check their own.
    ///
    /// # Errors
    /// For the first setting that is out of bounds.
    pub(super) fn check(&self) -> Result<(), RecipeError> {
        let Self { cluster, rollout, data, tasks, stream, sim, .. } = self;
        between("cluster.gpus", cluster.gpus, 1, MOST_GPUS)?;
        between("cluster.controllers", cluster.controllers, 1, MOST_GPUS)?;
        between("cluster.gpus_per_server", cluster.gpus_per_server.unwrap_or(1), 1, MOST_GPUS)?;
        between("rollout.n", rollout.n, 1, limits::RESPONSES)?;
        self.check_groups()?;
        between("rollout.max_num_seqs", rollout.max_num_seqs, 1, limits::POSITIONS as u32)?;
        let utilization = rollout.gpu_memory_utilization.unwrap_or(1.0);
        let usable = |share: f64| (1e-3..=1.0).contains(&share);
        within("rollout.gpu_memory_utilization", utilization, usable, "from 0.001 to 1")?;
        let interval = rollout.report_interval_s;
        let expected = "at least 0, at most 60";
        within("rollout.report_interval_s", interval, |s| (0.0..=60.0).contains(&s), expected)?;
        let packed = self.training.micro_batch_tokens;
        between("training.micro_batch_tokens", packed, 1, limits::POSITIONS as u32)?;
        between("data.epoch_rounds", data.epoch_rounds.unwrap_or(1), 1, limits::STEPS)?;
        between("data.train_batch_size", data.train_batch_size, 1, limits::PROMPTS)?;
        let longest = limits::POSITIONS as u32;
        between("data.max_response_length", data.max_response_length, 1, longest)?;
        between("data.prompts", data.prompts.unwrap_or(1), 1, MOST_PROMPTS)?;
        self.check_curriculum()?;
        self.check_correlation()?;
        between("pipeline.staleness", self.pipeline.staleness, 0, limits::STALENESS)?;
        for (key, value) in
            [("tasks.math", tasks.math), ("tasks.code", tasks.code), ("tasks.judge", tasks.judge)]
        {
            within(key, value, |share| share >= 0.0, "a finite number, at least 0")?;
        }
        within(
            "tasks.math",
            tasks.math + tasks.code + tasks.judge,
            |sum| sum > 0.0,
            "a sum with tasks.code and tasks.judge above 0",
        )?;
        between("tasks.sandbox_slots", tasks.sandbox_slots.unwrap_or(1), 1, MOST_SLOTS)?;
        let longest = |s: f64| s > 0.0 && s <= 86_400.0;
        within("tasks.timeout_s", tasks.timeout_s, longest, "above 0, at most 86400")?;
        let audited = |share: f64| (0.0..=1.0).contains(&share);
        within("tasks.audit_share", tasks.audit_share.unwrap_or(0.0), audited, "in [0, 1]")?;
        let share = |share: f64| share > 0.0 && share <= 1.0;
        for (key, value) in [
            ("stream.from", stream.from),
            ("stream.to", stream.to),
            ("stream.every", stream.every),
            ("stream.keep", stream.keep),
            ("stream.headroom", stream.headroom),
        ] {
            within(key, value, share, "in (0, 1]")?;
        }
        let bandwidth = stream.kv_transfer_bandwidth;
        let usable = |bytes: f64| bytes == 0.0 || (1e6..=1e15).contains(&bytes);
        within("stream.kv_transfer_bandwidth", bandwidth, usable, "0, or from 1e6 to 1e15")?;
        between("sim.steps", sim.steps, 1, MOST_STEPS)?;
        between("sim.warmup_steps", sim.warmup_steps, 0, MOST_STEPS)?;
        between("sim.seeds", sim.seeds, 1, MOST_SEEDS)?;
        self.check_layout()
    }

    /// Checks the correlation of the lengths within a prompt. It is less than 1: responses to a prompt are never identical.
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

    fn check_correlation(&self) -> Result<(), RecipeError> {
        let correlation = self.lengths.correlation.unwrap_or(0.0);
        let fits = |correlation: f64| (0.0..=0.99).contains(&correlation);
        within("lengths.correlation", correlation, fits, "from 0 to 0.99")
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
            at_least(key, gpus, 1)?;
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

    /// Checks that the groups of GPUs divide the cluster.
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
