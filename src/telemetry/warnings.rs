//! Warnings of the crates of this project, on standard error.
//!
//! They are events of `tracing`: a crate that runs in the background has no other way to report something that is no error of the run.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterFn, LevelFilter};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::terminal;

/// Prints warnings from now on. Has no effect if the program has a subscriber already, which then has the [`layer`] itself.
pub(crate) fn print() {
    drop(tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer())));
}

/// Returns a layer that prints warnings and errors.
pub(super) fn layer<S: Subscriber + for<'span> LookupSpan<'span>>() -> impl Layer<S> {
    let is_ours = FilterFn::new(|metadata| {
        let is_warning = metadata.is_event() && *metadata.level() <= Level::WARN;
        is_warning && metadata.target().starts_with("rollpacker")
    });
    // The hint keeps the spans of steps and stages turned off.
    Printer.with_filter(is_ours.with_max_level_hint(LevelFilter::WARN))
}

struct Printer;

impl<S: Subscriber> Layer<S> for Printer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        terminal::warn(&line.to_string());
    }
}

/// The text of an event.
#[derive(Default)]
struct Line {
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
        let Self { message, fields } = self;
        match (message.as_str(), fields.as_str()) {
            (message, "") => write!(f, "warning: {message}"),
            ("", fields) => write!(f, "warning: {fields}"),
            (message, fields) => write!(f, "warning: {message} ({fields})"),
        }
    }
}
