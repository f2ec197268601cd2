//! GSPO: the ratio of a whole sequence.

use serde::{Deserialize, Serialize};
use tch::TchError;

use super::clip::{check_band, clipped};
use super::{PolicyLoss, TokenLoss, Tokens, clip_metrics};
use crate::catalog::CatalogError;

/// Sequence log-ratios are bounded here, as in verl.
const LOG_RATIO_LIMIT: f64 = 10.0;

/// The clipped ratio of the geometric mean over a sequence (Zheng et al. 2025), each token with the gradient of its own
/// (section 4.3, GSPO-token).
///
/// With advantages that are equal over a sequence and `seq-mean-token-mean` this is the paper's objective.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gspo {
    /// The ratio counts down to 1 less this; in `[0, 1]`.
    pub clip_ratio_low: f64,
    /// The ratio counts up to 1 plus this; at least 0.
    pub clip_ratio_high: f64,
}

impl Default for Gspo {
    fn default() -> Self {
        Self { clip_ratio_low: 0.2, clip_ratio_high: 0.2 }
    }
}

impl Gspo {
    /// The same, its bounds checked.
    ///
    /// # Errors
    /// If a bound is out of its own.
    pub fn checked(self) -> Result<Self, CatalogError> {
        check_band(self.clip_ratio_low, self.clip_ratio_high).map(|()| self)
    }
}

impl PolicyLoss for Gspo {
    fn tokens(&self, tokens: &Tokens<'_>) -> Result<TokenLoss, TchError> {
        let log_ratio = tokens.logprobs.f_sub(tokens.old)?.f_detach()?;
        let sequence = tokens.segments.spread(&tokens.segments.means(&log_ratio)?)?;
        let own = tokens.logprobs.f_sub(&tokens.logprobs.f_detach()?)?;
        let ratio = own.f_add(&sequence)?.f_clamp_max(LOG_RATIO_LIMIT)?.f_exp()?;
        let bounds = (1.0 - self.clip_ratio_low, 1.0 + self.clip_ratio_high);
        let found = clipped(&ratio, tokens.advantages, bounds)?;
        let lower = found.clipped.f_zeros_like()?;
        Ok(TokenLoss { loss: found.loss, metrics: clip_metrics(found.clipped, lower) })
    }
}
