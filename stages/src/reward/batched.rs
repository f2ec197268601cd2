//! Rewards that score many samples at once.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::sync::Notify;

use super::{Context, Reward, RewardError, Sample, Score};

/// Something that scores several samples in one call, because that is cheaper: a model, a server that takes lists.
///
/// # Contract
/// As [`Reward`]: the future is dropped when none of the scores is wanted any more.
pub trait BatchReward: Send + Sync + 'static {
    /// Scores samples: one result each, in their order.
    ///
    /// # Errors
    /// One that befalls all of them.
    fn score(
        &self,
        calls: &[Call],
    ) -> impl Future<Output = Result<Vec<Result<Score, RewardError>>, RewardError>> + Send;
}

/// A sample to score, and what may be known and done besides.
#[derive(Clone)]
pub struct Call {
    /// The sample.
    pub sample: Sample,
    /// Its context.
    pub context: Context,
}

/// A [`BatchReward`] as a [`Reward`]: calls that come within a while of each other are made as one.
///
/// Nothing runs beside the calls: those of a batch wait together for its time or its last place, and whichever is polled drives it. A call
/// that is dropped leaves a batch that has not begun; a batch that has ends with its last call.
pub struct Batched<R> {
    reward: Arc<R>,
    max_size: usize,
    max_wait: Duration,
    collecting: Arc<Mutex<Collecting>>,
}

/// The batch that can be joined, and how many calls there ever were.
#[derive(Default)]
struct Collecting {
    tickets: u64,
    open: Option<(Arc<Batch>, Scores)>,
}

/// Calls of one batch that has not begun.
#[derive(Default)]
struct Batch {
    calls: Mutex<BTreeMap<u64, Call>>,
    full: Notify,
}

type Scores = Shared<BoxFuture<'static, Arc<BTreeMap<u64, Result<Score, RewardError>>>>>;

impl<R: BatchReward> Batched<R> {
    /// Batches of up to `max_size` calls, the first of which waits up to `max_wait` for the others.
    #[must_use]
    pub fn new(reward: R, max_size: usize, max_wait: Duration) -> Self {
        Self {
            reward: Arc::new(reward),
            max_size: max_size.max(1),
            max_wait,
            collecting: Arc::default(),
        }
    }

    /// Joins the open batch, or opens one; closes it if that was the last place.
    fn join(&self, call: Call) -> Joined<'_> {
        let mut collecting = lock(&self.collecting);
        let ticket = collecting.tickets;
        collecting.tickets += 1;
        let (batch, scores) = collecting.open.get_or_insert_with(|| self.open()).clone();
        let mut calls = lock(&batch.calls);
        calls.insert(ticket, call);
        if calls.len() == self.max_size {
            collecting.open = None;
            batch.full.notify_one();
        }
        drop(calls);
        Joined { collecting: &self.collecting, batch, ticket, scores }
    }

    fn open(&self) -> (Arc<Batch>, Scores) {
        let batch = Arc::new(Batch::default());
        let (reward, collecting) = (Arc::clone(&self.reward), Arc::clone(&self.collecting));
        let (own, max_wait) = (Arc::clone(&batch), self.max_wait);
        let scores = async move {
            // Full or late, it is time.
            let _ = tokio::time::timeout(max_wait, own.full.notified()).await;
            lock(&collecting).close(&own);
            let calls = std::mem::take(&mut *lock(&own.calls));
            Arc::new(score(&*reward, calls).await)
        };
        (batch, scores.boxed().shared())
    }
}

impl Collecting {
    /// Lets nobody join `batch` any more.
    fn close(&mut self, batch: &Arc<Batch>) {
        self.open.take_if(|(open, _)| Arc::ptr_eq(open, batch));
    }
}

impl<R: BatchReward> Reward for Batched<R> {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        let joined = self.join(Call { sample: sample.clone(), context: context.clone() });
        let scores = joined.scores.clone().await;
        scores.get(&joined.ticket).cloned().expect("invariant: a batch scores all that wait for it")
    }
}

/// A call in a batch, until it is dropped.
struct Joined<'a> {
    collecting: &'a Mutex<Collecting>,
    batch: Arc<Batch>,
    ticket: u64,
    scores: Scores,
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        let mut collecting = lock(self.collecting);
        let mut calls = lock(&self.batch.calls);
        if calls.remove(&self.ticket).is_some() && calls.is_empty() {
            collecting.close(&self.batch);
        }
    }
}

async fn score(
    reward: &impl BatchReward,
    calls: BTreeMap<u64, Call>,
) -> BTreeMap<u64, Result<Score, RewardError>> {
    let (tickets, calls): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
    let scores = match reward.score(&calls).await {
        Ok(scores) if scores.len() == calls.len() => scores,
        Ok(scores) => vec![Err(miscounted(calls.len(), scores.len())); calls.len()],
        Err(error) => vec![Err(error); calls.len()],
    };
    tickets.into_iter().zip(scores).collect()
}

fn miscounted(expected: usize, found: usize) -> RewardError {
    RewardError::fatal(format_args!("expected {expected} scores for a batch, found {found}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
