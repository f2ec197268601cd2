//! Log messages for warnings that the console has already printed.

/// The tracing target of warnings that the console has already printed. The layer that prints log messages leaves them out.
#[cfg(any(feature = "cli", feature = "otlp"))]
pub(super) const CONSOLE_TARGET: &str = "rollpacker::console";

/// Emits a log message for a warning that the console has already printed, so that other subscribers receive the warning.
#[cfg(any(feature = "cli", feature = "otlp"))]
pub(crate) fn log_warning(text: &str) {
    tracing::warn!(target: CONSOLE_TARGET, "{text}");
}

/// Does nothing in a program without log messages.
#[cfg(not(any(feature = "cli", feature = "otlp")))]
pub(crate) fn log_warning(_: &str) {}
