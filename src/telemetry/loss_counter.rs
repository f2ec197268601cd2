//! Counts exports that did not reach the collector. The SDK only logs a failed export internally.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{LogBatch, LogExporter};
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use rollpacker_stages::secret::{redact, without_credentials};

use super::loss::{Loss, Signal};

/// The loss counter of one signal, shared by the threads that export it.
#[derive(Clone, Debug)]
pub(super) struct LossCounter(Arc<LossState>);

#[derive(Debug)]
struct LossState {
    signal: Signal,
    endpoint: String,
    exports: AtomicU64,
    cause: OnceLock<String>,
}

impl LossCounter {
    pub(super) fn new(signal: Signal, endpoint: &str) -> Self {
        Self(Arc::new(LossState {
            signal,
            endpoint: without_credentials(endpoint).into_owned(),
            exports: AtomicU64::new(0),
            cause: OnceLock::new(),
        }))
    }

    pub(super) fn record_failure(&self, cause: &impl fmt::Display) {
        self.0.exports.fetch_add(1, Ordering::Relaxed);
        self.0.cause.get_or_init(|| redact(&cause.to_string()).into_owned());
    }

    /// Returns the losses of the run; `None` if there are none. If `ended`, the result of the shutdown, is an error, it counts as one more
    /// failed export.
    pub(super) fn finish(&self, ended: Result<(), impl fmt::Display>) -> Option<Loss> {
        if let Err(error) = ended {
            self.record_failure(&error);
        }
        self.0.cause.get().map(|cause| Loss {
            signal: self.0.signal,
            endpoint: self.0.endpoint.clone(),
            exports: self.0.exports.load(Ordering::Relaxed),
            cause: cause.clone(),
        })
    }
}

/// An exporter that adds its failed exports to a [`LossCounter`].
#[derive(Debug)]
pub(super) struct CountingExporter<E> {
    exporter: E,
    losses: LossCounter,
}

impl<E> CountingExporter<E> {
    pub(super) fn new(exporter: E, losses: LossCounter) -> Self {
        Self { exporter, losses }
    }

    fn count_failure(&self, result: OTelSdkResult) -> OTelSdkResult {
        result.inspect_err(|error| self.losses.record_failure(error))
    }
}

impl<E: SpanExporter> SpanExporter for CountingExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.count_failure(self.exporter.export(batch).await)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.exporter.shutdown()
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl<E: PushMetricExporter> PushMetricExporter for CountingExporter<E> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        self.count_failure(self.exporter.export(metrics).await)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.exporter.shutdown()
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}

impl<E: LogExporter> LogExporter for CountingExporter<E> {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        self.count_failure(self.exporter.export(batch).await)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.exporter.shutdown()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
