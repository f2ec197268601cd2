//! Exports traces, metrics and logs over OTLP if the `OTEL_*` variables name a collector.
//!
//! Each step is one trace: the span `step` with a child span per stage, as `rollpacker_dataflow::telemetry` opens and closes them. The
//! metrics of each step are exported as gauges. The log messages that `RUST_LOG` selects are exported, by default the warnings of this
//! project. Exports run on their own threads. A slow or absent collector does not delay the steps of a run; it only loses data, which
//! [`Telemetry::shutdown`] counts. The end of the run waits for the collector for at most 5 seconds. Without the variables there is no
//! thread and no exporter.
//!
//! `docs/telemetry.md` lists all variables, instruments, spans and attributes.
//!
//! Without the feature `otlp` nothing can be exported, and variables that request an export are an error.
//!
//! An empty variable counts as unset. A signal without an endpoint is not exported: unlike the SDK, this program never sends data to a
//! default address. `OTEL_METRIC_EXPORT_INTERVAL` is ignored, because metrics are exported once per step.

#[cfg(feature = "otlp")]
mod client;
#[cfg(feature = "torch")]
mod console;
mod env;
mod error;
#[cfg(feature = "otlp")]
mod export;
#[cfg(any(feature = "otlp", all(feature = "cli", feature = "torch")))]
mod log_filter;
#[cfg(feature = "otlp")]
mod logs;
mod loss;
#[cfg(feature = "otlp")]
mod loss_counter;
#[cfg(feature = "otlp")]
mod metrics;
#[cfg(not(feature = "otlp"))]
mod no_export;
#[cfg(all(feature = "cli", feature = "torch"))]
pub(crate) mod warnings;

#[cfg(feature = "torch")]
pub(crate) use self::console::log_warning;
pub use self::error::TelemetryError;
#[cfg(feature = "otlp")]
pub use self::export::Telemetry;
pub use self::loss::{Loss, Signal};
#[cfg(not(feature = "otlp"))]
pub use self::no_export::Telemetry;
