//! Rewards: the scoring of responses.
//!
//! A custom reward implements one trait with one method:
//!
//! ```
//! use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};
//!
//! /// One point for a response that is at most 20 characters long.
//! struct Terse;
//!
//! impl Reward for Terse {
//!     async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
//!         Ok(Score::from(sample.response.chars().count() <= 20))
//!     }
//! }
//! ```
//!
//! [`GroupReward`] scores all responses to a prompt together, and [`BatchReward`] scores responses that arrive at about the same time. A
//! function becomes a reward with [`from_fn`]. [`Router`] sends each sample to the reward of its data source.

mod batched;
pub mod chat;
mod context;
mod cost;
mod error;
mod from_fn;
mod group;
mod limited;
mod limits;
mod router;
mod score;

use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;
use rollpacker_dataflow::step::SampleId;

pub use batched::{BatchReward, Batched, Call};
pub use context::Context;
pub use cost::Cost;
pub use error::{ErrorKind, MAX_TOLERATED, OnError, RewardError};
pub use from_fn::{FromFn, from_fn, from_fn_with};
pub use group::{GroupReward, SharedGroupReward};
pub use limited::{Budgets, Limited};
pub use limits::{Execution, LimitRule, Limits};
pub use router::{NoRoute, Router};
pub use score::Score;

pub use crate::catalog::{CatalogError, NoOptions, Options};
use crate::rollout::FinishReason;

/// A response to score, with the columns of its dataset row.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The id of the response.
    pub id: SampleId,
    /// The index of the prompt's row in the dataset, the same in every epoch.
    pub row: u64,
    /// The data source of the prompt.
    pub data_source: String,
    /// The prompt as chat messages, a JSON array of `{role, content}`.
    pub messages: String,
    /// The response as text without special tokens.
    pub response: String,
    /// The number of tokens of the response. Also set by engines that count tokens without sampling them; 0 in [`Sample::of`].
    pub response_length: u32,
    /// The response as token ids; empty if the engine counts tokens without sampling them, and in [`Sample::of`].
    pub response_ids: Vec<i32>,
    /// The reference answer; `None` if the dataset row has none. Structured answers are JSON.
    pub ground_truth: Option<String>,
    /// The column `extra_info` of the dataset row and further columns that the configuration names, as a JSON object; `None` if there are
    /// none.
    pub extra_info: Option<String>,
    /// The reason why the response ended.
    pub finish_reason: FinishReason,
    /// The score by the sample's own reward, for group rewards; `None` if the sample has no such reward or is not scored yet.
    pub own_score: Option<f64>,
}

impl Sample {
    /// Returns a response that belongs to no run and ended by itself, for tests and tools.
    #[must_use]
    pub fn of(data_source: &str, response: &str, ground_truth: Option<&str>) -> Self {
        Self {
            id: SampleId::default(),
            row: 0,
            data_source: data_source.to_owned(),
            messages: "[]".to_owned(),
            response: response.to_owned(),
            response_length: 0,
            response_ids: Vec::new(),
            ground_truth: ground_truth.map(str::to_owned),
            extra_info: None,
            finish_reason: FinishReason::Stop,
            own_score: None,
        }
    }

    /// Returns the number of tokens of the response, or 0 if it is unknown.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        u32::try_from(self.response_ids.len()).unwrap_or(u32::MAX).max(self.response_length)
    }

    /// Returns the reference answer.
    ///
    /// # Errors
    /// Returns [`RewardError::missing`] if the dataset row has no reference answer.
    pub fn truth(&self) -> Result<&str, RewardError> {
        let missing = || RewardError::missing("ground_truth", &self.data_source);
        self.ground_truth.as_deref().ok_or_else(missing)
    }

    /// Returns the fields of `extra_info`; empty if it is `None`.
    ///
    /// # Errors
    /// Returns an error if `extra_info` is not a JSON object.
    pub fn extra(&self) -> Result<serde_json::Map<String, serde_json::Value>, RewardError> {
        let Some(text) = self.extra_info.as_deref() else { return Ok(serde_json::Map::new()) };
        serde_json::from_str(text).map_err(|error| {
            RewardError::fatal(format_args!("field `extra_info`: expected a JSON object: {error}"))
        })
    }
}

/// A reward that scores responses as they arrive, concurrently with the rollout.
///
/// # Contract
/// The method is called concurrently from several threads. The future is dropped when the score is no longer needed, and must then leave
/// nothing running. It must not block its thread: code that computes for long or blocks uses [`from_fn`]. A response that is merely wrong
/// gets a low score and is not an error.
///
/// # Example
/// ```
/// use std::time::Duration;
///
/// use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};
/// use rollpacker_stages::testkit::{RewardWorld, check_reward};
///
/// /// One point for a response that contains the reference answer.
/// struct Contains;
///
/// impl Reward for Contains {
///     async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
///         Ok(sample.response.contains(sample.truth()?).into())
///     }
/// }
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("starts");
/// # runtime.block_on(async {
/// let sample = Sample::of("math", "it is 42", Some("42"));
/// assert_eq!(Contains.score(&sample, &Context::detached()).await, Ok(1.0.into()));
///
/// // The contract: concurrent calls, dropped futures, and responses that models write.
/// let timeout = Duration::from_secs(60);
/// let world = RewardWorld { samples: vec![sample], timeout, is_deterministic: true };
/// check_reward(Contains, &world).await.expect("it keeps the contract");
/// # });
/// ```
pub trait Reward: Send + Sync + 'static {
    /// Scores one response.
    ///
    /// # Errors
    /// Returns an error if the response could not be scored.
    fn score(
        &self,
        sample: &Sample,
        context: &Context,
    ) -> impl Future<Output = Result<Score, RewardError>> + Send;

    /// Returns the cost of a call against the budgets of a [`Limited`], in requests and tokens. The default is one request with the texts
    /// of the sample.
    fn cost(&self, sample: &Sample) -> Cost {
        Cost::of_sample(sample)
    }
}

/// Object-safe form of [`Reward`].
trait DynReward: Send + Sync + 'static {
    fn score<'a>(
        &'a self,
        sample: &'a Sample,
        context: &'a Context,
    ) -> BoxFuture<'a, Result<Score, RewardError>>;

    fn cost(&self, sample: &Sample) -> Cost;
}

impl<R: Reward> DynReward for R {
    fn score<'a>(
        &'a self,
        sample: &'a Sample,
        context: &'a Context,
    ) -> BoxFuture<'a, Result<Score, RewardError>> {
        Box::pin(Reward::score(self, sample, context))
    }

    fn cost(&self, sample: &Sample) -> Cost {
        Reward::cost(self, sample)
    }
}

/// A reward behind a shared pointer.
#[derive(Clone)]
pub struct SharedReward(Arc<dyn DynReward>);

impl SharedReward {
    /// Puts a reward behind a shared pointer.
    #[must_use]
    pub fn new(reward: impl Reward) -> Self {
        Self(Arc::new(reward))
    }
}

impl Reward for SharedReward {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        self.0.score(sample, context).await
    }

    fn cost(&self, sample: &Sample) -> Cost {
        self.0.cost(sample)
    }
}
