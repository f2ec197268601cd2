//! The torch engine on small models: its samples, and its contract with the caller.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod conformance;
mod deterministic;
mod driver;
mod lockstep;
mod placement;
mod resume;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use driver::{Driver, EOS, GatedClock, config, decoder, folder, id, prompts, request};
use proptest::prelude::*;
use rollpacker_dataflow::clock::{Nanos, WallClock};
use rollpacker_dataflow::fault::{HasOrigin, Origin};
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId};
use rollpacker_stages::rollout::lengths::Lengths;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::rollout::{
    FinishReason, Policy, RolloutEngine, RolloutError, RolloutEvent, TokenVersions,
};
use rollpacker_torch::model::{Decoder, WeightStore};
use rollpacker_torch::rollout::{TorchEngine, TorchEngineConfig, TorchEngineError};
use tch::{Kind, Tensor};

const MODELS: [&str; 4] = ["qwen2_tied", "qwen3_tied", "llama_untied", "llama3_rope"];

/// Returns the log-probabilities of a response under a plain forward pass over prompt and response.
fn packed_logprobs(decoder: &Decoder, prompt: &[i32], response: &[i32]) -> Vec<f32> {
    let ids: Vec<i64> = prompt.iter().chain(response).copied().map(i64::from).collect();
    let hidden = decoder.forward_packed(&Tensor::from_slice(&ids), &[ids.len() as i64]).unwrap();
    let logprobs = decoder.logits(&hidden).unwrap().log_softmax(-1, Kind::Float);
    let places = prompt.len()..ids.len();
    places.map(|at| logprobs.double_value(&[at as i64 - 1, ids[at]]) as f32).collect()
}

#[test]
fn greedy_continuations_are_those_of_transformers() {
    for model in MODELS {
        let tensors = Tensor::read_safetensors(folder(model).join("fixture.safetensors")).unwrap();
        let expected = tensors.iter().find(|(name, _)| name == "greedy_ids").unwrap().1.squeeze();
        let expected: Vec<i32> =
            Vec::<i64>::try_from(expected).unwrap().iter().map(|id| *id as i32).collect();
        let mut driver = Driver::start(model, config(Sampling::greedy(32)), WeightStore::new(2));
        driver.engine.generate(request(0, 0..1, &expected[..8]));
        let completion = driver.collect(1).remove(&id(0, 0)).unwrap();
        assert_eq!(
            completion.response_ids,
            expected[8..8 + completion.response_ids.len()],
            "{model}"
        );
        assert!(
            completion.response_ids.len() == 32 || completion.finish_reason == FinishReason::Stop
        );
    }
}

#[test]
fn logprobs_are_those_of_a_plain_forward_pass() {
    for model in MODELS {
        let mut driver =
            Driver::start(model, config(Sampling::unrestricted(60)), WeightStore::new(2));
        for (prompt, ids) in prompts().iter().enumerate() {
            driver.engine.generate(request(prompt as u64, 0..3, ids));
        }
        let completions = driver.collect(18);
        let decoder = decoder(model);
        for (id, completion) in completions {
            let prompt = &prompts()[id.prompt.0 as usize];
            let expected = packed_logprobs(&decoder, prompt, &completion.response_ids);
            for (found, expected) in completion.logprobs.iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-4, "{model} {id}: {found} {expected}");
            }
            assert_eq!(completion.logprobs.len(), expected.len());
            assert_eq!(
                completion.token_versions,
                TokenVersions::of(PolicyVersion(0), expected.len())
            );
            assert_eq!(completion.text, format!("{:?}", completion.response_ids));
            assert!(completion.started <= completion.finished && completion.finished > Nanos(0));
        }
    }
}

