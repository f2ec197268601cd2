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

/// A sandbox with the execution times of RollPacker's Fig. 8a and a number of slots, first come first served. A response has one test case.
/// A run that reaches its time limit is wrong. A response that was cut at the maximum length contains no whole program: it is wrong, and
/// nothing runs.
pub(super) struct SimulatedSandbox {
    slots: Slots,
    /// The weight of the task, as opposed to the response, in the duration of a run; both are standard normal.
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

    /// Returns the duration of a run without a limit in seconds, or `None` if it never ends.
    fn run(&self, sample: &Sample) -> Option<f64> {
        let shared = &self.shared;
        if shared.draw(DrawKind::Hang, sample).uniform() < calibration::SANDBOX_HANGS {
            return None;
        }
        let own = shared.draw(DrawKind::Time, sample).normal();
        Some(self.seconds(sample, own))
    }

    /// Returns the time that the dataset states: a run of the task's reference solution.
    fn reference(&self, sample: &Sample) -> Option<Nanos> {
        let own = || self.shared.draw_of_row(DrawKind::ReferenceTime, sample.row).normal();
        self.reference_time.then(|| Nanos::from_secs_f64(self.seconds(sample, own())))
    }

    /// Returns the duration in seconds of a run that ends. `own` is its deviation from other runs of the task, in standard deviations.
    fn seconds(&self, sample: &Sample, own: f64) -> f64 {
        seconds_at(correlated(self.loading, self.task(sample), own))
    }

    fn execute(&self, sample: &Sample, limits: &Limits) -> Execution {
        let reference = self.reference(sample);
        let allowed = limits.run_for(CASE, reference);
        let ended = self.run(sample).map(Nanos::from_secs_f64).filter(|took| *took < allowed);
        let correct = ended.is_some() && self.shared.outcome(sample);
        limits.execution(CASE, reference, ended.unwrap_or(allowed), correct)
    }

    /// Returns the deviation of the task from other tasks, in standard deviations.
    fn task(&self, sample: &Sample) -> f64 {
        self.shared.draw_of_row(DrawKind::TaskTime, sample.row).normal()
    }
}

impl Reward for SimulatedSandbox {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        self.shared.begin().await;
        if sample.finish_reason == FinishReason::Length {
            self.shared.end(0.0).await;
            return Ok(false.into());
        }
        let execution = self.execute(sample, &context.limits);
        let now = self.shared.clock.now();
        let done = self.slots.give(now, execution.took);
        self.shared.end(done.since(now).as_secs_f64()).await;
        Ok(Score { executions: vec![execution], ..Score::from(execution.is_right()) })
    }
}

/// Returns the duration in seconds of a run that ends, at the quantile that `normal` has in a standard normal distribution.
fn seconds_at(normal: f64) -> f64 {
    let percent = 100.0 * (1.0 - calibration::SANDBOX_HANGS) * normal_cdf(normal);
    let table = &calibration::SANDBOX_SECONDS;
    let above = table.partition_point(|(p, _)| *p < percent).clamp(1, table.len() - 1);
    let [(low, from), (high, to)] = [table[above - 1], table[above]];
    from * (to / from).powf(((percent - low) / (high - low)).clamp(0.0, 1.0))
}
