//! The engine keeps the contract of rollout engines.

use std::sync::Arc;
use std::time::Duration;

use rollpacker_dataflow::clock::WallClock;
use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::testkit::{EngineWorld, check_engine};
use rollpacker_torch::model::WeightStore;
use rollpacker_torch::rollout::{TorchEngine, TorchEngineConfig};

use super::driver::{config, decoder, deterministic, prompts};

#[test]
fn the_engine_passes_the_testkit() {
    let store = WeightStore::new(2);
    let policies = [0, 1].map(|version| {
        let weights = decoder("qwen2_tied").snapshot().unwrap();
        store.publish(PolicyVersion(version), weights)
    });
    let world = EngineWorld {
        policies: policies.to_vec(),
        prompts: prompts().into_iter().take(3).map(Into::into).collect(),
        samples: 3,
        timeout: Duration::from_secs(120),
        is_reproducible: true,
        virtual_time: None,
    };
    let config = TorchEngineConfig { instances: 2, ..config(Sampling::unrestricted(12)) };
    let start = || {
        let detokenize = Arc::new(|ids: &[i32]| format!("{ids:?}"));
        let decoder = decoder("qwen2_tied");
        let clock = Arc::new(WallClock::start());
        TorchEngine::start(deterministic(config.clone()), decoder, store.clone(), detokenize, clock)
            .unwrap()
    };
    check_engine(start, &world).unwrap();
}
