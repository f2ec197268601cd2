//! Converts `[algorithm.rollout_correction]` into the configuration of the trainer.

use rollpacker_operators::schedule::Schedule;
use rollpacker_stages::train::config::{
    Divergence, OldLogprobs, RejectionUnit, RolloutIs, RolloutRs, Threshold,
};

use super::choices::check_choice;
use super::error::{RecipeError, out_of_bounds};
use super::limits;
use super::raw::{
    CorrectedLoss, IsThreshold, PolicyLoss, RawRecipe, RolloutCorrection, RsThreshold,
};

/// The policy loss that `loss_type = "reinforce"` selects.
pub(super) const REINFORCE_LOSS: &str = "gpg";

/// Minimum bound of a divergence. Two float32 computations of the same policy differ by more than a smaller bound would allow.
const MIN_DIVERGENCE: f64 = 1e-9;

impl RawRecipe {
    /// Returns the source of the log-probabilities of policy ratios.
    ///
    /// `bypass_mode` selects the engine or the trainer. By default it is the engine if tokens can come from a policy other than the trained
    /// policy (with staleness, or with a schedule that pauses responses) and `rollout_is` is not set; otherwise it is the trainer.
    pub(super) fn old_logprobs(&self, schedule: &dyn Schedule) -> OldLogprobs {
        let correction = &self.algorithm.rollout_correction;
        let older = self.algorithm.staleness > 0 || schedule.pauses();
        // Importance weights already correct for the older policy; ratios would correct a second time.
        if correction.bypass_mode.unwrap_or(older && correction.rollout_is.is_none()) {
            OldLogprobs::Engine
        } else {
            OldLogprobs::Trainer
        }
    }

    /// Returns `true` if the recipe sets `loss_type = "reinforce"`.
    pub(super) fn is_reinforce(&self) -> bool {
        self.algorithm.rollout_correction.loss_type == Some(CorrectedLoss::Reinforce)
    }

    pub(super) fn check_loss_type(&self) -> Result<(), RecipeError> {
        let correction = &self.algorithm.rollout_correction;
        let Some(loss_type) = correction.loss_type else { return Ok(()) };
        let key = "algorithm.rollout_correction.loss_type";
        if correction.bypass_mode != Some(true) {
            let expected = "algorithm.rollout_correction.bypass_mode = true when it is set";
            let found = match loss_type {
                CorrectedLoss::PpoClip => "`ppo_clip`",
                CorrectedLoss::Reinforce => "`reinforce`",
            };
            return Err(out_of_bounds(key, expected, found));
        }
        if !self.is_reinforce() {
            return Ok(());
        }
        let written = &self.actor.policy_loss;
        if *written != PolicyLoss::default() {
            let expected = "no other loss than that of algorithm.rollout_correction.loss_type";
            let found = format!("`{}`", written.loss_mode);
            return Err(out_of_bounds("actor.policy_loss.loss_mode", expected, found));
        }
        match self.policy_loss().keyed.first() {
            Some(option) => {
                let expected = format!("`ppo_clip` when {} is set", option.key);
                Err(out_of_bounds(key, expected, "`reinforce`"))
            }
            None => Ok(()),
        }
    }

    /// Returns the configuration of importance weights, or `None` if `rollout_is` is not set. Rejects settings that conflict with it.
    pub(super) fn rollout_is(&self) -> Result<Option<RolloutIs>, RecipeError> {
        let correction = &self.algorithm.rollout_correction;
        let key = "algorithm.rollout_correction.rollout_is";
        let Some(level) = correction.rollout_is else {
            return self.check_without_weights(key).map(|()| None);
        };
        if correction.bypass_mode == Some(true) && !self.is_reinforce() {
            let expected = "false when rollout_is is set without loss_type = \"reinforce\": the ratios of the loss correct already";
            return Err(out_of_bounds("algorithm.rollout_correction.bypass_mode", expected, true));
        }
        let batch_normalize = correction.rollout_is_batch_normalize;
        if batch_normalize {
            self.check_only_policy_loss()?;
        }
        let threshold = is_threshold(&correction.rollout_is_threshold)?;
        Ok(Some(RolloutIs { level, threshold, batch_normalize }))
    }

    /// Rejects settings of importance weights in a recipe without importance weights.
    fn check_without_weights(&self, key: &str) -> Result<(), RecipeError> {
        let correction = &self.algorithm.rollout_correction;
        let unset = RolloutCorrection::default();
        let setting = if correction.rollout_is_threshold != unset.rollout_is_threshold {
            "rollout_is_threshold"
        } else if correction.rollout_is_batch_normalize {
            "rollout_is_batch_normalize"
        } else {
            return Ok(());
        };
        let expected = format!("`token` or `sequence` when {setting} is set");
        Err(out_of_bounds(key, expected, "nothing"))
    }

    /// Rejects terms of the loss besides the policy loss, which `rollout_is_batch_normalize` would change. Gradients are accumulated during
    /// the round, before the mean of the weights is known. Their sum is divided by the mean afterwards, and the other terms would be
    /// divided, too.
    fn check_only_policy_loss(&self) -> Result<(), RecipeError> {
        let actor = &self.actor;
        let term = if actor.use_kl_loss {
            "actor.use_kl_loss"
        } else if actor.entropy_coeff > 0.0 {
            "actor.entropy_coeff"
        } else {
            return Ok(());
        };
        let key = "algorithm.rollout_correction.rollout_is_batch_normalize";
        let expected = format!(
            "false when {term} is set: the mean of the weights is known after the gradients, and dividing by it would change that term"
        );
        Err(out_of_bounds(key, expected, true))
    }

