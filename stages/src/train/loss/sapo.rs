//! SAPO: a gate instead of a clip.

use serde::{Deserialize, Serialize};
use tch::TchError;

use super::{PolicyLoss, TokenLoss, Tokens};
use crate::catalog::{CatalogError, within};
use crate::train::config::Aggregation;

/// A sigmoid of the ratio around 1, its gradient 1 there, steeper for negative advantages (Gao et al. 2025, SAPO).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sapo {
    /// Steepness for positive advantages; above 0.
    pub tau_pos: f64,
    /// Steepness for the others; above 0.
    pub tau_neg: f64,
}

impl Default for Sapo {
    fn default() -> Self {
        Self { tau_pos: 1.0, tau_neg: 1.05 }
    }
}

impl Sapo {
    /// The same, its bounds checked.
    ///
    /// # Errors
    /// If a temperature is not above 0.
    pub fn checked(self) -> Result<Self, CatalogError> {
        for (key, tau) in [("tau_pos", self.tau_pos), ("tau_neg", self.tau_neg)] {
            within(key, tau, |tau| tau > 0.0, "a finite number above 0")?;
            within(key, tau, |tau| (1e-3..=1e3).contains(&tau), "from 0.001 to 1000")?;
        }
        Ok(self)
    }
}

impl PolicyLoss for Sapo {
    fn tokens(&self, tokens: &Tokens<'_>) -> Result<TokenLoss, TchError> {
        let positive = tokens.advantages.f_gt(0.0)?.f_to_kind(tokens.advantages.kind())?;
        // Both are numbers of a step, so a factor and a shift choose between them.
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
