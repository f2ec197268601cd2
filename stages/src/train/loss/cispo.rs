//! CISPO: the ratio as a weight.

use serde::{Deserialize, Serialize};
use tch::TchError;

use super::clip::check_band;
use super::{PolicyLoss, TokenLoss, Tokens, clip_metrics};
use crate::catalog::CatalogError;

/// REINFORCE weighted by the clipped ratio, which has no gradient: no token is left without one (MiniMax-M1 2025, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cispo {
    /// The weight is at least 1 less this; in `[0, 1]`.
    pub clip_ratio_low: f64,
    /// The weight is at most 1 plus this; at least 0.
    pub clip_ratio_high: f64,
}

impl Default for Cispo {
    fn default() -> Self {
        Self { clip_ratio_low: 0.2, clip_ratio_high: 0.2 }
    }
}

impl Cispo {
    /// The same, its bounds checked.
    ///
    /// # Errors
    /// If a bound is out of its own.
    pub fn checked(self) -> Result<Self, CatalogError> {
        check_band(self.clip_ratio_low, self.clip_ratio_high).map(|()| self)
    }
}

impl PolicyLoss for Cispo {
    fn tokens(&self, tokens: &Tokens<'_>) -> Result<TokenLoss, TchError> {
        let ratio = tokens.log_ratio()?.f_exp()?.f_detach()?;
        let weight = ratio.f_clamp(1.0 - self.clip_ratio_low, 1.0 + self.clip_ratio_high)?;
        let loss = weight.f_mul(tokens.advantages)?.f_mul(tokens.logprobs)?.f_neg()?;
        let clipped = ratio.f_ne_tensor(&weight)?;
        let lower = clipped.f_zeros_like()?;
        Ok(TokenLoss { loss, metrics: clip_metrics(clipped, lower) })
    }
}