/// Returns the response ids of four samples of each prompt in `order`, requested in this order, and the number of preemptions. With
/// `split`, the first sample of a prompt is requested apart from the other three.
fn sampled(
    config: TorchEngineConfig,
    order: &[usize],
    split: bool,
) -> (BTreeMap<SampleId, Vec<i32>>, u32) {
    let mut driver = Driver::new(config);
    for prompt in order {
        let cut = u32::from(split);
        for samples in [0..cut, cut..4] {
            driver.engine.generate(request(*prompt as u64, samples, &prompts()[*prompt]));
        }
    }
    let completions = driver.collect(order.len() * 4);
    let preemptions = completions.values().map(|completion| completion.preemptions).sum();
    let counted: u64 = driver.engine.statistics().iter().map(|instance| instance.preemptions).sum();
    assert_eq!(u64::from(preemptions), counted);
    (
        completions.into_iter().map(|(id, completion)| (id, completion.response_ids)).collect(),
        preemptions,
    )
}

#[test]
fn sampling_does_not_depend_on_batch_order_or_budget() {
    let base = config(Sampling { top_p: 0.95, ..Sampling::unrestricted(48) });
    let order: Vec<usize> = (0..6).collect();
    let (together, preemptions) = sampled(base.clone(), &order, false);
    assert_eq!(preemptions, 0);
    assert!(together.values().any(|ids| ids.len() < 48), "some end early");
    let distinct: std::collections::BTreeSet<_> = together.values().collect();
    assert_eq!(distinct.len(), together.len(), "every sample draws from its own stream");

    let (reversed, _) = sampled(base.clone(), &[5, 4, 3, 2, 1, 0], true);
    assert_eq!(reversed, together, "in another order, groups in parts");
    let (in_two, _) = sampled(TorchEngineConfig { instances: 2, ..base.clone() }, &order, false);
    assert_eq!(in_two, together, "over two instances");
    let (narrow, _) = sampled(TorchEngineConfig { max_running: 3, ..base.clone() }, &order, false);
    assert_eq!(narrow, together, "three at a time");
    let (tight, preemptions) =
        sampled(TorchEngineConfig { kv_cache_tokens: 200, ..base.clone() }, &order, false);
    assert!(preemptions > 0);
    assert_eq!(tight, together, "with preemptions");
    for prompt in order {
        let (alone, _) = sampled(base.clone(), &[prompt], false);
        assert!(alone.iter().all(|(id, ids)| together[id] == *ids), "prompt {prompt} alone");
    }
    let (other_seed, _) = sampled(TorchEngineConfig { seed: 8, ..base }, &[5], false);
    assert!(other_seed.iter().all(|(id, ids)| together[id] != *ids));
}

#[test]
fn samples_of_a_prompt_share_its_prefill() {
    let prompt = &prompts()[5];
    let mut driver = Driver::new(config(Sampling::unrestricted(4)));
    driver.engine.generate(request(0, 0..8, prompt));
    driver.collect(8);
    let statistics = driver.engine.statistics()[0];
    assert_eq!(statistics.prefill_tokens, prompt.len() as u64 - 1);
    assert_eq!(statistics.slots, 64);
    assert!(statistics.running_slot_ns >= statistics.busy_ns && statistics.busy_ns > 0);
}

#[test]
fn requests_between_two_polls_start_together() {
    let mut driver = Driver::new(config(Sampling::unrestricted(20)));
    driver.engine.generate(request(0, 0..2, &[1, 2, 3]));
    // Loading takes longer than the first request would need to start.
    let _slow = decoder("qwen2_tied");
    driver.engine.generate(request(1, 0..2, &[4, 5]));
    let all = driver.collect(4);
    assert!(all.values().all(|completion| completion.started == all[&id(0, 0)].started));
}

#[test]
fn a_request_wakes_its_caller_without_a_poll() {
    let mut driver = Driver::new(config(Sampling::unrestricted(4)));
    driver.engine.generate(request(0, 0..1, &[1, 2, 3]));
    driver.wait();
    driver.collect(1);
}

#[test]
fn lengths_respect_their_minimum_and_maximum() {
    let sampling = Sampling { min_new_tokens: 40, ..Sampling::unrestricted(40) };
    let mut driver = Driver::new(config(sampling));
    driver.engine.generate(request(0, 0..32, &[1, 2, 3]));
    for completion in driver.collect(32).values() {
        assert_eq!(completion.response_ids.len(), 40);
        assert!(!completion.response_ids[..39].contains(&EOS));
        assert_eq!(completion.finish_reason, FinishReason::Length);
    }
    assert_eq!(driver.engine.statistics()[0].slot_tokens, 32 * 40);
    assert_eq!(driver.engine.statistics()[0].decode_iterations, 40);
}

