//! Deterministic generation: tokens and log-probabilities are bit-identical in any order of requests and on any number of instances.

use std::collections::BTreeMap;

use rollpacker_dataflow::step::{PolicyVersion, SampleId, Step};
use rollpacker_stages::rollout::lengths::Lengths;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::rollout::{
    Completion, FinishReason, Placement, Request, RolloutEngine, RolloutError, RolloutEvent,
};
use rollpacker_stages::train::config::Precision;
use rollpacker_torch::model::{Decoder, WeightStore, Weights};
use rollpacker_torch::rollout::TorchEngineConfig;

use super::driver::{
    BUILT_IN, Driver, GatedClock, WIDE, config, decoder, deterministic, first, has_kernels, id,
    request, rounded, scaled,
};

/// Token ids, bits of the log-probabilities, and the finish reason.
pub(super) type Bits = (Vec<i32>, Vec<u32>, FinishReason);

pub(super) fn bits(completion: &Completion) -> Bits {
    let logprobs = completion.logprobs.iter().map(|logprob| logprob.to_bits()).collect();
    (completion.response_ids.clone(), logprobs, completion.finish_reason)
}

/// Returns prompts of 1 to 130 tokens, with ids that every model has.
pub(super) fn prompts() -> Vec<Vec<i32>> {
    let lengths = [1, 9, 17, 25, 40, 64, 65, 130];
    let prompt = |(p, length): (usize, i32)| (0..length).map(move |i| (i * 7 + p as i32 * 13) % 38);
    lengths.into_iter().enumerate().map(|at| prompt(at).collect()).collect()
}

/// Generates six samples of each prompt in `order`, requested in two parts, `0..cut` and `cut..6`. Returns the responses and the number of
/// preemptions.
fn generated(
    model: &str,
    config: TorchEngineConfig,
    order: impl Iterator<Item = usize>,
    cut: u32,
) -> (BTreeMap<SampleId, Bits>, u32) {
    let mut driver = Driver::start(model, config, WeightStore::new(1));
    let mut requested = 0;
    for prompt in order {
        for samples in [0..cut, cut..6] {
            driver.engine.generate(request(prompt as u64, samples, &prompts()[prompt]));
        }
        requested += 6;
    }
    let all = driver.collect(requested);
    let preemptions = all.values().map(|completion| completion.preemptions).sum();
    (all.iter().map(|(id, completion)| (*id, bits(completion))).collect(), preemptions)
}

#[test]
fn threads_of_an_instance_change_no_token() {
    let base = config(Sampling { min_new_tokens: 8, ..Sampling::unrestricted(40) });
    for (base, exact) in [(deterministic(base.clone()), true), (base, false)] {
        let of = |threads_per_instance| {
            let config = TorchEngineConfig { threads_per_instance, ..base.clone() };
            generated(WIDE, config, 0..8, 0).0
        };
        let (one, three) = (of(1), of(3));
        // The sums of libtorch depend on the number of threads.
        if exact && has_kernels() {
            assert_eq!(one, three);
        }
        for (id, (ids, logprobs, _)) in &one {
            assert_eq!(*ids, three[id].0, "{id}");
            for (one, three) in logprobs.iter().zip(&three[id].1) {
                let (one, three) = (f32::from_bits(*one), f32::from_bits(*three));
                assert!((one - three).abs() < 1e-4, "{id}: {one} {three}");
            }
        }
    }
}

#[test]
fn bfloat16_rounds_the_matrices_of_the_layers() {
    let sampling = Sampling { min_new_tokens: 8, ..Sampling::unrestricted(40) };
    let exact = deterministic(config(sampling));
    let half = TorchEngineConfig { dtype: Precision::Bfloat16, ..exact.clone() };
    let of = |config: &TorchEngineConfig, weights: fn(&Decoder) -> Weights| {
        let store = WeightStore::new(2);
        let mut driver = Driver::start(WIDE, config.clone(), store.clone());
        driver.engine.load(&store.publish(PolicyVersion(1), weights(&decoder(WIDE))));
        (0..8).for_each(|at| driver.engine.generate(request(at, 0..6, &prompts()[at as usize])));
        let all = driver.collect(48);
        all.iter().map(|(id, completion)| (*id, bits(completion))).collect::<BTreeMap<_, _>>()
    };
    let found = of(&half, |decoder| scaled(decoder, 1.0));
    assert_ne!(found, of(&exact, |decoder| scaled(decoder, 1.0)));
    if has_kernels() {
        assert_eq!(found, of(&exact, rounded));
    }
}

