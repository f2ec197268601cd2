//! The export of traces, metrics and logs over OTLP.

use std::collections::BTreeMap;
use std::path::{self, Path};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SdkTracerProvider};
use rollpacker_dataflow::clock::{Clock, WallClock};
use rollpacker_dataflow::telemetry::TARGET;
use rollpacker_stages::secret;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterFn, LevelFilter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

use super::client::client;
use super::env::{ExportTarget, target, variable};
use super::error::TelemetryError;
use super::logs::LogExport;
use super::loss::{Loss, Signal};
use super::loss_counter::{CountingExporter, LossCounter};
use super::metrics::MetricExport;

/// Maximum time that the end of a run waits for the collector.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// The resource attribute that contains the run folder. The folder identifies a run, also after the run is resumed.
const RUN_FOLDER: &str = "rollpacker.run.folder";

/// Exports traces, metrics and logs over OTLP as long as it exists, and flushes them on drop.
///
/// Drop it after the run: spans that end later are lost.
#[derive(Debug)]
pub struct Telemetry {
    traces: Option<TraceExport>,
    metrics: Option<MetricExport>,
    logs: Option<LogExport>,
}

impl Telemetry {
    /// Starts the exports that the `OTEL_*` variables request, as the [module documentation](super) describes. Returns `None` if the
    /// variables request no export.
    ///
    /// Installs the global `tracing` subscriber if traces or logs are exported.
    ///
    /// # Errors
    /// If a variable has an unsupported value, an exporter or its HTTP client cannot be created, a global subscriber is already set, or a
    /// thread cannot be started.
    pub fn from_env() -> Result<Option<Self>, TelemetryError> {
        Self::start(None)
    }

    /// Starts the exports of a run, as [`Self::from_env`] does. The resource of the exported data names the run folder.
    ///
    /// # Errors
    /// In the same cases as [`Self::from_env`].
    pub fn of_run(folder: &Path) -> Result<Option<Self>, TelemetryError> {
        Self::start(Some(folder))
    }

    fn start(run_folder: Option<&Path>) -> Result<Option<Self>, TelemetryError> {
        register_secrets(&variable);
        let [traces, metrics, logs] =
            [Signal::Traces, Signal::Metrics, Signal::Logs].map(|signal| target(signal, &variable));
        let (traces, metrics, logs) = (traces?, metrics?, logs?);
        if traces.is_none() && metrics.is_none() && logs.is_none() {
            return Ok(None);
        }
        let resource = resource(run_folder, &variable);
        let metrics = metrics.map(|to| MetricExport::start(to, resource.clone())).transpose()?;
        let logs = logs.map(|to| LogExport::start(to, resource.clone())).transpose()?;
        let traces = traces.map(|to| TraceExport::start(to, resource)).transpose()?;
        subscribe(traces.as_ref(), logs.as_ref())?;
        Ok(Some(Self { traces, metrics, logs }))
    }

    /// Exports the metrics of a step, each as a gauge `rollpacker.<name>` without attributes. A `/` in the name becomes `.`.
    ///
    /// Characters that are not allowed in instrument names become `_`, and names are cut to 255 characters. Values that are not finite are
    /// left out. Returns at once. If 64 steps already wait for the collector, the step is lost and counted. Does nothing if metrics are not
    /// exported.
    pub fn record(&self, metrics: &BTreeMap<String, f64>) {
        if let Some(exported) = &self.metrics {
            exported.record(metrics);
        }
    }

    /// Exports the remaining data and ends the export. Waits for the collector for at most 5 seconds.
    ///
    /// # Errors
    /// If data was lost, returns [`TelemetryError::Lost`]. This is a warning: the run itself is not affected.
    pub fn shutdown(mut self) -> Result<(), TelemetryError> {
        self.end()
    }

    /// Ends the export. Does nothing if it has already ended.
    fn end(&mut self) -> Result<(), TelemetryError> {
        let watch = WallClock::start();
        let left = || SHUTDOWN_LIMIT.saturating_sub(Duration::from_nanos(watch.now().0));
        let metrics = self.metrics.take().map(MetricExport::close); // all signals drain at once
        let lost_traces = self.traces.take().and_then(|traces| traces.end(left()));
        let lost_logs = self.logs.take().and_then(|logs| logs.end(left()));
        let lost_metrics = metrics.and_then(|metrics| metrics.end(left()));
        let losses: Vec<_> = [lost_traces, lost_metrics, lost_logs].into_iter().flatten().collect();
        if losses.is_empty() { Ok(()) } else { Err(TelemetryError::Lost(losses)) }
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error);
        }
    }
}

