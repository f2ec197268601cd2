//! SAPO: a sigmoid gate instead of a clip.

use rollpacker_stages::catalog::{CatalogError, check_range};
use rollpacker_stages::documented;
use rollpacker_stages::train::config::Aggregation;
use serde::{Deserialize, Serialize};
use tch::TchError;

use super::{PolicyLoss, TokenLoss, Tokens};

documented! {
    /// A sigmoid of the ratio instead of a clip (Gao et al. 2025, SAPO). The derivative with respect to the ratio is 1 at a ratio of 1. By
    /// default, the sigmoid is steeper for advantages that are not positive.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Sapo {
        /// Steepness of the sigmoid for positive advantages. From 0.001 to 1000; default 1. (verl: `actor.tau_pos`)
        pub tau_pos: f64,
        /// Steepness of the sigmoid for all other advantages. From 0.001 to 1000; default 1.05. (verl: `actor.tau_neg`)
        pub tau_neg: f64,
    }
}

impl Default for Sapo {
    fn default() -> Self {
        Self { tau_pos: 1.0, tau_neg: 1.05 }
    }
}

impl Sapo {
    /// Returns the loss if its options are in range.
    ///
    /// # Errors
    /// Returns an error if an option is out of range.
    pub fn checked(self) -> Result<Self, CatalogError> {
        for (key, tau) in [("tau_pos", self.tau_pos), ("tau_neg", self.tau_neg)] {
            check_range(key, tau, |tau| tau > 0.0, "a finite number above 0")?;
            check_range(key, tau, |tau| (1e-3..=1e3).contains(&tau), "from 0.001 to 1000")?;
        }
        Ok(self)
    }
}

impl PolicyLoss for Sapo {
    fn tokens(&self, tokens: &Tokens<'_>) -> Result<TokenLoss, TchError> {
        let positive = tokens.advantages.f_gt(0.0)?.f_to_kind(tokens.advantages.kind())?;
        // `tau` is `tau_pos` or `tau_neg`. A factor and a shift select it without a second tensor of constants.
        let tau = positive.f_mul_scalar(self.tau_pos - self.tau_neg)?.f_add_scalar(self.tau_neg)?;
        let ratio = tokens.log_ratio()?.f_exp()?;
        let gate = ratio.f_sub_scalar(1.0)?.f_mul(&tau)?.f_sigmoid()?;
        let scaled = gate.f_mul_scalar(4.0)?.f_div(&tau)?;
        Ok(TokenLoss { loss: scaled.f_mul(tokens.advantages)?.f_neg()?, metrics: Vec::new() })
    }

    fn aggregation(&self) -> Option<Aggregation> {
        Some(Aggregation::SeqMeanTokenMean)
    }
}
