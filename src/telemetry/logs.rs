//! The export of log messages over OTLP, from the events of `tracing`.
//!
//! `opentelemetry-appender-tracing` does the same without redacting secrets, which cannot be removed from its records later.

use std::fmt;
use std::time::Duration;

use opentelemetry::logs::{AnyValue, LogRecord, Logger, LoggerProvider, Severity};
use opentelemetry_otlp::{LogExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::{SdkLogRecord, SdkLogger, SdkLoggerProvider};
use rollpacker_stages::secret::redact;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::client::client;
use super::env::ExportTarget;
use super::error::TelemetryError;
use super::log_filter;
use super::loss::{Loss, Signal};
use super::loss_counter::{CountingExporter, LossCounter};

/// Prefixes of the log targets of the crates that perform an export. Exporting one of their messages would cause further messages.
const EXPORT_TARGETS: [&str; 4] = ["hyper", "opentelemetry", "reqwest", "rustls"];

#[derive(Debug)]
pub(super) struct LogExport {
    provider: SdkLoggerProvider,
    losses: LossCounter,
}

impl LogExport {
    pub(super) fn start(to: ExportTarget, resource: Resource) -> Result<Self, TelemetryError> {
        let exporter = LogExporter::builder()
            .with_http()
            .with_http_client(client(Signal::Logs, &to.endpoint, to.timeout)?)
            .build()
            .map_err(|source| TelemetryError::Exporter { signal: Signal::Logs, source })?;
        let losses = LossCounter::new(Signal::Logs, &to.endpoint);
        let provider = SdkLoggerProvider::builder()
            .with_batch_exporter(CountingExporter::new(exporter, losses.clone()))
            .with_resource(resource)
            .build();
        Ok(Self { provider, losses })
    }

    /// Returns a layer that exports the messages that `RUST_LOG` selects, except the messages of the crates that perform the export.
    pub(super) fn layer<S: Subscriber + for<'span> LookupSpan<'span>>(&self) -> impl Layer<S> {
        let exported = filter_fn(|metadata| {
            metadata.is_event()
                && !EXPORT_TARGETS.iter().any(|begin| metadata.target().starts_with(begin))
        });
        // The SDK takes the target of a record as its instrumentation scope.
        LogLayer(self.provider.logger("rollpacker"))
            .with_filter(log_filter::selected().and(exported))
    }

    pub(super) fn end(self, limit: Duration) -> Option<Loss> {
        self.losses.finish(self.provider.shutdown_with_timeout(limit))
    }
}

/// Turns events into log records.
struct LogLayer(SdkLogger);

impl<S: Subscriber> Layer<S> for LogLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut record = self.0.create_log_record();
        record.set_target(metadata.target());
        record.set_severity_number(severity(*metadata.level()));
        record.set_severity_text(metadata.level().as_str());
        event.record(&mut RecordFields(&mut record));
        self.0.emit(record);
    }
}

fn severity(level: Level) -> Severity {
    match level {
        Level::ERROR => Severity::Error,
        Level::WARN => Severity::Warn,
        Level::INFO => Severity::Info,
        Level::DEBUG => Severity::Debug,
        Level::TRACE => Severity::Trace,
    }
}

/// Writes the fields of an event into a record: the field `message` as the body, and the other fields as attributes.
struct RecordFields<'a>(&'a mut SdkLogRecord);

impl RecordFields<'_> {
    fn put(&mut self, field: &Field, value: impl Into<AnyValue>) {
        match field.name() {
            "message" => self.0.set_body(value.into()),
            name => self.0.add_attribute(name, value),
        }
    }
}

impl Visit for RecordFields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, redact(&format!("{value:?}")).into_owned());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, redact(value).into_owned());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }
}
