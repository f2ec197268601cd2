//! Rewards that score many samples in one call.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::sync::Notify;

use super::{Context, Reward, RewardError, Sample, Score};

/// A reward that scores several samples in one call, for scorers that process a batch at lower cost: a model, or a server that accepts
/// lists.
///
/// # Contract
/// The contract of [`Reward`] applies. The future is dropped once no score of the batch is needed any more.
///
/// # Example
/// ```
/// use std::time::Duration;
///
/// use rollpacker_stages::reward::{
///     BatchReward, Batched, Call, Context, Reward, RewardError, Sample, Score,
/// };
///
/// /// Scores each response with the number of responses that it was scored with.
/// struct BatchSize;
///
/// impl BatchReward for BatchSize {
///     async fn score(&self, calls: &[Call]) -> Result<Vec<Result<Score, RewardError>>, RewardError> {
///         Ok(calls.iter().map(|_| Ok((calls.len() as f64).into())).collect())
///     }
/// }
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("starts");
/// # runtime.block_on(async {
/// // Up to two responses per call. A single response waits up to a second for another.
/// let reward = Batched::new(BatchSize, 2, Duration::from_secs(1));
/// let (sample, context) = (Sample::of("math", "42", None), Context::detached());
/// let scores = futures::join!(reward.score(&sample, &context), reward.score(&sample, &context));
/// assert_eq!(scores, (Ok(2.0.into()), Ok(2.0.into())));
/// # });
/// ```
pub trait BatchReward: Send + Sync + 'static {
    /// Scores samples. Returns one result per sample, in order. If the number of results differs, all samples get a fatal error.
    ///
    /// # Errors
    /// Returns an error if the call failed as a whole. The error then applies to all samples of the call.
    fn score(
        &self,
        calls: &[Call],
    ) -> impl Future<Output = Result<Vec<Result<Score, RewardError>>, RewardError>> + Send;
}

/// A sample to score, with its context.
#[derive(Clone)]
pub struct Call {
    /// The response to score.
    pub sample: Sample,
    /// The context of the call.
    pub context: Context,
}

/// Adapts a [`BatchReward`] to [`Reward`]: the first call of a batch waits up to `max_wait`, and the calls that arrive until then, up to
/// `max_size`, are combined into one call of the batch reward.
///
/// No task runs in the background. The calls of a batch share one future, which scores the batch when the wait is over or the batch is
/// full. Each poll of a call polls this future. A call that is dropped before its batch starts is removed from the batch. A batch that has
/// started is cancelled when its last call is dropped.
pub struct Batched<R> {
    reward: Arc<R>,
    max_size: usize,
    max_wait: Duration,
    collecting: Arc<Mutex<Collecting>>,
}

/// The batch that new calls join, and the id of the next call.
#[derive(Default)]
struct Collecting {
    next_call_id: u64,
    open: Option<(Arc<OpenBatch>, Scores)>,
}

/// The calls of a batch that has not started.
#[derive(Default)]
struct OpenBatch {
    calls: Mutex<BTreeMap<u64, Call>>,
    full: Notify,
}

type Scores = Shared<BoxFuture<'static, Arc<BTreeMap<u64, Result<Score, RewardError>>>>>;

impl<R: BatchReward> Batched<R> {
    /// Collects batches of up to `max_size` calls; 0 counts as 1. The first call of a batch waits up to `max_wait` for others.
    #[must_use]
    pub fn new(reward: R, max_size: usize, max_wait: Duration) -> Self {
        Self {
            reward: Arc::new(reward),
            max_size: max_size.max(1),
            max_wait,
            collecting: Arc::default(),
        }
    }

    /// Adds a call to the open batch, or opens one. Closes the batch if it is full.
    fn join(&self, call: Call) -> BatchMember<'_> {
        let mut collecting = lock(&self.collecting);
        let call_id = collecting.next_call_id;
        collecting.next_call_id += 1;
        let (batch, scores) = collecting.open.get_or_insert_with(|| self.open()).clone();
        let mut calls = lock(&batch.calls);
        calls.insert(call_id, call);
        if calls.len() == self.max_size {
            collecting.open = None;
            batch.full.notify_one();
        }
        drop(calls);
        BatchMember { collecting: &self.collecting, batch, call_id, scores }
    }

    fn open(&self) -> (Arc<OpenBatch>, Scores) {
        let batch = Arc::new(OpenBatch::default());
        let (reward, collecting) = (Arc::clone(&self.reward), Arc::clone(&self.collecting));
        let (own, max_wait) = (Arc::clone(&batch), self.max_wait);
        let scores = async move {
            // Start when the batch is full or the wait is over, whichever comes first. The batch is closed before its calls are taken, so
            // that no call can join a batch that would not score it.
            let _ = tokio::time::timeout(max_wait, own.full.notified()).await;
            lock(&collecting).close(&own);
            let calls = std::mem::take(&mut *lock(&own.calls));
            Arc::new(score(&*reward, calls).await)
        };
        (batch, scores.boxed().shared())
    }
}

impl Collecting {
    /// Prevents further calls from joining `batch`, if it is still the open batch.
    fn close(&mut self, batch: &Arc<OpenBatch>) {
        self.open.take_if(|(open, _)| Arc::ptr_eq(open, batch));
    }
}

impl<R: BatchReward> Reward for Batched<R> {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        let joined = self.join(Call { sample: sample.clone(), context: context.clone() });
        let scores = joined.scores.clone().await;
        scores
            .get(&joined.call_id)
            .cloned()
            .expect("invariant: a batch scores all that wait for it")
    }
}

/// Membership of a call in a batch. Dropping it before the batch starts removes the call; a batch that this leaves empty is closed, because
/// nothing polls its timer any more.
struct BatchMember<'a> {
    collecting: &'a Mutex<Collecting>,
    batch: Arc<OpenBatch>,
    call_id: u64,
    scores: Scores,
}

impl Drop for BatchMember<'_> {
    fn drop(&mut self) {
        let mut collecting = lock(self.collecting);
        let mut calls = lock(&self.batch.calls);
        if calls.remove(&self.call_id).is_some() && calls.is_empty() {
            collecting.close(&self.batch);
        }
    }
}

async fn score(
    reward: &impl BatchReward,
    calls: BTreeMap<u64, Call>,
) -> BTreeMap<u64, Result<Score, RewardError>> {
    let (ids, calls): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
    let scores = match reward.score(&calls).await {
        Ok(scores) if scores.len() == calls.len() => scores,
        Ok(scores) => vec![Err(score_count_error(calls.len(), scores.len())); calls.len()],
        Err(error) => vec![Err(error); calls.len()],
    };
    ids.into_iter().zip(scores).collect()
}

fn score_count_error(expected: usize, found: usize) -> RewardError {
    RewardError::fatal(format_args!("expected {expected} scores for a batch, found {found}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
