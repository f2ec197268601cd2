//! Log messages on standard error: warnings of the crates of this project, or the messages that `RUST_LOG` selects.
//!
//! The messages are events of `tracing`, with which crates report conditions that are no error of the run.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use super::console::CONSOLE_TARGET;
use super::log_filter::{self, LogFilterError};
use crate::terminal;

/// Checks `RUST_LOG`, which selects the messages.
///
/// # Errors
/// If the value of `RUST_LOG` cannot be parsed.
pub(crate) fn check() -> Result<(), LogFilterError> {
    log_filter::parse().map(drop)
}

/// Installs a global subscriber that prints log messages, with the [`layer`]. Does nothing if the program already has one. The subscriber
/// that exports telemetry has the [`layer`], too.
pub(crate) fn print() {
    drop(tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer())));
}

/// Returns a layer that prints the messages that `RUST_LOG` selects, or warnings of this project if its value is unset or cannot be parsed.
/// Warnings that the console has already printed are left out.
pub(super) fn layer<S: Subscriber + for<'span> LookupSpan<'span>>() -> impl Layer<S> {
    // Spans stay turned off: those of steps and stages are for the export of traces.
    let unprinted =
        filter_fn(|metadata| metadata.is_event() && metadata.target() != CONSOLE_TARGET);
    Printer.with_filter(log_filter::selected().and(unprinted))
}

struct Printer;

impl<S: Subscriber> Layer<S> for Printer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line { origin: origin(event), ..Line::default() };
        event.record(&mut line);
        terminal::warn(&line.to_string());
    }
}

/// Returns the beginning of the line of an event: `warning` for warnings and errors, and otherwise its level and target.
fn origin(event: &Event<'_>) -> String {
    let metadata = event.metadata();
    match *metadata.level() {
        Level::ERROR | Level::WARN => "warning".to_owned(),
        level => format!("{}: {}", level.as_str().to_lowercase(), metadata.target()),
    }
}

/// The parts of the line of an event.
#[derive(Default)]
struct Line {
    origin: String,
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let comma = if self.fields.is_empty() { "" } else { ", " };
        // Writing to a text cannot fail.
        let _written = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, "{comma}{name}: {value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        // Without quotes.
        self.record_debug(field, &format_args!("{value}"));
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, message, fields } = self;
        match (message.as_str(), fields.as_str()) {
            (message, "") => write!(f, "{origin}: {message}"),
            ("", fields) => write!(f, "{origin}: {fields}"),
            (message, fields) => write!(f, "{origin}: {message} ({fields})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use tracing_subscriber::filter::EnvFilter;

    use super::*;
    use crate::telemetry::log_filter::DEFAULT_FILTER;

    /// Collects lines instead of printing them.
    struct Collector(Arc<Mutex<Vec<String>>>);

    impl<S: Subscriber> Layer<S> for Collector {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut line = Line { origin: origin(event), ..Line::default() };
            event.record(&mut line);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_string());
        }
    }

    fn lines(directives: &str) -> Vec<String> {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let selected = EnvFilter::builder().parse(directives).expect("directives");
        let layer = Collector(lines.clone()).with_filter(selected);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::warn!(target: "rollpacker_servers::engine", server = "a", "is away");
            tracing::debug!(target: "rollpacker_servers::engine", "answers");
            tracing::warn!(target: "hyper", "closed");
            tracing::error!(target: "rollpacker", error = "e");
        });
        std::mem::take(&mut *lines.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[test]
    fn warnings_of_this_project_are_selected_by_default() {
        assert_eq!(lines(DEFAULT_FILTER), ["warning: is away (server: a)", "warning: error: e"]);
        let all = [
            "warning: is away (server: a)",
            "debug: rollpacker_servers::engine: answers",
            "warning: closed",
            "warning: error: e",
        ];
        assert_eq!(lines("debug"), all);
        assert_eq!(lines("hyper=error,rollpacker_servers=debug"), all[..2]);
    }
}
