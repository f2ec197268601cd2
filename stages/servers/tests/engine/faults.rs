//! Faults of servers. If the engine survives the fault, all responses end, and the tests check that every token was sampled by the weights
//! of its version.

use std::collections::BTreeMap;
use std::time::Duration;

use rollpacker_dataflow::step::SampleId;
use rollpacker_servers::vllm::protocol::PauseMode;
use rollpacker_stages::rollout::{Completion, RolloutEngine, RolloutError};
use serde_json::{Value, json};

use super::server::{Fault, Server};
use super::toy;
use super::world::{Caller, PACE, check_tokens, wait_for};

/// Runs 32 responses over two servers. The first call to generate on each server has the fault. Asserts that all responses are whole and
/// that their tokens have the right versions.
fn run_with_fault(fault: Fault) -> (BTreeMap<SampleId, Completion>, Caller, [Server; 2]) {
    let servers = [Server::start(PACE), Server::start(PACE)];
    let mut caller = Caller::start(&[&servers[0], &servers[1]], |config| {
        if matches!(fault, Fault::Hang(_)) {
            config.limits.stall = Duration::from_millis(400);
        }
    });
    servers.iter().for_each(|server| server.inject_faults([fault]));
    (0..8).for_each(|prompt| caller.request(0, prompt, 4));
    let responses = caller.collect(32);
    check_tokens(&responses);
    assert!(responses.values().all(|response| response.finish_reason.is_whole()));
    (responses, caller, servers)
}

#[test]
fn responses_move_after_an_error_of_their_server() {
    let statuses = [Fault::Status(500), Fault::Status(503)];
    let answers = [Fault::Garbage, Fault::Nan, Fault::Lowest, Fault::Fewer];
    for fault in statuses.into_iter().chain(answers) {
        let (responses, caller, _servers) = run_with_fault(fault);
        let reading = caller.measurements.take();
        assert_eq!((reading.server_errors, reading.moved_responses), (2, 2), "{fault:?}");
        let again = responses.values().map(|response| response.preemptions).sum::<u32>();
        assert_eq!(again, 2, "{fault:?}");
    }
}

/// Returns an answer with an event for each choice, and without usage.
fn events(choices: &[Value]) -> Fault {
    let event = |choice: &Value| format!("data: {}\n\n", json!({ "choices": [choice] }));
    let events: String = choices.iter().map(event).collect();
    Fault::Answer("text/event-stream", format!("{events}data: [DONE]\n\n").leak().as_bytes())
}

/// Returns a choice with `tokens` tokens and the finish reason.
fn choice(tokens: usize, reason: &str) -> Value {
    let entry = json!({"token_id": 5, "logprob": -1});
    json!({
        "index": 0, "token_ids": vec![5; tokens], "logprobs": {"content": vec![entry; tokens]}, "finish_reason": reason,
    })
}

#[test]
fn responses_move_after_an_answer_that_no_correct_server_sends() {
    let whole = choice(24, "length");
    let mut gap = whole.clone();
    gap["weight_versions"] =
        json!([{"version": "0", "start": 0, "end": 12}, {"version": "0", "start": 8, "end": 20}]);
    for answer in [
        events(&[whole.clone(), whole]),
        events(&[choice(25, "length")]),
        events(&[choice(0, "stop")]),
        events(&[choice(0, "length")]),
        events(&[choice(0, "abort")]),
        events(&[choice(3, "tired")]),
        events(&[gap]),
        events(&[]),
        Fault::Answer("text/event-stream", b"data: \xff\n\n"),
        Fault::Answer("application/json", b"{\"error\": {\"message\": \"out of order\"}}"),
    ] {
        let (_, caller, _servers) = run_with_fault(answer);
        let reading = caller.measurements.take();
        assert_eq!((reading.server_errors, reading.moved_responses), (2, 2), "{answer:?}");
    }
}

#[test]
fn a_server_that_aborts_every_call_ends_the_run() {
    let servers: Vec<_> = (0..5).map(|_| Server::start(PACE)).collect();
    let mut caller = Caller::start(&servers.iter().collect::<Vec<_>>(), |config| {
        config.server_timeout = Duration::from_secs(15);
    });
    servers.iter().for_each(|server| server.inject_faults([events(&[choice(0, "abort")]); 20]));
    caller.request(0, 0, 1);
    let error = caller.failure().to_string();
    assert!(error.contains("10 calls in a row failed") && error.contains("aborted"), "{error}");
}

#[test]
fn a_load_that_takes_longer_than_the_stall_limit_is_no_stall() {
    let server = Server::start(PACE);
    let mut caller = Caller::start(&[&server], |config| {
        config.pause = PauseMode::Keep;
        config.limits.stall = Duration::from_secs(1);
    });
    caller.wait_loaded(0);
    server.inject_faults([Fault::Late]);
    server.state().load_time = Duration::from_millis(2500);
    caller.request(0, 0, 1);
    wait_for(|| server.call_count("generate") == 1);
    caller.engine.load(&toy::policy(1));
    check_tokens(&caller.collect(1));
    assert_eq!(caller.measurements.take().server_errors, 0);
    assert_eq!(server.call_count("generate"), 1);
}

#[test]
fn a_busy_server_is_retried() {
    let (_, caller, _servers) = run_with_fault(Fault::Status(429));
    let reading = caller.measurements.take();
    assert_eq!((reading.server_errors, reading.servers_lost), (2, 0));
}

