//! A cache of scores.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use lru::LruCache;
use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score, SharedReward};
use sha2::{Digest, Sha256};

use super::Cost;

/// A reward that is called once for equal samples, including samples that are scored concurrently, while their score stays in the cache.
///
/// Samples are equal if they agree in all inputs of a reward apart from the ids of sample and row. Errors are not cached. A score from the
/// cache has no [executions](Score::executions), since these were already used to set time limits. All callers that wait for the same call
/// get its executions.
pub struct Cached {
    reward: SharedReward,
    memory: Arc<Mutex<Memory>>,
}

type Key = [u8; 32];
type Answer = Shared<BoxFuture<'static, Result<Score, RewardError>>>;

/// The cached scores and the calls in flight, by key. If there are more than `capacity` scores, the least recently used score is evicted.
struct Memory {
    capacity: usize,
    scores: LruCache<Key, Score>,
    in_flight: HashMap<Key, InFlight>,
}

/// A call in flight, and the number of callers that wait for it.
struct InFlight {
    answer: Answer,
    waiting: usize,
}

impl Cached {
    /// Caches up to `capacity` scores. With 0, only concurrent calls share a score.
    #[must_use]
    pub fn new(reward: impl Reward, capacity: usize) -> Self {
        // A bounded cache would allocate its whole capacity at once.
        let memory = Memory { capacity, scores: LruCache::unbounded(), in_flight: HashMap::new() };
        Self { reward: SharedReward::new(reward), memory: Arc::new(Mutex::new(memory)) }
    }

    /// Creates the call for a sample, which all callers with an equal sample share. It makes progress while at least one caller waits for
    /// it, and is dropped when the last caller stops waiting.
    fn start_call(&self, key: Key, sample: &Sample, context: &Context) -> Answer {
        let (reward, sample) = (self.reward.clone(), sample.clone());
        // The call gets a context of its own: it must not be cancelled when only the first caller stops waiting.
        let inner = Context::new(Arc::clone(context.clock())).with_limits(context.limits.clone());
        let (memory, outer) = (Arc::clone(&self.memory), context.clone());
        let answer = async move {
            let score = reward.score(&sample, &inner).await;
            inner.take_metrics().iter().for_each(|(name, value)| outer.metric(name, *value));
            if let Ok(score) = &score {
                let kept = Score { executions: Vec::new(), ..score.clone() };
                lock(&memory).insert(key, kept);
            }
            score
        };
        answer.boxed().shared()
    }
}

impl Reward for Cached {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        let key = key(sample);
        let (answer, _waits) = {
            let mut memory = lock(&self.memory);
            if let Some(score) = memory.scores.get(&key).cloned() {
                context.metric("cached", 1.0);
                return Ok(score);
            }
            let in_flight = memory.in_flight.entry(key).or_insert_with(|| InFlight {
                answer: self.start_call(key, sample, context),
                waiting: 0,
            });
            context.metric("cached", f64::from(in_flight.waiting > 0));
            in_flight.waiting += 1;
            (in_flight.answer.clone(), WaitGuard { memory: &self.memory, key })
        };
        answer.await
    }

    fn cost(&self, sample: &Sample) -> Cost {
        self.reward.cost(sample)
    }
}

/// A caller that waits for a call. Dropping the guard of the last caller drops the call.
struct WaitGuard<'a> {
    memory: &'a Mutex<Memory>,
    key: Key,
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        let mut memory = lock(self.memory);
        let Some(in_flight) = memory.in_flight.get_mut(&self.key) else { return };
        in_flight.waiting -= 1;
        // Drop the call only after the lock is released, since its destructor may take long.
        let _gone = (in_flight.waiting == 0).then(|| memory.in_flight.remove(&self.key));
        drop(memory);
    }
}

impl Memory {
    fn insert(&mut self, key: Key, score: Score) {
        self.scores.put(key, score);
        if self.scores.len() > self.capacity {
            self.scores.pop_lru();
        }
    }
}

fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a digest of all inputs of a reward except the ids of sample and row. Each text is preceded by its length, so that different
/// samples cannot collide by moving text between fields.
fn key(sample: &Sample) -> Key {
    let mut digest = Sha256::new();
    let texts = [
        Some(&sample.data_source),
        Some(&sample.messages),
        Some(&sample.response),
        sample.ground_truth.as_ref(),
        sample.extra_info.as_ref(),
    ];
    for text in texts {
        digest.update(text.map_or(u64::MAX, |text| text.len() as u64).to_le_bytes());
        digest.update(text.map_or("", String::as_str));
    }
    digest.update(sample.response_length.to_le_bytes());
    digest.update([sample.finish_reason as u8]);
    sample.response_ids.iter().for_each(|id| digest.update(id.to_le_bytes()));
    digest.finalize().into()
}
