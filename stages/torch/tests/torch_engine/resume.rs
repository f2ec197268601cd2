//! Responses that are aborted and resumed.

use std::collections::BTreeMap;

use rollpacker_dataflow::step::{PolicyVersion, SampleId, Step};
use rollpacker_stages::rollout::lengths::Lengths;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::rollout::{
    Completion, FinishReason, Partial, Request, RolloutEngine, RolloutError, RolloutEvent,
    TokenVersions,
};
use rollpacker_torch::model::WeightStore;
use rollpacker_torch::rollout::TorchEngineConfig;

use super::driver::{Driver, EOS, GatedClock, config, decoder, first, id, prompts, request};

/// Returns the token ids, the finish reason and the token versions of a response, which resuming must preserve exactly.
fn outcome(completion: &Completion) -> (Vec<i32>, FinishReason, TokenVersions) {
    let Completion { response_ids, finish_reason, token_versions, .. } = completion;
    (response_ids.clone(), *finish_reason, token_versions.clone())
}

fn assert_same(found: &Completion, expected: &Completion) {
    assert_eq!(outcome(found), outcome(expected), "{}", expected.id);
    assert_eq!(found.response_length as usize, expected.response_ids.len());
    assert_eq!(found.text, expected.text);
    assert_eq!(found.logprobs.len(), expected.logprobs.len());
    for (found, expected) in found.logprobs.iter().zip(&expected.logprobs) {
        assert!((found - expected).abs() < 1e-4);
    }
}

fn whole(base: &TorchEngineConfig) -> BTreeMap<SampleId, Completion> {
    let mut driver = Driver::new(base.clone());
    for (prompt, ids) in prompts().iter().enumerate() {
        driver.engine.generate(request(prompt as u64, 0..4, ids));
    }
    driver.collect(24)
}

#[test]
fn a_resumed_response_equals_an_uninterrupted_one() {
    let base = config(Sampling { top_p: 0.95, min_new_tokens: 2, ..Sampling::unrestricted(40) });
    let whole = whole(&base);
    assert!(whole.values().any(|completion| completion.finish_reason == FinishReason::Stop));
    let mut driver = Driver::new(base);
    for (prompt, ids) in (0..).zip(prompts()) {
        // The first sample starts without tokens; the others are resumed with up to all tokens but the last.
        let resumed = (1..4).map(|sample| {
            let completion = &whole[&id(prompt, sample)];
            first(completion, (completion.response_ids.len() - 1) * sample as usize / 3)
        });
        let resumed = resumed.collect();
        let step = Step(5);
        driver.engine.generate(Request { step, resumed, ..request(prompt, 0..4, &ids) });
    }
    for (SampleId { prompt, sample, step }, completion) in driver.collect(24) {
        assert_eq!(step, Step(5), "reported to the step that requests the response");
        let before = &whole[&id(prompt.0, sample)];
        match sample {
            0 => assert_ne!(completion.response_ids, before.response_ids, "of another step"),
            _ => assert_same(&completion, before),
        }
    }
}

#[test]
fn repeated_stops_change_no_token() {
    let sampling = Sampling { min_new_tokens: 40, ..Sampling::unrestricted(40) };
    let mut driver = Driver::new(config(sampling));
    driver.engine.generate(request(0, 0..1, &prompts()[2]));
    let whole = driver.collect(1).remove(&id(0, 0)).unwrap();
    let mut kept = Partial { launched: Step(3), ..Partial::default() };
    let mut stops = 0;
    let last = loop {
        // An iteration reads the clock twice.
        let (clock, closed) = GatedClock::for_readings(10);
        let mut driver =
            Driver::start_by(clock, "qwen2_tied", config(sampling), WeightStore::new(1));
        let resumed = vec![kept.clone()];
        driver.engine.generate(Request { resumed, ..request(0, 0..1, &prompts()[2]) });
        assert_eq!(driver.engine.poll(), None);
        while driver.engine.statistics()[0].decode_iterations == 0 {
            std::thread::yield_now();
        }
        driver.engine.abort(id(0, 0));
        drop(closed);
        let completion = driver.collect(1).remove(&id(0, 0)).unwrap();
        if completion.finish_reason.is_whole() {
            break completion;
        }
        assert!(completion.response_length > kept.response_length);
        kept = first(&completion, completion.response_ids.len());
        stops += 1;
    };
    assert!(stops > 2, "{stops}");
    assert_same(&last, &whole);
}

