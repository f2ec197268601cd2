//! The learning-rate schedule.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// Linear warm-up to a peak, then [`Decay`]. The default is a constant rate of 1e-6.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearningRate {
    /// The maximum learning rate. Must be positive; default 1e-6. (verl: `actor.optim.lr`)
    pub peak: f64,
    /// The number of steps over which the rate rises; default 0. The first step already uses the rate `peak / warmup_steps`. (verl:
    /// `actor.optim.lr_warmup_steps`)
    pub warmup_steps: u64,
    /// The schedule after the warm-up; default `constant`. (verl: `actor.optim.lr_scheduler_type`)
    pub decay: Decay,
}

impl Default for LearningRate {
    fn default() -> Self {
        Self { peak: 1e-6, warmup_steps: 0, decay: Decay::Constant }
    }
}

/// The learning-rate schedule after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    /// The rate stays at the peak.
    #[default]
    Constant,
    /// The rate falls linearly, to 0 after `total_steps` steps of the run.
    Linear {
        /// The number of steps of the run, including the warm-up.
        total_steps: u64,
    },
    /// The rate falls along half a cosine, to 0 after `total_steps` steps of the run.
    Cosine {
        /// The number of steps of the run, including the warm-up.
        total_steps: u64,
    },
}

impl LearningRate {
    /// Returns the rate of the step that follows `steps` other steps; `at(0)` is the rate of the first step.
    #[must_use]
    pub fn at(&self, steps: u64) -> f64 {
        if steps < self.warmup_steps {
            return self.peak * (steps + 1) as f64 / self.warmup_steps as f64;
        }
        self.peak
            * match self.decay {
                Decay::Constant => 1.0,
                Decay::Linear { total_steps } => 1.0 - self.progress(steps, total_steps),
                Decay::Cosine { total_steps } => {
                    0.5 * (1.0 + (PI * self.progress(steps, total_steps)).cos())
                }
            }
    }

    /// Returns the progress between the end of the warm-up (0) and the end of the run (1).
    fn progress(&self, steps: u64, total_steps: u64) -> f64 {
        let span = total_steps.saturating_sub(self.warmup_steps).max(1);
        ((steps - self.warmup_steps) as f64 / span as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(decay: Decay, warmup_steps: u64, expect: [f64; 6]) {
        let rate = LearningRate { peak: 2.0, warmup_steps, decay };
        for (updates, expect) in expect.into_iter().enumerate() {
            assert!(
                (rate.at(updates as u64) - expect).abs() < 1e-12,
                "{decay:?} at {updates}: {}",
                rate.at(updates as u64)
            );
        }
    }

    #[test]
    fn rates_by_update() {
        check(Decay::Constant, 0, [2.0; 6]);
        check(Decay::Constant, 4, [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]);
        check(Decay::Linear { total_steps: 4 }, 0, [2.0, 1.5, 1.0, 0.5, 0.0, 0.0]);
        check(
            Decay::Cosine { total_steps: 6 },
            2,
            [1.0, 2.0, 2.0, 1.0 + 0.5f64.sqrt(), 1.0, 1.0 - 0.5f64.sqrt()],
        );
        check(Decay::Linear { total_steps: 1 }, 2, [1.0, 2.0, 2.0, 0.0, 0.0, 0.0]);
    }
}
