//! CISPO: the clipped ratio as a weight.

use rollpacker_stages::catalog::{CatalogError, check_range};
use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};
use tch::TchError;

use super::{PolicyLoss, TokenLoss, Tokens, clip_metrics};

documented! {
    /// REINFORCE, weighted by the clipped ratio. The ratio carries no gradient, so every token keeps the gradient of its log-probability
    /// (MiniMax-M1 2025, section 3.1).
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Cispo {
        /// The clipped ratio that weights a token is at least `1 - clip_ratio_low`. At least 0. A value of 1 or more sets no lower bound,
        /// as in MiniMax-M1. Default: 0.2. (verl: `actor.clip_ratio_low`)
        pub clip_ratio_low: f64,
        /// The clipped ratio that weights a token is at most `1 + clip_ratio_high`. At least 0; default 0.2. (verl:
        /// `actor.clip_ratio_high`)
        pub clip_ratio_high: f64,
    }
}

impl Default for Cispo {
    fn default() -> Self {
        Self { clip_ratio_low: 0.2, clip_ratio_high: 0.2 }
    }
}

impl Cispo {
    /// Returns the loss if its options are in range.
    ///
    /// # Errors
    /// Returns an error if an option is out of range.
    pub fn checked(self) -> Result<Self, CatalogError> {
        for (key, value) in
            [("clip_ratio_low", self.clip_ratio_low), ("clip_ratio_high", self.clip_ratio_high)]
        {
            check_range(key, value, |value| value >= 0.0, "a finite number, at least 0")?;
        }
        Ok(self)
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
