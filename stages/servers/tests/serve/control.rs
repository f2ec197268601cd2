//! Control of a server: pauses, aborts, weights, keys, health.

use rollpacker_stages::serving::Pause;
use serde_json::{Value, json};

use super::client::{receive, send};
use super::{COMPLETIONS, GENERATE, Server};

fn request(id: &str) -> String {
    json!({"request_id": id, "token_ids": [3, 4, 5, 6], "sampling_params": {"max_tokens": 8}})
        .to_string()
}

#[test]
fn an_aborted_call_returns_its_tokens() {
    let server = Server::start(true, None);
    let calls = ["one", "two"].map(|id| send(server.address, "POST", GENERATE, "", &request(id)));
    server.engine.wait_for(2);
    server.engine.step();
    server.engine.step();
    let ids = json!({"request_ids": ["generate-tokens-two"]});
    let aborted = server.post("/abort_requests", &ids).json();
    assert_eq!(aborted, json!({"status": "aborted", "aborted": 1}));
    let [one, two] = calls;
    let choice = receive(two).json()["choices"][0].take();
    assert_eq!((&choice["token_ids"], &choice["finish_reason"]), (&json!([3, 4]), &json!("abort")));
    assert_eq!(choice["weight_versions"][0]["end"], 2);
    let unknown = json!({"request_ids": ["generate-tokens-two", "other"]});
    assert_eq!(server.post("/abort_requests", &unknown).json()["aborted"], 0);
    let aborted = server.post("/abort_requests", &json!({})).json();
    assert_eq!(aborted["aborted"], 1, "all that are left");
    assert_eq!(receive(one).json()["choices"][0]["finish_reason"], "abort");
}

#[test]
fn the_header_replaces_the_id_in_the_body() {
    let server = Server::new();
    let headers = "X-Request-Id: h1\r\n";
    let answer = receive(send(server.address, "POST", GENERATE, headers, &request("b1"))).json();
    assert_eq!(answer["request_id"], "generate-tokens-h1");
}

#[test]
fn a_disconnected_client_frees_its_slot() {
    let server = Server::start(true, None);
    let streamed = json!({"prompt": "abcdef", "stream": true}).to_string();
    for (path, body) in [(GENERATE, request("gone")), (COMPLETIONS, streamed)] {
        let call = send(server.address, "POST", path, "", &body);
        server.engine.wait_for(1);
        server.engine.step();
        drop(call);
        server.engine.wait_for(0);
    }
    assert_eq!(server.engine.aborted(), 2);
}

#[test]
fn pauses_and_weights_reach_the_engine() {
    let server = Server::new();
    assert_eq!(server.get("/is_paused").json(), json!({"is_paused": false}));
    for (query, mode) in [
        ("", Pause::Abort),
        ("?mode=wait", Pause::Wait),
        ("?mode=keep&clear_cache=false", Pause::Keep),
    ] {
        let answer = server.post(&format!("/pause{query}"), &Value::Null);
        assert_eq!(answer.json(), json!({"status": "paused"}));
        assert_eq!(server.engine.paused(), Some(mode));
    }
    assert_eq!(server.get("/is_paused").json(), json!({"is_paused": true}));
    assert_eq!(server.post("/pause?mode=later", &Value::Null).error().2, "mode");
    let rpc = json!({"method": "reload_weights", "kwargs": {"weights_path": "/w/v17"}});
    assert_eq!(server.post("/collective_rpc", &rpc).json(), json!({"results": [null]}));
    assert_eq!(server.engine.loaded(), [Some("/w/v17".into())]);
    let rpc = json!({"method": "reload_weights", "kwargs": {"weights_path": "/w/missing"}});
    let (status, message, _) = server.post("/collective_rpc", &rpc).error();
    assert!(status == 500 && message.contains("/w/missing: no such file"), "{message}");
    let (status, message, _) = server.post("/collective_rpc", &json!({"method": "sleep"})).error();
    assert!(status == 501 && message.contains("`sleep`"), "{message}");
    let label = server.post("/update_weight_version", &json!({"new_version": "17"})).json();
    assert_eq!(label, json!({"success": true, "new_version": "17"}));
    assert_eq!(server.get("/weight_info").json(), json!({"weight_version": "17"}));
    assert_eq!(server.post("/resume", &Value::Null).json(), json!({"status": "resumed"}));
    assert_eq!(server.engine.paused(), None);
    let reset = server.post("/reset_prefix_cache?reset_external=false", &Value::Null).json();
    assert_eq!(reset, json!({"success": true}));
}