#[test]
fn results_do_not_depend_on_batch_order_instances_or_budget() {
    for model in ["qwen2_tied", "llama_untied", BUILT_IN] {
        let sampling = Sampling { top_p: 0.95, min_new_tokens: 8, ..Sampling::unrestricted(90) };
        let base = deterministic(config(sampling));
        let (together, preemptions) = generated(model, base.clone(), 0..8, 0);
        assert_eq!((together.len(), preemptions), (48, 0));
        assert!(together.values().any(|(ids, ..)| ids.len() > 70), "{model}: some are long");
        for (instances, max_running, kv_cache_tokens, cut) in
            [(2, 64, 10_000, 1), (3, 3, 10_000, 5), (1, 3, 10_000, 2), (1, 64, 300, 0)]
        {
            let config =
                TorchEngineConfig { instances, max_running, kv_cache_tokens, ..base.clone() };
            let (found, preemptions) = generated(model, config, (0..8).rev(), cut);
            assert_eq!(preemptions > 0, kv_cache_tokens == 300, "{model}");
            assert_eq!(found, together, "{model}: {instances} {max_running} {kv_cache_tokens}");
        }
        for prompt in [0, 7] {
            let (alone, _) = generated(model, base.clone(), prompt..prompt + 1, 0);
            assert!(
                alone.iter().all(|(id, bits)| together[id] == *bits),
                "{model}: {prompt} alone"
            );
        }
    }
}

#[test]
fn long_responses_do_not_differ_in_any_bit() {
    let sampling = Sampling { min_new_tokens: 600, ..Sampling::unrestricted(600) };
    let base = deterministic(config(sampling));
    let all = |config| generated(BUILT_IN, config, [0, 7].into_iter(), 0).0;
    let narrow = TorchEngineConfig { max_running: 5, instances: 2, ..base.clone() };
    assert_eq!(all(narrow), all(base));
}

#[test]
fn resumed_responses_equal_uninterrupted_ones_bit_for_bit() {
    let base = deterministic(config(Sampling { min_new_tokens: 2, ..Sampling::unrestricted(80) }));
    let mut driver = Driver::start(BUILT_IN, base.clone(), WeightStore::new(1));
    for (prompt, ids) in (0..).zip(prompts()) {
        driver.engine.generate(request(prompt, 0..4, &ids));
    }
    let whole = driver.collect(32);
    let mut driver = Driver::start(BUILT_IN, base, WeightStore::new(1));
    for (prompt, ids) in (0..).zip(prompts()) {
        let resumed = (0..4).map(|sample| {
            let completion = &whole[&id(prompt, sample)];
            first(completion, (completion.response_ids.len() - 1) * sample as usize / 3)
        });
        let resumed = resumed.collect();
        driver.engine.generate(Request { resumed, step: Step(5), ..request(prompt, 0..4, &ids) });
    }
    for (resumed, completion) in driver.collect(32) {
        assert_eq!(bits(&completion), bits(&whole[&id(resumed.prompt.0, resumed.sample)]));
    }
}

#[test]
fn handed_over_responses_end_in_the_same_bits() {
    let sampling = Sampling { min_new_tokens: 40, ..Sampling::unrestricted(40) };
    let base = TorchEngineConfig { max_running: 8, ..deterministic(config(sampling)) };
    let (straight, _) = generated("qwen2_tied", base.clone(), 0..4, 0);
    let (clock, closed) = GatedClock::for_readings(60);
    let two = TorchEngineConfig { instances: 2, ..base };
    let mut driver = Driver::start_by(clock, "qwen2_tied", two, WeightStore::new(1));
    for (prompt, ids) in (0..4).zip(prompts()) {
        driver.engine.generate(request(prompt, 0..6, &ids));
    }
    assert_eq!(driver.engine.poll(), None);
    driver.pass(&closed, 3);
    driver.engine.place(Placement { instances: 1, tensor_parallel: 1 });
    drop(closed);
    let moved = driver.collect(24);
    assert!(moved.values().any(|completion| completion.preemptions > 0));
    assert!(moved.iter().all(|(id, completion)| bits(completion) == straight[id]));
}