#[test]
fn replayed_lengths_are_met_exactly() {
    let given: Vec<u32> = (0..12).map(|launch| 1 + launch * 5).collect();
    let replay = Some(Lengths::new(vec![vec![9], vec![9], vec![9], given.clone()]).unwrap());
    let mut driver = Driver::new(TorchEngineConfig {
        replay,
        instances: 2,
        ..config(Sampling::unrestricted(50))
    });
    for prompt in 0..3 {
        driver.engine.generate(request(prompt, 0..4, &prompts()[prompt as usize]));
    }
    let decoder = decoder("qwen2_tied");
    for (id, completion) in driver.collect(12) {
        let given = given[(id.prompt.0 * 4) as usize + id.sample as usize];
        let (length, reason) =
            if given > 50 { (50, FinishReason::Length) } else { (given, FinishReason::Stop) };
        assert_eq!(
            (completion.response_ids.len(), completion.finish_reason),
            (length as usize, reason)
        );
        let end = completion.response_ids.iter().position(|token| *token == EOS);
        assert_eq!(end, (reason == FinishReason::Stop).then_some(length as usize - 1));
        let expected =
            packed_logprobs(&decoder, &prompts()[id.prompt.0 as usize], &completion.response_ids);
        assert!((completion.logprobs.last().unwrap() - expected.last().unwrap()).abs() < 1e-4);
    }
}

#[test]
fn an_abort_reports_the_tokens_so_far() {
    let endless = config(Sampling { min_new_tokens: 200, ..Sampling::unrestricted(200) });
    let endless = TorchEngineConfig { max_running: 2, ..endless };
    let (clock, closed) = GatedClock::for_readings(50);
    let mut driver = Driver::start_by(clock, "qwen2_tied", endless, WeightStore::new(1));
    driver.engine.generate(request(0, 0..3, &[1, 2, 3]));
    driver.engine.abort(id(0, 2));
    driver.engine.abort(id(9, 0));
    let RolloutEvent::Completed(waiting) = driver.next() else { panic!("a response") };
    assert_eq!((waiting.id, waiting.finish_reason), (id(0, 2), FinishReason::Abort));
    assert!(waiting.response_ids.is_empty());
    while driver.engine.statistics()[0].decode_iterations < 2 {
        std::thread::yield_now();
    }
    driver.engine.abort(id(0, 0));
    drop(closed);
    let RolloutEvent::Completed(aborted) = driver.next() else { panic!("a response") };
    assert_eq!((aborted.id, aborted.finish_reason), (id(0, 0), FinishReason::Abort));
    assert_eq!(aborted.logprobs.len(), aborted.response_ids.len());
    let RolloutEvent::Completed(last) = driver.next() else { panic!("a response") };
    assert_eq!((last.response_ids.len(), last.finish_reason), (200, FinishReason::Length));
    assert!(!aborted.response_ids.is_empty());
    driver.engine.abort(id(0, 0));
    driver.engine.generate(request(1, 0..1, &[1]));
    assert_eq!(driver.collect(1).len(), 1, "aborting an ended response reports nothing");
}

#[test]
fn a_loaded_policy_samples_what_is_requested_after_it() {
    let store = WeightStore::new(2);
    let mut driver = Driver::start("qwen2_tied", config(Sampling::unrestricted(8)), store.clone());
    driver.engine.generate(request(0, 0..2, &[1, 2, 3]));
    let before = driver.collect(2);
    let other = decoder("qwen2_tied");
    for (_, parameter) in other.parameters() {
        let _same = tch::no_grad(|| parameter.shallow_clone().g_mul_scalar_(1.5));
    }
    let policy = store.publish(PolicyVersion(1), other.snapshot().unwrap());
    assert_eq!(driver.engine.loaded_at(policy.version), None);
    driver.engine.load(&policy);
    driver.engine.generate(request(0, 2..4, &[1, 2, 3]));
    let after = driver.collect(2);
    let loaded = driver.engine.loaded_at(policy.version).expect("it samples with them");
    assert!(after.values().all(|completion| loaded <= completion.started));
    assert!(before.values().all(|completion| loaded >= completion.finished));
    assert_eq!(driver.engine.loaded_at(PolicyVersion(0)), None);
    for completion in before.values() {
        assert!(completion.token_versions.iter().all(|version| version == PolicyVersion(0)));
    }
    for completion in after.values() {
        assert!(completion.token_versions.iter().all(|version| version == PolicyVersion(1)));
        let expected = packed_logprobs(&other, &[1, 2, 3], &completion.response_ids);
        assert!(
            completion
                .logprobs
                .iter()
                .zip(expected)
                .all(|(found, expected)| (found - expected).abs() < 1e-4)
        );
    }
}

