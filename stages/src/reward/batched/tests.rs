use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use futures::poll;
use tokio::time::{Instant, advance, sleep};

use super::*;
use crate::reward::ErrorKind;

/// A batch reward that takes a second. It scores by length, fails for `fail`, and returns too few scores for a batch with `miscount`.
#[derive(Clone, Default)]
struct Lengths {
    sizes: Arc<Mutex<Vec<usize>>>,
    ended: Arc<AtomicUsize>,
}

impl BatchReward for Lengths {
    async fn score(&self, calls: &[Call]) -> Result<Vec<Result<Score, RewardError>>, RewardError> {
        lock(&self.sizes).push(calls.len());
        sleep(Duration::from_secs(1)).await;
        self.ended.fetch_add(1, Ordering::Relaxed);
        let of = |call: &Call| match call.sample.response.as_str() {
            "fail" => Err(RewardError::fatal("told to")),
            response => Ok((response.len() as f64).into()),
        };
        let counted = calls.iter().filter(|call| call.sample.response != "miscount");
        Ok(counted.map(of).collect())
    }
}

fn batched(lengths: &Lengths) -> Batched<Lengths> {
    Batched::new(lengths.clone(), 3, Duration::from_secs(10))
}

fn sample(response: &str) -> Sample {
    Sample::of("any", response, None)
}

async fn scores(
    reward: &Batched<Lengths>,
    responses: &[&str],
) -> (Vec<Result<f64, ErrorKind>>, f64) {
    let begin = Instant::now();
    let context = Context::detached();
    let calls = responses.iter().map(async |response| {
        let score = Reward::score(reward, &sample(response), &context).await;
        score.map(|score| score.value).map_err(|error| error.kind)
    });
    let scores = join_all(calls).await;
    (scores, (Instant::now() - begin).as_secs_f64().round())
}

#[tokio::test(start_paused = true)]
async fn calls_are_collected_up_to_a_size_and_a_wait() {
    let lengths = Lengths::default();
    let reward = batched(&lengths);
    let (values, took) = scores(&reward, &["", "a", "bb", "ccc", "fail"]).await;
    let expected = [Ok(0.0), Ok(1.0), Ok(2.0), Ok(3.0), Err(ErrorKind::Fatal)];
    assert_eq!((values.as_slice(), took), (expected.as_slice(), 11.0));
    assert_eq!(*lock(&lengths.sizes), [3, 2]);
    assert_eq!(scores(&reward, &["a", "b", "c"]).await.1, 1.0, "a full batch starts immediately");
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_miscounted_fails() {
    let reward = batched(&Lengths::default());
    let (values, _) = scores(&reward, &["miscount", "a"]).await;
    assert_eq!(values, [Err(ErrorKind::Fatal); 2]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_leaves_its_batch() {
    let lengths = Lengths::default();
    let reward = batched(&lengths);
    let (context, stays, leaves) = (Context::detached(), sample("stays"), sample("leaves"));
    let mut first = Box::pin(Reward::score(&reward, &leaves, &context));
    let mut second = Box::pin(Reward::score(&reward, &stays, &context));
    assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
    drop(first);
    assert_eq!(second.await.map(|score| score.value), Ok(5.0));
    assert_eq!(*lock(&lengths.sizes), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_ends_with_its_last_call() {
    let lengths = Lengths::default();
    let reward = batched(&lengths);
    let (context, one) = (Context::detached(), sample("one"));
    let mut call = Box::pin(Reward::score(&reward, &one, &context));
    assert!(poll!(&mut call).is_pending());
    advance(Duration::from_secs(10)).await;
    assert!(poll!(&mut call).is_pending());
    assert_eq!(*lock(&lengths.sizes), [1], "it has begun");
    drop(call);
    advance(Duration::from_secs(10)).await;
    assert_eq!(lengths.ended.load(Ordering::Relaxed), 0);
    assert_eq!(
        scores(&reward, &["a"]).await.0,
        [Ok(1.0)],
        "a dropped call does not delay the next one"
    );
}
