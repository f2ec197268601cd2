//! A server that speaks vLLM's protocol, samples from the toy model and has the faults that a test gives it.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::stream;
use rollpacker_servers::vllm::protocol::*;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use super::toy;

/// The behaviour of one call to generate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// The answer has this status.
    Status(u16),
    /// The answer has the status 200, this content type and this body.
    Answer(&'static str, &'static [u8]),
    /// The answer begins after the next load of weights.
    Late,
    /// The connection breaks after this many tokens.
    Reset(usize),
    /// The server falls silent after this many tokens.
    Hang(usize),
    /// An event is not JSON.
    Garbage,
    /// A log-probability is NaN, for which JSON has `null`.
    Nan,
    /// A log-probability is vLLM's replacement for a missing one.
    Lowest,
    /// The usage counts a token more than were sent.
    Fewer,
    /// The tokens have the label of weights that were never delivered.
    WrongLabel,
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

pub(crate) struct Shared {
    state: Mutex<Inner>,
    changed: Notify,
    /// The time between two tokens.
    pace: Duration,
}

pub(crate) struct Inner {
    pub(crate) model: String,
    /// The weights that the server samples from.
    pub(crate) weights: u64,
    pub(crate) label: String,
    pub(crate) paused: bool,
    /// `true` if the server does not answer calls that read the health.
    pub(crate) hangs: bool,
    /// The time that a load takes.
    pub(crate) load_time: Duration,
    /// `true` if a load has no effect.
    pub(crate) keeps_old_weights: bool,
    /// The number of loads that still have no effect.
    pub(crate) failing_loads: u32,
    /// The faults of the next calls to generate.
    pub(crate) faults: VecDeque<Fault>,
    /// The names of the recorded calls, in order; the name of a pause contains its mode, such as `pause abort`. Calls that read the health,
    /// the label or the state of a pause are not recorded, nor are calls to generate with an invalid body. Calls that read the models are
    /// recorded only if `bad_key` is set.
    pub(crate) calls: Vec<String>,
    /// Prompts of the calls to generate, without those of the canary.
    pub(crate) prompts: Vec<Vec<i32>>,
    pub(crate) salts: Vec<String>,
    /// The running requests by id; `true` for those that were aborted.
    running: BTreeMap<String, bool>,
    pub(crate) most_running: usize,
    draw: u64,
    /// The weights of each call to `reload_weights`, in order.
    pub(crate) loaded: Vec<u64>,
    pub(crate) bad_key: bool,
    /// `true` if the answers to calls that score a prompt have no token ids.
    pub(crate) tokenless: bool,
    /// The used share of the KV cache and the number of waiting requests, as the metrics report them.
    pub(crate) cache_use: (f64, u32),
}

impl Server {
    pub(crate) fn start(pace: Duration) -> Self {
        let inner = Inner {
            model: "toy".to_owned(),
            weights: 0,
            label: "default".to_owned(),
            paused: false,
            hangs: false,
            load_time: Duration::ZERO,
            keeps_old_weights: false,
            failing_loads: 0,
            faults: VecDeque::new(),
            calls: Vec::new(),
            prompts: Vec::new(),
            salts: Vec::new(),
            running: BTreeMap::new(),
            most_running: 0,
            draw: 0,
            loaded: Vec::new(),
            bad_key: false,
            tokenless: false,
            cache_use: (0.0, 0),
        };
        let shared = Shared { state: Mutex::new(inner), changed: Notify::new(), pace };
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Self { address, shared: Arc::new(shared), runtime: None };
        server.restart();
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends the server and all of its connections, like `kill -9`.
    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }

