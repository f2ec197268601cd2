//! The coefficient of the KL penalty in rewards.

use rollpacker_dataflow::snapshot::{Part, RestoredSnapshot};
use serde::{Deserialize, Serialize};

use crate::resume::part::{json, read_json};
use crate::resume::{ResumeError, SavedState};

/// The name of the snapshot part with the coefficient.
pub(crate) const PART: &str = "advantage";

/// The maximum absolute value of the relative error of the divergence; larger errors are clipped, as in verl.
const MAX_ERROR: f64 = 0.2;

/// The minimum factor by which a step multiplies the coefficient. If the horizon is less than a fifth of the responses of a step, the
/// formula can give a negative factor. A negative coefficient would reward divergence.
const MIN_FACTOR: f64 = 0.1;

/// The rule by which the coefficient of a KL penalty changes from step to step. (verl: `algorithm.kl_ctrl`)
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum KlControl {
    /// The coefficient is constant.
    Fixed,
    /// The coefficient rises while the divergence is above a target, and falls while the divergence is below the target (Ziegler et al.
    /// 2019, section 2.2). Each step multiplies the coefficient by `max(1 + error * responses / horizon, 0.1)`. Here `error` is the
    /// relative error `kl / target_kl - 1`, clipped to [-0.2, 0.2]. The minimum of 0.1 keeps the coefficient positive.
    Adaptive {
        /// The target divergence, in nats per token. Must be positive. (verl: `algorithm.kl_ctrl.target_kl`)
        target_kl: f64,
        /// The number of responses over which an unclipped relative error of 1 would double the coefficient. Must be positive. (verl:
        /// `algorithm.kl_ctrl.horizon`)
        horizon: f64,
    },
}

/// The coefficient of a KL penalty, with the rule by which it changes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KlController {
    control: KlControl,
    coefficient: f64,
}

impl KlController {
    /// Creates a controller with an initial `coefficient`: the penalty per nat, at least 0. (verl: `algorithm.kl_ctrl.kl_coef`)
    #[must_use]
    pub fn new(control: KlControl, coefficient: f64) -> Self {
        Self { control, coefficient }
    }

    pub(crate) fn part(&self) -> Part {
        json(self)
    }

    /// Returns the coefficient of the current step.
    #[must_use]
    pub fn coefficient(&self) -> f64 {
        self.coefficient
    }

    /// Returns `true` if the control is [`KlControl::Adaptive`], so that the coefficient of a step depends on the steps before.
    #[must_use]
    pub fn adapts(&self) -> bool {
        matches!(self.control, KlControl::Adaptive { .. })
    }

    /// Updates the coefficient after a step of `responses` responses with a mean divergence of `kl` nats per token. A fixed coefficient
    /// does not change.
    pub fn observe(&mut self, kl: f64, responses: usize) {
        if let KlControl::Adaptive { target_kl, horizon } = self.control {
            let error = (kl / target_kl - 1.0).clamp(-MAX_ERROR, MAX_ERROR);
            self.coefficient *= (1.0 + error * responses as f64 / horizon).max(MIN_FACTOR);
        }
    }
}

impl SavedState for KlController {
    fn read(restored: &RestoredSnapshot) -> Result<Option<Self>, ResumeError> {
        read_json(restored, PART)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adaptive_factor_follows_the_divergence_within_bounds() {
        let control = KlControl::Adaptive { target_kl: 0.1, horizon: 100.0 };
        let mut controller = KlController::new(control, 0.5);
        controller.observe(0.11, 10);
        assert!((controller.coefficient() - 0.5 * 1.01).abs() < 1e-12);
        let mut far = KlController::new(control, 1.0);
        far.observe(5.0, 50);
        assert!((far.coefficient() - 1.1).abs() < 1e-12, "an error counts for 0.2 at most");
        far.observe(0.0, 50);
        assert!((far.coefficient() - 1.1 * 0.9).abs() < 1e-12);
    }

    #[test]
    fn a_short_horizon_keeps_the_coefficient_positive() {
        let control = KlControl::Adaptive { target_kl: 0.1, horizon: 100.0 };
        let mut controller = KlController::new(control, 1.0);
        controller.observe(0.01, 1024);
        assert!((controller.coefficient() - 0.1).abs() < 1e-12);
        controller.observe(5.0, 1024);
        assert!((controller.coefficient() - 0.1 * (1.0 + 0.2 * 10.24)).abs() < 1e-12);
    }

    #[test]
    fn a_fixed_factor_stays() {
        let mut controller = KlController::new(KlControl::Fixed, 0.5);
        controller.observe(9.0, 10);
        assert_eq!(controller.coefficient(), 0.5);
        assert!(!controller.adapts());
    }
}
