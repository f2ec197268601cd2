//! A sandbox that runs code for a simulated time.

use rollpacker_dataflow::clock::{Clock, Nanos};
use serde::{Deserialize, Serialize};

use super::queue::Slots;
use super::{Course, SimulatedRewardsConfig, What};
use crate::cluster::{Calibration, calibration};
use crate::reward::{Context, Reward, RewardError, Sample, Score};
use crate::rollout::simulated::lengths::{correlated, normal_cdf};

/// How long a sandbox waits for a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Timeout {
    /// As long for each.
    Fixed {
        /// The limit.
        seconds: f64,
    },
    /// By what other runs for the task take (RollPacker, section 4.3).
    Adaptive {
        /// The upper bound of the limit.
        seconds: f64,
    },
}

/// Which slot of a sandbox gets which run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workers {
    /// The first that is free.
    #[default]
    FirstFree,
    /// One after the other, busy or not (veRL).
    InTurn,
}

/// Executing code: the times of RollPacker's Fig. 8a, on a number of slots, first come first served. A run that reaches its time limit is
/// wrong.
pub struct SimulatedSandbox {
    slots: Slots,
    timeout: Timeout,
    calibration: Calibration,
    course: Course,
}

impl SimulatedSandbox {
    pub(super) fn new(
        config: &SimulatedRewardsConfig,
        calibration: &Calibration,
        course: Course,
    ) -> Self {
        let slots = Slots::new(config.slots, config.workers);
        Self { slots, timeout: config.timeout, calibration: *calibration, course }
    }

    /// Seconds that a run takes if it is waited for; `None` if it never ends.
    fn run(&self, sample: &Sample) -> Option<f64> {
        let course = &self.course;
        if course.draw(What::Hang, sample).uniform() < calibration::SANDBOX_HANGS {
            return None;
        }
        let own = course.draw(What::Time, sample).normal();
        Some(seconds_at(correlated(self.loading(), self.task(sample), own)))
    }

    /// Seconds after which a run for the task is given up.
    fn limit(&self, sample: &Sample) -> f64 {
        match self.timeout {
            Timeout::Fixed { seconds } => seconds,
            Timeout::Adaptive { seconds } => {
                let median = seconds_at(self.loading() * self.task(sample));
                let Calibration { sandbox_slack, sandbox_patience, .. } = self.calibration;
                (sandbox_slack * median).max(sandbox_patience).min(seconds)
            }
        }
    }

    /// How long runs for the task take beside those for others, in standard deviations.
    fn task(&self, sample: &Sample) -> f64 {
        self.course.draw_of_row(What::TaskTime, sample.row).normal()
    }

    fn loading(&self) -> f64 {
        self.calibration.sandbox_correlation.sqrt()
    }
}

impl Reward for SimulatedSandbox {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        self.course.begin().await;
        let limit = self.limit(sample);
        let taken = self.run(sample).filter(|seconds| *seconds < limit);
        let now = self.course.clock.now();
        let done = self.slots.give(now, Nanos::from_secs_f64(taken.unwrap_or(limit)));
        self.course.end(done.since(now).as_secs_f64()).await;
        Ok(taken.map_or(Score::from(0.0), |_| self.course.outcome(sample)))
    }
}

/// Seconds of a run that ends, at the share of a standard normal below `normal`.
fn seconds_at(normal: f64) -> f64 {
    let percent = 100.0 * (1.0 - calibration::SANDBOX_HANGS) * normal_cdf(normal);
    let table = &calibration::SANDBOX_SECONDS;
    let above = table.partition_point(|(p, _)| *p < percent).clamp(1, table.len() - 1);
    let [(low, from), (high, to)] = [table[above - 1], table[above]];
    from * (to / from).powf(((percent - low) / (high - low)).clamp(0.0, 1.0))
}
