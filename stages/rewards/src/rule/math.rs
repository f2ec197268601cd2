//! The reward `math`: verification of a mathematical answer.

use rollpacker_math::Verifier;
use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};
use serde::{Deserialize, Serialize};

/// 1 if the final answer of a response equals the ground truth by mathematical value, otherwise 0. The options are those of a
/// [`Verifier`].
///
/// A dataset row can override the options in the object `math` of its `extra_info`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Math(pub Verifier);

impl Reward for Math {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let truth = sample.truth()?;
        let correct = match sample.extra()?.remove("math") {
            None => self.0.is_correct(&sample.response, truth),
            Some(options) => {
                let verifier = self.0.with(&options).map_err(|error| {
                    RewardError::fatal(format_args!("field `extra_info.math`: {error}"))
                })?;
                verifier.is_correct(&sample.response, truth)
            }
        };
        Ok(correct.into())
    }
}