#[test]
fn tokens_have_the_version_of_their_policy() {
    let store = WeightStore::new(2);
    let sampling = Sampling { min_new_tokens: 12, ..Sampling::unrestricted(12) };
    let mut driver = Driver::start("qwen2_tied", config(sampling), store.clone());
    driver.engine.generate(request(0, 0..1, &[1, 2, 3]));
    let before = driver.collect(1).remove(&id(0, 0)).unwrap();
    let policy = store.publish(PolicyVersion(1), decoder("qwen2_tied").snapshot().unwrap());
    driver.engine.load(&policy);
    let resumed = vec![first(&before, 5)];
    driver.engine.generate(Request { resumed, ..request(0, 0..1, &[1, 2, 3]) });
    let after = driver.collect(1).remove(&id(0, 0)).unwrap();
    assert_eq!(after.token_versions.runs(), [(PolicyVersion(0), 5), (PolicyVersion(1), 7)]);
    assert_eq!(
        after.logprobs[..5],
        before.logprobs[..5],
        "the log-probabilities of the kept tokens are unchanged"
    );
    assert_eq!(after.response_ids, before.response_ids, "the weights are equal");
}

#[test]
fn resumed_tokens_are_reported_without_new_ones() {
    let base = config(Sampling { min_new_tokens: 9, ..Sampling::unrestricted(9) });
    let mut driver = Driver::new(base.clone());
    driver.engine.generate(request(0, 0..1, &[1, 2, 3]));
    let whole = driver.collect(1).remove(&id(0, 0)).unwrap();
    let (clock, closed) = GatedClock::for_readings(0);
    let mut driver = Driver::start_by(clock, "qwen2_tied", base, WeightStore::new(1));
    let resumed = vec![first(&whole, 4)];
    driver.engine.generate(Request { resumed, ..request(0, 0..1, &[1, 2, 3]) });
    driver.engine.abort(id(0, 0));
    drop(closed);
    let stopped = driver.collect(1).remove(&id(0, 0)).unwrap();
    assert_eq!(stopped.finish_reason, FinishReason::Abort);
    assert!(stopped.response_ids.len() >= 4);
    assert!(whole.response_ids.starts_with(&stopped.response_ids));
}

#[test]
fn a_replayed_length_includes_resumed_tokens() {
    let replay = Some(Lengths::new(vec![vec![9, 3]]).unwrap());
    let base = TorchEngineConfig { replay, ..config(Sampling::unrestricted(20)) };
    // The clock blocks the engine, so that no response is whole before it is aborted.
    let (clock, closed) = GatedClock::for_readings(0);
    let mut driver = Driver::start_by(clock, "qwen2_tied", base, WeightStore::new(1));
    driver.engine.generate(request(0, 0..1, &[1, 2, 3]));
    // Two responses that are aborted and continue in step 5.
    for prompt in [1, 2] {
        driver.engine.generate(request(prompt, 0..1, &[1, 2, 3]));
        driver.engine.abort(id(prompt, 0));
    }
    drop(closed);
    let long = driver.collect(3).remove(&id(0, 0)).unwrap();
    assert_eq!(long.response_ids.len(), 9);
    for prompt in [2, 1] {
        let (step, resumed) = (Step(5), vec![first(&long, 5)]);
        driver.engine.generate(Request { step, resumed, ..request(prompt, 0..1, &[1, 2, 3]) });
    }
    let lengths: Vec<usize> =
        driver.collect(2).values().map(|completion| completion.response_ids.len()).collect();
    // The second and third launches of step 3 were given lengths 3 and 9. The first of these is resumed with 5 tokens, more than its
    // length.
    assert_eq!(lengths, [6, 9]);
}

#[test]
fn partials_that_cannot_be_resumed_are_refused() {
    let mut driver = Driver::new(config(Sampling::unrestricted(8)));
    let resumed =
        vec![Partial { response_length: 2, response_ids: vec![EOS], ..Partial::default() }];
    driver.engine.generate(Request { resumed, ..request(0, 0..1, &[1, 2, 3]) });
    let RolloutEvent::Failed(RolloutError::Resume { id: found, field, .. }) = driver.next() else {
        panic!("a failure")
    };
    assert_eq!((found, field), (id(0, 0), "response_ids"));
}
