//! Server-sent events.

use std::pin::Pin;

use eventsource_stream::{EventStreamError, Eventsource};
use futures::{Stream, StreamExt, stream};
use reqwest::Response;
use serde::de::DeserializeOwned;

use super::{Endpoint, ServerError};

type Data = Pin<Box<dyn Stream<Item = Result<String, ServerError>> + Send>>;

/// The server-sent events of an answer. Dropping this value closes the connection.
pub(crate) struct Events {
    endpoint: Endpoint,
    path: String,
    data: Data,
}

impl Events {
    pub(super) fn new(endpoint: Endpoint, path: &str, response: Response) -> Self {
        let data = data(endpoint.clone(), path.to_owned(), response);
        Self { endpoint, path: path.to_owned(), data: Box::pin(data) }
    }

    /// Returns the data of the next event; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Result<Option<String>, ServerError> {
        self.data.next().await.transpose()
    }

    pub(crate) fn json<A: DeserializeOwned>(&self, data: &str) -> Result<A, ServerError> {
        self.endpoint.json(&self.path, data.as_bytes())
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

fn data(
    endpoint: Endpoint,
    path: String,
    response: Response,
) -> impl Stream<Item = Result<String, ServerError>> {
    let chunks = stream::try_unfold(response, |mut response| async move {
        Ok::<_, reqwest::Error>(response.chunk().await?.map(|chunk| (chunk, response)))
    });
    chunks.eventsource().map(move |event| match event {
        Ok(event) => Ok(event.data),
        Err(EventStreamError::Transport(error)) => Err(endpoint.connection_error(&path, error)),
        Err(error) => Err(endpoint.invalid_answer(&path, "server-sent events", error)),
    })
}
