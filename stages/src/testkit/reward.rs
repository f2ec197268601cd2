//! Conformance of rewards.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::future::{FutureExt, join_all};

use super::Nonconformance;
use crate::reward::{Context, Reward, Sample, SharedReward};

const USABLE: &str = "a score is finite, and has either no token rewards or one for each token";
const CONCURRENT: &str = "a reward is called concurrently, with the same result";
const ENDS: &str = "a call ends";
const DROPS: &str = "a future that is dropped leaves the reward usable";
const WRONG: &str = "a response that is merely wrong gets a low score and is not an error";
const PANICS: &str = "a reward does not panic";

/// The world in which [`check_reward`] runs a reward.
#[derive(Clone, Debug)]
pub struct RewardWorld {
    /// Samples with everything that the reward needs, such as a reference answer. At least one is needed.
    pub samples: Vec<Sample>,
    /// The maximum time that a call may take.
    pub timeout: Duration,
    /// `true` if a sample always gets the same score. `false` for a judge that samples its answers.
    pub is_deterministic: bool,
}

/// Checks a reward against its [contract](Reward). The future must be awaited in a tokio runtime with timers.
///
/// Besides the samples themselves, the checks score them with responses that models write: an empty response, a long response, a response
/// of control characters, and a response in several scripts.
///
/// # Errors
/// Returns the first rule that does not hold, with the behavior that breaks it.
///
/// # Panics
/// Panics if the world has no samples, or there is no tokio runtime with timers.
pub async fn check_reward(reward: impl Reward, world: &RewardWorld) -> Result<(), Nonconformance> {
    assert!(!world.samples.is_empty(), "a reward is checked with at least one sample");
    let reward = SharedReward::new(reward);
    let first = score_all(&reward, world, &world.samples).await?;
    drop_futures(&reward, &world.samples).await;
    let again = score_all(&reward, world, &world.samples)
        .await
        .map_err(|error| Nonconformance::new(DROPS, format!("after one was dropped: {error}")))?;
    if world.is_deterministic && first != again {
        return Err(Nonconformance::new(CONCURRENT, format!("{first:?}, then {again:?}")));
    }
    for response in unusual_responses() {
        let unusual = |sample: &Sample| Sample { response: response.clone(), ..sample.clone() };
        let samples: Vec<Sample> = world.samples.iter().map(unusual).collect();
        score_all(&reward, world, &samples).await?;
    }
    Ok(())
}

/// Returns responses that a model may write, and that no reward may fail on.
fn unusual_responses() -> [String; 4] {
    [
        String::new(),
        "so ".repeat(20_000),
        "\0\u{1b}[31m\r\n\u{202e}\u{feff}```\n\\boxed{".to_owned(),
        "答案是 ４２ — ٤٢ — 🧮".to_owned(),
    ]
}

/// Scores all samples concurrently, twice each. Returns the scores in the order of the samples.
async fn score_all(
    reward: &SharedReward,
    world: &RewardWorld,
    samples: &[Sample],
) -> Result<Vec<f64>, Nonconformance> {
    let calls = samples.iter().flat_map(|sample| [sample, sample]);
    let calls = calls.map(|sample| score_one(reward, world, sample));
    let scores: Vec<f64> = join_all(calls).await.into_iter().collect::<Result<_, _>>()?;
    for (pair, sample) in scores.chunks(2).zip(samples) {
        if world.is_deterministic && pair[0] != pair[1] {
            let found = format!("{} and {} for {:?}", pair[0], pair[1], shortened(sample));
            return Err(Nonconformance::new(CONCURRENT, found));
        }
    }
    Ok(scores.into_iter().step_by(2).collect())
}

async fn score_one(
    reward: &SharedReward,
    world: &RewardWorld,
    sample: &Sample,
) -> Result<f64, Nonconformance> {
    let context = Context::detached();
    let call = AssertUnwindSafe(reward.score(sample, &context)).catch_unwind();
    let fails = |rule, found: String| {
        Nonconformance::new(rule, format!("{found} for {:?}", shortened(sample)))
    };
    let score = match tokio::time::timeout(world.timeout, call).await {
        Err(_) => return Err(fails(ENDS, format!("not in {:?}", world.timeout))),
        Ok(Err(_)) => return Err(fails(PANICS, "a panic".to_owned())),
        Ok(Ok(result)) => result.map_err(|error| fails(WRONG, error.to_string()))?,
    };
    let score = score.checked(sample).map_err(|error| fails(USABLE, error.to_string()))?;
    Ok(score.total())
}

/// Polls a call for each sample once, and drops it.
async fn drop_futures(reward: &SharedReward, samples: &[Sample]) {
    for sample in samples {
        let context = Context::detached();
        let mut call = std::pin::pin!(reward.score(sample, &context));
        drop(futures::poll!(&mut call));
    }
}

/// Returns the first 60 characters of the response of a sample.
fn shortened(sample: &Sample) -> String {
    const SHOWN: usize = 60;
    sample.response.chars().take(SHOWN).collect()
}
