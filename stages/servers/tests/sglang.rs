//! The engine against recorded shapes of SGLang's protocol, over real HTTP.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use rollpacker_dataflow::clock::WallClock;
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step};
use rollpacker_servers::canary::CanaryConfig;
use rollpacker_servers::engine::{ServersConfig, ServersEngine, StartError};
use rollpacker_servers::sampling::LogprobsMode;
use rollpacker_servers::server::{Limits, Protocol};
use rollpacker_servers::vllm::protocol::PauseMode;
use rollpacker_servers::weights::{PublishedWeights, WeightSource};
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::rollout::{
    Completion, FinishReason, Policy, Request, RolloutEngine, RolloutEvent, TokenVersions,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

/// The recorded calls, in order: a short name, such as `generate` or `pause`, and the body. Calls for the health and the models are not
/// recorded, nor are calls with an id that is in use.
type Calls = Arc<Mutex<Vec<(String, Value)>>>;

#[derive(Clone, Default)]
struct World {
    calls: Calls,
    /// Notified by an abort call; ends the response to the prompt 9.
    aborted: Arc<Notify>,
    /// The number of the next calls that score the canary to answer with status 504. These calls are recorded, as if a proxy had given up
    /// while the server still worked on them.
    lost: Arc<AtomicUsize>,
    /// The number of further responses without a token.
    empty: Arc<AtomicUsize>,
}

impl World {
    fn record_call(&self, path: &str, body: Value) {
        self.calls.lock().expect("not poisoned").push((path.to_owned(), body));
    }
}

async fn generate(
    State(world): State<World>,
    Json(body): Json<Value>,
) -> Result<Json<Value>, StatusCode> {
    let is_in_use = |(_, running): &(String, Value)| running["rid"] == body["rid"];
    if !body["rid"].is_null() && world.calls.lock().expect("not poisoned").iter().any(is_in_use) {
        return Err(StatusCode::BAD_REQUEST);
    }
    world.record_call("generate", body.clone());
    let ids: Vec<i64> =
        body["input_ids"].as_array().expect("a list").iter().filter_map(Value::as_i64).collect();
    let mut meta = json!({
        "id": body["rid"], "finish_reason": {"type": "stop", "matched": 1}, "prompt_tokens": ids.len(),
        "completion_tokens": 2, "weight_version": "17",
        "output_token_logprobs": [[-0.1, 5, null], [-0.25, 1, null]],
    });
    let take = |left: usize| left.checked_sub(1);
    if body["logprob_start_len"] == 0 {
        if world.lost.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            return Err(StatusCode::GATEWAY_TIMEOUT);
        }
        let scores = ids.iter().enumerate().map(|(at, id)| match at {
            0 => json!([null, id, null]),
            _ => json!([-1.5, id, null]),
        });
        meta["input_token_logprobs"] = scores.collect();
        return Ok(Json(json!({"text": "", "meta_info": meta})));
    }
    if world.empty.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
        meta["completion_tokens"] = json!(0);
        meta["output_token_logprobs"] = json!([]);
    }
    // The prompt 9 runs until it is aborted.
    if ids == [9] {
        world.aborted.notified().await;
        meta["finish_reason"] = json!({"type": "abort", "message": "Aborted"});
    }
    Ok(Json(json!({"text": "", "meta_info": meta})))
}

fn router(world: World) -> Router {
    let changed = |path: &'static str, answer: Value| {
        post(move |State(world): State<World>, Json(body): Json<Value>| async move {
            world.record_call(path, body);
            Json(answer)
        })
    };
    let paused = json!({"message": "done", "status": "ok"});
    let updated = json!({"success": true, "message": "Succeeded", "num_paused_requests": 0});
    let models =
        json!({"object": "list", "data": [{"id": "toy", "object": "model", "max_model_len": 64}]});
    Router::new()
        .route("/health", get(|| async {}))
        .route("/v1/models", get(|| async { Json(models) }))
        .route("/generate", post(generate))
        .route("/pause_generation", changed("pause", paused.clone()))
        .route("/continue_generation", changed("continue", paused))
        .route("/update_weights_from_disk", changed("update", updated))
        .route(
            "/abort_request",
            post(|State(world): State<World>, Json(body): Json<Value>| async move {
                world.record_call("abort", body);
                world.aborted.notify_one();
            }),
        )
        .with_state(world)
}

struct Trainer;
struct Toy;

impl WeightSource for Trainer {
    fn find(&self, _: &Policy) -> Result<Box<dyn PublishedWeights>, String> {
        Ok(Box::new(Toy))
    }
}

impl PublishedWeights for Toy {
    fn write(&self, folder: &std::path::Path) -> Result<(), String> {
        std::fs::write(folder.join("model.safetensors"), "w").map_err(|error| error.to_string())
    }

    fn score(&self, tokens: &[i32]) -> Result<Vec<f32>, String> {
        Ok(vec![-1.5; tokens.len() - 1])
    }
}

