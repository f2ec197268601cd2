use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{join, join_all};
use futures::poll;
use rollpacker_stages::reward::{Context, ErrorKind, RewardError, Sample, Score};
use tokio::time::{Instant, advance, sleep};

use super::*;

/// A reward that takes a second and then returns the next error of its script, or 1 after the last one.
#[derive(Clone, Default)]
struct Scripted {
    script: Arc<Mutex<Vec<RewardError>>>,
    calls: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

impl Reward for Scripted {
    async fn score(&self, _: &Sample, context: &Context) -> Result<Score, RewardError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_secs(1)).await;
        self.ended.fetch_add(1, Ordering::Relaxed);
        context.metric("ended", 1.0);
        self.script.lock().expect("no panic").pop().map_or_else(|| Ok(1.0.into()), Err)
    }
}

impl Scripted {
    fn failing(errors: impl IntoIterator<Item = RewardError>) -> Self {
        let mut script: Vec<_> = errors.into_iter().collect();
        script.reverse();
        Self { script: Arc::new(Mutex::new(script)), ..Self::default() }
    }

    fn counts(&self) -> (usize, usize) {
        (self.calls.load(Ordering::Relaxed), self.ended.load(Ordering::Relaxed))
    }
}

fn sample(response: &str) -> Sample {
    Sample::of("any", response, None)
}

fn guarded(options: &str, reward: impl Reward) -> SharedReward {
    let mut options = serde_json::from_str(options).expect("JSON");
    let guard = Guard::take(&mut options).expect("options");
    guard.wrap(reward).expect("in bounds")
}

async fn timed(reward: &SharedReward, context: &Context) -> (Result<Score, RewardError>, f64) {
    let begin = Instant::now();
    let score = reward.score(&sample("x"), context).await;
    (score, (Instant::now() - begin).as_secs_f64())
}