    /// Returns the rejection rules in the order of `rollout_rs`. Returns no rules if `rollout_rs` is not set. Rejects unknown and repeated
    /// rules, and bounds that do not fit the rules.
    pub(super) fn rollout_rs(&self) -> Result<Vec<RolloutRs>, RecipeError> {
        let correction = &self.algorithm.rollout_correction;
        let key = "algorithm.rollout_correction.rollout_rs";
        let Some(written) = &correction.rollout_rs else {
            return match &correction.rollout_rs_threshold {
                None => Ok(Vec::new()),
                Some(_) => {
                    let expected = "the name of a rule when rollout_rs_threshold is set";
                    Err(out_of_bounds(key, expected, "nothing"))
                }
            };
        };
        let names: Vec<&str> = written.split(',').map(str::trim).collect();
        for (at, name) in names.iter().enumerate() {
            check_choice(key, name)?;
            if names[..at].contains(name) {
                return Err(out_of_bounds(key, "each rule once", format!("`{name}` twice")));
            }
        }
        let bounds = rs_bounds(correction.rollout_rs_threshold.as_ref(), &names)?;
        names.iter().zip(bounds).map(|(name, bound)| rule(name, &bound)).collect()
    }
}

fn is_threshold(written: &IsThreshold) -> Result<Threshold, RecipeError> {
    let key = "algorithm.rollout_correction.rollout_is_threshold";
    let expected = "a number from 1 to 1e6, or a band as `low_high` of numbers from 1e-6 to 1e6";
    let (found, threshold) = match written {
        IsThreshold::Above(max) => (max.to_string(), Some(Threshold::Above(*max))),
        IsThreshold::Band(text) => {
            (format!("`{text}`"), band(text).map(|(low, high)| Threshold::Outside(low, high)))
        }
    };
    let fits = |threshold: &Threshold| match *threshold {
        // TOML reads `0.5_2` as a number, therefore a band must be written as a string.
        Threshold::Above(above) => (1.0..=limits::MAX_FACTOR).contains(&above),
        Threshold::Outside(low, high) => is_band((low, high)),
    };
    threshold.filter(fits).ok_or_else(|| out_of_bounds(key, expected, found))
}

/// Returns one bound for each of the rules `names`. A single written bound applies to all rules.
fn rs_bounds(written: Option<&RsThreshold>, names: &[&str]) -> Result<Vec<String>, RecipeError> {
    let key = "algorithm.rollout_correction.rollout_rs_threshold";
    let text = match written {
        None => {
            let expected = format!("a bound when rollout_rs = `{}` is set", names.join(","));
            return Err(out_of_bounds(key, expected, "nothing"));
        }
        Some(RsThreshold::Number(number)) => number.to_string(),
        Some(RsThreshold::Text(text)) => text.clone(),
    };
    let bounds: Vec<String> = text.split(',').map(|bound| bound.trim().to_owned()).collect();
    match bounds.as_slice() {
        [bound] => Ok(vec![bound.clone(); names.len()]),
        bounds if bounds.len() == names.len() => Ok(bounds.to_vec()),
        bounds => {
            let expected = format!("1 bound, or {}, one for each rule of rollout_rs", names.len());
            Err(out_of_bounds(key, expected, format!("{} in `{text}`", bounds.len())))
        }
    }
}

/// Returns the rule `name`, one of [`RolloutRs::NAMES`], with its bound.
fn rule(name: &str, bound: &str) -> Result<RolloutRs, RecipeError> {
    let (unit, estimator) = name.rsplit_once('_').unwrap_or_default();
    let unit = RejectionUnit::ALL.iter().find(|(_, name)| *name == unit).map(|(unit, _)| *unit);
    let number = || bound.parse().ok().filter(|max| is_divergence(*max));
    let divergence = match estimator {
        "k1" => ratios(bound).map(|(min, max)| Divergence::K1 { min, max }),
        "k2" => number().map(|max| Divergence::K2 { max }),
        _ => number().map(|max| Divergence::K3 { max }),
    };
    let expected = if estimator == "k1" {
        "a ratio from 1 to 1e6, or a band as `low_high` of ratios from 1e-6 to 1e6"
    } else {
        "a number from 1e-9 to 1e6"
    };
    let unit = unit.expect("invariant: the name was found among those of rules");
    divergence.map(|divergence| RolloutRs { unit, divergence }).ok_or_else(|| {
        let key = "algorithm.rollout_correction.rollout_rs_threshold";
        out_of_bounds(key, format!("{expected} for `{name}`"), format!("`{bound}`"))
    })
}

/// Parses the band `low_high`, or a single number `max`, which means the band from `1 / max` to `max`. Returns `None` for any other text,
/// and for a band that is out of range.
fn ratios(text: &str) -> Option<(f64, f64)> {
    let of_number = || text.parse().ok().map(|max: f64| (1.0 / max, max));
    band(text).or_else(of_number).filter(|&band| is_band(band))
}

fn band(text: &str) -> Option<(f64, f64)> {
    let (low, high) = text.split_once('_')?;
    Some((low.parse().ok()?, high.parse().ok()?))
}

fn is_band((low, high): (f64, f64)) -> bool {
    low >= 1.0 / limits::MAX_FACTOR && low <= high && high <= limits::MAX_FACTOR
}

fn is_divergence(max: f64) -> bool {
    (MIN_DIVERGENCE..=limits::MAX_FACTOR).contains(&max)
}
