//! Errors of telemetry.

use super::loss::{self, Loss, Signal};

/// An error in starting or ending the export of telemetry.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// An environment variable has a value that this program does not support.
    #[error("{variable}: expected {expected}, found `{found}`")]
    Variable {
        /// The name of the variable.
        variable: String,
        /// A description of the supported values.
        expected: &'static str,
        /// The value of the variable, without credentials.
        found: String,
    },
    /// The HTTP client of a signal cannot be created.
    #[error("cannot create an HTTP client to export {signal}: {reason}")]
    Client {
        /// The signal to export.
        signal: Signal,
        /// The cause.
        reason: String,
    },
    /// The program was built without the feature `otlp`.
    #[error(
        "the export of {signal} needs the feature `otlp`, which this program was built without; to run without it, set OTEL_SDK_DISABLED=true"
    )]
    Absent {
        /// The signal to export.
        signal: Signal,
    },
    /// The SDK rejected the variables of a signal.
    #[cfg(feature = "otlp")]
    #[error("cannot create an exporter of {signal}")]
    Exporter {
        /// The signal to export.
        signal: Signal,
        /// The error of the SDK.
        source: opentelemetry_otlp::ExporterBuildError,
    },
    /// A global tracing subscriber already receives the spans and the log messages.
    #[cfg(feature = "otlp")]
    #[error(
        "spans and log messages cannot be exported: a global tracing subscriber is already set"
    )]
    Subscriber(#[from] tracing::subscriber::SetGlobalDefaultError),
    /// The thread that exports metrics cannot be started.
    #[error("cannot start the thread that exports metrics")]
    Thread(#[source] std::io::Error),
    /// The run has ended, and the collector has not received all data that this process recorded.
    #[error("telemetry was lost: {}", loss::join(.0))]
    Lost(Vec<Loss>),
}