#[test]
fn a_running_response_continues_with_the_loaded_policy() {
    let store = WeightStore::new(2);
    let sampling = Sampling { min_new_tokens: 60, ..Sampling::unrestricted(60) };
    let (clock, closed) = GatedClock::for_readings(50);
    let mut driver = Driver::start_by(clock, "qwen2_tied", config(sampling), store.clone());
    driver.engine.generate(request(0, 0..1, &[1, 2, 3]));
    assert_eq!(driver.engine.poll(), None);
    while driver.engine.statistics()[0].decode_iterations < 2 {
        std::thread::yield_now();
    }
    let weights = decoder("qwen2_tied").snapshot().unwrap();
    let policy = store.publish(PolicyVersion(1), weights);
    driver.engine.load(&policy);
    drop(closed);
    let versions = &driver.collect(1)[&id(0, 0)].token_versions;
    assert_eq!(versions.len(), 60);
    let runs: Vec<PolicyVersion> = versions.runs().iter().map(|run| run.0).collect();
    assert_eq!(runs, [PolicyVersion(0), PolicyVersion(1)]);
}

#[test]
fn a_load_that_fails_ends_the_engine() {
    let mut driver = Driver::new(config(Sampling::unrestricted(8)));
    driver.engine.load(&Policy {
        version: PolicyVersion(4),
        location: "memory:v4".to_owned(),
        digest: 0,
    });
    let RolloutEvent::Failed(RolloutError::Load { version, location, .. }) = driver.next() else {
        panic!("a failure")
    };
    assert_eq!((version, location.as_str()), (PolicyVersion(4), "memory:v4"));
    driver.engine.generate(request(0, 0..1, &[1]));
    assert_eq!(driver.engine.poll(), None);
}

#[test]
fn prompts_that_do_not_fit_are_refused() {
    let mut driver = Driver::new(config(Sampling::unrestricted(200)));
    driver.engine.generate(request(0, 0..1, &[1; 57]));
    let too_long = RolloutError::PromptTooLong { prompt: PromptId(0), tokens: 57, limit: 56 };
    assert_eq!(driver.next(), RolloutEvent::Failed(too_long));
}

#[test]
fn a_token_outside_the_vocabulary_is_a_failure_not_a_hang() {
    let mut driver = Driver::new(config(Sampling::unrestricted(8)));
    driver.engine.generate(request(0, 0..1, &[1, 9999, 2]));
    let RolloutEvent::Failed(RolloutError::Engine { instance: 0, reason }) = driver.next() else {
        panic!("a failure")
    };
    assert!(reason.contains("index out of range"), "{reason}");
}

#[test]
fn weights_that_are_not_finite_are_the_users_and_named() {
    let store = WeightStore::new(2);
    let mut driver = Driver::start("qwen2_tied", config(Sampling::unrestricted(8)), store.clone());
    let weights = decoder("qwen2_tied").snapshot().unwrap();
    for (_, tensor) in weights.tensors() {
        let _ = tensor.shallow_clone().fill_(f64::NAN);
    }
    driver.engine.load(&store.publish(PolicyVersion(1), weights));
    driver.engine.generate(request(0, 0..1, &[1, 2]));
    let RolloutEvent::Failed(error) = driver.next() else { panic!("a failure") };
    let expected = "the log-probability of a token of p0.0@3 is not finite under policy v1: ";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_eq!(error.origin(), Origin::User);
}