#[test]
fn the_number_of_devices_changes_no_bit() {
    let sampling = Sampling { min_new_tokens: 20, ..Sampling::unrestricted(20) };
    let base = TorchEngineConfig { instances: 4, ..deterministic(config(sampling)) };
    let generated = |placements: &[Placement]| {
        let mut driver = Driver::start(WIDE, base.clone(), WeightStore::new(1));
        let mut all = BTreeMap::new();
        for (prompt, placement) in (0..).zip(placements) {
            driver.engine.place(*placement);
            driver.engine.generate(request(prompt, 0..6, &[5, 6, 7, 8]));
            all.extend(driver.collect(6).iter().map(|(id, one)| (*id, bits(one))));
        }
        all
    };
    let of = |instances, tensor_parallel| Placement { instances, tensor_parallel };
    let narrow = generated(&[of(4, 1); 4]);
    assert_eq!(generated(&[of(2, 2), of(1, 4), of(4, 1), of(1, 3)]), narrow);
}

#[test]
fn a_response_keeps_the_policy_that_was_loaded_when_it_was_requested() {
    let sampling = Sampling { min_new_tokens: 40, ..Sampling::unrestricted(40) };
    let outcome = |instances| {
        let store = WeightStore::new(4);
        let config =
            TorchEngineConfig { instances, max_running: 3, ..deterministic(config(sampling)) };
        let mut driver = Driver::start("qwen2_tied", config, store.clone());
        for (version, prompt) in (1..).zip(prompts().iter().take(4)) {
            driver.engine.generate(request(version - 1, 0..6, prompt));
            let weights = scaled(&decoder("qwen2_tied"), 1.0 + version as f64 / 8.0);
            driver.engine.load(&store.publish(PolicyVersion(version), weights));
        }
        // Aborts do not wait for a policy: this one is queued behind two of them.
        driver.engine.abort(id(3, 5));
        let all = driver.collect(24);
        for (id, completion) in &all {
            let versions = &completion.token_versions;
            assert!(versions.iter().all(|version| version.0 == id.prompt.0), "{id}: {versions:?}");
        }
        let whole = all.iter().filter(|(at, _)| **at != id(3, 5));
        whole.map(|(id, completion)| (*id, bits(completion))).collect::<BTreeMap<_, _>>()
    };
    let expected = outcome(1);
    assert!(expected.values().all(|(ids, ..)| ids.len() == 40));
    assert_eq!(outcome(2), expected);
}

#[test]
fn a_request_whose_policy_would_change_is_refused() {
    let store = WeightStore::new(2);
    let base = deterministic(config(Sampling::unrestricted(40)));
    let mut driver = Driver::start("qwen2_tied", base, store.clone());
    driver.engine.place(Placement { instances: 0, tensor_parallel: 1 });
    driver.engine.generate(request(0, 0..1, &[1, 2]));
    let weights = decoder("qwen2_tied").snapshot().unwrap();
    driver.engine.load(&store.publish(PolicyVersion(1), weights));
    driver.engine.place(Placement { instances: 1, tensor_parallel: 1 });
    let RolloutEvent::Failed(RolloutError::Engine { instance: 0, reason }) = driver.next() else {
        panic!("a failure")
    };
    assert!(reason.starts_with("p0.0@3 was requested under policy v0"), "{reason}");
}

#[test]
fn replayed_lengths_are_assigned_by_id() {
    let replay = Some(Lengths::new(vec![(3..40).collect()]).unwrap());
    let base = TorchEngineConfig { replay, ..deterministic(config(Sampling::unrestricted(50))) };
    let (ascending, _) = generated("qwen2_tied", base.clone(), 0..8, 0);
    let (descending, _) = generated("qwen2_tied", base, (0..8).rev(), 3);
    assert_eq!(descending, ascending);
    let lengths: std::collections::BTreeSet<usize> =
        ascending.values().map(|(ids, ..)| ids.len()).collect();
    assert!(lengths.len() > 15, "{lengths:?}");
}
