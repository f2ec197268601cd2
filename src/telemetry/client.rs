//! The HTTP client of an exporter.

use std::time::Duration;

use reqwest::blocking::{Client, ClientBuilder};

use super::TelemetryError;
use super::loss::Signal;

/// A client for exports of a signal to `endpoint`, that gives up after `timeout`.
///
/// Over TLS the collector proves who it is to the certificates of the system; `SSL_CERT_FILE` and `SSL_CERT_DIR` name others. Without TLS
/// none are needed, and a machine without any is no fault.
///
/// # Errors
/// If a machine without certificates is to export over TLS.
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

/// On a thread of its own: a blocking client panics where it is made within a runtime.
fn build(builder: ClientBuilder) -> Result<Client, String> {
    let thread = std::thread::Builder::new().spawn(move || builder.build());
    let built = thread.map_err(|error| error.to_string())?.join();
    let built = built.map_err(|_| "its thread panicked".to_owned())?;
    built.map_err(|error| chain(&error))
}

/// An error and what caused it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