#[test]
fn a_pause_that_a_resume_replaces_is_reported_as_a_conflict() {
    let server = Server::new();
    server.engine.resume_during_pauses();
    let (status, message, _) = server.post("/pause?mode=wait", &Value::Null).error();
    assert_eq!((status, &*message), (409, "the engine was resumed before the pause began"));
}

#[test]
fn control_calls_refuse_what_they_cannot_honour() {
    let server = Server::new();
    for (path, body, name) in [
        ("/pause?clear_cache=maybe", Value::Null, "clear_cache"),
        ("/reset_prefix_cache?reset_running_requests=true", Value::Null, "reset_running_requests"),
        ("/collective_rpc", json!({"method": "reload_weights", "timeout": 5}), "timeout"),
        ("/update_weight_version", json!({"new_version": "1", "abort_all": true}), "abort_all"),
        ("/abort_requests", json!({"rid": "p7"}), "rid"),
    ] {
        let (status, message, _) = server.post(path, &body).error();
        assert!(status == 400 && message.contains(name), "{path}: {message}");
    }
    assert_eq!((server.engine.paused(), server.engine.loaded().len()), (None, 0));
}

#[test]
fn only_health_needs_no_key() {
    let server = Server::start(false, Some("sk-12345678"));
    assert_eq!(server.get("/health").status, 200);
    let (status, message, _) = server.post("/pause", &Value::Null).error();
    assert!(status == 401 && !message.contains("sk-1"), "{message}");
    let call = |headers: &str| receive(send(server.address, "GET", "/v1/models", headers, ""));
    assert_eq!(call("Authorization: Bearer sk-1234567\r\n").status, 401);
    let models = call("Authorization: Bearer sk-12345678\r\n").json();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["max_model_len"]),
        (&json!("m"), &json!(32))
    );
}

#[test]
fn pages_of_other_machines_cannot_call_a_server_without_a_key() {
    let server = Server::new();
    let call = |origin: &str| {
        let header = format!("Origin: {origin}\r\nContent-Type: text/plain\r\n");
        let body = json!({"method": "reload_weights"}).to_string();
        receive(send(server.address, "POST", "/collective_rpc", &header, &body)).status
    };
    for origin in ["https://example.org", "http://example.org:8000", "null", "http://10.0.0.1"] {
        assert_eq!(call(origin), 403, "{origin}");
    }
    assert!(server.engine.loaded().is_empty());
    for origin in ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:80"] {
        assert_eq!(call(origin), 200, "{origin}");
    }
}

#[test]
fn a_failed_engine_is_reported_by_every_call() {
    let server = Server::start(true, None);
    let call = send(server.address, "POST", GENERATE, "", &request("lost"));
    let stream = json!({"prompt": "abcdef", "stream": true}).to_string();
    let stream = send(server.address, "POST", COMPLETIONS, "", &stream);
    server.engine.wait_for(2);
    server.engine.fail("out of memory");
    assert!(receive(call).error().1.contains("out of memory"));
    assert_eq!(receive(stream).events()[0]["error"]["message"], "out of memory");
    assert_eq!(receive(send(server.address, "POST", GENERATE, "", &request("late"))).status, 500);
    assert_eq!(server.get("/health").status, 503);
}

#[test]
fn other_calls_have_the_shapes_of_vllm() {
    let server = Server::new();
    assert!(server.get("/version").json()["version"].is_string());
    assert_eq!(server.get("/v1/models/other").json()["root"], "/models/m");
    assert_eq!(server.get("/v1/models/a/b").error().0, 404);
    assert_eq!(server.get("/v1/embeddings").error().0, 404);
    assert_eq!(server.get(GENERATE).error().0, 405);
    server.post(GENERATE, &serde_json::from_str(&request("1")).unwrap());
    let metrics = server.get("/metrics").body;
    let line = "vllm:request_success_total{model_name=\"m\",finished_reason=\"stop\"} 1";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}
