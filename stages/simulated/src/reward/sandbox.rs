//! A sandbox that executes code in virtual time.

use rollpacker_dataflow::clock::{Clock, Nanos};

use super::queue::Slots;
use super::{DrawKind, SharedState, SimulatedRewardsConfig};
use crate::cluster::{Calibration, calibration};
use crate::rollout::lengths::{correlated, normal_cdf};
use rollpacker_stages::reward::{Context, Execution, Limits, Reward, RewardError, Sample, Score};
use rollpacker_stages::rollout::FinishReason;

/// The index of the only test case.
const CASE: usize = 0;

/// A reward that executes each response in a sandbox with a fixed number of slots, with the execution times of RollPacker's Fig. 8a. A
/// response has one test case. A run that reaches its time limit is wrong. A response that was cut at the maximum length contains no whole
/// program: it is wrong, and nothing runs.
pub(super) struct SimulatedSandbox {
    slots: Slots,
    /// The weight of the task in the duration of a run: the square root of the correlation of two runs of a task.
    loading: f64,
    reference_time: bool,
    shared: SharedState,
}

impl SimulatedSandbox {
    pub(super) fn new(
        config: &SimulatedRewardsConfig,
        calibration: &Calibration,
        shared: SharedState,
    ) -> Self {
        let slots = Slots::new(config.slots, config.workers);
        let loading = calibration.sandbox_correlation.sqrt();
        Self { slots, loading, reference_time: config.reference_time, shared }
    }

    /// Returns the duration in seconds that a run has without a limit; `None` if the run never ends.
    fn draw_run_seconds(&self, sample: &Sample) -> Option<f64> {
        let shared = &self.shared;
        if shared.draw(DrawKind::Hang, sample).uniform() < calibration::SANDBOX_HANGS {
            return None;
        }
        let own = shared.draw(DrawKind::Time, sample).normal();
        Some(self.seconds(sample, own))
    }

    /// Returns the time that the dataset states for a correct run, drawn as a run of the task's reference solution; `None` if the dataset
    /// states none.
    fn draw_reference_time(&self, sample: &Sample) -> Option<Nanos> {
        let own = || self.shared.draw_of_row(DrawKind::ReferenceTime, sample.row).normal();
        self.reference_time.then(|| Nanos::from_secs_f64(self.seconds(sample, own())))
    }

    /// Returns the duration in seconds of a run that ends. `own` is its deviation from other runs of the task, in standard deviations.
    fn seconds(&self, sample: &Sample, own: f64) -> f64 {
        seconds_at(correlated(self.loading, self.task_deviation(sample), own))
    }

    fn execute(&self, sample: &Sample, limits: &Limits) -> Execution {
        let reference = self.draw_reference_time(sample);
        let allowed = limits.max_run_time(CASE, reference);
        let ended =
            self.draw_run_seconds(sample).map(Nanos::from_secs_f64).filter(|took| *took < allowed);
        let correct = ended.is_some() && self.shared.is_correct(sample);
        limits.execution(CASE, reference, ended.unwrap_or(allowed), correct)
    }

    /// Returns the deviation of the task from other tasks, in standard deviations.
    fn task_deviation(&self, sample: &Sample) -> f64 {
        self.shared.draw_of_row(DrawKind::TaskTime, sample.row).normal()
    }
}

impl Reward for SimulatedSandbox {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        self.shared.wait_for_dispatch().await;
        if sample.finish_reason == FinishReason::Length {
            self.shared.wait_for_report(0.0).await;
            return Ok(false.into());
        }
        let execution = self.execute(sample, &context.limits);
        let now = self.shared.clock.now();
        let done = self.slots.assign(now, execution.took);
        self.shared.wait_for_report(done.since(now).as_secs_f64()).await;
        Ok(Score { executions: vec![execution], ..Score::from(execution.is_right()) })
    }
}

/// Returns the duration, in seconds, of a run that ends. `normal` is a standard normal random number, whose quantile is also the quantile
/// of the duration.
fn seconds_at(normal: f64) -> f64 {
    let percent = 100.0 * (1.0 - calibration::SANDBOX_HANGS) * normal_cdf(normal);
    let table = &calibration::SANDBOX_SECONDS;
    let above = table.partition_point(|(p, _)| *p < percent).clamp(1, table.len() - 1);
    let [(low, from), (high, to)] = [table[above - 1], table[above]];
    from * (to / from).powf(((percent - low) / (high - low)).clamp(0.0, 1.0))
}
