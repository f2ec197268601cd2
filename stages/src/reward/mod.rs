//! Rewards: what says how good a response is.
//!
//! A reward of one's own is one trait with one method:
//!
//! ```
//! use rollpacker_stages::reward::{Reward, RewardError, Sample, Score};
//!
//! /// One point for a response that is at most 20 characters long.
//! struct Terse;
//!
//! impl Reward for Terse {
//!     async fn score(&self, sample: &Sample) -> Result<Score, RewardError> {
//!         Ok(Score::from(f64::from(sample.response.chars().count() <= 20)))
//!     }
//! }
//! ```

mod math;
mod router;
pub mod simulated;

use std::collections::BTreeMap;
use std::future::Future;

use futures::future::BoxFuture;
use rollpacker_dataflow::step::SampleId;

pub use math::Math;
pub use router::{Router, builtin, builtin_names};

use crate::rollout::FinishReason;

/// A response to score, and what its dataset says of the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Which response.
    pub id: SampleId,
    /// Where the prompt comes from.
    pub data_source: String,
    /// The prompt as chat messages, a JSON array of `{role, content}`.
    pub messages: String,
    /// The prompt as token ids.
    pub prompt_ids: Vec<i32>,
    /// The response as text, special tokens left out.
    pub response: String,
    /// Tokens of the response: how many, also where an engine counts tokens without sampling them.
    pub response_length: u32,
    /// The response as token ids.
    pub response_ids: Vec<i32>,
    /// The reference answer; structured ones as JSON.
    pub ground_truth: Option<String>,
    /// Everything else that the dataset says, a JSON object.
    pub extra_info: Option<String>,
    /// Why the response ended.
    pub finish_reason: FinishReason,
}

/// What a reward says of a response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// The reward.
    pub value: f64,
    /// Its parts by name; averaged into the metrics `reward/<name>`.
    pub components: BTreeMap<String, f64>,
}

impl From<f64> for Score {
    fn from(value: f64) -> Self {
        Self { value, components: BTreeMap::new() }
    }
}

/// Why a response could not be scored. Never turned into a silent 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RewardError {
    /// No reward is routed for the data source.
    #[error("no reward for data_source `{data_source}`; there are routes for {routes}")]
    NoRoute {
        /// The data source.
        data_source: String,
        /// What is routed.
        routes: String,
    },
    /// The dataset row lacks what the reward needs.
    #[error(
        "reward `{reward}` needs the field `{field}`, which the row of data_source `{data_source}` lacks"
    )]
    MissingField {
        /// The reward.
        reward: &'static str,
        /// What it needs.
        field: &'static str,
        /// The data source.
        data_source: String,
    },
    /// The reward failed.
    #[error("reward `{reward}` failed: {reason}")]
    Failed {
        /// The reward.
        reward: String,
        /// What it said.
        reason: String,
    },
}

/// Something that scores responses, beside the rollout, as they arrive.
///
/// # Contract
/// Called concurrently, from several threads. The future is dropped when the score is no longer wanted, and must then leave nothing
/// running. A response that is merely wrong is a low score, never an error.
pub trait Reward: Send + Sync + 'static {
    /// Scores one response.
    fn score(&self, sample: &Sample) -> impl Future<Output = Result<Score, RewardError>> + Send;
}

/// [`Reward`] behind a pointer.
pub(crate) trait DynReward: Send + Sync {
    fn score<'a>(&'a self, sample: &'a Sample) -> BoxFuture<'a, Result<Score, RewardError>>;
}

impl<R: Reward> DynReward for R {
    fn score<'a>(&'a self, sample: &'a Sample) -> BoxFuture<'a, Result<Score, RewardError>> {
        Box::pin(Reward::score(self, sample))
    }
}