/// Registers the values of the configured export headers as secrets, because collectors may repeat them in error messages.
fn register_secrets(variable: &impl Fn(&str) -> Option<String>) {
    for name in ["", "TRACES_", "METRICS_", "LOGS_"] {
        let headers = variable(&format!("OTEL_EXPORTER_OTLP_{name}HEADERS")).unwrap_or_default();
        for (_, value) in headers.split(',').filter_map(|header| header.split_once('=')) {
            secret::register(value.trim());
            // For `Bearer <key>`, servers may also repeat the key alone.
            value.trim().split_once(' ').into_iter().for_each(|(_, key)| secret::register(key));
        }
    }
}

/// Returns the resource: the attributes that environment variables set, and defaults for the name, version and instance of the service and
/// for the run folder.
fn resource(run_folder: Option<&Path>, variable: &impl Fn(&str) -> Option<String>) -> Resource {
    let written = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let named = variable("OTEL_SERVICE_NAME").map(|_| "service.name");
    let written = written.split(',').filter_map(|attribute| attribute.split_once('='));
    let set: Vec<_> = written.map(|(key, _)| key.trim()).chain(named).collect();
    let instance = RandomIdGenerator::default().new_trace_id().to_string();
    let folder = run_folder.map(|folder| path::absolute(folder).unwrap_or(folder.to_owned()));
    let folder = folder.map(|folder| (RUN_FOLDER, folder.display().to_string()));
    let defaults = [
        ("service.name", "rollpacker".to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", instance),
    ];
    let defaults = defaults.into_iter().chain(folder).filter(|(key, _)| !set.contains(key));
    let defaults = defaults.map(|(key, value)| KeyValue::new(key, value));
    Resource::builder().with_attributes(defaults).build()
}

/// The exporter of the spans of steps and stages.
#[derive(Debug)]
struct TraceExport {
    provider: SdkTracerProvider,
    losses: LossCounter,
}

impl TraceExport {
    fn start(to: ExportTarget, resource: Resource) -> Result<Self, TelemetryError> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client(Signal::Traces, &to.endpoint, to.timeout)?)
            .build()
            .map_err(|source| TelemetryError::Exporter { signal: Signal::Traces, source })?;
        let losses = LossCounter::new(Signal::Traces, &to.endpoint);
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(CountingExporter::new(exporter, losses.clone()))
            .with_resource(resource)
            .build();
        Ok(Self { provider, losses })
    }

    /// Returns a layer that exports only the spans of the telemetry target. Source locations and thread names are left out.
    fn layer<S: Subscriber + for<'span> LookupSpan<'span>>(&self) -> impl Layer<S> {
        let ours = FilterFn::new(|metadata| metadata.is_span() && metadata.target() == TARGET)
            .with_max_level_hint(LevelFilter::INFO);
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("rollpacker"))
            .with_location(false)
            .with_threads(false)
            .with_level(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(ours)
    }

    fn end(self, limit: Duration) -> Option<Loss> {
        self.losses.finish(self.provider.shutdown_with_timeout(limit))
    }
}

/// Installs a global subscriber that exports spans, log messages or both. With the features `cli` and `torch`, it also prints the messages
/// that `RUST_LOG` selects, by default the warnings of this project. Does nothing if neither spans nor messages are exported.
///
/// # Errors
/// Returns an error if the program already has a global subscriber.
fn subscribe(traces: Option<&TraceExport>, logs: Option<&LogExport>) -> Result<(), TelemetryError> {
    if traces.is_none() && logs.is_none() {
        return Ok(());
    }
    let subscriber = tracing_subscriber::registry()
        .with(traces.map(TraceExport::layer))
        .with(logs.map(LogExport::layer));
    #[cfg(all(feature = "cli", feature = "torch"))]
    let subscriber = subscriber.with(super::warnings::layer());
    tracing::subscriber::set_global_default(subscriber)?;
    Ok(())
}
