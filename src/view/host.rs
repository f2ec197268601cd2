//! Middleware that protects the page against requests and content from other sites.

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::ViewError;

/// The content security policy of the page: the browser loads files of this server only, apart from images in `data:` URLs.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                              base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Refuses requests whose `Host` header is missing or is neither `localhost`, `[::1]` nor an IPv4 address that begins with `127.`. The
/// port does not matter.
///
/// Another site can point its own domain name to this machine (DNS rebinding). The browser then sends that name.
pub(super) async fn only_loopback(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    if host.is_some_and(is_loopback) {
        return next.run(request).await;
    }
    let text = "expected the host localhost, 127.0.0.1 or [::1]; `--host` makes the page available to others";
    ViewError::forbidden(text.to_owned()).into_response()
}

/// Adds headers that keep the browser from loading files of other servers, from guessing content types, from sending the address of the
/// page to other sites, and from using cached files without asking the server.
pub(super) async fn with_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    matches!(name, "localhost" | "[::1]")
        || name.parse::<std::net::Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in
            ["localhost", "localhost:80", "127.0.0.1:4000", "127.1.2.3", "[::1]:4000", "[::1]"]
        {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["evil.example", "evil.example:4000", "127.0.0.1.evil.example", "10.0.0.1", ""]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
