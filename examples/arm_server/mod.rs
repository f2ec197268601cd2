//! A server that draws the arms of the bandit: `POST /draw` with a [`Draw`] returns a [`Drawn`]. [`request`] calls it.

use std::io;

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use rollpacker::prelude::{Completion, PolicyVersion, PromptId, SampleId, Step};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::bandit::{self, Logits};

/// A request for a response, with the id of the response.
#[derive(Serialize, Deserialize)]
struct Draw {
    step: u64,
    prompt: u64,
    sample: u32,
}

/// A response of one token, with the log-probability of the token in nats.
#[derive(Serialize, Deserialize)]
pub(crate) struct Drawn {
    token: i32,
    logprob: f32,
}

impl Drawn {
    pub(crate) fn completion(self, id: SampleId, version: PolicyVersion) -> Completion {
        bandit::completion(id, version, self.token, self.logprob)
    }
}

async fn draw(State(logits): State<Logits>, Json(request_body): Json<Draw>) -> Json<Drawn> {
    let Draw { step, prompt, sample } = request_body;
    let id = SampleId { step: Step(step), prompt: PromptId(prompt), sample };
    let (token, logprob) = logits.draw(id);
    Json(Drawn { token, logprob })
}

/// Serves on a free port of this machine until the runtime ends. Returns the URL of the call.
pub(crate) fn start(runtime: &Runtime, logits: Logits) -> io::Result<String> {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let url = format!("http://{}/draw", listener.local_addr()?);
    let calls = Router::new().route("/draw", post(draw)).with_state(logits);
    runtime.spawn(async move { axum::serve(listener, calls).await });
    Ok(url)
}

/// Requests the response `id` from the server at `url`.
pub(crate) async fn request(
    client: reqwest::Client,
    url: String,
    id: SampleId,
) -> anyhow::Result<Drawn> {
    let request_body = Draw { step: id.step.0, prompt: id.prompt.0, sample: id.sample };
    let request = client.post(url).header("content-type", "application/json");
    let answer =
        request.body(serde_json::to_vec(&request_body)?).send().await?.error_for_status()?;
    Ok(serde_json::from_slice(&answer.bytes().await?)?)
}
