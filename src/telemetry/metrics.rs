//! Exports the metrics of each step once, as gauges, on a thread that may block on the collector.
//!
//! The SDK's reader exports the last value of each gauge at fixed intervals, and its flush blocks without a limit. A training run has one
//! value per step, and must not block.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use opentelemetry::metrics::{Gauge, Meter, MeterProvider};
use opentelemetry_otlp::{MetricExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider, Temporality};
use rollpacker_stages::metrics::Metric;

use super::client::{ExportClient, client};
use super::env::ExportTarget;
use super::error::TelemetryError;
use super::loss::{Loss, Signal};
use super::loss_counter::{CountingExporter, LossCounter};

/// Maximum number of steps that wait for the collector. Further steps are lost.
const MAX_QUEUED_STEPS: usize = 64;

/// An interval longer than any run. Steps are exported explicitly.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

type MetricValues = BTreeMap<String, f64>;

/// The exporter of metrics, with the queue of steps that its thread still has to export.
#[derive(Debug)]
pub(super) struct MetricExport {
    steps: SyncSender<MetricValues>,
    closing: ClosingMetricExport,
}

/// An export that receives no more steps but may still be running.
#[derive(Debug)]
pub(super) struct ClosingMetricExport {
    done: Receiver<()>,
    losses: LossCounter,
}

impl MetricExport {
    pub(super) fn start(to: ExportTarget, resource: Resource) -> Result<Self, TelemetryError> {
        let client = client(Signal::Metrics, &to.endpoint, to.timeout)?;
        let losses = LossCounter::new(Signal::Metrics, &to.endpoint);
        let provider = provider(client, losses.clone(), resource)?;
        let (steps, waiting) = sync_channel(MAX_QUEUED_STEPS);
        let (ended, done) = sync_channel(1);
        std::thread::Builder::new()
            .name("rollpacker-metrics".to_owned())
            .spawn(move || {
                export(&provider, waiting);
                drop((provider, ended));
            })
            .map_err(TelemetryError::Thread)?;
        Ok(Self { steps, closing: ClosingMetricExport { done, losses } })
    }

    pub(super) fn record(&self, metrics: &MetricValues) {
        if self.steps.try_send(metrics.clone()).is_err() {
            self.closing
                .losses
                .record_failure(&format_args!("the collector is {MAX_QUEUED_STEPS} steps behind"));
        }
    }

    pub(super) fn close(self) -> ClosingMetricExport {
        self.closing
    }
}

impl ClosingMetricExport {
    pub(super) fn end(self, limit: Duration) -> Option<Loss> {
        self.losses.finish(match self.done.recv_timeout(limit) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Ok(()),
            Err(RecvTimeoutError::Timeout) => Err("no response at the end of the run"),
        })
    }
}

/// Creates the provider. With delta temporality a gauge is exported only in the steps that have it.
fn provider(
    client: ExportClient,
    losses: LossCounter,
    resource: Resource,
) -> Result<SdkMeterProvider, TelemetryError> {
    let exporter = MetricExporter::builder()
        .with_temporality(Temporality::Delta)
        .with_http()
        .with_http_client(client)
        .build()
        .map_err(|source| TelemetryError::Exporter { signal: Signal::Metrics, source })?;
    let reader = PeriodicReader::builder(CountingExporter::new(exporter, losses))
        .with_interval(NEVER)
        .build();
    Ok(SdkMeterProvider::builder().with_reader(reader).with_resource(resource).build())
}

fn export(provider: &SdkMeterProvider, steps: Receiver<MetricValues>) {
    let meter = provider.meter("rollpacker");
    let mut gauges = BTreeMap::new();
    for step in steps {
        for (name, value) in step {
            gauges.entry(name).or_insert_with_key(|name| gauge(&meter, name)).record(value, &[]);
        }
        // The exporter counts a failure itself.
        let _noted = provider.force_flush();
    }
}

/// Creates the gauge of a metric, with unit and description if the table of metrics lists it.
fn gauge(meter: &Meter, metric: &str) -> Gauge<f64> {
    let gauge = meter.f64_gauge(instrument(metric));
    let gauge = match Metric::find(metric) {
        Some(row) => gauge.with_unit(row.unit).with_description(row.description),
        None => gauge,
    };
    gauge.build()
}

/// Returns the name of a metric's gauge: at most 255 characters, all of them ASCII letters, digits, `_`, `-` or `.`. The SDK silently drops
/// gauges whose names are longer or have characters other than these and `/`.
fn instrument(metric: &str) -> String {
    let allowed = |letter: char| match letter {
        '/' => '.',
        letter if letter.is_ascii_alphanumeric() || "_-.".contains(letter) => letter,
        _ => '_',
    };
    "rollpacker.".chars().chain(metric.chars().map(allowed)).take(255).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rollpacker_stages::metrics::{SECTIONS, Section};

    use super::*;
    use crate::generated_page::assert_tables;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/telemetry.md");

    /// Returns the instrument of a row of the table of metrics, whose placeholders in `<>` and `{}` stay as they are.
    fn instrument_of_row(name: &str) -> String {
        let mut is_placeholder = false;
        let allowed = |letter: char| {
            is_placeholder = is_placeholder != "<>{}".contains(letter);
            if is_placeholder || "<>{}".contains(letter) {
                return letter.to_string();
            }
            instrument(&letter.to_string()).replacen("rollpacker.", "", 1)
        };
        let name: String = name.chars().map(allowed).collect();
        format!("rollpacker.{name}")
    }

    fn tables() -> String {
        let rows = |metrics: &[Metric]| -> String {
            let row = |metric: &Metric| {
                let (name, unit) = (instrument_of_row(metric.name), metric.unit);
                format!("| `{name}` | `{unit}` | {} |\n", metric.description)
            };
            metrics.iter().map(row).collect()
        };
        let section = |section: &Section| {
            let head = "| gauge | unit | description |\n|---|---|---|\n";
            format!("\n### {}\n\n{head}{}", section.title, rows(section.metrics))
        };
        let sections: String = SECTIONS.iter().map(section).collect();
        format!("{sections}\n")
    }

    #[test]
    fn the_page_lists_all_instruments() {
        let command = "cargo test -p rollpacker --lib the_page_lists_all_instruments";
        assert_tables(PAGE, &tables(), command);
    }

    #[test]
    fn the_page_lists_the_operators_of_a_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("job.toml");
        let job =
            "[data]\ntrain_batch_size = 4\n[sim]\nsteps = 2\n[schedule]\nname = \"tail_batching\"";
        std::fs::write(&path, job).expect("written");
        let job = crate::simulate::Job::read(&path, &[]).expect("a job");
        let outcome = crate::simulate::run::run(&job, 1).expect("simulated");
        let metrics = outcome.steps.iter().flat_map(|step| step.metrics.keys());
        let operators: BTreeSet<_> = metrics
            .filter_map(|name| name.strip_prefix("operator/")?.strip_suffix("/busy_s"))
            .collect();
        assert!(operators.len() > 8, "{operators:?}");
        let page = std::fs::read_to_string(PAGE).expect("the page is there");
        for operator in operators.into_iter().filter(|name| !name.contains("_to_")) {
            assert!(page.contains(&format!("`{operator}`")), "{operator} is not on the page");
        }
    }

    #[test]
    fn names_of_instruments_are_valid() {
        assert_eq!(instrument("val-core/gsm8k/mean@8"), "rollpacker.val-core.gsm8k.mean_8");
        assert_eq!(instrument(&"é".repeat(300)).len(), 255);
    }
}
