//! Rewards of a simulated cluster: they take the virtual time that scoring would take, and draw the score.
//!
//! A response is right with the pass rate of its prompt, and wrong if it was cut. Whether, and how long it takes to find out, follow from
//! the seed and the response alone, except for what others make it wait, and for the limits of test cases, which are the caller's
//! ([`Context::limits`]).

mod queue;
mod sandbox;

pub use queue::Workers;

use std::sync::Arc;

use rollpacker_dataflow::clock::{Clock, Nanos, VirtualClock};
use serde::{Deserialize, Serialize};

use self::queue::Controller;
use self::sandbox::SimulatedSandbox;
use super::{Context, Reward, RewardError, Router, Sample, Score};
use crate::cluster::Calibration;
use crate::rollout::FinishReason;
use crate::rollout::simulated::lengths::{Draw, LengthModel};

/// How simulated rewards are set up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedRewardsConfig {
    /// Seed of scores and times.
    pub seed: u64,
    /// Runs that the sandbox executes at once; at least 1.
    pub slots: usize,
    /// Which slot gets which run.
    pub workers: Workers,
    /// Whether the dataset says what a correct run for a task takes, which limits go by until one is known.
    pub reference_time: bool,
    /// Where the judge runs.
    pub judge: Judge,
    /// Whether all responses of a step are scored at once after its rollout, instead of each as it ends.
    pub after_rollout: bool,
    /// Time between two looks of the caller for scores; 0 reports each at once.
    pub report_interval: Nanos,
}

/// Where a judge runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judge {
    /// On devices of its own.
    Dedicated,
    /// On the devices of the rollout, which decodes the slower for it.
    #[default]
    Colocated,
}

/// Rewards for the data sources `math`, `code` and `judge`; any other is scored as `math` is.
#[must_use]
pub fn simulated_router(
    config: &SimulatedRewardsConfig,
    calibration: &Calibration,
    lengths: Arc<dyn LengthModel>,
    clock: &VirtualClock,
) -> Router {
    let course = Course::new(config, calibration, lengths, clock);
    let judge = match (config.after_rollout, config.judge) {
        (true, _) => calibration.judge_batch,
        (false, Judge::Dedicated) => calibration.judge_dedicated,
        (false, Judge::Colocated) => calibration.judge_colocated,
    };
    let sandbox = SimulatedSandbox::new(config, calibration, course.clone());
    Router::default()
        .route("*", Steady { seconds: calibration.math, course: course.clone() })
        .route("code", sandbox)
        .route("judge", Steady { seconds: judge, course })
}

/// Checking an answer, or asking a model: a time that is always the same; what else runs on the model's devices is in the calibration.
struct Steady {
    seconds: f64,
    course: Course,
}

impl Reward for Steady {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        self.course.begin().await;
        self.course.end(self.seconds).await;
        Ok(self.course.outcome(sample).into())
    }
}

/// What all simulated rewards of a run share.
#[derive(Clone)]
struct Course {
    draw: Draw,
    lengths: Arc<dyn LengthModel>,
    clock: VirtualClock,
    /// Hands responses out that are scored after the rollout.
    controller: Option<Arc<Controller>>,
    /// Seconds beside the reward's own.
    latency: f64,
    report_interval: u64,
}

/// What is drawn for a response: names for [`Draw::of`].
#[derive(Clone, Copy)]
enum What {
    Score,
    Hang,
    Time,
    TaskTime,
    ReferenceTime,
}

impl Course {
    fn new(
        config: &SimulatedRewardsConfig,
        calibration: &Calibration,
        lengths: Arc<dyn LengthModel>,
        clock: &VirtualClock,
    ) -> Self {
        let controller = || Arc::new(Controller::new(calibration.scoring_interval));
        Self {
            draw: Draw::new(config.seed),
            lengths,
            clock: clock.clone(),
            controller: config.after_rollout.then(controller),
            latency: if config.after_rollout { 0.0 } else { calibration.scoring_latency },
            report_interval: config.report_interval.0.max(1),
        }
    }

    /// The draw of something for a response.
    fn draw(&self, what: What, sample: &Sample) -> Draw {
        self.draw.of(what as u64).of_sample(sample.id)
    }

    /// The draw of something for all responses to a prompt, in any epoch.
    fn draw_of_row(&self, what: What, row: u64) -> Draw {
        self.draw.of(what as u64).of(row)
    }

    /// Whether the response is right.
    fn outcome(&self, sample: &Sample) -> bool {
        let chance = self.lengths.prompt(sample.row).pass_rate;
        let right = self.draw(What::Score, sample).uniform() < chance;
        right && sample.finish_reason != FinishReason::Length
    }

    /// Waits until the response is handed out.
    async fn begin(&self) {
        if let Some(controller) = &self.controller {
            controller.pass(&self.clock).await;
        }
    }

    /// Waits until a look of the caller finds what took `seconds` from now.
    async fn end(&self, seconds: f64) {
        let now = self.clock.now();
        let end = now.0 + Nanos::from_secs_f64(seconds + self.latency).0;
        let seen = end.div_ceil(self.report_interval) * self.report_interval;
        self.clock.sleep(Nanos(seen).since(now)).await;
    }
}

#[cfg(test)]
mod tests;
