//! Correction for the difference between the engine's and the trainer's policy: importance weights and rejection, with verl's names.

use serde::{Deserialize, Serialize};

/// The magnitude to which log-ratios are clamped before they are exponentiated, in nats, as in verl.
pub const LOG_RATIO_LIMIT: f64 = 20.0;

/// Importance sampling between the engine's log-probabilities and the trainer's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutIs {
    /// The level at which weights are computed. (verl: `algorithm.rollout_correction.rollout_is`)
    pub level: Level,
    /// The treatment of large and small weights. (verl: `algorithm.rollout_correction.rollout_is_threshold`)
    pub threshold: Threshold,
    /// `true` to divide the weights by their mean over the step, after the threshold. The policy loss of the step is divided once, before
    /// the update, so the loss must have no other terms. (verl: `algorithm.rollout_correction.rollout_is_batch_normalize`)
    #[serde(default)]
    pub batch_normalize: bool,
}

/// The level of importance weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// One weight per token.
    Token,
    /// One weight per sequence: the product over its tokens.
    Sequence,
}

/// The treatment of large and small importance weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Threshold {
    /// Larger weights are truncated to this value. At least 1.
    Above(f64),
    /// Weights outside of this band are set to 0. Both bounds are positive, and the first is at most the second.
    Outside(f64, f64),
}

impl Threshold {
    /// Returns the bounds below and above which a weight counts as extreme: the bounds of the band, or the inverse of the truncation value
    /// and the truncation value.
    #[must_use]
    pub fn bounds(self) -> (f64, f64) {
        match self {
            Self::Above(max) => (1.0 / max, max),
            Self::Outside(min, max) => (min, max),
        }
    }
}

/// A rule that rejects tokens or whole sequences, which then carry no loss.
///
/// A rule estimates the divergence of the two policies at each token from `x`: the trainer's minus the engine's log-probability, clamped
/// to [`LOG_RATIO_LIMIT`]. The rule compares the estimate, or its sum, mean or maximum over the sequence, with a bound. (verl:
/// `algorithm.rollout_correction.rollout_rs`)
///
/// ```
/// use rollpacker_stages::train::config::{Divergence, RejectionUnit, RolloutRs};
///
/// let log_ratios = [0.0, -0.7, 0.1];
/// let rule = |unit| RolloutRs { unit, divergence: Divergence::K2 { max: 0.2 } };
/// let keeps = |unit| {
///     let mut kept = [true; 3];
///     rule(unit).reject(&log_ratios, &mut kept);
///     kept
/// };
/// assert_eq!(rule(RejectionUnit::SequenceMean).name(), "seq_mean_k2");
/// assert_eq!(keeps(RejectionUnit::Token), [true, false, true]);
/// assert_eq!(keeps(RejectionUnit::SequenceMean), [true; 3]);
/// assert_eq!(keeps(RejectionUnit::SequenceMax), [false; 3]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutRs {
    /// The unit that is rejected.
    pub unit: RejectionUnit,
    /// The estimator of the divergence, with its bounds.
    pub divergence: Divergence,
}

/// The unit that a rule of rejection keeps or rejects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RejectionUnit {
    /// A token, by its own estimate.
    Token,
    /// A sequence, by the sum of the estimates of its tokens.
    SequenceSum,
    /// A sequence, by the mean of the estimates of its tokens.
    SequenceMean,
    /// A sequence, by the maximum of the estimates of its tokens.
    SequenceMax,
}

/// An estimator of the divergence at a token from the log-ratio `x`, with the bounds within which tokens or sequences are kept.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Divergence {
    /// The estimate `-x`. Estimates from `ln(min)` to `ln(max)` are kept. The bounds `min` and `max` are ratios of the engine's to the
    /// trainer's probability.
    K1 {
        /// The minimum ratio. Positive.
        min: f64,
        /// The maximum ratio. At least `min`.
        max: f64,
    },
    /// The estimate `x^2 / 2`.
    K2 {
        /// The maximum estimate. Positive.
        max: f64,
    },
    /// The estimate `exp(x) - 1 - x`.
    K3 {
        /// The maximum estimate. Positive.
        max: f64,
    },
}

impl Divergence {
    /// Returns the estimate from the log-ratio of a token, in nats.
    #[must_use]
    pub fn estimate(self, log_ratio: f64) -> f64 {
        let x = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT);
        match self {
            Self::K1 { .. } => -x,
            Self::K2 { .. } => x * x / 2.0,
            Self::K3 { .. } => x.exp_m1() - x,
        }
    }

    fn keeps(self, estimate: f64) -> bool {
        match self {
            Self::K1 { min, max } => (min.ln()..=max.ln()).contains(&estimate),
            Self::K2 { max } | Self::K3 { max } => estimate <= max,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::K1 { .. } => "k1",
            Self::K2 { .. } => "k2",
            Self::K3 { .. } => "k3",
        }
    }
}

impl RejectionUnit {
    /// All units with their names in [`RolloutRs::name`].
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Token, "token"),
        (Self::SequenceSum, "seq_sum"),
        (Self::SequenceMean, "seq_mean"),
        (Self::SequenceMax, "seq_max"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(unit, _)| *unit == self).map_or("", |(_, name)| name)
    }
}

impl RolloutRs {
    /// The names of all rules, as recipes write them. As in verl, there is no `seq_max_k1`.
    pub const NAMES: [&'static str; 11] = [
        "token_k1",
        "token_k2",
        "token_k3",
        "seq_sum_k1",
        "seq_sum_k2",
        "seq_sum_k3",
        "seq_mean_k1",
        "seq_mean_k2",
        "seq_mean_k3",
        "seq_max_k2",
        "seq_max_k3",
    ];

