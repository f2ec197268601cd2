//! The reward `repetition`: a penalty for repeated text.

use std::collections::HashSet;

use rollpacker_stages::catalog::{About, CatalogError};
use rollpacker_stages::documented;
use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};
use serde::{Deserialize, Serialize};

use super::normal_form::words;

/// A penalty in proportion to the fraction of n-grams that repeat an earlier n-gram: `penalty (1 - unique / all)`. It is 0 for a response
/// shorter than one n-gram. Component: `repeated`, the fraction.
///
/// Source: "Demystifying Long Chain-of-Thought Reasoning in LLMs", appendix C.2; over tokens as in TRL's `get_repetition_penalty_reward`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repetition(RepetitionOptions);

documented! {
    /// Options of a [`Repetition`].
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct RepetitionOptions {
        /// The number of units of an n-gram. At least 1. Default: 3. (TRL: `ngram_size`)
        #[serde(alias = "ngram_size")]
        pub ngram: usize,
        /// The maximum penalty. At most 0. Default: -1. (TRL: `max_penalty`)
        #[serde(alias = "max_penalty")]
        pub penalty: f64,
        /// The unit of an n-gram: token ids of the response (`tokens`), or words in lower case, separated by blanks (`words`). Default:
        /// `tokens`.
        pub unit: Unit,
    }
}

/// The unit of an n-gram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Token ids of the response. A response with text but without token ids is an error, as with an engine that only counts tokens.
    #[default]
    Tokens,
    /// Words in lower case, separated by blanks.
    Words,
}

impl Default for RepetitionOptions {
    fn default() -> Self {
        Self { ngram: 3, penalty: -1.0, unit: Unit::Tokens }
    }
}

impl Repetition {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About = About::new(
        &[],
        "a penalty for n-grams that repeat an earlier one",
        "Demystifying Long Chain-of-Thought Reasoning in LLMs, appendix C.2",
    );

    /// Creates the reward.
    ///
    /// # Errors
    /// If `ngram` is 0, or `penalty` is above 0 or NaN.
    pub fn new(options: RepetitionOptions) -> Result<Self, CatalogError> {
        if options.ngram == 0 {
            return Err(CatalogError::out_of_range("ngram", "at least 1", 0));
        }
        if options.penalty.is_nan() || options.penalty > 0.0 {
            return Err(CatalogError::out_of_range("penalty", "at most 0", options.penalty));
        }
        Ok(Self(options))
    }
}

impl Reward for Repetition {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let RepetitionOptions { ngram, penalty, unit } = self.0;
        let repeated = match unit {
            Unit::Tokens => repeated(tokens(sample)?, ngram),
            Unit::Words => {
                let text = sample.response.to_lowercase();
                repeated(&words(&text).collect::<Vec<_>>(), ngram)
            }
        };
        let value = if repeated == 0.0 { 0.0 } else { repeated * penalty };
        Ok(Score::from(value).component("repeated", repeated))
    }
}

/// Returns the fraction of n-grams that repeat an earlier one; 0 if there are no n-grams.
fn repeated<T: Eq + std::hash::Hash>(units: &[T], ngram: usize) -> f64 {
    let all = units.windows(ngram);
    let count = all.len();
    if count == 0 {
        return 0.0;
    }
    1.0 - all.collect::<HashSet<_>>().len() as f64 / count as f64
}

fn tokens(sample: &Sample) -> Result<&[i32], RewardError> {
    if sample.response_ids.is_empty() && !sample.response.is_empty() {
        return Err(RewardError::missing("response_ids", &sample.data_source));
    }
    Ok(&sample.response_ids)
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    fn score(options: RepetitionOptions, response: &str, ids: &[i32]) -> Result<f64, RewardError> {
        let sample = Sample { response_ids: ids.to_vec(), ..Sample::of("any", response, None) };
        let repetition = Repetition::new(options).expect("in bounds");
        Ok(block_on(repetition.score(&sample, &Context::detached()))?.value)
    }

    #[test]
    fn repeated_ngrams_are_penalised() {
        let options = RepetitionOptions { ngram: 2, ..Default::default() };
        assert_eq!(score(options, "", &[1, 2, 1, 2, 1]), Ok(-0.5));
        assert_eq!(score(options, "", &[1, 2, 3]), Ok(0.0));
        assert_eq!(score(options, "", &[1]), Ok(0.0));
        assert_eq!(score(options, "", &[]), Ok(0.0));
        let words = RepetitionOptions { unit: Unit::Words, penalty: -2.0, ..options };
        assert_eq!(score(words, "a b A  b", &[]), Ok(-2.0 * (1.0 - 2.0 / 3.0)));
    }

    #[test]
    fn without_token_ids_there_is_nothing_to_count() {
        let error = score(RepetitionOptions::default(), "a b", &[]).expect_err("no ids");
        assert!(error.to_string().contains("`response_ids`"), "{error}");
    }

    #[test]
    fn options_have_bounds() {
        let refused = |ngram, penalty| {
            let options = RepetitionOptions { ngram, penalty, unit: Unit::Tokens };
            Repetition::new(options).expect_err("out of bounds").to_string()
        };
        assert_eq!(refused(0, -1.0), "`ngram`: expected at least 1, found 0");
        assert_eq!(refused(1, 0.5), "`penalty`: expected at most 0, found 0.5");
    }
}
