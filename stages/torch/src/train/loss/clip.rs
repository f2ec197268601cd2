//! The clipped loss of PPO.

use rollpacker_stages::catalog::{CatalogError, check_range};
use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};
use tch::{TchError, Tensor};

use super::{PolicyLoss, TokenLoss, Tokens, clip_metrics};

documented! {
    /// The clipped ratio of PPO (Schulman et al. 2017, eq. 7), with a second clip for negative advantages (Ye et al. 2020, eq. 5). With
    /// other bounds, it is also the loss of DAPO (Yu et al. 2025, section 3.1).
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Vanilla {
        /// The ratio is clipped below at `1 - clip_ratio_low`. In [0, 1]; default 0.2. (verl: `actor.clip_ratio_low`)
        pub clip_ratio_low: f64,
        /// The ratio is clipped above at `1 + clip_ratio_high`. At least 0; default 0.2. (verl: `actor.clip_ratio_high`)
        pub clip_ratio_high: f64,
        /// The loss of a token with advantage `a < 0` is at most `-a * clip_ratio_c`. Above 1; default 3. (verl: `actor.clip_ratio_c`)
        pub clip_ratio_c: f64,
    }
}

impl Default for Vanilla {
    fn default() -> Self {
        Self { clip_ratio_low: 0.2, clip_ratio_high: 0.2, clip_ratio_c: 3.0 }
    }
}

impl Vanilla {
    /// Returns the loss if its options are in range.
    ///
    /// # Errors
    /// Returns an error if an option is out of range.
    pub fn checked(self) -> Result<Self, CatalogError> {
        check_band(self.clip_ratio_low, self.clip_ratio_high)?;
        check_range("clip_ratio_c", self.clip_ratio_c, |c| c > 1.0, "a finite number above 1")?;
        Ok(self)
    }
}

/// Checks that `low` is in [0, 1] and that `high` is finite and at least 0.
pub(super) fn check_band(low: f64, high: f64) -> Result<(), CatalogError> {
    check_range("clip_ratio_low", low, |low| (0.0..=1.0).contains(&low), "in [0, 1]")?;
    check_range("clip_ratio_high", high, |high| high >= 0.0, "a finite number, at least 0")
}

impl PolicyLoss for Vanilla {
    fn tokens(&self, tokens: &Tokens<'_>) -> Result<TokenLoss, TchError> {
        let ratio = tokens.log_ratio()?.f_exp()?;
        let bounds = (1.0 - self.clip_ratio_low, 1.0 + self.clip_ratio_high);
        let Clipped { loss, clipped } = clipped(&ratio, tokens.advantages, bounds)?;
        let cap = tokens.advantages.f_neg()?.f_mul_scalar(self.clip_ratio_c)?;
        let negative = tokens.advantages.f_lt(0.0)?;
        let lower = loss.f_gt_tensor(&cap)?.f_logical_and(&negative)?;
        let loss = loss.f_minimum(&cap)?.f_where_self(&negative, &loss)?;
        Ok(TokenLoss { loss, metrics: clip_metrics(clipped, lower) })
    }
}

/// The result of a clip. `loss` is the larger of the losses with the plain and with the bounded ratio; `clipped` is `true` where the loss
/// with the bounded ratio is larger.
pub(super) struct Clipped {
    pub(super) loss: Tensor,
    pub(super) clipped: Tensor,
}

pub(super) fn clipped(
    ratio: &Tensor,
    advantages: &Tensor,
    bounds: (f64, f64),
) -> Result<Clipped, TchError> {
    let gain = advantages.f_neg()?;
    let plain = gain.f_mul(ratio)?;
    let bounded = gain.f_mul(&ratio.f_clamp(bounds.0, bounds.1)?)?;
    Ok(Clipped { loss: plain.f_maximum(&bounded)?, clipped: bounded.f_gt_tensor(&plain)? })
}