    /// Returns the name of the rule: the name of the unit and the name of the estimator, joined by `_`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}_{}", self.unit.name(), self.divergence.name())
    }

    /// Sets the flags in `kept` to `false` for the tokens of one sequence that this rule rejects. Both slices are `[tokens]`; `log_ratios`
    /// are the trainer's minus the engine's log-probabilities, in nats.
    pub fn reject(&self, log_ratios: &[f64], kept: &mut [bool]) {
        let estimates = log_ratios.iter().map(|&log_ratio| self.divergence.estimate(log_ratio));
        let of_sequence = match self.unit {
            RejectionUnit::Token => {
                let flags = kept.iter_mut().zip(estimates);
                return flags.for_each(|(flag, one)| *flag &= self.divergence.keeps(one));
            }
            RejectionUnit::SequenceSum => estimates.sum::<f64>(),
            RejectionUnit::SequenceMean => estimates.sum::<f64>() / log_ratios.len().max(1) as f64,
            RejectionUnit::SequenceMax => estimates.fold(f64::NEG_INFINITY, f64::max),
        };
        if !self.divergence.keeps(of_sequence) {
            kept.fill(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Log-ratios whose ratios are 1, 2, 1/2 and 1.
    const LOG_RATIOS: [f64; 4] = [0.0, std::f64::consts::LN_2, -std::f64::consts::LN_2, 0.0];

    #[track_caller]
    fn check(unit: RejectionUnit, divergence: Divergence, expected: [bool; 4]) {
        let mut kept = [true; 4];
        RolloutRs { unit, divergence }.reject(&LOG_RATIOS, &mut kept);
        assert_eq!(kept, expected, "{unit:?} {divergence:?}");
    }

    #[test]
    fn estimates_are_those_of_the_formulas() {
        let found = |divergence: Divergence| LOG_RATIOS.map(|x| divergence.estimate(x));
        let close = |found: [f64; 4], expected: [f64; 4]| {
            found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-15)
        };
        let ln2 = std::f64::consts::LN_2;
        assert!(close(found(Divergence::K1 { min: 1.0, max: 1.0 }), [0.0, -ln2, ln2, 0.0]));
        let half = ln2 * ln2 / 2.0;
        assert!(close(found(Divergence::K2 { max: 1.0 }), [0.0, half, half, 0.0]));
        let k3 = [0.0, 1.0 - ln2, ln2 - 0.5, 0.0];
        assert!(close(found(Divergence::K3 { max: 1.0 }), k3));
        // As in verl, a log-ratio counts as at most 20.
        assert_eq!(Divergence::K2 { max: 1.0 }.estimate(-1e4), 200.0);
        assert!(Divergence::K3 { max: 1.0 }.estimate(1e4).is_finite());
    }

    #[test]
    fn bounds_of_k1_are_ratios_of_the_engine_to_the_trainer() {
        // The token that the engine finds half as likely as the trainer is below the band, its opposite above it.
        let band = |min, max| Divergence::K1 { min, max };
        check(RejectionUnit::Token, band(0.6, 2.5), [true, false, true, true]);
        check(RejectionUnit::Token, band(0.4, 1.6), [true, true, false, true]);
        check(RejectionUnit::Token, band(0.4, 2.5), [true; 4]);
        // The opposite tokens cancel.
        check(RejectionUnit::SequenceSum, band(0.99, 1.01), [true; 4]);
        check(RejectionUnit::SequenceMean, band(1.001, 1.01), [false; 4]);
    }

    #[test]
    fn sequences_are_kept_or_rejected_as_a_whole() {
        let ln2 = std::f64::consts::LN_2;
        let (sum, mean, max) = (ln2 * ln2, ln2 * ln2 / 4.0, ln2 * ln2 / 2.0);
        for (unit, estimate) in [
            (RejectionUnit::SequenceSum, sum),
            (RejectionUnit::SequenceMean, mean),
            (RejectionUnit::SequenceMax, max),
        ] {
            check(unit, Divergence::K2 { max: estimate + 1e-12 }, [true; 4]);
            check(unit, Divergence::K2 { max: estimate - 1e-12 }, [false; 4]);
        }
        // k3 of a ratio of 2 is 0.31, of 1/2 it is 0.19.
        check(RejectionUnit::Token, Divergence::K3 { max: 0.25 }, [true, false, true, true]);
        check(RejectionUnit::SequenceMax, Divergence::K3 { max: 0.25 }, [false; 4]);
    }

    #[test]
    fn a_rule_keeps_what_another_rejected_rejected() {
        let mut kept = [false, true];
        let rule =
            RolloutRs { unit: RejectionUnit::Token, divergence: Divergence::K2 { max: 1.0 } };
        rule.reject(&[0.0, 0.0], &mut kept);
        assert_eq!(kept, [false, true]);
    }

    #[test]
    fn each_name_is_that_of_a_rule() {
        let divergences = [
            Divergence::K1 { min: 0.5, max: 2.0 },
            Divergence::K2 { max: 1.0 },
            Divergence::K3 { max: 1.0 },
        ];
        let rules = RejectionUnit::ALL.iter().flat_map(|&(unit, _)| {
            divergences.map(|divergence| RolloutRs { unit, divergence }.name())
        });
        let rules: Vec<_> = rules.filter(|name| name != "seq_max_k1").collect();
        assert_eq!(rules, RolloutRs::NAMES);
    }
}
