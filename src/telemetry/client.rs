//! The HTTP client of an exporter.

use std::time::Duration;

use reqwest::blocking::{Client, ClientBuilder};

use super::error::TelemetryError;
use super::loss::Signal;

/// Returns a client for exports of a signal to `endpoint`, with the given timeout per request.
///
/// Over TLS the collector's certificate is verified with the system's certificates, or with those of `SSL_CERT_FILE` and `SSL_CERT_DIR`.
/// Plain HTTP needs no certificates, so a machine without any is not an error.
///
/// # Errors
/// If the endpoint uses TLS and the machine has no certificates.
pub(super) fn client(
    signal: Signal,
    endpoint: &str,
    timeout: Duration,
) -> Result<Client, TelemetryError> {
    let builder = Client::builder().timeout(timeout);
    let is_encrypted =
        endpoint.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
    let builder = if is_encrypted { builder } else { builder.tls_certs_only([]) };
    build(builder).map_err(|reason| TelemetryError::Client { signal, reason })
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
