//! GSPO: the ratio of a whole sequence.

use rollpacker_stages::catalog::CatalogError;
use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};
use tch::TchError;

use super::clip::{check_band, clipped};
use super::{PolicyLoss, TokenLoss, Tokens, clip_metrics};

/// The upper bound of sequence log-ratios, as in verl.
const LOG_RATIO_LIMIT: f64 = 10.0;

documented! {
    /// The clipped ratio of a whole sequence, which is the geometric mean of the ratios of its tokens (Zheng et al. 2025). The gradient of
    /// each token flows through its own log-probability (section 4.3, GSPO-token).
    ///
    /// If the advantages of a sequence are equal and the aggregation is `seq-mean-token-mean`, this is the objective of the paper.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Gspo {
        /// The ratio is clipped below at `1 - clip_ratio_low`. In [0, 1]; default 0.2. (verl: `actor.clip_ratio_low`)
        pub clip_ratio_low: f64,
        /// The ratio is clipped above at `1 + clip_ratio_high`. At least 0; default 0.2. (verl: `actor.clip_ratio_high`)
        pub clip_ratio_high: f64,
    }
}

impl Default for Gspo {
    fn default() -> Self {
        Self { clip_ratio_low: 0.2, clip_ratio_high: 0.2 }
    }
}

impl Gspo {
    /// Returns the loss if its options are in range.
    ///
    /// # Errors
    /// Returns an error if an option is out of range.
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
