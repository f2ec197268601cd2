//! What the `OTEL_*` variables ask for; what they say wrongly is refused, where the SDK would fall back in silence.

use opentelemetry_sdk::resource::ResourceBuilder;

use super::TelemetryError;
use super::loss::Signal;

/// Where to export a signal to; `None` if it is not asked for. `variable` looks a variable up and knows no empty ones.
///
/// # Errors
/// A variable of the signal with a value that is not possible.
pub(super) fn endpoint(
    signal: Signal,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<Option<String>, TelemetryError> {
    if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let Some((name, endpoint)) = setting(signal, "ENDPOINT", variable) else { return Ok(None) };
    let exporter = format!("OTEL_{}_EXPORTER", signal.in_variables());
    match variable(&exporter).as_deref() {
        Some("none") => return Ok(None),
        None | Some("otlp") => {}
        Some(found) => return Err(refused(exporter, "`otlp` or `none`", found)),
    }
    only("http/protobuf", "`http/protobuf`", setting(signal, "PROTOCOL", variable))?;
    only("none", "`none`", setting(signal, "COMPRESSION", variable))?;
    if !endpoint.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://")) {
        return Err(refused(name, "a URL that begins with `http://`", &endpoint));
    }
    Ok(Some(endpoint))
}

/// Names the service unless a variable does.
pub(super) fn name_service(
    resource: ResourceBuilder,
    variable: &impl Fn(&str) -> Option<String>,
) -> ResourceBuilder {
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let mut keys = attributes.split(',').filter_map(|attribute| attribute.split_once('='));
    if variable("OTEL_SERVICE_NAME").is_some() || keys.any(|(key, _)| key.trim() == "service.name")
    {
        resource
    } else {
        resource.with_service_name("rollpacker")
    }
}

/// The variable of the signal, or else that of both, and its value.
fn setting(
    signal: Signal,
    what: &str,
    variable: &impl Fn(&str) -> Option<String>,
) -> Option<(String, String)> {
    let own = format!("OTEL_EXPORTER_OTLP_{}_{what}", signal.in_variables());
    let general = format!("OTEL_EXPORTER_OTLP_{what}");
    [own, general].into_iter().find_map(|name| variable(&name).map(|value| (name, value)))
}

fn only(
    possible: &str,
    expected: &'static str,
    setting: Option<(String, String)>,
) -> Result<(), TelemetryError> {
    match setting {
        Some((name, found)) if !found.eq_ignore_ascii_case(possible) => {
            Err(refused(name, expected, &found))
        }
        _ => Ok(()),
    }
}

fn refused(variable: String, expected: &'static str, found: &str) -> TelemetryError {
    TelemetryError::Variable { variable, expected, found: found.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Endpoints of traces and metrics under the variables, `-` for none, or the error.
    fn check(variables: &[(&str, &str)], expected: &str) {
        let variable = |wanted: &str| {
            variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
        };
        let show = |signal| endpoint(signal, &variable).map(|to| to.unwrap_or_else(|| "-".into()));
        let found = show(Signal::Traces)
            .and_then(|traces| Ok(format!("{traces} {}", show(Signal::Metrics)?)))
            .unwrap_or_else(|error| error.to_string());
        assert_eq!(found, expected, "{variables:?}");
    }

    const ALL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318");

    #[test]
    fn a_signal_is_exported_where_a_variable_says() {
        check(&[], "- -");
        check(&[("OTEL_TRACES_EXPORTER", "jaeger")], "- -");
        check(&[ALL], "http://all:4318 http://all:4318");
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
    fn what_is_not_possible_is_refused_by_name() {
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
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://all:4318")],
            "OTEL_EXPORTER_OTLP_ENDPOINT: expected a URL that begins with `http://`, found `https://all:4318`",
        );
    }

    #[test]
    fn the_own_variable_of_a_signal_comes_first() {
        let own = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"]
            .map(|name| (name, "http/protobuf"));
        check(
            &[ALL, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), own[0], own[1]],
            "http://all:4318 http://all:4318",
        );
    }
}
