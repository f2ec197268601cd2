//! Instances that are released and placed again while responses are in flight.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::rollout::{
    Completion, FinishReason, Placement, RolloutEngine, RolloutError, RolloutEvent,
};
use rollpacker_torch::model::WeightStore;
use rollpacker_torch::rollout::TorchEngineConfig;

use super::driver::{Driver, GatedClock, config, id, prompts, request};

fn placed(instances: u32) -> Placement {
    Placement { instances, tensor_parallel: 1 }
}

fn instances(instances: u32, base: TorchEngineConfig) -> TorchEngineConfig {
    TorchEngineConfig { instances, ..base }
}

fn request_all(driver: &mut Driver, prompts: &[Vec<i32>]) {
    for (prompt, ids) in prompts.iter().enumerate() {
        driver.engine.generate(request(prompt as u64, 0..4, ids));
    }
}

fn tokens(completions: BTreeMap<SampleId, Completion>) -> BTreeMap<SampleId, Vec<i32>> {
    completions.into_iter().map(|(id, completion)| (id, completion.response_ids)).collect()
}

#[test]
fn responses_of_a_released_instance_continue_elsewhere() {
    let sampling = Sampling { min_new_tokens: 120, ..Sampling::unrestricted(120) };
    let base = TorchEngineConfig { max_running: 8, ..config(sampling) };
    let mut straight = Driver::new(base.clone());
    request_all(&mut straight, &prompts());
    let straight = tokens(straight.collect(24));

    let (clock, closed) = GatedClock::for_readings(60);
    let mut driver = Driver::start_by(clock, "qwen2_tied", instances(2, base), WeightStore::new(1));
    request_all(&mut driver, &prompts());
    assert_eq!(driver.engine.poll(), None);
    driver.pass(&closed, 3);
    driver.engine.place(placed(1));
    drop(closed);
    let moved = driver.collect(24);
    let at = |instance| moved.values().filter(move |response| response.instance == instance);
    assert_eq!((at(0).count(), at(1).count()), (24, 0), "nothing had ended before");
    let preemptions: u32 = moved.values().map(|completion| completion.preemptions).sum();
    assert_eq!(preemptions, 8, "the running ones of the instance");
    assert_eq!(tokens(moved), straight);
}

#[test]
fn instances_that_are_placed_again_take_new_work() {
    let mut driver = Driver::new(instances(2, config(Sampling::unrestricted(8))));
    let used = |driver: &mut Driver| {
        request_all(driver, &prompts());
        driver.collect(24).values().map(|completion| completion.instance).max()
    };
    driver.engine.place(placed(1));
    assert_eq!(used(&mut driver), Some(0));
    driver.engine.place(placed(2));
    assert_eq!(used(&mut driver), Some(1));
}

#[test]
fn nothing_is_generated_while_nothing_is_placed() {
    let base = config(Sampling::unrestricted(30));
    let mut straight = Driver::new(base.clone());
    request_all(&mut straight, &prompts());
    let straight = tokens(straight.collect(24));

    let mut driver = Driver::new(instances(2, base));
    driver.engine.place(placed(0));
    request_all(&mut driver, &prompts());
    driver.engine.abort(id(1, 1));
    let aborted = driver.collect(1).remove(&id(1, 1)).unwrap();
    assert_eq!((aborted.finish_reason, aborted.response_length), (FinishReason::Abort, 0));
    assert!(driver.engine.statistics().iter().all(|instance| instance.decode_iterations == 0));
    driver.engine.abort(id(1, 1));
    driver.engine.place(placed(2));
    let mut generated = tokens(driver.collect(23));
    generated.insert(id(1, 1), straight[&id(1, 1)].clone());
    assert_eq!(generated, straight);
}

/// A placement of one instance that computes with two devices.
const WIDE: Placement = Placement { instances: 1, tensor_parallel: 2 };

#[test]
fn a_wide_instance_has_the_kv_budgets_of_its_devices() {
    let sampling = Sampling { min_new_tokens: 60, ..Sampling::unrestricted(60) };
    let base = TorchEngineConfig { kv_cache_tokens: 320, ..instances(2, config(sampling)) };
    let generated = |placement| {
        let mut driver = Driver::new(base.clone());
        driver.engine.place(placement);
        for (prompt, ids) in (0..).zip(&prompts()[..2]) {
            driver.engine.generate(request(prompt, 0..4, ids));
        }
        let all = driver.collect(8);
        assert!(all.values().all(|completion| completion.instance == 0));
        let preemptions: u32 = all.values().map(|completion| completion.preemptions).sum();
        (preemptions, tokens(all))
    };
    let (narrow, wide) = (generated(placed(1)), generated(WIDE));
    assert!(narrow.0 > 0, "eight responses of more than 60 tokens exceed one budget");
    assert_eq!(wide.0, 0, "and fit into two");
    assert_eq!(wide.1, narrow.1);
}

