//! The bounds of every setting of a job.

use super::raw::RawJob;
use crate::recipe::RecipeError;
use crate::recipe::error::{at_least, bound, within};

impl RawJob {
    /// The first setting out of its bounds is an error; schedules and length models check their own.
    pub(super) fn check(&self) -> Result<(), RecipeError> {
        let Self { cluster, rollout, training, data, tasks, stream, sim, .. } = self;
        at_least("cluster.gpus", cluster.gpus, 1)?;
        at_least("cluster.controllers", cluster.controllers, 1)?;
        at_least("cluster.gpus_per_server", cluster.gpus_per_server.unwrap_or(1), 1)?;
        at_least("rollout.n", rollout.n, 1)?;
        at_least("rollout.tensor_parallel", rollout.tensor_parallel, 1)?;
        at_least("rollout.max_num_seqs", rollout.max_num_seqs, 1)?;
        let share = |share: f64| share > 0.0 && share <= 1.0;
        let utilization = rollout.gpu_memory_utilization.unwrap_or(1.0);
        within("rollout.gpu_memory_utilization", utilization, share, "in (0, 1]")?;
        let interval = rollout.report_interval_s;
        let expected = "at least 0, at most 60";
        within("rollout.report_interval_s", interval, |s| (0.0..=60.0).contains(&s), expected)?;
        at_least("data.epoch_rounds", data.epoch_rounds.unwrap_or(1), 1)?;
        at_least("training.tensor_parallel", training.tensor_parallel, 1)?;
        at_least("training.pipeline_parallel", training.pipeline_parallel, 1)?;
        at_least("training.context_parallel", training.context_parallel, 1)?;
        at_least("data.train_batch_size", data.train_batch_size, 1)?;
        at_least("data.max_response_length", data.max_response_length, 1)?;
        at_least("data.prompts", data.prompts.unwrap_or(1), 1)?;
        for (key, value) in
            [("tasks.math", tasks.math), ("tasks.code", tasks.code), ("tasks.judge", tasks.judge)]
        {
            within(key, value, |share| share >= 0.0, "a finite number, at least 0")?;
        }
        within(
            "tasks.math",
            tasks.math + tasks.code + tasks.judge,
            |sum| sum > 0.0,
            "more than 0 with the other shares",
        )?;
        at_least("tasks.sandbox_slots", tasks.sandbox_slots.unwrap_or(1), 1)?;
        within("tasks.timeout_s", tasks.timeout_s, |s| s > 0.0, "a finite number above 0")?;
        for (key, value) in [
            ("stream.from", stream.from),
            ("stream.to", stream.to),
            ("stream.every", stream.every),
            ("stream.keep", stream.keep),
            ("stream.headroom", stream.headroom),
        ] {
            within(key, value, share, "in (0, 1]")?;
        }
        within("sim.steps", sim.steps as f64, |n| (1.0..=1e9).contains(&n), "1 to 1e9")?;
        within("sim.warmup_steps", sim.warmup_steps as f64, |n| n <= 1e9, "at most 1e9")?;
        at_least("sim.seeds", sim.seeds, 1)?;
        self.check_layout()
    }

    /// Groups of GPUs divide what they are groups of.
    fn check_layout(&self) -> Result<(), RecipeError> {
        let Self { cluster, rollout, training, .. } = self;
        let whole = |key, gpus: u64, expected| match u64::from(cluster.gpus) % gpus {
            0 => Ok(()),
            _ => Err(bound(key, format!("{expected} cluster.gpus = {}", cluster.gpus), gpus)),
        };
        whole("rollout.tensor_parallel", rollout.tensor_parallel.into(), "a divisor of")?;
        whole(
            "training.tensor_parallel",
            training.replica(),
            "a product with pipeline and context that divides",
        )
    }
}
