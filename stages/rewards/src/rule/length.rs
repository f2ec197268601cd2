//! Rewards that depend on the length of responses.

use serde::{Deserialize, Serialize};

use rollpacker_stages::catalog::{About, CatalogError};
use rollpacker_stages::documented;
use rollpacker_stages::reward::{Context, GroupReward, Reward, RewardError, Sample, Score};

/// A penalty for responses near the maximum length. It is 0 up to `max_length - cache` tokens, decreases linearly to -1 at `max_length`,
/// and is -1 beyond. With `cache = 0`, it is 0 up to and including `max_length`.
///
/// Source: DAPO, equation 13.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftOverlong(SoftOverlongOptions);

documented! {
    /// Options of a [`SoftOverlong`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct SoftOverlongOptions {
        /// The length at which the penalty reaches -1; with `cache = 0`, only longer responses get -1. At least 0. (TRL:
        /// `max_completion_len`)
        #[serde(alias = "max_completion_len")]
        pub max_length: u32 [tokens],
        /// The number of tokens before `max_length` over which the penalty falls from 0 to -1; 0 makes it a step. Also accepted as
        /// `overlong_buffer_len`. At most `max_length`. (verl: `reward.reward_kwargs.overlong_buffer_cfg.len`; TRL: `soft_punish_cache`)
        #[serde(alias = "soft_punish_cache", alias = "overlong_buffer_len")]
        pub cache: u32 [tokens],
    }
}

impl SoftOverlong {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About =
        About::new(&[], "a penalty for responses near the maximum length", "DAPO, equation 13");

    /// Creates the reward.
    ///
    /// # Errors
    /// If `cache` exceeds `max_length`.
    pub fn new(options: SoftOverlongOptions) -> Result<Self, CatalogError> {
        if options.cache > options.max_length {
            let expected = format!("at most `max_length`, {}", options.max_length);
            return Err(CatalogError::out_of_range("cache", &expected, options.cache));
        }
        Ok(Self(options))
    }

    fn penalty(&self, length: u32) -> f64 {
        let SoftOverlongOptions { max_length, cache } = self.0;
        match length.saturating_sub(max_length - cache) {
            0 => 0.0,
            over if over <= cache => -f64::from(over) / f64::from(cache),
            _ => -1.0,
        }
    }
}

impl Reward for SoftOverlong {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        Ok(self.penalty(length(sample)?).into())
    }
}

documented! {
    /// A bonus for the shorter responses to a prompt: `weight * (0.5 - (length - min) / (max - min))`, where `min` and `max` are over the
    /// lengths of the group. For a wrong response, a positive value in parentheses is replaced by 0. All responses get 0 if their lengths
    /// are equal.
    ///
    /// A response is wrong if its own reward is less than `right`, so the samples need a reward of their own. Source: Kimi k1.5, section
    /// 2.3.3.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Length {
        /// The factor of the bonus. A finite number. Default: 1.
        pub weight: f64,
        /// The minimum of a response's own reward at which the response counts as right. A finite number. Default: 1.
        pub right: f64,
    }
}

impl Default for Length {
    fn default() -> Self {
        Self { weight: 1.0, right: 1.0 }
    }
}

impl Length {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About =
        About::new(&[], "a bonus for the shorter responses of a group", "Kimi k1.5, section 2.3.3");
}

impl GroupReward for Length {
    async fn score(&self, group: &[Sample], _: &Context) -> Result<Vec<Score>, RewardError> {
        let lengths: Vec<u32> = group.iter().map(length).collect::<Result<_, _>>()?;
        let shortest = lengths.iter().copied().min().unwrap_or(0);
        let span = lengths.iter().copied().max().unwrap_or(0) - shortest;
        let bonus = |(sample, length): (&Sample, u32)| {
            let own = sample.own_score.ok_or_else(no_own_score)?;
            if span == 0 {
                return Ok(Score::from(0.0));
            }
            let bonus = 0.5 - f64::from(length - shortest) / f64::from(span);
            Ok(Score::from(self.weight * if own >= self.right { bonus } else { bonus.min(0.0) }))
        };
        group.iter().zip(lengths).map(bonus).collect()
    }

    fn needs_own_scores(&self) -> bool {
        true
    }
}

fn no_own_score() -> RewardError {
    RewardError::fatal(
        "expected a reward for samples on the same route, whose scores show which responses are right",
    )
}

/// Returns the number of tokens of a response. Returns an error if the response has text but no known number of tokens.
fn length(sample: &Sample) -> Result<u32, RewardError> {
    match sample.tokens() {
        0 if !sample.response.is_empty() => {
            Err(RewardError::missing("response_length", &sample.data_source))
        }
        length => Ok(length),
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    fn sample(length: u32, own_score: Option<f64>) -> Sample {
        Sample { response_length: length, own_score, ..Sample::of("any", "x", None) }
    }

    #[test]
    fn the_penalty_grows_over_the_cache() {
        let options = SoftOverlongOptions { max_length: 40, cache: 10 };
        let overlong = SoftOverlong::new(options).expect("in bounds");
        assert_eq!([1, 30, 31, 40, 41].map(|n| overlong.penalty(n)), [0.0, 0.0, -0.1, -1.0, -1.0]);
        let hard = SoftOverlong::new(SoftOverlongOptions { max_length: 40, cache: 0 });
        let hard = hard.expect("in bounds");
        assert_eq!([40, 41].map(|n| hard.penalty(n)), [0.0, -1.0]);
        let refused = SoftOverlong::new(SoftOverlongOptions { max_length: 4, cache: 5 });
        let reason = "`cache`: expected at most `max_length`, 4, found 5";
        assert_eq!(refused.expect_err("more than all").to_string(), reason);
    }

    #[test]
    fn the_number_of_tokens_must_be_known() {
        let overlong = SoftOverlong(SoftOverlongOptions { max_length: 4, cache: 1 });
        let score = |sample: &Sample| block_on(overlong.score(sample, &Context::detached()));
        assert!(score(&sample(0, None)).expect_err("no tokens").reason.contains("response_length"));
        assert_eq!(score(&Sample::of("any", "", None)), Ok(0.0.into()));
        let ids = Sample { response_ids: vec![1; 5], ..sample(0, None) };
        assert_eq!(score(&ids), Ok((-1.0).into()));
    }

    #[test]
    fn shorter_right_responses_score_higher_and_wrong_ones_never_gain() {
        let score = |samples: &[(u32, f64)]| {
            let group: Vec<_> =
                samples.iter().map(|(length, own)| sample(*length, Some(*own))).collect();
            let length = Length { weight: 2.0, right: 1.0 };
            let scores = block_on(length.score(&group, &Context::detached())).expect("scored");
            scores.into_iter().map(|score| score.value).collect::<Vec<_>>()
        };
        assert_eq!(score(&[(10, 1.0), (20, 1.0), (30, 1.0)]), [1.0, 0.0, -1.0]);
        assert_eq!(score(&[(10, 0.0), (30, 0.0)]), [0.0, -1.0]);
        assert_eq!(score(&[(10, 1.0), (10, 0.0)]), [0.0, 0.0]);
    }

    #[test]
    fn a_group_needs_scores_of_its_own() {
        let group = [sample(1, None)];
        let error = block_on(Length::default().score(&group, &Context::detached()));
        assert!(error.expect_err("none").reason.contains("on the same route"));
    }
}