fn start(pause: PauseMode) -> (World, Runtime, TempDir, Result<ServersEngine, StartError>) {
    let (world, folder) = (World::default(), tempfile::tempdir().expect("a folder"));
    let runtime = Runtime::new().expect("a runtime");
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let router = router(world.clone());
    drop(runtime.spawn(async move { axum::serve(listener, router).await }));
    let config = ServersConfig {
        protocol: Protocol::Sglang,
        servers: vec![url],
        api_key_env: None,
        model: None,
        sampling: Sampling { temperature: 0.7, top_k: 0, ..Sampling::unrestricted(8) },
        logprobs_mode: LogprobsMode::Raw,
        eos_token_ids: [1].into(),
        max_prompt_length: 16,
        max_running: 8,
        pause,
        server_timeout: Duration::from_secs(5),
        limits: Limits::default(),
        canary: CanaryConfig::new(vec![3, 4, 5]),
        weights_folder: folder.path().join("weights"),
        model_folder: folder.path().to_owned(),
    };
    let detokenize = Arc::new(|ids: &[i32]| format!("{ids:?}"));
    let engine =
        ServersEngine::start(config, Box::new(Trainer), detokenize, Arc::new(WallClock::start()));
    (world, runtime, folder, engine)
}

fn next(engine: &mut ServersEngine) -> Completion {
    let (wake, woken) = std::sync::mpsc::channel();
    engine.wake_by(Arc::new(move || {
        let _gone = wake.send(());
    }));
    loop {
        match engine.poll() {
            Some(RolloutEvent::Completed(completion)) => return completion,
            Some(RolloutEvent::Failed(error)) => panic!("{error}"),
            None => woken.recv_timeout(Duration::from_secs(10)).expect("the engine reports"),
        }
    }
}

fn request(engine: &mut ServersEngine, prompt: &[i32]) {
    engine.load(&Policy {
        version: PolicyVersion(17),
        location: "memory:v17".to_owned(),
        digest: 1,
    });
    engine.generate(Request {
        step: Step(0),
        prompt: PromptId(0),
        samples: 0..1,
        prompt_ids: prompt.into(),
        resumed: Vec::new(),
    });
}

#[test]
fn weights_are_loaded_and_responses_read() {
    let (world, _runtime, _folder, engine) = start(PauseMode::Abort);
    let mut engine = engine.unwrap();
    request(&mut engine, &[7, 8]);
    let response = next(&mut engine);
    assert_eq!((response.response_ids, response.logprobs), (vec![5, 1], vec![-0.1, -0.25]));
    assert_eq!(response.token_versions, TokenVersions::of(PolicyVersion(17), 2));
    assert_eq!(response.finish_reason, FinishReason::Stop);
    let calls = world.calls.lock().expect("not poisoned").clone();
    let paths: Vec<_> = calls.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["pause", "update", "continue", "generate", "generate"]);
    assert_eq!(calls[0].1, json!({"mode": "abort"}));
    let (update, sampled) = (&calls[1].1, &calls[4].1);
    assert_eq!((&update["weight_version"], &update["flush_cache"]), (&json!("17"), &json!(true)));
    assert_eq!((&sampled["input_ids"], &sampled["return_logprob"]), (&json!([7, 8]), &json!(true)));
    let sampling = json!({
        "temperature": 0.7, "top_p": 1.0, "top_k": -1, "max_new_tokens": 8, "min_new_tokens": 0, "stop_token_ids": [1],
    });
    assert_eq!(sampled["sampling_params"], sampling);
}

#[test]
fn an_abort_names_the_request_and_keeps_its_tokens() {
    let (world, _runtime, _folder, engine) = start(PauseMode::Wait);
    let mut engine = engine.unwrap();
    request(&mut engine, &[9]);
    let sent = || {
        world
            .calls
            .lock()
            .expect("not poisoned")
            .iter()
            .filter(|(path, _)| path == "generate")
            .count()
    };
    let (_open, never) = std::sync::mpsc::channel::<()>();
    while sent() < 2 {
        let _timeout = never.recv_timeout(Duration::from_millis(5));
    }
    engine.abort(SampleId { step: Step(0), prompt: PromptId(0), sample: 0 });
    let response = next(&mut engine);
    assert_eq!((response.finish_reason, response.response_length), (FinishReason::Abort, 2));
    let calls = world.calls.lock().expect("not poisoned");
    let ids: Vec<_> = calls.iter().filter_map(|(_, body)| body.get("rid")).collect();
    assert!(matches!(ids[..], [generated, aborted] if generated == aborted), "{calls:?}");
}

#[test]
fn a_canary_is_repeated_while_the_server_works_on_it() {
    let (world, _runtime, _folder, engine) = start(PauseMode::Abort);
    world.lost.store(2, Ordering::Relaxed);
    let mut engine = engine.unwrap();
    request(&mut engine, &[7, 8]);
    assert_eq!(next(&mut engine).response_length, 2);
    let calls = world.calls.lock().expect("not poisoned");
    assert_eq!(calls.iter().filter(|(path, _)| path == "generate").count(), 4, "{calls:?}");
    assert_eq!(calls.iter().filter(|(path, _)| path == "update").count(), 1, "{calls:?}");
}

#[test]
fn a_response_without_a_token_is_requested_again() {
    let (world, _runtime, _folder, engine) = start(PauseMode::Abort);
    world.empty.store(1, Ordering::Relaxed);
    let mut engine = engine.unwrap();
    request(&mut engine, &[7, 8]);
    assert_eq!(next(&mut engine).response_length, 2);
}

#[test]
fn keeping_responses_over_a_load_is_refused() {
    let (_world, _runtime, _folder, engine) = start(PauseMode::Keep);
    let error = engine.err().expect("is refused").to_string();
    assert!(error.starts_with("`pause`: expected `abort` or `wait`"), "{error}");
}