#[test]
fn streamed_tokens_survive_a_broken_connection() {
    let servers = [Server::start(PACE)];
    let mut caller = Caller::start(&[&servers[0]], |config| config.sampling.min_new_tokens = 24);
    servers[0].inject_faults([Fault::Reset(10)]);
    caller.request(0, 0, 1);
    check_tokens(&caller.collect(1));
    let prompts = servers[0].state().prompts.clone();
    assert_eq!(prompts.iter().map(Vec::len).collect::<Vec<_>>(), [3, 13], "{prompts:?}");
}

#[test]
fn an_unresponsive_server_loses_its_responses() {
    let (responses, ..) = run_with_fault(Fault::Hang(3));
    assert_eq!(responses.len(), 32);
}

#[test]
fn tokens_of_a_wrong_version_are_discarded_and_the_weights_delivered_again() {
    let (_, caller, servers) = run_with_fault(Fault::WrongLabel);
    assert!(caller.measurements.take().discarded_tokens > 0);
    assert_eq!(servers[0].state().loaded.len(), 2);
}

#[test]
fn a_request_that_every_server_refuses_ends_the_run() {
    let server = Server::start(PACE);
    server.inject_faults([Fault::Status(400)]);
    let mut caller = Caller::start(&[&server], |_| {});
    caller.request(0, 0, 1);
    let error = caller.failure();
    assert!(matches!(error, RolloutError::Engine { instance: 0, .. }));
    assert!(error.to_string().contains("400 Bad Request: out of order"), "{error}");
}

#[test]
fn a_response_that_always_fails_ends_the_run() {
    let server = Server::start(PACE);
    let mut caller = Caller::start(&[&server], |_| {});
    // A server with three failures in a row is not called for seconds. The ten failures are therefore spread over four servers.
    let others: Vec<_> = (0..4).map(|_| Server::start(PACE)).collect();
    let all: Vec<_> = others.iter().collect();
    let mut over = Caller::start(&all, |config| config.server_timeout = Duration::from_secs(15));
    others.iter().for_each(|server| server.inject_faults([Fault::Status(500); 20]));
    over.request(0, 0, 1);
    let error = over.failure().to_string();
    assert!(error.contains("10 calls in a row failed"), "{error}");
    caller.request(0, 0, 1);
    caller.collect(1);
}

#[test]
fn responses_of_a_killed_server_move_and_it_rejoins() {
    let mut servers = [Server::start(Duration::from_millis(10)), Server::start(PACE)];
    let mut caller = Caller::start(&[&servers[0], &servers[1]], |config| {
        config.sampling.min_new_tokens = 16;
    });
    caller.wait_loaded(0);
    (0..4).for_each(|prompt| caller.request(0, prompt, 4));
    let work = caller.engine.work().unwrap();
    wait_for(|| work() >= 40);
    servers[0].kill();
    let responses = caller.collect(16);
    check_tokens(&responses);
    assert!(responses.values().any(|response| response.preemptions > 0));
    let lost = caller.measurements.take();
    assert_eq!(lost.servers_lost, 1, "{lost:?}");
    // It comes back with its first weights, gets the right ones and takes responses.
    servers[0].restart();
    wait_for(|| servers[0].state().loaded.len() >= 2);
    wait_for(|| caller.measurements.take().servers_ready == 2);
    (0..4).for_each(|prompt| caller.request(1, prompt, 4));
    let responses = caller.collect(16);
    check_tokens(&responses);
    assert!(responses.values().any(|response| response.instance == 0));
}

#[test]
fn a_server_with_another_model_does_not_rejoin() {
    let mut servers = [Server::start(PACE), Server::start(PACE)];
    let mut caller = Caller::start(&[&servers[0], &servers[1]], |_| {});
    caller.wait_loaded(0);
    servers[0].state().model = "other".to_owned();
    servers[0].restart();
    caller.engine.load(&toy::policy(1));
    (0..4).for_each(|prompt| caller.request(1, prompt, 4));
    let responses = caller.collect(16);
    check_tokens(&responses);
    assert!(responses.values().all(|response| response.instance == 1));
    assert_eq!(servers[0].state().loaded, [1000], "it gets no weights");
}

#[test]
fn a_run_without_servers_waits_and_fails() {
    let mut server = Server::start(PACE);
    let mut caller =
        Caller::start(&[&server], |config| config.server_timeout = Duration::from_secs(1));
    caller.wait_loaded(0);
    server.kill();
    caller.request(0, 0, 1);
    let error = caller.failure();
    assert!(matches!(error, RolloutError::Unavailable { seconds: 1, .. }), "{error}");
    assert!(error.to_string().starts_with("no inference server was in rotation for 1 s"));
}

#[test]
fn a_server_that_returns_in_time_continues_the_round() {
    let mut server = Server::start(Duration::from_millis(5));
    let mut caller = Caller::start(&[&server], |config| {
        config.server_timeout = Duration::from_secs(15);
        config.sampling.min_new_tokens = 24;
    });
    caller.request(0, 0, 4);
    let work = caller.engine.work().unwrap();
    wait_for(|| work() >= 20);
    server.kill();
    wait_for(|| caller.measurements.take().servers_lost == 1);
    server.restart();
    let responses = caller.collect(4);
    check_tokens(&responses);
    assert!(responses.values().all(|response| response.response_length == 24));
}
