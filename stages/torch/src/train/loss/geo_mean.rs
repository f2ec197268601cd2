//! GMPO: the geometric mean of clipped ratios.

use rollpacker_stages::catalog::CatalogError;
use rollpacker_stages::documented;
use rollpacker_stages::train::config::Aggregation;
use serde::{Deserialize, Serialize};
use tch::{TchError, Tensor};

use super::clip::check_band;
use super::{PolicyLoss, Segments, TokenLoss, Tokens, clip_metrics};

/// The number that is added to an importance weight before its logarithm is taken, as in verl, because a weight may be 0.
const MIN_WEIGHT: f64 = 1e-10;

documented! {
    /// The geometric mean over a sequence of ratios that are clipped token by token (Zhao et al. 2025, GMPO, section 3).
    ///
    /// The bounds apply to the log-ratio, as in verl. The advantage of a sequence is the mean of the advantages of its tokens. The
    /// importance weight of a sequence is the geometric mean of the importance weights of its tokens.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct GeoMean {
        /// The log-ratio is clipped below at `-clip_ratio_low`. In [0, 1]; default 0.2. (verl: `actor.clip_ratio_low`)
        pub clip_ratio_low: f64,
        /// The log-ratio is clipped above at `clip_ratio_high`. At least 0; default 0.2. (verl: `actor.clip_ratio_high`)
        pub clip_ratio_high: f64,
    }
}

impl Default for GeoMean {
    fn default() -> Self {
        Self { clip_ratio_low: 0.2, clip_ratio_high: 0.2 }
    }
}

impl GeoMean {
    /// Returns the loss if its options are in range.
    ///
    /// # Errors
    /// Returns an error if an option is out of range.
    pub fn checked(self) -> Result<Self, CatalogError> {
        check_band(self.clip_ratio_low, self.clip_ratio_high).map(|()| self)
    }
}

impl PolicyLoss for GeoMean {
    fn tokens(&self, tokens: &Tokens<'_>) -> Result<TokenLoss, TchError> {
        let (segments, sign) = (tokens.segments, tokens.advantages.f_sign()?);
        let log_ratio = tokens.logprobs.f_sub(tokens.old)?;
        let bounded = log_ratio.f_clamp(-self.clip_ratio_low, self.clip_ratio_high)?;
        let worse = log_ratio.f_mul(&sign)?.f_minimum(&bounded.f_mul(&sign)?)?.f_mul(&sign)?;
        let gain = segments.means(tokens.advantages)?.f_neg()?;
        let sequences = gain.f_mul(&segments.means(&worse)?.f_exp()?)?;
        let clipped = log_ratio.f_ne_tensor(&bounded)?;
        let of = |side: &tch::Tensor| clipped.f_logical_and(side);
        let metrics = clip_metrics(of(&sign.f_gt(0.0)?)?, of(&sign.f_lt(0.0)?)?);
        Ok(TokenLoss { loss: segments.spread(&sequences)?, metrics })
    }

    fn importance(&self, weights: &Tensor, segments: &Segments) -> Result<Tensor, TchError> {
        let logarithms = weights.f_add_scalar(MIN_WEIGHT)?.f_log()?;
        segments.spread(&segments.means(&logarithms)?.f_exp()?)
    }

    fn aggregation(&self) -> Option<Aggregation> {
        Some(Aggregation::SeqMeanTokenMean)
    }
}
