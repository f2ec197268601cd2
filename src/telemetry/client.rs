//! The HTTP client of an exporter.

use std::io::Read;
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response, ResponseBodyTooLarge};
use reqwest::blocking::{Client, ClientBuilder};

use super::error::TelemetryError;
use super::loss::Signal;

/// The maximum size of a collector's answer in bytes.
const MAX_ANSWER: u64 = 4 << 20;

/// An HTTP client that blocks the calling thread. The exporters run on threads of their own and need such a client.
#[derive(Debug)]
pub(super) struct ExportClient(Client);

#[async_trait]
impl HttpClient for ExportClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut answer = self.0.execute(request.try_into()?)?;
        let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
        let mut body = Vec::new();
        answer.take(MAX_ANSWER + 1).read_to_end(&mut body)?;
        if body.len() as u64 > MAX_ANSWER {
            return Err(ResponseBodyTooLarge::new().into());
        }
        let mut response = Response::builder().status(status).body(Bytes::from(body))?;
        *response.headers_mut() = headers;
        Ok(response)
    }
}

/// Returns a client for exports of a signal to `endpoint`, with the given timeout per request.
///
/// Over TLS, the collector's certificate is verified with the certificates of `SSL_CERT_FILE` and `SSL_CERT_DIR`, or with the system's
/// certificates if neither variable is set. Plain HTTP needs no certificates, so a machine without any is not an error.
///
/// # Errors
/// If the endpoint uses TLS and the machine has no certificates, or if the client cannot be built.
pub(super) fn client(
    signal: Signal,
    endpoint: &str,
    timeout: Duration,
) -> Result<ExportClient, TelemetryError> {
    let builder = Client::builder().timeout(timeout);
    let is_encrypted =
        endpoint.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
    let refuse = |reason| TelemetryError::Client { signal, reason };
    let builder = if is_encrypted {
        builder
            .use_preconfigured_tls(rollpacker_tls::client().map_err(|error| refuse(chain(&error)))?)
    } else {
        builder.tls_built_in_root_certs(false)
    };
    build(builder).map(ExportClient).map_err(refuse)
}

/// Builds the client on a separate thread, because a blocking client panics if it is created within an async runtime.
fn build(builder: ClientBuilder) -> Result<Client, String> {
    let thread = std::thread::Builder::new().spawn(move || builder.build());
    let built = thread.map_err(|error| error.to_string())?.join();
    let built = built.map_err(|_| "its thread panicked".to_owned())?;
    built.map_err(|error| chain(&error))
}

/// Formats an error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