#[test]
fn a_change_of_the_parallelism_moves_every_response() {
    let sampling = Sampling { min_new_tokens: 120, ..Sampling::unrestricted(120) };
    let base = TorchEngineConfig { max_running: 8, ..config(sampling) };
    let mut straight = Driver::new(base.clone());
    request_all(&mut straight, &prompts());
    let straight = tokens(straight.collect(24));
    for (from, to, running) in [(placed(2), WIDE, 16), (WIDE, placed(2), 8)] {
        let (clock, closed) = GatedClock::for_readings(60);
        let two = instances(2, base.clone());
        let mut driver = Driver::start_by(clock, "qwen2_tied", two, WeightStore::new(1));
        driver.engine.place(from);
        request_all(&mut driver, &prompts());
        assert_eq!(driver.engine.poll(), None);
        driver.pass_on(&closed, from.instances as usize, 3);
        driver.engine.place(to);
        drop(closed);
        let moved = driver.collect(24);
        let preemptions: u32 = moved.values().map(|completion| completion.preemptions).sum();
        assert_eq!(preemptions, running, "the running ones from {from:?} to {to:?}");
        let used = moved.values().map(|completion| completion.instance).max();
        assert_eq!(used, Some(to.instances - 1));
        assert_eq!(tokens(moved), straight);
    }
}

#[test]
fn iterations_are_counted_for_the_devices_of_an_instance() {
    let mut driver = Driver::new(instances(2, config(Sampling::unrestricted(8))));
    let live = driver.engine.live_iterations();
    let mut parallelism = |placement| {
        driver.engine.place(placement);
        request_all(&mut driver, &prompts());
        driver.collect(24);
        let rows = live.take();
        assert!(!rows.is_empty());
        rows.iter().map(|row| row.tensor_parallel).collect::<BTreeSet<_>>()
    };
    assert_eq!(parallelism(WIDE), BTreeSet::from([2]));
    assert_eq!(parallelism(placed(2)), BTreeSet::from([1]));
}

#[test]
fn placements_that_the_engine_cannot_run_on_are_refused() {
    let refused = |found: Placement| {
        let mut driver = Driver::new(instances(2, config(Sampling::unrestricted(8))));
        driver.engine.place(found);
        assert_eq!(
            driver.next(),
            RolloutEvent::Failed(RolloutError::Placement { found, instances: 2 })
        );
    };
    refused(Placement { instances: 2, tensor_parallel: 2 });
    refused(Placement { instances: 1, tensor_parallel: 3 });
    refused(Placement { instances: 1, tensor_parallel: 0 });
    refused(placed(3));
}

#[derive(Clone, Debug)]
enum Action {
    Place(Placement),
    Abort(u64, u32),
    Poll(usize),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        3 => (0..4u32).prop_map(|instances| Action::Place(placed(instances))),
        1 => (2..4u32).prop_map(|tensor_parallel| {
            Action::Place(Placement { instances: 1, tensor_parallel })
        }),
        1 => (0..6u64, 0..4u32).prop_map(|(prompt, sample)| Action::Abort(prompt, sample)),
        3 => (1..8usize).prop_map(Action::Poll),
    ];
    prop::collection::vec(action, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_response_is_reported_once_and_unchanged(script in actions(), tight in any::<bool>()) {
        let kv_cache_tokens = if tight { 130 } else { 10_000 };
        let base = TorchEngineConfig { kv_cache_tokens, max_running: 5, ..config(Sampling::unrestricted(24)) };
        let mut straight = Driver::new(base.clone());
        request_all(&mut straight, &prompts());
        let straight = tokens(straight.collect(24));

        let mut driver = Driver::new(instances(3, base));
        let mut reported = Vec::new();
        let mut on = 3;
        request_all(&mut driver, &prompts());
        for action in script {
            match action {
                Action::Place(placement) => {
                    driver.engine.place(placement);
                    on = placement.instances;
                }
                Action::Abort(prompt, sample) => driver.engine.abort(id(prompt, sample)),
                // Waits only for events that are certain to come.
                Action::Poll(events) if on > 0 => {
                    let left = 24 - reported.len();
                    (0..events.min(left)).for_each(|_| reported.push(driver.next()));
                }
                Action::Poll(_) => reported.extend(driver.engine.poll()),
            }
        }
        driver.engine.place(placed(3));
        let mut completions = driver.collect(24 - reported.len());
        for event in reported {
            let RolloutEvent::Completed(completion) = event else { panic!("{event:?}") };
            prop_assert!(completions.insert(completion.id, completion).is_none());
        }
        prop_assert_eq!(completions.len(), 24);
        for (id, completion) in completions {
            match completion.finish_reason {
                FinishReason::Abort => prop_assert!(straight[&id].starts_with(&completion.response_ids)),
                _ => prop_assert_eq!(&completion.response_ids, &straight[&id]),
            }
        }
    }
}
