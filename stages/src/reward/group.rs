//! Rewards that compare the responses to a prompt.

use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::{Context, RewardError, Sample, Score};

/// A reward that scores the responses of a group together: a comparison, a vote, or a bonus for rare answers.
///
/// # Contract
/// The contract of [`Reward`](super::Reward) applies. The method is called once the group is complete, with exactly the responses that are
/// trained on. Its scores are added to the scores of the samples' own reward.
///
/// # Example
/// ```
/// use rollpacker_stages::reward::{Context, GroupReward, RewardError, Sample, Score};
///
/// /// One point for the shortest response.
/// struct Shortest;
///
/// impl GroupReward for Shortest {
///     async fn score(&self, group: &[Sample], _: &Context) -> Result<Vec<Score>, RewardError> {
///         let shortest = group.iter().map(|sample| sample.response.len()).min();
///         Ok(group.iter().map(|sample| (Some(sample.response.len()) == shortest).into()).collect())
///     }
/// }
///
/// let group = ["forty-two", "42"].map(|response| Sample::of("math", response, None));
/// let context = Context::detached();
/// let scores = futures::executor::block_on(Shortest.score(&group, &context));
/// assert_eq!(scores, Ok(vec![0.0.into(), 1.0.into()]));
/// ```
pub trait GroupReward: Send + Sync + 'static {
    /// Scores the responses of a group. Returns one score per response, in order. Another number of scores is a fatal error.
    ///
    /// # Errors
    /// Returns an error if the group could not be scored.
    fn score(
        &self,
        group: &[Sample],
        context: &Context,
    ) -> impl Future<Output = Result<Vec<Score>, RewardError>> + Send;

    /// Returns `true` if the reward uses [`Sample::own_score`], and therefore requires that the samples also have a reward of their own.
    /// Default: `false`.
    fn needs_own_scores(&self) -> bool {
        false
    }
}

trait DynGroupReward: Send + Sync + 'static {
    fn score<'a>(
        &'a self,
        group: &'a [Sample],
        context: &'a Context,
    ) -> BoxFuture<'a, Result<Vec<Score>, RewardError>>;

    fn needs_own_scores(&self) -> bool;
}

impl<R: GroupReward> DynGroupReward for R {
    fn score<'a>(
        &'a self,
        group: &'a [Sample],
        context: &'a Context,
    ) -> BoxFuture<'a, Result<Vec<Score>, RewardError>> {
        Box::pin(GroupReward::score(self, group, context))
    }

    fn needs_own_scores(&self) -> bool {
        GroupReward::needs_own_scores(self)
    }
}

/// A group reward behind a shared pointer.
#[derive(Clone)]
pub struct SharedGroupReward(Arc<dyn DynGroupReward>);

impl SharedGroupReward {
    /// Puts a group reward behind a shared pointer.
    #[must_use]
    pub fn new(reward: impl GroupReward) -> Self {
        Self(Arc::new(reward))
    }
}

impl GroupReward for SharedGroupReward {
    async fn score(&self, group: &[Sample], context: &Context) -> Result<Vec<Score>, RewardError> {
        let scores = self.0.score(group, context).await?;
        if scores.len() == group.len() {
            let scored = scores.into_iter().zip(group);
            return scored.map(|(score, sample)| score.checked(sample)).collect();
        }
        Err(RewardError::fatal(format_args!(
            "expected {} scores for a group, found {}",
            group.len(),
            scores.len()
        )))
    }

    fn needs_own_scores(&self) -> bool {
        self.0.needs_own_scores()
    }
}