#[test]
fn options_of_the_guard_are_removed_and_the_others_kept() {
    let options = r#"{"url": "x", "timeout_s": 3, "cache": 5}"#;
    let mut options = serde_json::from_str(options).expect("JSON");
    let guard = Guard::take(&mut options).expect("options");
    assert_eq!(guard, Guard { timeout_s: Some(3.0), cache: 5, ..Guard::default() });
    assert_eq!(options.keys().collect::<Vec<_>>(), ["url"]);
    let mut options = serde_json::from_str(r#"{"attempts": "3"}"#).expect("JSON");
    let error = Guard::take(&mut options).expect_err("a text").to_string();
    assert!(error.starts_with("`attempts`: expected an integer"), "{error}");
    let names = serde_json::to_value(Guard::default()).expect("JSON");
    assert!(names.as_object().expect("an object").keys().eq(Guard::KEYS));
}

#[test]
fn bounds_are_checked() {
    let check = |options: &str, expected: &str| {
        let mut options = serde_json::from_str(options).expect("JSON");
        let guard = Guard::take(&mut options).expect("options");
        let error = guard.wrap(Scripted::default()).err().expect("out of bounds");
        assert_eq!(error.to_string(), expected);
    };
    check(r#"{"timeout_s": -1}"#, "`timeout_s`: expected a number above 0, found -1");
    check(r#"{"attempts": 0}"#, "`attempts`: expected a number above 0, found 0");
    check(r#"{"backoff_s": -1}"#, "`backoff_s`: expected a number above 0, found -1");
    check(r#"{"concurrency": 0}"#, "`concurrency`: expected a number above 0, found 0");
    let rate = "`requests_per_minute`: expected a number above 0, found 0";
    check(r#"{"requests_per_minute": 0}"#, rate);
}

#[test]
fn without_options_nothing_is_wrapped() {
    struct Now;
    impl Reward for Now {
        async fn score(&self, _: &Sample, _: &Context) -> Result<Score, RewardError> {
            Ok(1.0.into())
        }
    }
    // There is no runtime here, and a wrapper would need one.
    let score = guarded("{}", Now);
    let score = futures::executor::block_on(score.score(&sample("x"), &Context::detached()));
    assert_eq!(score, Ok(1.0.into()));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_too_long_is_given_up() {
    let scripted = Scripted::default();
    let reward = guarded(r#"{"timeout_s": 0.5}"#, scripted.clone());
    let (score, took) = timed(&reward, &Context::detached()).await;
    let error = score.expect_err("late");
    assert_eq!((error.kind, error.reason.as_str()), (ErrorKind::Timeout, "took longer than 500ms"));
    assert!((0.5..0.6).contains(&took), "{took}");
    advance(Duration::from_secs(10)).await;
    assert_eq!(scripted.counts(), (1, 0), "the call was dropped");
}

#[tokio::test(start_paused = true)]
async fn retryable_errors_are_retried() {
    let busy = || RewardError::retryable("busy");
    let scripted = Scripted::failing([busy(), RewardError::timeout("slow")]);
    let reward = guarded(r#"{"attempts": 3, "backoff_s": 10}"#, scripted.clone());
    let context = Context::detached();
    let (score, took) = timed(&reward, &context).await;
    assert_eq!(score, Ok(1.0.into()));
    assert_eq!(scripted.counts().0, 3);
    assert!((3.0 + 5.0 + 10.0..=3.0 + 10.0 + 20.0).contains(&took), "{took}");
    assert_eq!(context.take_metrics().iter().filter(|(name, _)| name == "retries").count(), 2);

    let scripted = Scripted::failing([busy(), busy(), busy()]);
    let reward = guarded(r#"{"attempts": 2}"#, scripted.clone());
    let error = timed(&reward, &context).await.0.expect_err("busy twice");
    let expected = (ErrorKind::Retryable, "after 2 attempts: busy");
    assert_eq!((error.kind, error.reason.as_str()), expected);

    let scripted = Scripted::failing([RewardError::fatal("wrong")]);
    let reward = guarded(r#"{"attempts": 2}"#, scripted.clone());
    assert_eq!(timed(&reward, &context).await.0, Err(RewardError::fatal("wrong")));
    assert_eq!(scripted.counts().0, 1);
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_respected() {
    let busy = RewardError::retryable("busy").retry_after(Some(Duration::from_secs(100)));
    let reward = guarded(r#"{"attempts": 2}"#, Scripted::failing([busy.clone()]));
    let (score, took) = timed(&reward, &Context::detached()).await;
    assert!(score.is_ok() && (102.0..102.1).contains(&took), "{took}");

    let reward = guarded(r#"{"attempts": 2}"#, Scripted::failing([busy]));
    let context = Context::detached().within(Duration::from_secs(50));
    let (score, took) = timed(&reward, &context).await;
    assert!(score.is_err() && took < 1.1, "no try would be in time: {took}");

    let away = RewardError::retryable("away").retry_after(Some(Duration::from_secs(86_400)));
    let reward = guarded(r#"{"attempts": 2}"#, Scripted::failing([away]));
    let (score, took) = timed(&reward, &Context::detached()).await;
    assert!(score.is_err() && took < 1.1, "no run waits for a day: {took}");
}

#[tokio::test(start_paused = true)]
async fn calls_wait_for_a_free_slot() {
    let reward = guarded(r#"{"concurrency": 2}"#, Scripted::default());
    let context = Context::detached();
    let took = join_all((0..6).map(|_| timed(&reward, &context))).await;
    let took: Vec<_> = took.iter().map(|(_, took)| took.round()).collect();
    assert_eq!(took, [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
    let queue_times = context.take_metrics().into_iter().filter(|(name, _)| name == "queue_s");
    let waited: Vec<_> = queue_times.map(|(_, seconds)| seconds.round()).collect();
    assert_eq!(waited, [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]);
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_their_budget() {
    let reward = guarded(r#"{"requests_per_minute": 6}"#, Scripted::default());
    let context = Context::detached();
    let took = join_all((0..8).map(|_| timed(&reward, &context))).await;
    let took: Vec<_> = took.iter().map(|(_, took)| took.round()).collect();
    assert_eq!(took, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 11.0, 21.0]);
    advance(Duration::from_secs(600)).await;
    let took = join_all((0..7).map(|_| timed(&reward, &context))).await;
    assert_eq!(took[6].1.round(), 11.0, "a bucket holds at most the budget of one minute");
}

#[tokio::test(start_paused = true)]
async fn tokens_wait_for_their_budget_and_one_call_gets_through_at_any_size() {
    let reward = guarded(r#"{"tokens_per_minute": 100}"#, Scripted::default());
    let (context, large) = (Context::detached(), sample(&"four".repeat(1000)));
    let begin = Instant::now();
    reward.score(&large, &context).await.expect("scores");
    assert_eq!((Instant::now() - begin).as_secs_f64().round(), 1.0);
    reward.score(&large, &context).await.expect("scores");
    assert_eq!((Instant::now() - begin).as_secs_f64().round(), 61.0);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiting_call_returns_its_budget() {
    let reward = guarded(r#"{"requests_per_minute": 1}"#, Scripted::default());
    let (context, sample) = (Context::detached(), sample("x"));
    reward.score(&sample, &context).await.expect("scores");
    for _ in 0..5 {
        let mut waits = Box::pin(reward.score(&sample, &context));
        assert!(poll!(&mut waits).is_pending());
    }
    let took = timed(&reward, &context).await.1;
    assert!((59.0..61.0).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn equal_samples_are_scored_once() {
    let scripted = Scripted::default();
    let reward = guarded(r#"{"cache": 2}"#, scripted.clone());
    let context = Context::detached();
    let score = async |response: &str| reward.score(&sample(response), &context).await;
    assert_eq!(join(score("a"), score("a")).await, (Ok(1.0.into()), Ok(1.0.into())));
    assert_eq!(scripted.counts(), (1, 1));
    assert_eq!(context.take_metrics().iter().filter(|(name, _)| name == "ended").count(), 1);
    for response in ["a", "b", "a", "c", "a", "b"] {
        score(response).await.expect("scores");
    }
    assert_eq!(scripted.counts().0, 4, "`b` was evicted for `c`; `a` was in use");
    let other = Sample { ground_truth: Some(String::new()), ..sample("a") };
    reward.score(&other, &context).await.expect("scores");
    assert_eq!(scripted.counts().0, 5, "an empty ground truth is not none");
}

#[tokio::test(start_paused = true)]
async fn a_shared_call_runs_until_its_last_caller_is_dropped() {
    let scripted = Scripted::default();
    let reward = guarded(r#"{"cache": 2}"#, scripted.clone());
    let (context, sample) = (Context::detached(), sample("x"));
    let mut first = Box::pin(reward.score(&sample, &context));
    let mut second = Box::pin(reward.score(&sample, &context));
    assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
    drop(first);
    assert_eq!(second.await, Ok(1.0.into()));
    assert_eq!(scripted.counts(), (1, 1));

    let other = Sample { response: "y".to_owned(), ..sample.clone() };
    let mut only = Box::pin(reward.score(&other, &context));
    assert!(poll!(&mut only).is_pending());
    drop(only);
    advance(Duration::from_secs(10)).await;
    assert_eq!(scripted.counts(), (2, 1), "the call is dropped when no caller waits for it");
    assert_eq!(reward.score(&other, &context).await, Ok(1.0.into()));
}

#[tokio::test(start_paused = true)]
async fn errors_are_not_cached() {
    let scripted = Scripted::failing([RewardError::fatal("wrong")]);
    let reward = guarded(r#"{"cache": 2}"#, scripted.clone());
    let context = Context::detached();
    assert!(timed(&reward, &context).await.0.is_err());
    assert!(timed(&reward, &context).await.0.is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_timeout_of_a_call_starts_after_the_queue() {
    let options = r#"{"timeout_s": 1.5, "concurrency": 1, "attempts": 2}"#;
    let reward = guarded(options, Scripted::default());
    let context = Context::detached();
    let scores = join_all((0..4).map(|_| timed(&reward, &context))).await;
    assert!(scores.iter().all(|(score, _)| score.is_ok()), "{scores:?}");
}
