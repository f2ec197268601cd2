//! The API key of a server.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Service;
use super::error::ApiError;
use crate::vllm::protocol::path;

/// Refuses calls without the API key of the server, if the server has a key. Calls of [`path::HEALTH`] need no key.
pub(super) async fn check_key(
    State(service): State<Arc<Service>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(key) = &service.options.api_key else { return next.run(request).await };
    let sent = request.headers().get(header::AUTHORIZATION);
    let sent = sent.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    if request.uri().path() == path::HEALTH
        || sent.is_some_and(|sent| constant_time_eq(sent, key.as_bytes()))
    {
        return next.run(request).await;
    }
    let message = "expected the API key of this server in the header `Authorization: Bearer KEY`";
    ApiError::new(StatusCode::UNAUTHORIZED, message).into_response()
}

/// Compares keys in a time that does not depend on the position of the first difference.
fn constant_time_eq(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (one, other)| all | (one ^ other));
    one.len() == other.len() && differences == 0
}
