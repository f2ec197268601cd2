//! Pauses whose callers do not wait for them, as when a client disconnects.

use futures::FutureExt;
use futures::executor::block_on;
use rollpacker_dataflow::clock::{Clock, Nanos, WallClock};
use rollpacker_stages::rollout::FinishReason;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::serving::{EndTokens, ServedToken, TokenLogprob, TokenReceiver};

use super::*;

/// A receiver that drops everything.
struct Discard;

impl TokenReceiver for Discard {
    fn prompt(&mut self, _: Vec<TokenLogprob>) {}
    fn token(&mut self, _: u32, _: ServedToken) {}
    fn end(&mut self, _: u32, _: FinishReason) {}
    fn fail(&mut self, reason: &str) {
        panic!("{reason}");
    }
}

/// Returns an engine with two instances, whose responses end after 100,000 tokens.
fn engine() -> TorchServing {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/llama_untied");
    let config = ModelConfig::from_folder(fixture.as_ref()).unwrap();
    let config = ModelConfig { max_position_embeddings: 200_000, ..config };
    let folder = tempfile::tempdir().unwrap();
    Decoder::init(config, 0, Device::Cpu).unwrap().save(folder.path()).unwrap();
    let config = TorchServingConfig {
        instances: 2,
        threads_per_instance: 1,
        max_running: 4,
        kv_cache_tokens: 400_000,
        context: None,
        seed: 0,
        label: "first".into(),
    };
    TorchServing::start(folder.path(), Device::Cpu, &config).unwrap()
}

fn endless(id: u64) -> Generation {
    Generation {
        id: GenerationId(id),
        prompt_ids: [1, 2].into(),
        samples: 1,
        sampling: Sampling::unrestricted(100_000),
        ends: EndTokens { ignore_eos: true, ..EndTokens::default() },
        seed: None,
        logprobs: None,
        prompt_logprobs: None,
        receiver: Box::new(Discard),
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    let clock = WallClock::start();
    while !condition() {
        let waited = clock.now();
        assert!(waited < Nanos::from_secs_f64(60.0), "the condition holds within a minute");
        std::thread::yield_now();
    }
}

#[test]
fn a_pause_begins_although_its_caller_is_gone() {
    let engine = engine();
    engine.generate(endless(1));
    assert!(engine.pause(Pause::Wait).now_or_never().is_none());
    assert!(!engine.is_paused(), "a response runs");
    engine.abort(GenerationId(1));
    wait_until(|| engine.is_paused());
    block_on(engine.resume()).unwrap();
    assert!(!engine.is_paused());
}

#[test]
fn a_resume_ends_a_pause_that_waits_for_responses() {
    let engine = engine();
    engine.generate(endless(1));
    let mut pause = engine.pause(Pause::Wait);
    assert!((&mut pause).now_or_never().is_none());
    block_on(engine.resume()).unwrap();
    block_on(pause).unwrap();
    assert!(!engine.is_paused(), "the resume came last");
    engine.generate(endless(2));
    wait_until(|| engine.statistics().running == 2);
}