#[test]
fn a_panic_of_an_instance_is_a_failure_not_a_hang() {
    let detokenize = Arc::new(|_: &[i32]| panic!("no words"));
    let clock = Arc::new(WallClock::start());
    let config = config(Sampling::unrestricted(8));
    let mut engine =
        TorchEngine::start(config, decoder("qwen2_tied"), WeightStore::new(1), detokenize, clock)
            .unwrap();
    let (wake, woken) = channel();
    engine.wake_by(Arc::new(move || {
        let _gone = wake.send(());
    }));
    engine.generate(request(0, 0..1, &[1]));
    let event = loop {
        if let Some(event) = engine.poll() {
            break event;
        }
        woken.recv_timeout(Duration::from_secs(120)).unwrap();
    };
    let reason = "panicked: no words".to_owned();
    assert_eq!(event, RolloutEvent::Failed(RolloutError::Engine { instance: 0, reason }));
}

#[test]
fn dropping_a_working_engine_ends_it() {
    let mut driver =
        Driver::new(TorchEngineConfig { instances: 2, ..config(Sampling::unrestricted(200)) });
    for prompt in 0..8 {
        driver.engine.generate(request(prompt, 0..32, &[1, 2, 3]));
    }
    let _first = driver.engine.poll();
    drop(driver);
}

#[test]
fn options_out_of_bounds_are_refused() {
    let refused = |config: TorchEngineConfig| {
        let detokenize = Arc::new(|_: &[i32]| String::new());
        let clock = Arc::new(WallClock::start());
        let store = WeightStore::new(1);
        match TorchEngine::start(config, decoder("qwen2_tied"), store, detokenize, clock) {
            Err(TorchEngineError::Option { option, .. }) => option,
            Err(other) => panic!("{other}"),
            Ok(_) => "none",
        }
    };
    let good = config(Sampling::unrestricted(8));
    assert_eq!(refused(good.clone()), "none");
    assert_eq!(refused(TorchEngineConfig { instances: 0, ..good.clone() }), "instances");
    assert_eq!(refused(TorchEngineConfig { max_running: 0, ..good.clone() }), "max_running");
    assert_eq!(
        refused(TorchEngineConfig { threads_per_instance: 0, ..good.clone() }),
        "threads_per_instance"
    );
    assert_eq!(refused(TorchEngineConfig { kv_cache_tokens: 8, ..good.clone() }), "max_new_tokens");
    let sampling = Sampling { temperature: -1.0, ..good.sampling };
    assert_eq!(refused(TorchEngineConfig { sampling, ..good }), "temperature");
}

#[derive(Clone, Debug)]
enum Action {
    Generate(u32),
    Abort(u64, u32),
    Poll,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        3 => (1..5u32).prop_map(Action::Generate),
        3 => (0..8u64, 0..5u32).prop_map(|(prompt, sample)| Action::Abort(prompt, sample)),
        1 => Just(Action::Poll),
    ];
    prop::collection::vec(action, 1..16)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn everything_requested_is_reported_once(script in actions(), instances in 1..3u32, tight in any::<bool>()) {
        let kv_cache_tokens = if tight { 90 } else { 10_000 };
        let base = config(Sampling::unrestricted(24));
        let mut driver = Driver::new(TorchEngineConfig { instances, kv_cache_tokens, max_running: 5, ..base });
        let (mut requested, mut reported) = (Vec::new(), Vec::new());
        let mut prompts = 0;
        for action in script {
            match action {
                Action::Generate(samples) => {
                    driver.engine.generate(request(prompts, 0..samples, &[7, prompts as i32]));
                    requested.extend((0..samples).map(|sample| id(prompts, sample)));
                    prompts += 1;
                }
                Action::Abort(prompt, sample) => driver.engine.abort(id(prompt, sample)),
                Action::Poll => reported.extend(driver.engine.poll()),
            }
        }
        let left = requested.len() - reported.len();
        let mut ids: Vec<SampleId> = driver.collect(left).into_keys().collect();
        ids.extend(reported.into_iter().map(|event| match event {
            RolloutEvent::Completed(completion) => completion.id,
            RolloutEvent::Failed(error) => panic!("{error}"),
        }));
        ids.sort_unstable();
        prop_assert_eq!(ids, requested);
    }
}
