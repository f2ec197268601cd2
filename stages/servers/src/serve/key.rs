//! The API key of a server, and the protection of a server without one.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use url::{Host, Url};

use super::Service;
use super::error::ApiError;
use crate::vllm::protocol::path;

/// Refuses calls without the API key of the server, if the server has a key. Calls of [`path::HEALTH`] need no key.
///
/// A server without a key refuses calls with a header `Origin`, which browsers send for web pages, unless the host of the origin is
/// `localhost` or a loopback address. Otherwise, any web page could abort calls and load weights.
pub(super) async fn check_key(
    State(service): State<Arc<Service>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(key) = &service.options.api_key else {
        return match request.headers().get(header::ORIGIN) {
            Some(origin) if !is_on_this_machine(origin) => {
                let message = "a web page of another machine sent this request, which a server without an API key refuses";
                ApiError::new(StatusCode::FORBIDDEN, message).into_response()
            }
            _ => next.run(request).await,
        };
    };
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

/// Returns `true` if the host of an `Origin` header is `localhost` or a loopback address. Every other value counts as another machine,
/// including `null` and the name or network address of this machine.
fn is_on_this_machine(origin: &HeaderValue) -> bool {
    let url = origin.to_str().ok().and_then(|origin| Url::parse(origin).ok());
    match url.as_ref().and_then(Url::host) {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

/// Compares keys in a time that does not depend on the position of the first difference.
fn constant_time_eq(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (one, other)| all | (one ^ other));
    one.len() == other.len() && differences == 0
}
