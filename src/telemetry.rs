//! Export of traces and metrics over OTLP, when the `OTEL_*` variables name a collector.
//!
//! One trace a step: the span `step` with a span per stage below it, as `rollpacker_dataflow::telemetry` opens and closes them. The metrics
//! of every step go out as gauges. Exports run on threads of their own; a collector that is slow or gone costs the run nothing but what
//! it did not receive, which [`Telemetry::shutdown`] counts. Without the variables no thread, no subscriber and no exporter exists.
//!
//! | variable | meaning |
//! |---|---|
//! | `OTEL_EXPORTER_OTLP_ENDPOINT` | collector of both signals, `http://host:port` or `https://`; `/v1/traces` and `/v1/metrics` are appended |
//! | `OTEL_EXPORTER_OTLP_{TRACES,METRICS}_ENDPOINT` | collector of one signal, taken as it is; comes before the general one |
//! | `OTEL_SDK_DISABLED` | `true`: nothing is exported |
//! | `OTEL_{TRACES,METRICS}_EXPORTER` | `otlp` (default) or `none` |
//! | `OTEL_EXPORTER_OTLP_PROTOCOL`, `..._{TRACES,METRICS}_PROTOCOL` | `http/protobuf`, the only one |
//! | `OTEL_EXPORTER_OTLP_COMPRESSION`, `..._{TRACES,METRICS}_COMPRESSION` | `none`, the only one |
//! | `OTEL_EXPORTER_OTLP_TIMEOUT`, `..._{TRACES,METRICS}_TIMEOUT` | milliseconds until an export is given up; 10,000 |
//! | `OTEL_EXPORTER_OTLP_HEADERS`, `..._{TRACES,METRICS}_HEADERS` | as the SDK reads them |
//! | `SSL_CERT_FILE`, `SSL_CERT_DIR` | certificates that a collector over `https://` has to be signed by, in the place of the system's |
//! | `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` | as the SDK reads them; the service is `rollpacker` unless one names it |
//! | `OTEL_TRACES_SAMPLER`, `OTEL_TRACES_SAMPLER_ARG`, `OTEL_BSP_*` | as the SDK reads them |
//!
//! An empty variable is an unset one. A signal without an endpoint is not exported: unlike the SDK's own default, nothing is ever sent
//! to an address that nobody named. `OTEL_METRIC_EXPORT_INTERVAL` has no part: metrics are exported once a step.

mod client;
mod env;
mod loss;
mod metrics;

use std::collections::BTreeMap;
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use rollpacker_dataflow::clock::{Clock, WallClock};
use rollpacker_dataflow::telemetry::TARGET;
use rollpacker_stages::reward::use_ring;
use rollpacker_stages::secret;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterFn, LevelFilter};
use tracing_subscriber::layer::SubscriberExt;

use self::client::client;
use self::env::{Target, name_service, target};
use self::loss::{Losses, Watched};
use self::metrics::Metrics;

pub use self::loss::{Loss, Signal};

/// How long the end of a run waits for the collector.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// Export of traces and metrics over OTLP, for as long as it lives; flushed on drop.
///
/// Dropped after the run: spans that end later are lost.
#[derive(Debug)]
pub struct Telemetry {
    traces: Option<Traces>,
    metrics: Option<Metrics>,
}

