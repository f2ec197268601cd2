use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::reward::{Context, Reward, RewardError, Sample, Score};
use crate::testkit::{RewardWorld, check_reward};

/// A reward by a function of the response and the number of the call.
struct ByCall<F>(F, AtomicU32);

impl<F> Reward for ByCall<F>
where
    F: Fn(&Sample, u32) -> Result<Score, RewardError> + Send + Sync + 'static,
{
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        (self.0)(sample, self.1.fetch_add(1, Ordering::Relaxed))
    }
}

struct Sleeping;

impl Reward for Sleeping {
    async fn score(&self, _: &Sample, _: &Context) -> Result<Score, RewardError> {
        std::future::pending().await
    }
}

fn world() -> RewardWorld {
    RewardWorld {
        samples: vec![
            Sample::of("math", "so 42", Some("42")),
            Sample::of("math", "41", Some("42")),
        ],
        timeout: Duration::from_millis(50),
        is_deterministic: true,
    }
}

/// Returns the result of a check as text, empty if the reward passes.
fn checked<F>(reward: F, world: &RewardWorld) -> String
where
    F: Fn(&Sample, u32) -> Result<Score, RewardError> + Send + Sync + 'static,
{
    run(ByCall(reward, AtomicU32::new(0)), world)
}

fn run(reward: impl Reward, world: &RewardWorld) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let result = runtime.block_on(check_reward(reward, world));
    result.err().map(|error| error.to_string()).unwrap_or_default()
}

fn right(sample: &Sample) -> Result<Score, RewardError> {
    Ok(Score::from(sample.response.ends_with(sample.truth()?)))
}

#[test]
fn a_reward_that_keeps_its_contract_passes() {
    assert_eq!(checked(|sample, _| right(sample), &world()), "");
}

#[test]
fn each_broken_rule_is_named() {
    let nan = checked(|_, _| Ok(f64::NAN.into()), &world());
    assert!(nan.starts_with("a score is finite"), "{nan}");
    let counted = checked(|_, call| Ok(f64::from(call).into()), &world());
    assert!(counted.starts_with("a reward is called concurrently"), "{counted}");
    let refused = checked(
        |sample, _| {
            if sample.response.is_empty() {
                Err(RewardError::fatal("an empty response"))
            } else {
                right(sample)
            }
        },
        &world(),
    );
    assert!(refused.starts_with("a response that is merely wrong"), "{refused}");
    let indexed =
        checked(|sample, _| Ok(Score::from(sample.response.as_bytes()[0] == b'4')), &world());
    assert!(indexed.starts_with("a reward does not panic"), "{indexed}");
    assert!(run(Sleeping, &world()).starts_with("a call ends: not in 50ms"));
}

#[test]
fn a_judge_that_samples_may_differ() {
    let world = RewardWorld { is_deterministic: false, ..world() };
    assert_eq!(checked(|_, call| Ok(f64::from(call).into()), &world), "");
}
