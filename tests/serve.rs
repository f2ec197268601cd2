//! Tests of `rollpacker serve` with a model created for the test.
#![cfg(all(feature = "servers", feature = "torch"))]
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test fails by panicking, and prints that it is skipped"
)]

#[path = "../stages/servers/tests/serve/client.rs"]
#[allow(dead_code, reason = "the tests of the server use other parts")]
mod client;
mod workspace;

use std::path::Path;
use std::process::Command;

use client::{Answer, receive, send};
use rollpacker::stages::model::ModelConfig;
use rollpacker::stages::torch::model::Decoder;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};
use workspace::server::Server;
use workspace::{RECIPE, TestWorkspace, wait_until};

const GENERATE: &str = "/inference/v1/generate";

impl Server {
    fn post(&self, path: &str, body: &Value) -> Answer {
        receive(send(self.address, "POST", path, "", &body.to_string()))
    }

    fn ok(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    }

    /// Returns the numbers of running and of waiting responses.
    fn requests(&self) -> (u64, u64) {
        let text = receive(send(self.address, "GET", "/metrics", "", "")).body;
        let value = |state: &str| {
            let name = format!("vllm:num_requests_{state}{{");
            let value = |line: &str| line.strip_prefix(&name)?.split(' ').nth(1)?.parse().ok();
            text.lines().find_map(value).unwrap()
        };
        (value("running"), value("waiting"))
    }

    fn wait_for(&self, running: u64, waiting: u64) {
        let state = format!("{running} responses run and {waiting} wait");
        wait_until(&state, || self.requests() == (running, waiting));
    }
}

/// Returns the log-probability of each token from the second on, by a plain forward pass.
fn forward(folder: &Path, ids: &[i32]) -> Vec<f64> {
    let decoder = Decoder::load(folder, Device::Cpu).unwrap();
    let ids: Vec<i64> = ids.iter().copied().map(i64::from).collect();
    let hidden = decoder.forward_packed(&Tensor::from_slice(&ids), &[ids.len() as i64]).unwrap();
    let logprobs = decoder.logits(&hidden).unwrap().log_softmax(-1, Kind::Float);
    (1..ids.len()).map(|at| logprobs.double_value(&[at as i64 - 1, ids[at]])).collect()
}

fn assert_close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-4, "{found} {expected}");
    }
}

