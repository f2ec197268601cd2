//! Rewards of a simulated cluster: they sample the score, and take the virtual time that scoring would take.
//!
//! The probability that a response is right is the pass rate of its prompt. A response that was cut at the maximum length is wrong. The
//! outcome and the scoring time depend only on the seed and the response. In addition, a response may wait for others before it is scored.
//! The caller sets the limits of test cases ([`Context::limits`]).

mod queue;
mod sandbox;

pub use queue::Workers;

use std::sync::Arc;

use rollpacker_dataflow::clock::{Clock, Nanos, VirtualClock};
use serde::{Deserialize, Serialize};

use self::queue::ScoringController;
use self::sandbox::SimulatedSandbox;
use crate::cluster::Calibration;
use crate::rollout::lengths::{Draw, LengthModel};
use rollpacker_stages::reward::{Context, Reward, RewardError, Router, Sample, Score};
use rollpacker_stages::rollout::FinishReason;

/// Options of the simulated rewards.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedRewardsConfig {
    /// The seed of scores and times.
    pub seed: u64,
    /// Number of concurrent runs in the sandbox; at least 1.
    pub slots: usize,
    /// The assignment of runs to slots.
    pub workers: Workers,
    /// `true` if the dataset states the time of a correct run for each task. Limits are derived from this time until a correct run was
    /// observed.
    pub reference_time: bool,
    /// The placement of the judge.
    pub judge: Judge,
    /// `true` if all responses of a step are scored together after its rollout, `false` if each is scored as soon as it ends.
    pub after_rollout: bool,
    /// The interval at which the caller polls for scores; 0 reports each score immediately.
    pub report_interval: Nanos,
}

/// The placement of a judge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judge {
    /// The judge has separate devices.
    Dedicated,
    /// The judge uses the devices of the rollout, which slows down decoding.
    #[default]
    Colocated,
}

/// Returns rewards for the data sources `math`, `code` and `judge`. All other data sources are scored like `math`. If responses are scored
/// after the rollout, the time of the judge does not depend on its placement.
#[must_use]
pub fn simulated_router(
    config: &SimulatedRewardsConfig,
    calibration: &Calibration,
    lengths: Arc<dyn LengthModel>,
    clock: &VirtualClock,
) -> Router {
    let shared = SharedState::new(config, calibration, lengths, clock);
    let judge = match (config.after_rollout, config.judge) {
        (true, _) => calibration.judge_batch,
        (false, Judge::Dedicated) => calibration.judge_dedicated,
        (false, Judge::Colocated) => calibration.judge_colocated,
    };
    let sandbox = SimulatedSandbox::new(config, calibration, shared.clone());
    Router::default()
        .route("*", ConstantTimeReward { seconds: calibration.math, shared: shared.clone() })
        .route("code", sandbox)
        .route("judge", ConstantTimeReward { seconds: judge, shared })
}

/// A reward with a constant scoring time: checking an answer, or querying a model. The calibration accounts for other load on the model's
/// devices.
struct ConstantTimeReward {
    seconds: f64,
    shared: SharedState,
}

impl Reward for ConstantTimeReward {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        self.shared.wait_for_dispatch().await;
        self.shared.wait_for_report(self.seconds).await;
        Ok(self.shared.is_correct(sample).into())
    }
}

/// The state that all simulated rewards of a run share.
#[derive(Clone)]
struct SharedState {
    draw: Draw,
    lengths: Arc<dyn LengthModel>,
    clock: VirtualClock,
    /// The controller that dispatches responses; present if they are scored after the rollout.
    controller: Option<Arc<ScoringController>>,
    /// The latency in seconds in addition to the scoring time.
    latency: f64,
    /// The report interval in nanoseconds; at least 1.
    report_interval: u64,
}

/// The kinds of random draws, as keys for [`Draw::of`].
#[derive(Clone, Copy)]
enum DrawKind {
    Score,
    Hang,
    Time,
    TaskTime,
    ReferenceTime,
}

impl SharedState {
    fn new(
        config: &SimulatedRewardsConfig,
        calibration: &Calibration,
        lengths: Arc<dyn LengthModel>,
        clock: &VirtualClock,
    ) -> Self {
        let controller = || Arc::new(ScoringController::new(calibration.scoring_interval));
        Self {
            draw: Draw::new(config.seed),
            lengths,
            clock: clock.clone(),
            controller: config.after_rollout.then(controller),
            latency: if config.after_rollout { 0.0 } else { calibration.scoring_latency },
            report_interval: config.report_interval.0.max(1),
        }
    }

    fn draw(&self, kind: DrawKind, sample: &Sample) -> Draw {
        self.draw.of(kind as u64).of_sample(sample.id)
    }

    /// Returns a draw for a dataset row: the same for all responses to its prompt, in any epoch.
    fn draw_of_row(&self, kind: DrawKind, row: u64) -> Draw {
        self.draw.of(kind as u64).of(row)
    }

    fn is_correct(&self, sample: &Sample) -> bool {
        let chance = self.lengths.prompt(sample.row).pass_rate;
        let right = self.draw(DrawKind::Score, sample).uniform() < chance;
        right && sample.finish_reason != FinishReason::Length
    }

    /// Waits until the controller dispatches the response; does not wait without a controller.
    async fn wait_for_dispatch(&self) {
        if let Some(controller) = &self.controller {
            controller.wait_for_dispatch(&self.clock).await;
        }
    }

    /// Waits until the first poll of the caller at which the score is ready: `seconds` and the latency from now.
    async fn wait_for_report(&self, seconds: f64) {
        let now = self.clock.now();
        let end = now.0 + Nanos::from_secs_f64(seconds + self.latency).0;
        let seen = end.div_ceil(self.report_interval) * self.report_interval;
        self.clock.sleep(Nanos(seen).since(now)).await;
    }
}

#[cfg(test)]
mod tests;
