//! Delivery of weights, and servers that do not use the weights whose label they report.

use std::time::Duration;

use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_servers::vllm::protocol::PauseMode;
use rollpacker_stages::rollout::{FinishReason, RolloutEngine};

use super::server::Server;
use super::toy::{self, weights_of};
use super::world::{Caller, PACE, check_tokens, wait_for};

/// Loads a version while long responses run.
fn load_in_the_middle(pause: PauseMode) -> (Server, Caller) {
    let server = Server::start(Duration::from_millis(10));
    let mut caller = Caller::start(&[&server], |config| {
        config.pause = pause;
        config.sampling.min_new_tokens = 24;
    });
    caller.request(0, 0, 3);
    let work = caller.engine.work().unwrap();
    wait_for(|| work() >= 9);
    caller.engine.load(&toy::policy(1));
    (server, caller)
}

#[test]
fn a_load_during_responses_shows_in_their_versions() {
    for pause in [PauseMode::Abort, PauseMode::Keep] {
        let (server, mut caller) = load_in_the_middle(pause);
        let responses = caller.collect(3);
        check_tokens(&responses);
        for response in responses.values() {
            assert_eq!(
                (response.response_length, response.finish_reason),
                (24, FinishReason::Length)
            );
            assert_eq!(response.token_versions.first(), Some(PolicyVersion(0)));
            assert_eq!(response.token_versions.iter().last(), Some(PolicyVersion(1)));
            assert_eq!(response.preemptions, u32::from(pause == PauseMode::Abort));
        }
        let calls = if pause == PauseMode::Abort { 6 } else { 3 };
        assert_eq!(server.state().prompts.len(), calls);
    }
}

#[test]
fn waiting_for_responses_lets_them_end_with_their_weights() {
    let (server, mut caller) = load_in_the_middle(PauseMode::Wait);
    caller.request(1, 1, 1);
    let responses = caller.collect(4);
    check_tokens(&responses);
    for (id, response) in &responses {
        let expected = PolicyVersion(id.step.0);
        assert!(response.token_versions.iter().all(|version| version == expected), "{id}");
    }
    assert_eq!(server.state().prompts.len(), 4, "no response was interrupted");
}

#[test]
fn deliveries_are_measured_and_old_folders_are_removed() {
    let server = Server::start(PACE);
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("weights");
    let mut caller = Caller::start(&[&server], |config| config.weights_folder = weights.clone());
    for version in 0..4 {
        caller.engine.load(&toy::policy(version));
        caller.wait_loaded(version);
    }
    let expected: Vec<_> = (0..4).map(weights_of).collect();
    assert_eq!(server.state().loaded, expected);
    let (at_start, delivery) = ("score", ["pause abort", "load", "label", "resume", "score"]);
    assert_eq!(server.state().calls[0], at_start);
    assert_eq!(server.state().calls[1..6], delivery);
    let kept = || std::fs::read_dir(&weights).unwrap().count();
    wait_for(|| kept() == 1);
    let reading = caller.measurements.take();
    assert_eq!((reading.canary_kl, reading.canary_max), (Some(0.0), Some(0.0)));
    assert!(reading.phases.write.0 > 0 && reading.phases.load.0 > 0);
    let names: Vec<_> = reading.metrics().into_iter().map(|(name, _)| name).collect();
    assert!(names.contains(&"rollout/canary_kl") && names.contains(&"timing_s/weight_sync/load"));
    drop(caller);
    wait_for(|| kept() == 0);
}

#[test]
fn a_server_that_keeps_old_weights_is_detected_in_its_step() {
    let servers = [Server::start(PACE), Server::start(PACE)];
    let mut caller = Caller::start(&[&servers[0], &servers[1]], |_| {});
    caller.request(0, 0, 4);
    check_tokens(&caller.collect(4));
    servers[0].state().keeps_old_weights = true;
    caller.engine.load(&toy::policy(1));
    (0..4).for_each(|prompt| caller.request(1, prompt, 4));
    let responses = caller.collect(16);
    check_tokens(&responses);
    assert!(responses.values().all(|response| response.instance == 1), "the liar takes none");
    assert_eq!(servers[0].state().loaded, [1000, 1001, 1001], "it was asked twice");
    let reading = caller.measurements.take();
    assert!(reading.canary_max.unwrap() > 0.5, "{reading:?}");
    assert_eq!((reading.canary_reloads, reading.servers_lost), (1, 1));
    // The server returns to the rotation when it uses the next weights.
    servers[0].state().keeps_old_weights = false;
    caller.engine.load(&toy::policy(2));
    caller.wait_loaded(2);
    (0..4).for_each(|prompt| caller.request(2, prompt, 4));
    let responses = caller.collect(16);
    check_tokens(&responses);
    assert!(responses.values().any(|response| response.instance == 0));
}

#[test]
fn a_load_that_had_no_effect_once_is_repeated() {
    let server = Server::start(PACE);
    let mut caller = Caller::start(&[&server], |_| {});
    caller.wait_loaded(0);
    server.state().failing_loads = 1;
    caller.engine.load(&toy::policy(1));
    caller.request(1, 0, 4);
    check_tokens(&caller.collect(4));
    assert_eq!(caller.measurements.take().canary_reloads, 1);
}

#[test]
fn tokens_of_a_kept_response_are_discarded_if_the_weights_did_not_arrive() {
    let server = Server::start(Duration::from_millis(5));
    let mut caller = Caller::start(&[&server], |config| {
        config.pause = PauseMode::Keep;
        config.sampling.min_new_tokens = 24;
    });
    caller.request(0, 0, 3);
    let work = caller.engine.work().unwrap();
    wait_for(|| work() >= 9);
    server.state().failing_loads = 1;
    caller.engine.load(&toy::policy(1));
    let responses = caller.collect(3);
    check_tokens(&responses);
    assert!(responses.values().all(|response| response.response_length == 24));
    assert_eq!(server.state().prompts.len(), 6, "all continue after the second load");
}

#[test]
fn a_run_with_wrong_weights_on_all_servers_fails_with_their_figures() {
    let server = Server::start(PACE);
    server.state().keeps_old_weights = true;
    let mut caller = Caller::start(&[&server], |_| {});
    caller.request(0, 0, 1);
    let error = caller.failure().to_string();
    for part in ["cannot load policy v0", &server.url(), "canary_kl", "after loading them twice"] {
        assert!(error.contains(part), "{error}");
    }
}
