//! Reads environment variables. Unsupported values of the `OTEL_*` variables are errors, whereas the SDK would silently use defaults.

use std::time::Duration;

use rollpacker_stages::secret::without_credentials;

use super::error::TelemetryError;
use super::loss::Signal;

/// The collector of a signal, and the timeout of its exports.
#[derive(Debug)]
#[cfg_attr(not(feature = "otlp"), allow(dead_code, reason = "only an export reads it"))]
pub(super) struct ExportTarget {
    /// The URL of the collector, as written.
    pub(super) endpoint: String,
    /// The timeout of an export. Default: 10 s.
    pub(super) timeout: Duration,
}

/// The default timeout of an export, as OpenTelemetry specifies it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the value of an environment variable, or `None` if it is unset or empty.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the destination of a signal, or `None` if the signal is not exported. `variable` looks up a variable and returns `None` if it is
/// unset or empty.
///
/// # Errors
/// If a variable of the signal has an unsupported value.
pub(super) fn target(
    signal: Signal,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<Option<ExportTarget>, TelemetryError> {
    if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let Some((name, endpoint)) = setting(signal, "ENDPOINT", variable) else { return Ok(None) };
    let exporter = format!("OTEL_{}_EXPORTER", signal.variable_infix());
    match variable(&exporter).as_deref() {
        Some("none") => return Ok(None),
        None | Some("otlp") => {}
        Some(found) => return Err(variable_error(exporter, "`otlp` or `none`", found)),
    }
    require_value("http/protobuf", "`http/protobuf`", setting(signal, "PROTOCOL", variable))?;
    require_value("none", "`none`", setting(signal, "COMPRESSION", variable))?;
    let begins = |scheme: &str| {
        endpoint.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme))
    };
    if !begins("http://") && !begins("https://") {
        return Err(variable_error(
            name,
            "a URL that begins with `http://` or `https://`",
            &endpoint,
        ));
    }
    let timeout = setting(signal, "TIMEOUT", variable).map(milliseconds).transpose()?;
    Ok(Some(ExportTarget { endpoint, timeout: timeout.unwrap_or(TIMEOUT) }))
}

fn milliseconds((name, value): (String, String)) -> Result<Duration, TelemetryError> {
    let parsed = value.trim().parse().ok().filter(|milliseconds| *milliseconds > 0);
    let parsed = parsed.map(Duration::from_millis);
    parsed.ok_or_else(|| variable_error(name, "a number of milliseconds above 0", &value))
}

/// Returns the name and the value of the signal's own variable, or of the general variable if the own one is unset. `what` is the end of
/// both names, such as `ENDPOINT`. Returns `None` if both are unset.
fn setting(
    signal: Signal,
    what: &str,
    variable: &impl Fn(&str) -> Option<String>,
) -> Option<(String, String)> {
    let own = format!("OTEL_EXPORTER_OTLP_{}_{what}", signal.variable_infix());
    let general = format!("OTEL_EXPORTER_OTLP_{what}");
    [own, general].into_iter().find_map(|name| variable(&name).map(|value| (name, value)))
}

fn require_value(
    possible: &str,
    expected: &'static str,
    setting: Option<(String, String)>,
) -> Result<(), TelemetryError> {
    match setting {
        Some((name, found)) if !found.eq_ignore_ascii_case(possible) => {
            Err(variable_error(name, expected, &found))
        }
        _ => Ok(()),
    }
}

fn variable_error(variable: String, expected: &'static str, found: &str) -> TelemetryError {
    TelemetryError::Variable { variable, expected, found: without_credentials(found).into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the endpoints of traces and metrics for the given variables, `-` for none, or the error.
    fn check(variables: &[(&str, &str)], expected: &str) {
        let variable = |wanted: &str| {
            variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
        };
        let endpoint =
            |to: Option<ExportTarget>| to.map_or_else(|| "-".to_owned(), |to| to.endpoint);
        let show = |signal| target(signal, &variable).map(endpoint);
        let found = show(Signal::Traces)
            .and_then(|traces| Ok(format!("{traces} {}", show(Signal::Metrics)?)))
            .unwrap_or_else(|error| error.to_string());
        assert_eq!(found, expected, "{variables:?}");
    }

    const ALL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318");

    #[test]
    fn a_signal_is_exported_to_the_endpoint_of_its_variable() {
        check(&[], "- -");
        check(&[("OTEL_TRACES_EXPORTER", "jaeger")], "- -");
        check(&[ALL], "http://all:4318 http://all:4318");
        check(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://all")], "https://all https://all");
        check(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "HTTP://t")], "HTTP://t -");
        check(
            &[ALL, ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://m")],
            "http://all:4318 http://m",
        );
        check(&[ALL, ("OTEL_TRACES_EXPORTER", "none")], "- http://all:4318");
        check(&[ALL, ("OTEL_METRICS_EXPORTER", "none")], "http://all:4318 -");
        check(&[ALL, ("OTEL_SDK_DISABLED", "True"), ("OTEL_TRACES_EXPORTER", "jaeger")], "- -");
        check(&[ALL, ("OTEL_SDK_DISABLED", "1")], "http://all:4318 http://all:4318");
    }

    #[test]
    fn unsupported_settings_are_refused_by_name() {
        check(
            &[ALL, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
            "OTEL_EXPORTER_OTLP_PROTOCOL: expected `http/protobuf`, found `grpc`",
        );
        check(
            &[ALL, ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json")],
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL: expected `http/protobuf`, found `http/json`",
        );
        check(
            &[ALL, ("OTEL_METRICS_EXPORTER", "prometheus")],
            "OTEL_METRICS_EXPORTER: expected `otlp` or `none`, found `prometheus`",
        );
        check(
            &[ALL, ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")],
            "OTEL_EXPORTER_OTLP_COMPRESSION: expected `none`, found `gzip`",
        );
        check(
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "grpc://all:4317")],
            "OTEL_EXPORTER_OTLP_ENDPOINT: expected a URL that begins with `http://` or `https://`, found `grpc://all:4317`",
        );
        check(
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "grpc://user:pass-word@all:4317/?key=query-key")],
            "OTEL_EXPORTER_OTLP_ENDPOINT: expected a URL that begins with `http://` or `https://`, found `grpc://[redacted]@all:4317/?key=[redacted]`",
        );
        check(
            &[ALL, ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "10s")],
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT: expected a number of milliseconds above 0, found `10s`",
        );
    }

    #[test]
    fn the_export_timeout_is_set_by_a_variable() {
        let timeout = |value: &str| {
            let value = value.to_owned();
            let variable = move |name: &str| match name {
                "OTEL_EXPORTER_OTLP_ENDPOINT" => Some("http://all".to_owned()),
                "OTEL_EXPORTER_OTLP_TIMEOUT" => {
                    Some(value.clone()).filter(|value| !value.is_empty())
                }
                _ => None,
            };
            target(Signal::Metrics, &variable)
                .expect("possible")
                .expect("telemetry is requested")
                .timeout
        };
        assert_eq!((timeout("1500"), timeout("")), (Duration::from_millis(1500), TIMEOUT));
    }

    #[test]
    fn the_variable_of_a_signal_takes_precedence() {
        let own = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"]
            .map(|name| (name, "http/protobuf"));
        check(
            &[ALL, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), own[0], own[1]],
            "http://all:4318 http://all:4318",
        );
    }
}