    /// Starts the server again at its address, with the weights that it was started with first.
    pub(crate) fn restart(&mut self) {
        self.kill();
        {
            let mut state = self.state();
            (state.weights, state.label, state.paused) = (0, "default".to_owned(), false);
            state.running.clear();
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind(self.address)).unwrap();
        self.address = listener.local_addr().unwrap();
        let router = router(Arc::clone(&self.shared));
        drop(runtime.spawn(async move { axum::serve(listener, router).await }));
        self.runtime = Some(runtime);
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, Inner> {
        self.shared.state.lock().unwrap()
    }

    /// Returns the number of recorded calls whose name contains `path`.
    pub(crate) fn call_count(&self, path: &str) -> usize {
        self.state().calls.iter().filter(|call| call.contains(path)).count()
    }

    pub(crate) fn inject_faults(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state().faults.extend(faults);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

type SharedState = State<Arc<Shared>>;

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route(path::HEALTH, get(health))
        .route(path::MODELS, get(models))
        .route(path::IS_PAUSED, get(is_paused))
        .route(path::WEIGHT_INFO, get(weight_info))
        .route(path::PAUSE, post(pause))
        .route(path::RESUME, post(resume))
        .route(path::ABORT_REQUESTS, post(abort))
        .route(path::COLLECTIVE_RPC, post(reload))
        .route(path::UPDATE_WEIGHT_VERSION, post(label))
        .route(path::GENERATE, post(generate))
        .route(path::METRICS, get(metrics))
        .with_state(shared)
}

impl Shared {
    fn record_call(&self, call: impl Into<String>) -> MutexGuard<'_, Inner> {
        let mut state = self.state.lock().unwrap();
        state.calls.push(call.into());
        state
    }
}

async fn health(State(shared): SharedState) {
    let hangs = shared.state.lock().unwrap().hangs;
    if hangs {
        std::future::pending::<()>().await;
    }
}

async fn models(State(shared): SharedState, headers: HeaderMap) -> Response {
    let mut state = shared.record_call("models");
    if state.bad_key {
        let found = headers.get("authorization").map(|key| key.to_str().unwrap().to_owned());
        let error = json!({"error": {"message": format!("wrong key: {found:?}")}});
        return (StatusCode::UNAUTHORIZED, Json(error)).into_response();
    }
    state.calls.pop();
    let card =
        ModelCard { id: state.model.clone(), max_model_len: Some(64), ..ModelCard::default() };
    Json(ModelList { object: "list".to_owned(), data: vec![card] }).into_response()
}

async fn is_paused(State(shared): SharedState) -> Json<IsPausedResponse> {
    Json(IsPausedResponse { is_paused: shared.state.lock().unwrap().paused })
}

async fn weight_info(State(shared): SharedState) -> Json<WeightInfoResponse> {
    Json(WeightInfoResponse { weight_version: shared.state.lock().unwrap().label.clone() })
}

async fn metrics(State(shared): SharedState) -> String {
    let state = shared.record_call("metrics");
    let (share, waiting) = state.cache_use;
    format!(
        "{}{{engine=\"0\"}} {share}\n{}{{engine=\"0\"}} {waiting}\n",
        metric::KV_CACHE_USAGE,
        metric::REQUESTS_WAITING
    )
}

#[derive(Deserialize)]
struct PauseQuery {
    mode: PauseMode,
}

async fn pause(
    State(shared): SharedState,
    Query(query): Query<PauseQuery>,
) -> Json<StatusResponse> {
    {
        let mut state = shared.record_call(format!("pause {}", query.mode));
        state.paused = true;
        match query.mode {
            PauseMode::Abort => state.running.values_mut().for_each(|aborted| *aborted = true),
            PauseMode::Wait => assert!(state.running.is_empty(), "the client waits itself"),
            PauseMode::Keep => {}
        }
    }
    // Aborted requests end before the call returns.
    if query.mode == PauseMode::Abort {
        while !shared.state.lock().unwrap().running.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    Json(StatusResponse { status: "paused".to_owned() })
}

async fn resume(State(shared): SharedState) -> Json<StatusResponse> {
    shared.record_call("resume").paused = false;
    shared.changed.notify_waiters();
    Json(StatusResponse { status: "resumed".to_owned() })
}

async fn abort(
    State(shared): SharedState,
    Json(request): Json<AbortRequest>,
) -> Json<AbortResponse> {
    let mut state = shared.record_call("abort");
    let ids = request.request_ids.unwrap();
    for id in &ids {
        let id = id.strip_prefix(GENERATE_ID_PREFIX).expect("ids have the prefix");
        if let Some(aborted) = state.running.get_mut(id) {
            *aborted = true;
        }
    }
    Json(AbortResponse { status: "aborted".to_owned(), aborted: ids.len() as u64 })
}

async fn reload(
    State(shared): SharedState,
    Json(request): Json<CollectiveRpcRequest>,
) -> Json<CollectiveRpcResponse> {
    assert_eq!(request.method, "reload_weights");
    let folder = request.kwargs["weights_path"].as_str().unwrap().to_owned();
    let text = std::fs::read_to_string(Path::new(&folder).join("model.safetensors")).unwrap();
    assert!(Path::new(&folder).join("config.json").exists());
    let load_time = shared.state.lock().unwrap().load_time;
    tokio::time::sleep(load_time).await;
    let mut state = shared.record_call("load");
    assert!(state.paused, "weights are loaded in a pause");
    let weights = text.parse().unwrap();
    state.loaded.push(weights);
    if state.keeps_old_weights || state.failing_loads > 0 {
        state.failing_loads = state.failing_loads.saturating_sub(1);
    } else {
        state.weights = weights;
    }
    Json(CollectiveRpcResponse { results: vec![Value::Null] })
}

async fn label(
    State(shared): SharedState,
    Json(request): Json<UpdateWeightVersionRequest>,
) -> Json<UpdateWeightVersionResponse> {
    let mut state = shared.record_call("label");
    state.label = request.new_version.clone();
    Json(UpdateWeightVersionResponse { success: true, new_version: request.new_version })
}

async fn generate(State(shared): SharedState, Json(body): Json<Value>) -> Response {
    let Ok(request) = serde_json::from_value::<GenerateRequest>(body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    if request.sampling_params.prompt_logprobs.is_some() {
        return scores(&shared, &request).into_response();
    }
    let id = request.request_id.clone().unwrap();
    let (fault, draw) = {
        let mut state = shared.record_call("generate");
        state.prompts.push(request.token_ids.clone());
        state.salts.push(request.cache_salt.clone().unwrap());
        state.draw += 1;
        (state.faults.pop_front(), state.draw)
    };
    if let Some(Fault::Status(status)) = fault {
        let error = json!({"error": {"message": "out of order"}});
        return (StatusCode::from_u16(status).unwrap(), Json(error)).into_response();
    }
    if let Some(Fault::Answer(kind, body)) = fault {
        return ([("content-type", kind)], body).into_response();
    }
    if fault == Some(Fault::Late) {
        let loads = shared.state.lock().unwrap().loaded.len();
        while shared.state.lock().unwrap().loaded.len() == loads {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    {
        let mut state = shared.state.lock().unwrap();
        state.running.insert(id.clone(), false);
        state.most_running = state.most_running.max(state.running.len());
    }
    let stream = stream::unfold(
        Some(Run { shared, id, request, fault, draw, sent: Vec::new(), spans: Vec::new() }),
        |run| async { run?.step().await },
    );
    ([("content-type", "text/event-stream")], Body::from_stream(stream)).into_response()
}

fn scores(shared: &Shared, request: &GenerateRequest) -> Json<GenerateResponse> {
    let state = shared.record_call("score");
    let scored = toy::score(state.weights, &request.token_ids);
    let entries = request.token_ids[1..].iter().zip(scored).map(|(token, logprob)| {
        let entry = PromptLogprob { logprob, ..PromptLogprob::default() };
        Some([(token.to_string(), entry)].into())
    });
    let prompt_logprobs = Some(std::iter::once(None).chain(entries).collect());
    let token_id = toy::next(state.weights, &request.token_ids, 0);
    let logprob = toy::logprob(state.weights, &request.token_ids, token_id);
    let entry = Logprob { token_id, logprob, rank: Some(1), top_logprobs: Vec::new() };
    let choice = GenerateChoice {
        token_ids: (!state.tokenless).then(|| vec![token_id]),
        logprobs: request.sampling_params.logprobs.map(|_| Logprobs { content: Some(vec![entry]) }),
        finish_reason: Some("length".to_owned()),
        ..GenerateChoice::default()
    };
    let choices = vec![choice];
    Json(GenerateResponse { choices, prompt_logprobs, ..GenerateResponse::default() })
}

struct Run {
    shared: Arc<Shared>,
    id: String,
    request: GenerateRequest,
    fault: Option<Fault>,
    draw: u64,
    sent: Vec<i32>,
    spans: Vec<WeightVersionSpan>,
}

type Event = Result<String, io::Error>;

impl Drop for Run {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap().running.remove(&self.id);
    }
}

impl Run {
    async fn step(mut self) -> Option<(Event, Option<Self>)> {
        tokio::time::sleep(self.shared.pace).await;
        let (weights, label, aborted) = loop {
            let resumed = self.shared.changed.notified();
            {
                let state = self.shared.state.lock().unwrap();
                let aborted = state.running.get(&self.id).copied().unwrap_or(true);
                if aborted || !state.paused {
                    break (state.weights, state.label.clone(), aborted);
                }
            }
            drop(tokio::time::timeout(Duration::from_millis(5), resumed).await);
        };
        if aborted {
            return Some((Ok(self.last("abort", Vec::new(), Vec::new())), None));
        }
        match self.fault {
            Some(Fault::Reset(after)) if self.sent.len() == after => {
                return Some((Err(io::ErrorKind::ConnectionReset.into()), None));
            }
            Some(Fault::Hang(after)) if self.sent.len() == after => {
                std::future::pending::<Infallible>().await;
            }
            Some(Fault::Garbage) if self.sent.len() == 2 => {
                return Some((Ok("data: {\"choices\": [\n\n".to_owned()), Some(self)));
            }
            _ => {}
        }
        Some(self.token(weights, label))
    }

    fn token(mut self, weights: u64, label: String) -> (Event, Option<Self>) {
        let context = [self.request.token_ids.as_slice(), &self.sent].concat();
        let sampling = &self.request.sampling_params;
        let min = sampling.min_tokens.unwrap_or(0) as usize;
        let mut token = toy::next(weights, &context, self.draw);
        if token == toy::END && self.sent.len() < min {
            token = 2;
        }
        let logprob = match self.fault {
            Some(Fault::Nan) if self.sent.len() == 2 => f32::NAN,
            Some(Fault::Lowest) if self.sent.len() == 2 => LOWEST_LOGPROB,
            _ => toy::logprob(weights, &context, token),
        };
        let at = self.sent.len() as u32;
        match self.spans.last_mut().filter(|span| span.version == label) {
            Some(span) => span.end = at + 1,
            None => self.spans.push(WeightVersionSpan { version: label, start: at, end: at + 1 }),
        }
        self.sent.push(token);
        let entry = Logprob { token_id: token, logprob, rank: Some(1), top_logprobs: Vec::new() };
        let max = sampling.max_tokens.unwrap() as usize;
        if token == toy::END {
            return (Ok(self.last("stop", vec![token], vec![entry])), None);
        }
        if self.sent.len() >= max {
            return (Ok(self.last("length", vec![token], vec![entry])), None);
        }
        (Ok(self.event(None, vec![token], vec![entry])), Some(self))
    }

    fn event(&self, reason: Option<&str>, tokens: Vec<i32>, entries: Vec<Logprob>) -> String {
        let choice = GenerateChoice {
            token_ids: Some(tokens),
            logprobs: Some(Logprobs { content: Some(entries) }),
            finish_reason: reason.map(str::to_owned),
            weight_versions: reason.map(|_| self.spans.clone()),
            ..GenerateChoice::default()
        };
        let response = GenerateResponse { choices: vec![choice], ..GenerateResponse::default() };
        format!("data: {}\n\n", serde_json::to_string(&response).unwrap())
    }

    /// Returns the last event of the response, the usage and the end of the stream.
    fn last(&mut self, reason: &str, tokens: Vec<i32>, entries: Vec<Logprob>) -> String {
        if self.fault == Some(Fault::WrongLabel) {
            self.spans.iter_mut().for_each(|span| span.version = "default".to_owned());
        }
        let more = u64::from(self.fault == Some(Fault::Fewer));
        let count = self.sent.len() as u64 + more;
        let usage = Usage { completion_tokens: count, ..Usage::default() };
        let usage = GenerateResponse { usage: Some(usage), ..GenerateResponse::default() };
        let usage = serde_json::to_string(&usage).unwrap();
        format!("{}data: {usage}\n\ndata: [DONE]\n\n", self.event(Some(reason), tokens, entries))
    }
}