fn ids(value: &Value) -> Vec<i32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Returns the log-probabilities of the tokens of a prompt from the second on.
fn prompt_logprobs(server: &Server, prompt: &[i32]) -> Vec<f64> {
    let body =
        json!({"token_ids": prompt, "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0}});
    let scored = server.ok(GENERATE, &body);
    let of = |at: usize| scored["prompt_logprobs"][at][prompt[at].to_string()]["logprob"].as_f64();
    (1..prompt.len()).map(|at| of(at).unwrap()).collect()
}

/// Writes a model of the same sizes with other weights.
fn other_weights(workspace: &TestWorkspace, folder: &str) {
    let config = ModelConfig::from_folder(&workspace.path("model")).unwrap();
    let other = Decoder::init(config, 2, Device::Cpu).unwrap();
    other.save(&workspace.path(folder)).unwrap();
}

#[test]
fn logprobs_are_those_of_a_plain_forward_pass() {
    let workspace = TestWorkspace::new(RECIPE);
    let server = Server::start(&workspace, &["--instances", "2"]);
    let prompt = [5, 9, 3, 8];
    for temperature in [0.0, 0.6, 1.0] {
        let body = json!({
            "token_ids": prompt,
            "sampling_params": {"n": 3, "max_tokens": 20, "temperature": temperature, "logprobs": 2, "min_tokens": 5},
        });
        for choice in server.ok(GENERATE, &body)["choices"].as_array().unwrap() {
            let tokens = ids(&choice["token_ids"]);
            assert!(tokens.len() >= 5);
            let expected = forward(&workspace.path("model"), &[&prompt[..], &tokens].concat());
            let content = choice["logprobs"]["content"].as_array().unwrap();
            let found: Vec<f64> =
                content.iter().map(|token| token["logprob"].as_f64().unwrap()).collect();
            assert_close(&found, &expected[prompt.len() - 1..]);
            for token in content.iter().filter(|_| temperature == 0.0) {
                // An end-of-sequence token before `min_tokens` may have been more likely.
                assert!(token["rank"].as_u64().unwrap() <= 2, "{token}");
            }
        }
    }
    let scored = prompt_logprobs(&server, &prompt);
    assert_close(&scored, &forward(&workspace.path("model"), &prompt));
}

#[test]
fn seeds_repeat_and_stop_tokens_wait_for_the_shortest_length() {
    let workspace = TestWorkspace::new(RECIPE);
    let server = Server::start(&workspace, &[]);
    let body = |params: Value| json!({"token_ids": [5, 9], "sampling_params": params});
    let seeded = body(json!({"seed": 3, "n": 2, "max_tokens": 12, "ignore_eos": true}));
    let tokens = |answer: &Value| [0, 1].map(|at| ids(&answer["choices"][at]["token_ids"]));
    let first = tokens(&server.ok(GENERATE, &seeded));
    assert_eq!(tokens(&server.ok(GENERATE, &seeded)), first);
    assert_ne!(first[0], first[1]);
    let free = body(json!({"n": 2, "max_tokens": 12, "ignore_eos": true}));
    assert_ne!(tokens(&server.ok(GENERATE, &free)), tokens(&server.ok(GENERATE, &free)));
    let vocabulary = ModelConfig::from_folder(&workspace.path("model")).unwrap().vocab_size;
    let all: Vec<i64> = (0..vocabulary).collect();
    let stopped = body(json!({"stop_token_ids": all, "min_tokens": 0, "ignore_eos": true}));
    let choice = server.ok(GENERATE, &stopped)["choices"][0].take();
    assert_eq!((ids(&choice["token_ids"]).len(), &choice["finish_reason"]), (1, &json!("stop")));
    // The tokens from 4 on end the response, so none of them may be among its first three tokens.
    let all: Vec<i64> = (4..vocabulary).collect();
    let params =
        json!({"stop_token_ids": all, "min_tokens": 3, "ignore_eos": true, "max_tokens": 900});
    let choice = server.ok(GENERATE, &body(params))["choices"][0].take();
    let sampled = ids(&choice["token_ids"]);
    assert!(sampled.len() > 3 && sampled[..3].iter().all(|id| *id < 4), "{sampled:?}");
    assert_eq!(choice["stop_reason"], *sampled.last().unwrap());
}

#[test]
fn weights_change_in_the_middle_of_a_response_that_a_pause_keeps() {
    let workspace = TestWorkspace::new(RECIPE);
    other_weights(&workspace, "v2");
    // The folder of a delivery need not have a configuration.
    std::fs::remove_file(workspace.path("v2").join("generation_config.json")).unwrap();
    let config = std::fs::read(workspace.path("v2/config.json")).unwrap();
    std::fs::remove_file(workspace.path("v2/config.json")).unwrap();
    let server = Server::start(&workspace, &[]);
    let prompt = [5, 9, 3, 8];
    let before = prompt_logprobs(&server, &prompt);
    let body = json!({
        "request_id": "kept", "token_ids": prompt, "sampling_params": {"max_tokens": 1000, "ignore_eos": true},
    });
    let call = send(server.address, "POST", GENERATE, "", &body.to_string());
    server.wait_for(1, 0);
    assert_eq!(server.ok("/pause?mode=keep", &Value::Null), json!({"status": "paused"}));
    let folder = workspace.path("v2").display().to_string();
    let load = json!({"method": "reload_weights", "kwargs": {"weights_path": folder}});
    assert_eq!(server.ok("/collective_rpc", &load), json!({"results": [null]}));
    server.ok("/update_weight_version", &json!({"new_version": "2"}));
    server.ok("/resume", &Value::Null);
    let choice = receive(call).json()["choices"][0].take();
    assert_eq!(
        (ids(&choice["token_ids"]).len(), &choice["finish_reason"]),
        (1000, &json!("length"))
    );
    let spans = choice["weight_versions"].as_array().unwrap();
    let [old, new] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((&old["version"], &new["version"]), (&json!("default"), &json!("2")));
    assert_eq!((&old["start"], &old["end"], &new["end"]), (&json!(0), &new["start"], &json!(1000)));
    let after = prompt_logprobs(&server, &prompt);
    std::fs::write(workspace.path("v2/config.json"), config).unwrap();
    assert_close(&after, &forward(&workspace.path("v2"), &prompt));
    assert!(before.iter().zip(&after).any(|(before, after)| (before - after).abs() > 1e-3));
    let missing = json!({"method": "reload_weights", "kwargs": {"weights_path": "nowhere"}});
    let (status, message, _) = server.post("/collective_rpc", &missing).error();
    assert!(status == 500 && message.contains("nowhere"), "{message}");
    assert_close(&prompt_logprobs(&server, &prompt), &after);
    let original = json!({"method": "reload_weights"});
    server.ok("/collective_rpc", &original);
    assert_close(&prompt_logprobs(&server, &prompt), &before);
}

#[test]
fn pauses_abort_hold_and_wait() {
    let workspace = TestWorkspace::new(RECIPE);
    let server = Server::start(&workspace, &["--max-num-seqs", "2"]);
    let long =
        json!({"token_ids": [5], "sampling_params": {"max_tokens": 1000, "ignore_eos": true}});
    let start = || send(server.address, "POST", GENERATE, "", &long.to_string());
    let calls: Vec<_> = (0..3).map(|_| start()).collect();
    server.wait_for(2, 1);
    server.ok("/pause?mode=abort", &Value::Null);
    let reasons = calls.into_iter().map(|call| receive(call).json()["choices"][0].take());
    assert!(reasons.into_iter().all(|choice| choice["finish_reason"] == "abort"));
    let held = start();
    let short = json!({"token_ids": [5], "sampling_params": {"max_tokens": 1}}).to_string();
    let other = send(server.address, "POST", GENERATE, "", &short);
    server.wait_for(0, 2);
    server.ok("/resume", &Value::Null);
    assert_eq!(receive(other).json()["usage"]["completion_tokens"], 1);
    server.ok("/pause?mode=wait", &Value::Null);
    // The pause began after the call had ended, so its answer has arrived.
    assert_eq!(receive(held).json()["choices"][0]["finish_reason"], "length");
    let waiting = send(server.address, "POST", GENERATE, "", &short);
    server.ok("/abort_requests", &json!({}));
    drop(waiting);
    server.ok("/resume", &Value::Null);
}

#[test]
fn a_signal_ends_the_server_after_its_calls() {
    let workspace = TestWorkspace::new(RECIPE);
    let long =
        json!({"token_ids": [5], "sampling_params": {"max_tokens": 1000, "ignore_eos": true}});
    for (timeout, reason) in [("600", "length"), ("0", "abort")] {
        let server = Server::start(&workspace, &["--shutdown-timeout", timeout]);
        let call = send(server.address, "POST", GENERATE, "", &long.to_string());
        server.wait_for(1, 0);
        server.signal();
        assert_eq!(receive(call).json()["choices"][0]["finish_reason"], reason);
        let end = server.end().success();
        assert!(end.err.contains("the server ends after its running calls"), "{end:?}");
    }
}

#[test]
fn a_model_that_cannot_be_served_is_bad_input() {
    let workspace = TestWorkspace::new(RECIPE);
    let refused =
        |args: &[&str]| workspace.run_refused(&[&["serve", "--port", "0"], args].concat());
    assert!(refused(&["--model", "nowhere"]).contains("nowhere"));
    for (flag, value) in [
        ("--instances", "0"),
        ("--threads", "0"),
        ("--max-num-seqs", "0"),
        ("--kv-cache-tokens", "0"),
        ("--max-model-len", "1025"),
        ("--shutdown-timeout", "86401"),
        ("--port", "65536"),
        ("--seed", "-1"),
        ("--device", "tpu"),
        ("--served-model-name", ""),
    ] {
        let error = refused(&["--model", "model", &format!("{flag}={value}")]);
        assert!(error.contains(flag.trim_start_matches('-')), "{error}");
    }
    let error = refused(&["--model", "model", "--api-key-env", "NO_SUCH_VARIABLE"]);
    assert!(error.contains("--api-key-env"), "{error}");
}

/// Runs the client of OpenAI. `OPENAI_PYTHON` names a Python that has the package; by default `python3` is tried, and the test is skipped
/// without the package.
#[test]
fn the_openai_client_is_served() {
    let python = std::env::var("OPENAI_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_package = Command::new(&python).args(["-c", "import openai"]).output();
    if !has_package.is_ok_and(|tried| tried.status.success()) {
        println!("skipped: `{python}` has no package `openai`");
        return;
    }
    let workspace = TestWorkspace::new(RECIPE);
    let server = Server::start(&workspace, &["--served-model-name", "tiny"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai_client.py");
    let url = server.url();
    let end = Command::new(&python).args([script, &url, "tiny"]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&end.stdout), "passed\n", "{}", text(&end.stderr));
}
