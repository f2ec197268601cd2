//! Telemetry that did not reach the collector.

use std::fmt;

/// A kind of telemetry, which has its own URL path and environment variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Spans of steps and stages.
    Traces,
    /// Gauges of the metrics of each step.
    Metrics,
    /// Log messages.
    Logs,
}

impl Signal {
    pub(super) fn variable_infix(self) -> &'static str {
        match self {
            Self::Traces => "TRACES",
            Self::Metrics => "METRICS",
            Self::Logs => "LOGS",
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Traces => "traces",
            Self::Metrics => "metrics",
            Self::Logs => "logs",
        })
    }
}

/// The failed exports of one signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The signal whose exports failed.
    pub signal: Signal,
    /// The URL of the collector, without credentials.
    pub endpoint: String,
    /// The number of failed exports. An export is one batch of spans or of log messages, or the metrics of one step. A failed
    /// shutdown counts as one more.
    pub exports: u64,
    /// The cause of the first failure.
    pub cause: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { signal, endpoint, exports, cause } = self;
        write!(f, "{exports} exports of {signal} to {endpoint} ({cause})")
    }
}

pub(super) fn join(losses: &[Loss]) -> String {
    losses.iter().map(Loss::to_string).collect::<Vec<_>>().join(", ")
}
