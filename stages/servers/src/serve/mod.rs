//! An HTTP server of vLLM's protocol, over any engine that implements [`ServingEngine`].
//!
//! The server has the calls of [`path`]. Each parameter of a request is honoured, or the request is refused with an error that names it.

mod body;
mod chat;
mod choice;
mod completions;
mod control;
mod deltas;
mod error;
mod events;
mod generate;
mod job;
mod key;
mod logprobs;
mod metrics;
mod models;
mod neutral;
mod options;
mod receive;
mod requests;
mod spans;

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware;
use axum::routing::{get, post};
use rollpacker_dataflow::clock::{Clock, unix_seconds};
use rollpacker_model::PromptEncoder;
use rollpacker_stages::serving::ServingEngine;
use tokio::net::TcpListener;

use self::error::ApiError;
use self::logprobs::TokenTexts;
use self::metrics::Metrics;
use self::requests::Requests;
use crate::vllm::protocol::path;

/// Maximum length of the id of a call, in bytes.
const MAX_ID: usize = 1024;

/// The options of a [`Service`].
#[derive(Clone)]
pub struct ServeOptions {
    /// The names of the model in requests; at least one. Answers have the first name. (vLLM: `--served-model-name`)
    pub names: Vec<String>,
    /// The folder of the model, as `/v1/models` shows it.
    pub root: String,
    /// The key that every call except `/health` must send. With `None`, calls need no key, but calls of web pages whose host is neither
    /// `localhost` nor a loopback address are refused.
    pub api_key: Option<String>,
}

/// A server of vLLM's protocol for one model.
pub struct Service {
    engine: Arc<dyn ServingEngine>,
    encoder: Arc<PromptEncoder>,
    options: ServeOptions,
    clock: Arc<dyn Clock>,
    requests: Arc<Requests>,
    metrics: Arc<Metrics>,
    /// The time of the start, in seconds since 1970.
    started_at: u64,
    /// The time of `clock` at the start, in seconds.
    started: f64,
}

impl Service {
    /// Creates a server for an engine. `encoder` has the tokenizer and the chat template of the model. `clock` measures the times in
    /// answers and metrics.
    #[must_use]
    pub fn new(
        engine: Arc<dyn ServingEngine>,
        encoder: Arc<PromptEncoder>,
        options: ServeOptions,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let name = options.names.first().map_or("", String::as_str);
        Self {
            requests: Arc::new(Requests::new(Arc::clone(&engine))),
            metrics: Arc::new(Metrics::new(name)),
            started_at: unix_seconds() as u64,
            started: clock.now().as_secs_f64(),
            engine,
            encoder,
            options,
            clock,
        }
    }

    /// Returns the router with all calls of the server.
    pub fn router(self: Arc<Self>) -> Router {
        Router::new()
            .route(path::GENERATE, post(generate::generate))
            .route(path::COMPLETIONS, post(completions::completions))
            .route(path::CHAT_COMPLETIONS, post(chat::chat_completions))
            .route(path::MODELS, get(models::models))
            .route(&format!("{}/{{*name}}", path::MODELS), get(models::model))
            .route(path::HEALTH, get(models::health))
            .route(path::VERSION, get(models::version))
            .route(path::METRICS, get(models::metrics))
            .route(path::PAUSE, post(control::pause))
            .route(path::RESUME, post(control::resume))
            .route(path::IS_PAUSED, get(control::is_paused))
            .route(path::ABORT_REQUESTS, post(control::abort_requests))
            .route(path::COLLECTIVE_RPC, post(control::collective_rpc))
            .route(path::UPDATE_WEIGHT_VERSION, post(control::update_weight_version))
            .route(path::WEIGHT_INFO, get(control::weight_info))
            .route(path::RESET_PREFIX_CACHE, post(control::reset_prefix_cache))
            .fallback(async || ApiError::new(StatusCode::NOT_FOUND, "this server has no such call"))
            .method_not_allowed_fallback(async || {
                ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "the call has another method")
            })
            .layer(DefaultBodyLimit::max(body::MAX_BODY))
            .layer(middleware::from_fn_with_state(Arc::clone(&self), key::check_key))
            .with_state(self)
    }

    /// Serves until `stop` is ready, and then accepts no more connections and returns after all calls have been answered.
    ///
    /// # Errors
    /// Never returns an error: after an error of the listener, the server continues to accept connections.
    pub async fn run(
        self: Arc<Self>,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        axum::serve(listener, self.router()).with_graceful_shutdown(stop).await
    }

    /// Aborts all requests; their calls return the tokens sampled so far. Returns the number of calls, where calls with equal ids count
    /// once.
    pub fn abort_all(&self) -> usize {
        self.requests.abort_all()
    }

    fn name(&self) -> &str {
        self.options.names.first().map_or("", String::as_str)
    }

    fn check_model(&self, wanted: Option<&str>) -> Result<(), ApiError> {
        let is_known = |wanted: &str| self.options.names.iter().any(|name| name == wanted);
        match wanted.filter(|wanted| !wanted.is_empty()) {
            Some(wanted) if !is_known(wanted) => {
                let served = self.options.names.join(", ");
                let message =
                    format!("the model `{wanted}` does not exist: this server has {served}");
                Err(ApiError::new(StatusCode::NOT_FOUND, message))
            }
            _ => Ok(()),
        }
    }

    /// Returns the id of a call: the prefix, followed by the header `X-Request-Id`, or else the id in the body, or else a random id. Fails
    /// if the id is too long, because every event of a stream repeats it.
    fn call_id(
        &self,
        prefix: &str,
        headers: &HeaderMap,
        in_body: Option<&str>,
    ) -> Result<Arc<str>, ApiError> {
        let header = headers.get("x-request-id").and_then(|value| value.to_str().ok());
        match header.or(in_body) {
            Some(id) if id.len() > MAX_ID => {
                let expected = format!("at most {MAX_ID} bytes");
                Err(ApiError::parameter("request_id", expected, id.len()))
            }
            Some(id) => Ok(format!("{prefix}{id}").into()),
            None => Ok(format!("{prefix}{:032x}", rand::random::<u128>()).into()),
        }
    }

    /// Returns the token ids of a text. A text whose length implies more tokens than the context is refused, because tokenization would use
    /// much memory.
    fn encode(&self, text: &str) -> Result<Arc<[i32]>, ApiError> {
        let tokenizer = &self.encoder.tokenizer;
        let (min, context) = (tokenizer.min_tokens(text.len()), self.engine.limits().context);
        if min > context {
            return Err(ApiError::bad_request(format_args!(
                "this model's maximum context length is {context} tokens: found a prompt of at least {min} tokens"
            )));
        }
        tokenizer.encode(text).map(Into::into).map_err(ApiError::bad_request)
    }

    /// Returns the formatter of tokens; see [`TokenTexts::as_ids`].
    fn token_texts(&self, as_ids: bool) -> TokenTexts<'_> {
        TokenTexts { tokenizer: &self.encoder.tokenizer, as_ids }
    }

    fn unix_time(&self) -> u64 {
        self.started_at + (self.clock.now().as_secs_f64() - self.started) as u64
    }
}
