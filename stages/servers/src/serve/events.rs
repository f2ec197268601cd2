//! Streams of server-sent events.

use std::convert::Infallible;

use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, Stream, StreamExt};
use serde::Serialize;

use super::deltas::{Delta, Deltas};
use super::error::ApiError;
use crate::vllm::protocol::STREAM_END;

/// Formats the progress of a call as events.
pub(super) trait Chunks: Send + 'static {
    /// The data of an event.
    type Chunk: Serialize;

    /// Returns the event with the index `at` among the events that precede the first token; `None` if there is no such event.
    fn begin(&self, _at: u32) -> Option<Self::Chunk> {
        None
    }

    /// Returns the event for `delta`; `None` if `delta` has nothing that the client requests.
    fn chunk(&mut self, delta: Delta) -> Option<Self::Chunk>;

    /// Returns the event with the numbers of tokens, which follows the events of all choices. `sampled` is the number of sampled tokens.
    fn usage(&self, sampled: usize) -> Self::Chunk;
}

/// Answers with the events of a job, and [`STREAM_END`] at the end. If `include_usage` is set, the event with the numbers of tokens comes
/// before it. An error is sent as an event, after which only [`STREAM_END`] follows.
pub(super) fn respond<C: Chunks>(deltas: Deltas, chunks: C, include_usage: bool) -> Response {
    let running = Running { deltas, chunks, include_usage, begun: 0, sampled: 0 };
    let events = stream::unfold(Phase::Running(Box::new(running)), next);
    sse(events.filter_map(async |event| event))
}

fn sse(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    Sse::new(events.map(Ok::<_, Infallible>)).into_response()
}

enum Phase<C> {
    Running(Box<Running<C>>),
    /// Only [`STREAM_END`] has not been sent yet.
    Ending,
    Ended,
}

struct Running<C> {
    deltas: Deltas,
    chunks: C,
    include_usage: bool,
    /// The number of events that were sent before the first token.
    begun: u32,
    /// The number of sampled tokens.
    sampled: usize,
}

async fn next<C: Chunks>(phase: Phase<C>) -> Option<(Option<Event>, Phase<C>)> {
    let mut running = match phase {
        Phase::Running(running) => running,
        Phase::Ending => return Some((Some(Event::default().data(STREAM_END)), Phase::Ended)),
        Phase::Ended => return None,
    };
    let Running { deltas, chunks, include_usage, begun, sampled } = &mut *running;
    if let Some(chunk) = chunks.begin(*begun) {
        *begun += 1;
        return Some((Some(event(&chunk)), Phase::Running(running)));
    }
    Some(match deltas.next().await {
        Some(Ok(delta)) => {
            *sampled += usize::from(delta.token.is_some());
            (chunks.chunk(delta).map(|chunk| event(&chunk)), Phase::Running(running))
        }
        Some(Err(error)) => (Some(failure(&error)), Phase::Ending),
        None => (include_usage.then(|| event(&chunks.usage(*sampled))), Phase::Ending),
    })
}

fn event(chunk: &impl Serialize) -> Event {
    match serde_json::to_string(chunk) {
        Ok(data) => Event::default().data(data),
        Err(error) => failure(&ApiError::internal(error)),
    }
}

fn failure(error: &ApiError) -> Event {
    let data = serde_json::to_string(&error.body()).unwrap_or_default();
    Event::default().data(data)
}
