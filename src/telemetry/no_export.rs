//! The [`Telemetry`] of a program without the feature `otlp`, which cannot export anything.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;

use super::env::{target, variable};
use super::error::TelemetryError;
use super::loss::Signal;

/// Exports traces, metrics and logs over OTLP. A program without the feature `otlp` never has a value of this type.
#[derive(Debug)]
pub struct Telemetry(Infallible);

impl Telemetry {
    /// Returns `None` if the `OTEL_*` variables request no export.
    ///
    /// # Errors
    /// If the variables request an export, returns [`TelemetryError::Absent`]. If a variable has an unsupported value, returns
    /// [`TelemetryError::Variable`].
    pub fn from_env() -> Result<Option<Self>, TelemetryError> {
        for signal in [Signal::Traces, Signal::Metrics, Signal::Logs] {
            if target(signal, &variable)?.is_some() {
                return Err(TelemetryError::Absent { signal });
            }
        }
        Ok(None)
    }

    /// Returns `None` if the `OTEL_*` variables request no export.
    ///
    /// # Errors
    /// In the same cases as [`Self::from_env`].
    pub fn of_run(_: &Path) -> Result<Option<Self>, TelemetryError> {
        Self::from_env()
    }

    /// Is never called, because there is no value of this type.
    pub fn record(&self, _: &BTreeMap<String, f64>) {
        match self.0 {}
    }

    /// Is never called, because there is no value of this type.
    ///
    /// # Errors
    /// Never.
    pub fn shutdown(self) -> Result<(), TelemetryError> {
        match self.0 {}
    }
}
