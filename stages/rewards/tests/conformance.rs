//! Built-in rewards keep the contract of rewards.

use std::time::Duration;

use rollpacker_rewards::{AnyReward, Registry};
use rollpacker_stages::reward::{Options, Sample};
use rollpacker_stages::testkit::{RewardWorld, check_reward};
use serde_json::{Value, json};

/// The rewards that score groups or need a server, a program or a sandbox. They have tests of their own.
const OTHERS: [&str; 6] = ["code", "http", "judge", "length", "process", "python"];

/// Returns the required options of a reward.
fn options(name: &str) -> Value {
    match name {
        "regex" => json!({"pattern": "4[0-9]"}),
        "soft_overlong" => json!({"max_length": 100, "cache": 20}),
        _ => json!({}),
    }
}

/// Returns the reference answer in the form that a reward reads.
fn ground_truth(name: &str) -> &'static str {
    match name {
        "logic" => "(1) Ann is a knight",
        "multiple_choice" => "B",
        "search_r1_em" | "search_r1_subem" => r#"{"target": ["42"]}"#,
        _ => "42",
    }
}

#[tokio::test]
async fn the_rewards_pass_the_testkit() {
    let registry = Registry::builtin();
    for name in registry.names().filter(|name| !OTHERS.contains(name)) {
        let sample = |response: &str| Sample {
            response_ids: vec![3, 1, 4, 1, 5],
            ..Sample::of("any", response, Some(ground_truth(name)))
        };
        let world = RewardWorld {
            samples: vec![
                sample("so it is \\boxed{42}"),
                sample("41"),
                sample("<think>x</think> B"),
            ],
            timeout: Duration::from_secs(60),
            is_deterministic: true,
        };
        let options: Options = options(name).as_object().expect("options").clone();
        let Ok(AnyReward::Sample(reward)) = registry.make(name, options) else {
            panic!("{name} is not a reward of samples")
        };
        check_reward(reward, &world).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