/// Why nothing is exported, or not all.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// A variable asks for what this program does not do.
    #[error("{variable}: expected {expected}, found `{found}`")]
    Variable {
        /// Name of the variable.
        variable: String,
        /// What is possible.
        expected: &'static str,
        /// Its value.
        found: String,
    },
    /// The client of a signal cannot be made.
    #[error("no HTTP client for the export of {signal}: {reason}")]
    Client {
        /// What was to be exported.
        signal: Signal,
        /// What happened.
        reason: String,
    },
    /// The SDK refused the variables of a signal.
    #[error("no exporter of {signal}")]
    Exporter {
        /// What was to be exported.
        signal: Signal,
        /// The SDK's reason.
        source: opentelemetry_otlp::ExporterBuildError,
    },
    /// Spans go to a subscriber that was there before.
    #[error("spans cannot be exported: a global tracing subscriber is already set")]
    Subscriber(#[from] tracing::subscriber::SetGlobalDefaultError),
    /// The thread that exports metrics did not start.
    #[error("no thread to export metrics on")]
    Thread(#[source] std::io::Error),
    /// The run is done and the collector has not received everything.
    #[error("telemetry was lost: {}", loss::join(.0))]
    Lost(Vec<Loss>),
}

impl Telemetry {
    /// Begins to export what the `OTEL_*` variables ask for (module documentation); `None` if that is nothing.
    ///
    /// Installs the global `tracing` subscriber if traces are asked for.
    ///
    /// # Errors
    /// A variable with a value that is not possible; a global subscriber that is already set; a thread that does not start.
    pub fn from_env() -> Result<Option<Self>, TelemetryError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        keep_secrets(&variable);
        let traces = target(Signal::Traces, &variable)?;
        let metrics = target(Signal::Metrics, &variable)?;
        if traces.is_none() && metrics.is_none() {
            return Ok(None);
        }
        use_ring();
        let resource = name_service(Resource::builder(), &variable).build();
        let metrics = metrics.map(|to| Metrics::start(to, resource.clone())).transpose()?;
        let traces = traces.map(|to| Traces::start(to, resource)).transpose()?;
        Ok(Some(Self { traces, metrics }))
    }

    /// Exports a step's metrics: each a gauge named `rollpacker.<name>` without attributes, `/` in the name as `.`.
    ///
    /// Other characters that no instrument may have in its name become `_`. Values that are not finite are left out. Returns at once; if the
    /// collector is many steps behind, the step is lost.
    pub fn record(&self, metrics: &BTreeMap<String, f64>) {
        if let Some(exported) = &self.metrics {
            exported.record(metrics);
        }
    }

    /// Exports what is left and ends; waits for the collector for 5 seconds at most.
    ///
    /// # Errors
    /// [`TelemetryError::Lost`]: a warning for the user. The run is none the worse.
    pub fn shutdown(mut self) -> Result<(), TelemetryError> {
        self.end()
    }

    /// Nothing if it has ended before.
    fn end(&mut self) -> Result<(), TelemetryError> {
        let watch = WallClock::start();
        let (traces, metrics) = (self.traces.take(), self.metrics.take());
        let metrics = metrics.map(Metrics::close); // both signals drain at once
        let lost_traces = traces.and_then(|traces| traces.end(SHUTDOWN_LIMIT));
        let left = SHUTDOWN_LIMIT.saturating_sub(Duration::from_nanos(watch.now().0));
        let lost_metrics = metrics.and_then(|metrics| metrics.end(left));
        let losses: Vec<_> = lost_traces.into_iter().chain(lost_metrics).collect();
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

/// Keeps the values of the headers that exports are sent with: collectors repeat them in errors.
fn keep_secrets(variable: &impl Fn(&str) -> Option<String>) {
    for name in ["", "TRACES_", "METRICS_"] {
        let headers = variable(&format!("OTEL_EXPORTER_OTLP_{name}HEADERS")).unwrap_or_default();
        for (_, value) in headers.split(',').filter_map(|header| header.split_once('=')) {
            secret::keep(value.trim());
            // Of `Bearer <key>`, servers repeat the key alone, too.
            value.trim().split_once(' ').into_iter().for_each(|(_, key)| secret::keep(key));
        }
    }
}

/// The spans of steps and stages, on their way.
#[derive(Debug)]
struct Traces {
    provider: SdkTracerProvider,
    losses: Losses,
}

impl Traces {
    fn start(to: Target, resource: Resource) -> Result<Self, TelemetryError> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client(Signal::Traces, &to.endpoint, to.timeout)?)
            .build()
            .map_err(|source| TelemetryError::Exporter { signal: Signal::Traces, source })?;
        let losses = Losses::new(Signal::Traces, &to.endpoint);
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(Watched::new(exporter, losses.clone()))
            .with_resource(resource)
            .build();
        subscribe(&provider)?;
        Ok(Self { provider, losses })
    }

    fn end(self, limit: Duration) -> Option<Loss> {
        self.losses.at_the_end(self.provider.shutdown_with_timeout(limit))
    }
}

/// Makes spans of the target, and only they, spans of traces; the places in the code that open them say nothing of interest.
fn subscribe(provider: &SdkTracerProvider) -> Result<(), TelemetryError> {
    let ours = FilterFn::new(|metadata| metadata.is_span() && metadata.target() == TARGET)
        .with_max_level_hint(LevelFilter::INFO);
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("rollpacker"))
        .with_location(false)
        .with_threads(false)
        .with_level(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(ours);
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))?;
    Ok(())
}
