//! Tests that an OTLP collector receives steps and stages as traces, metrics as gauges and log messages as records, and that no collector
//! can harm a run.
//!
//! Environment variables and the global subscriber belong to a process, so every case runs the test [`child`] of this program in a separate
//! process.

#![cfg(feature = "otlp")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use arrow_array::{ArrayRef, StringArray, UInt64Array};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, SeverityNumber};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use rollpacker::telemetry::{Telemetry, TelemetryError};
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::clock::{Clock, WallClock};
use rollpacker_dataflow::fault::{Fault, Origin, give_fault, raise};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::{feedback, runtime, schema, telemetry};
use rollpacker_stages::metrics::Metric;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use timely::dataflow::channels::pact::Pipeline;

const STEPS: u64 = 3;
const MODE: &str = "ROLLPACKER_TEST_TELEMETRY";
/// A key of the collector, which must not be exported.
const SECRET: &str = "key-of-the-collector";

// The run under test.

fn batch() -> Batch {
    let version: ArrayRef = Arc::new(UInt64Array::from(vec![0]));
    let text: ArrayRef = Arc::new(StringArray::from(vec!["test"]));
    Batch::from_columns(&schema::POLICIES, vec![version.clone(), text, version])
}

/// Forwards only the data of the first steps.
fn sample(policies: BatchStream<'_>) -> BatchStream<'_> {
    let mut operator = Operator::new("sample", policies.scope());
    let mut input = operator.input(policies, Pipeline, &schema::POLICIES);
    let (mut output, sampled) = operator.output(&schema::POLICIES, &[0]);
    let sampled = operator.end_spans_by(sampled);
    operator.build(move |_| {
        move |_| {
            input.for_each(|capability, batch| {
                if *capability.time() < Step(STEPS) {
                    output.give(&capability.retain(0), batch);
                }
            });
        }
    });
    sampled
}

/// Emits the policy of a step once the step is complete.
fn train(sampled: BatchStream<'_>) -> BatchStream<'_> {
    let mut operator = Operator::new("train", sampled.scope());
    let mut input = operator.input(sampled, Pipeline, &schema::POLICIES);
    let (mut output, policies) = operator.output(&schema::POLICIES, &[0]);
    let policies = operator.end_spans_by(policies);
    operator.build(move |_| {
        let mut open = BTreeMap::new();
        move |frontiers| {
            input.for_each(|capability, batch| {
                open.insert(*capability.time(), (capability.retain(0), batch));
            });
            while let Some(entry) =
                open.first_entry().filter(|entry| !frontiers[0].less_equal(entry.key()))
            {
                let (capability, batch) = entry.remove();
                output.give(&capability, batch);
            }
        }
    });
    policies
}

/// Ends the steps. It has no output that would end its own spans.
fn report(stream: BatchStream<'_>) {
    let mut operator = Operator::new("report", stream.scope());
    let mut input = operator.input(stream, Pipeline, &schema::POLICIES);
    operator.notify_always();
    operator.build(move |_| {
        let mut open = BTreeSet::new();
        move |frontiers| {
            input.for_each(|capability, _| {
                open.insert(*capability.time());
            });
            while let Some(&step) = open.first().filter(|step| !frontiers[0].less_equal(step)) {
                open.remove(&step);
                telemetry::describe_step(step, "short", (step.0 > 0).then_some(0.5));
                telemetry::close_step(step);
            }
        }
    });
}

/// A stage that fails at step 1.
fn fail(stream: BatchStream<'_>) -> BatchStream<'_> {
    let mut operator = Operator::new("fail", stream.scope());
    let mut input = operator.input(stream, Pipeline, &schema::POLICIES);
    let (mut errors, failed) = operator.output(&schema::ERRORS, &[0]);
    let failed = operator.end_spans_by(failed);
    operator.build(move |_| {
        move |_| {
            input.for_each(|capability, _| {
                if *capability.time() == Step(1) {
                    let fault = Fault::new("fail", Origin::User, "as it should");
                    give_fault(&mut errors, &capability.retain(0), fault);
                }
            });
        }
    });
    failed
}

fn run() -> Result<(), Fault> {
    runtime::run(|scope, _| {
        let (policies, edge) = feedback::policies(scope, 0, batch());
        let trained = train(sample(policies));
        report(trained.clone());
        edge.connect(trained);
    })
}

fn run_into_a_fault() -> Result<(), Fault> {
    runtime::run(|scope, faults| {
        let (policies, edge) = feedback::policies(scope, 0, batch());
        let sampled = sample(policies);
        raise(fail(sampled.clone()), faults);
        edge.connect(train(sampled));
    })
}

fn metrics(step: u64) -> BTreeMap<String, f64> {
    let mut metrics = BTreeMap::from([
        ("response_length/mean".to_owned(), 10.5 + step as f64),
        ("val/sum@1".to_owned(), f64::NAN),
    ]);
    if step == 1 {
        metrics.insert("val/accuracy".to_owned(), 0.25);
    }
    metrics
}

/// Runs the case that the variable [`MODE`] names. [`spawn`] runs this test in a separate process with this variable; without it, the test
/// does nothing.
#[test]
fn child() {
    match std::env::var(MODE).as_deref() {
        Ok("run") => in_an_async_context(export),
        Ok("drop") => drop(telemetry().map(|_telemetry| run().expect("no fault"))),
        Ok("fault") => {
            let telemetry = telemetry().expect("telemetry is requested");
            run_into_a_fault().expect_err("a fault");
            telemetry.shutdown().expect("a collector");
        }
        Ok("log") => log(),
        Ok("lose") => lose(),
        Ok("unknown authority") => unknown_authority(),
        Ok("no certificates") => no_certificates(),
        Ok("none") => assert!(telemetry().is_none()),
        Ok("refused") => refused(),
        Ok("subscribed") => subscribed(),
        Ok(mode) => panic!("no mode `{mode}`"),
        Err(_) => {}
    }
}

fn telemetry() -> Option<Telemetry> {
    Telemetry::of_run(Path::new("/runs/chain")).expect("variables that are possible")
}

/// Runs a function inside an async runtime, where creating or using a blocking HTTP client panics.
fn in_an_async_context(run: fn()) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async { run() });
}

fn export() {
    let telemetry = telemetry().expect("telemetry is requested");
    run().expect("no fault");
    (0..STEPS).for_each(|step| telemetry.record(&metrics(step)));
    telemetry.shutdown().expect("a collector");
}

/// Emits a warning of this project, and messages that are not selected or that exports cause.
fn log() {
    let telemetry = telemetry().expect("telemetry is requested");
    tracing::warn!(target: "rollpacker_servers::engine", server = SECRET, tries = 3_i64, "no {SECRET}");
    tracing::debug!(target: "rollpacker_servers::engine", "answers");
    tracing::warn!(target: "hyper::client", "closed");
    telemetry.shutdown().expect("a collector");
}

fn lose() {
    let telemetry = telemetry().expect("telemetry is requested");
    let watch = WallClock::start();
    run().expect("the run succeeds without a collector");
    tracing::warn!(target: "rollpacker", "lost");
    (0..STEPS).for_each(|step| telemetry.record(&metrics(step)));
    assert!(watch.now().as_secs_f64() < 3.0, "the run does not wait for the collector");
    let lost = telemetry.shutdown().expect_err("nobody is there").to_string();
    assert!(watch.now().as_secs_f64() < 9.0, "the shutdown ends within 9 s");
    for signal in ["traces", "metrics", "logs"] {
        assert!(lost.contains(&format!("exports of {signal} to http://127.0.0.1:")), "{lost}");
    }
}

fn unknown_authority() {
    let telemetry = telemetry().expect("telemetry is requested");
    run().expect("the run succeeds without a collector");
    let lost = telemetry.shutdown().expect_err("nobody is trusted").to_string();
    assert!(lost.contains("exports of traces to https://localhost:"), "{lost}");
}

fn no_certificates() {
    let error = Telemetry::from_env().map(|_| ()).expect_err("nobody can be trusted");
    assert!(matches!(error, TelemetryError::Client { .. }), "{error}");
}

fn refused() {
    let error = Telemetry::from_env().map(|_| ()).expect_err("grpc");
    let message = "OTEL_EXPORTER_OTLP_PROTOCOL: expected `http/protobuf`, found `grpc`";
    assert_eq!(error.to_string(), message);
}

fn subscribed() {
    tracing::subscriber::set_global_default(tracing_subscriber::registry()).expect("the first");
    let error = Telemetry::from_env().map(|_| ()).expect_err("there is one");
    assert!(matches!(error, TelemetryError::Subscriber(_)), "{error}");
}

/// Runs the test [`child`] with these environment variables, and without other variables that affect an export.
fn spawn(mode: &str, variables: &[(&str, &str)]) {
    let ours = std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy().to_uppercase();
        !name.starts_with("OTEL_") && !name.ends_with("_PROXY")
    });
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child", "--nocapture"])
        .env_clear()
        .envs(ours)
        .env(MODE, mode)
        .envs(variables.iter().copied())
        .output()
        .expect("the child starts");
    assert!(output.status.success(), "{mode}: {}", String::from_utf8_lossy(&output.stderr));
}

// The collector.

struct Post {
    path: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Collector {
    endpoint: String,
    posts: Receiver<Post>,
}

impl Collector {
    fn start() -> Self {
        let (listener, address) = listen();
        let (sender, posts) = channel();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let sender = sender.clone();
                std::thread::spawn(move || serve(connection.expect("a connection"), &sender));
            }
        });
        Self { endpoint: format!("http://{address}"), posts }
    }

    /// Starts a collector over TLS whose certificate names `localhost`.
    fn start_encrypted() -> Self {
        let (listener, address) = listen();
        let (sender, posts) = channel();
        let config = Arc::new(server_config());
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (sender, config) = (sender.clone(), config.clone());
                std::thread::spawn(move || {
                    let tls = ServerConnection::new(config).expect("a configuration");
                    serve(StreamOwned::new(tls, connection.expect("a connection")), &sender);
                });
            }
        });
        Self { endpoint: format!("https://localhost:{}", address.port()), posts }
    }

    /// Runs a child and returns all requests that it sent.
    fn of_child(mode: &str, variables: &[(&str, &str)]) -> Vec<Post> {
        let collector = Self::start();
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.as_str());
        spawn(mode, &[&[endpoint], variables].concat());
        collector.posts.try_iter().collect()
    }
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

/// Accepts requests until the other side closes the connection.
fn serve(connection: impl Read + Write, posts: &Sender<Post>) {
    let mut reader = BufReader::new(connection);
    while let Some(post) = read_post(&mut reader) {
        posts.send(post).expect("the test waits");
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        reader.get_mut().write_all(answer).expect("the child waits for an answer");
        reader.get_mut().flush().expect("the child waits for an answer");
    }
}

/// Returns the path of a key or certificate that `tests/fixtures/tls/make.sh` created for these tests.
fn tls_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tls").join(name)
}

fn server_config() -> ServerConfig {
    let certificate =
        CertificateDer::from_pem_file(tls_file("localhost.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(tls_file("localhost.key")).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions of TLS");
    builder.with_no_client_auth().with_single_cert(vec![certificate], key).expect("they fit")
}

fn read_post(reader: &mut impl BufRead) -> Option<Post> {
    let mut lines =
        reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let request = lines.next()?;
    let headers: BTreeMap<_, _> = lines
        .filter_map(|line| {
            line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        })
        .collect();
    let mut body = vec![0; headers["content-length"].parse().expect("a length")];
    reader.read_exact(&mut body).expect("a body");
    let path = request.strip_prefix("POST ")?.split(' ').next()?.to_owned();
    Some(Post { path, headers, body })
}

// The data that the collector has received.

fn trace_requests(posts: &[Post]) -> Vec<ExportTraceServiceRequest> {
    let traces = posts.iter().filter(|post| post.path == "/v1/traces");
    traces.map(|post| Message::decode(&*post.body).expect("protobuf")).collect()
}

fn metrics_requests(posts: &[Post]) -> Vec<ExportMetricsServiceRequest> {
    let metrics = posts.iter().filter(|post| post.path == "/v1/metrics");
    metrics.map(|post| Message::decode(&*post.body).expect("protobuf")).collect()
}

/// Returns the log records of each instrumentation scope.
fn log_records(posts: &[Post]) -> Vec<(String, LogRecord)> {
    let logs = posts.iter().filter(|post| post.path == "/v1/logs");
    let requests =
        logs.map(|post| ExportLogsServiceRequest::decode(&*post.body).expect("protobuf"));
    let mut records = Vec::new();
    for resource in requests.flat_map(|request| request.resource_logs) {
        assert_eq!(text(resource.resource.as_ref(), "rollpacker.run.folder"), "/runs/chain");
        for scope in resource.scope_logs {
            let name = scope.scope.map(|scope| scope.name).unwrap_or_default();
            records.extend(scope.log_records.into_iter().map(|record| (name.clone(), record)));
        }
    }
    records
}

/// Returns the spans of each trace, the root first.
fn traces(posts: &[Post]) -> Vec<(Span, Vec<Span>)> {
    let mut traces = BTreeMap::<Vec<u8>, Vec<Span>>::new();
    for resource in trace_requests(posts).into_iter().flat_map(|request| request.resource_spans) {
        for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            traces.entry(span.trace_id.clone()).or_default().push(span);
        }
    }
    let mut traces: Vec<_> = traces.into_values().map(root_and_stages).collect();
    traces.sort_by_key(|(root, _)| step_of(root));
    traces
}

fn root_and_stages(spans: Vec<Span>) -> (Span, Vec<Span>) {
    let (mut roots, stages): (Vec<_>, Vec<_>) =
        spans.into_iter().partition(|span| span.parent_span_id.is_empty());
    assert_eq!(roots.len(), 1, "one root a trace; stages {stages:#?}");
    (roots.remove(0), stages)
}

fn attribute<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Value> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    let AnyValue { value } = found.value.as_ref()?;
    value.as_ref()
}

fn step_of(span: &Span) -> i64 {
    match attribute(&span.attributes, "step") {
        Some(Value::IntValue(step)) => *step,
        other => panic!("expected the attribute `step` of `{}`, found {other:?}", span.name),
    }
}

fn text(resource: Option<&Resource>, key: &str) -> String {
    match resource.and_then(|resource| attribute(&resource.attributes, key)) {
        Some(Value::StringValue(text)) => text.clone(),
        other => panic!("expected text, found {other:?}"),
    }
}

/// Checks the spans of a trace: their step, their parents, and their times.
fn check_trace(step: i64, root: &Span, stages: &[Span], names: &[&str]) {
    assert_eq!((root.name.as_str(), step_of(root)), ("step", step));
    let found: BTreeSet<_> = stages.iter().map(|span| span.name.as_str()).collect();
    assert_eq!((stages.len(), found), (names.len(), names.iter().copied().collect()), "{step}");
    for span in stages {
        assert_eq!((step_of(span), &span.parent_span_id), (step, &root.span_id), "{}", span.name);
        assert!(root.start_time_unix_nano <= span.start_time_unix_nano);
        assert!(span.start_time_unix_nano < span.end_time_unix_nano, "{}", span.name);
        assert!(span.end_time_unix_nano <= root.end_time_unix_nano, "{} ends last", span.name);
    }
}

#[test]
fn a_step_is_a_trace_with_a_span_per_stage() {
    let variables = [
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test"),
    ];
    let posts = Collector::of_child("run", &variables);
    let traces = traces(&posts);
    let [steps @ .., (after, stages_after)] = traces.as_slice() else { panic!("{traces:?}") };
    assert_eq!(steps.len() as u64, STEPS);
    for (step, (root, stages)) in (1..).zip(steps) {
        check_trace(step, root, stages, &["sample", "train", "report"]);
    }
    // The last policy belongs to the step after the last one.
    check_trace(STEPS.cast_signed() + 1, after, stages_after, &["sample"]);
    assert!(steps[0].0.end_time_unix_nano < steps[2].0.start_time_unix_nano, "ended in time");
    for post in &posts {
        assert_eq!(post.headers["content-type"], "application/x-protobuf");
        assert_eq!(post.headers["x-key"], "secret");
    }
    let requests = trace_requests(&posts);
    let resource = requests[0].resource_spans[0].resource.as_ref();
    assert_eq!(text(resource, "service.name"), "rollpacker");
    assert_eq!(text(resource, "deployment.environment.name"), "test");
    assert_eq!(text(resource, "service.version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(text(resource, "service.instance.id").len(), 32);
    assert_eq!(text(resource, "rollpacker.run.folder"), "/runs/chain");
    let described = steps
        .iter()
        .map(|(root, _)| ["round", "score"].map(|name| attribute(&root.attributes, name).cloned()));
    let (round, score) = (Value::StringValue("short".to_owned()), Value::DoubleValue(0.5));
    let [first, others] = [None, Some(score)].map(|score| [Some(round.clone()), score]);
    assert_eq!(described.collect::<Vec<_>>(), [first, others.clone(), others]);
}

#[test]
fn attributes_of_the_resource_are_those_of_the_variables_if_they_are_set() {
    let own = "service.version=7,service.instance.id=a, rollpacker.run.folder=b";
    let posts = Collector::of_child("run", &[("OTEL_RESOURCE_ATTRIBUTES", own)]);
    let requests = trace_requests(&posts);
    let resource = requests[0].resource_spans[0].resource.as_ref();
    let found = ["service.version", "service.instance.id", "rollpacker.run.folder"]
        .map(|name| text(resource, name));
    assert_eq!(found, ["7", "a", "b"]);
}

#[test]
fn a_fault_loses_no_span() {
    let traces = traces(&Collector::of_child("fault", &[]));
    let [(first, before), (second, at)] = traces.as_slice() else { panic!("{traces:?}") };
    check_trace(1, first, before, &["sample", "fail", "train"]);
    check_trace(2, second, at, &["sample", "fail", "train", "errors"]);
}

#[test]
fn dropping_the_telemetry_flushes_it() {
    assert_eq!(traces(&Collector::of_child("drop", &[])).len() as u64, STEPS + 1);
}

/// Returns the names and values of the gauges of each export.
fn gauges(posts: &[Post]) -> Vec<BTreeMap<String, f64>> {
    let mut exports = Vec::new();
    for resource in metrics_requests(posts).into_iter().flat_map(|request| request.resource_metrics)
    {
        assert_eq!(text(resource.resource.as_ref(), "service.name"), "trainer");
        let metrics = resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics);
        exports.push(metrics.map(|metric| (metric.name, value(metric.data))).collect());
    }
    exports
}

fn value(data: Option<Data>) -> f64 {
    let Some(Data::Gauge(gauge)) = data else { panic!("expected a gauge, found {data:?}") };
    let [point] = gauge.data_points.as_slice() else {
        panic!("expected one point, found {gauge:?}")
    };
    assert!(point.attributes.is_empty(), "{point:?}");
    match point.value {
        Some(number_data_point::Value::AsDouble(value)) => value,
        other => panic!("expected a number, found {other:?}"),
    }
}

#[test]
fn metrics_are_gauges_exported_once_a_step() {
    let variables = [("OTEL_SERVICE_NAME", "trainer"), ("OTEL_TRACES_EXPORTER", "none")];
    let posts = Collector::of_child("run", &variables);
    assert!(posts.iter().all(|post| post.path == "/v1/metrics"));
    let length = |value: f64| ("rollpacker.response_length.mean".to_owned(), value);
    let accuracy = ("rollpacker.val.accuracy".to_owned(), 0.25);
    let expected = [vec![length(10.5)], vec![length(11.5), accuracy], vec![length(12.5)]]
        .map(BTreeMap::from_iter);
    assert_eq!(gauges(&posts), expected);
}

/// The unit and the description of a metric come from the table of metrics; a metric without a row has neither.
#[test]
fn gauges_have_the_unit_and_the_description_of_their_metric() {
    let variables = [("OTEL_SERVICE_NAME", "trainer"), ("OTEL_TRACES_EXPORTER", "none")];
    let posts = Collector::of_child("run", &variables);
    let resources = metrics_requests(&posts).into_iter().flat_map(|post| post.resource_metrics);
    let scopes = resources.flat_map(|resource| resource.scope_metrics);
    let found: BTreeSet<_> = scopes
        .flat_map(|scope| scope.metrics)
        .map(|metric| (metric.name, metric.unit, metric.description))
        .collect();
    let length = Metric::find("response_length/mean").expect("it has a row");
    let expected = [
        ("rollpacker.response_length.mean", length.unit, length.description),
        ("rollpacker.val.accuracy", "", ""),
    ];
    let owned = |(name, unit, text): (&str, &str, &str)| {
        (name.to_owned(), unit.to_owned(), text.to_owned())
    };
    assert_eq!(length.unit, "{token}");
    assert_eq!(found, expected.map(owned).into());
}

#[test]
fn selected_log_messages_are_records_without_secrets() {
    let key = format!("x-key={SECRET}");
    let headers = ("OTEL_EXPORTER_OTLP_HEADERS", key.as_str());
    let posts = Collector::of_child("log", &[headers]);
    let records = log_records(&posts);
    let [(scope, record)] = records.as_slice() else { panic!("expected one, found {records:?}") };
    assert_eq!(scope, "rollpacker_servers::engine");
    assert_eq!((record.severity_number(), &*record.severity_text), (SeverityNumber::Warn, "WARN"));
    assert!(record.observed_time_unix_nano > 0);
    let body = record.body.as_ref().and_then(|body| body.value.clone());
    assert_eq!(body, Some(Value::StringValue("no [redacted]".to_owned())));
    let server = Value::StringValue("[redacted]".to_owned());
    assert_eq!(attribute(&record.attributes, "server"), Some(&server));
    assert_eq!(attribute(&record.attributes, "tries"), Some(&Value::IntValue(3)));
    let all = [headers, ("RUST_LOG", "rollpacker=debug"), ("OTEL_METRICS_EXPORTER", "none")];
    let records = log_records(&Collector::of_child("log", &all));
    let levels: Vec<_> = records.iter().map(|(_, record)| &*record.severity_text).collect();
    assert_eq!(levels, ["WARN", "DEBUG"]);
    let none = [headers, ("OTEL_LOGS_EXPORTER", "none")];
    assert!(log_records(&Collector::of_child("log", &none)).is_empty());
}

#[test]
fn without_variables_nothing_is_exported() {
    spawn("none", &[]);
    spawn("none", &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]);
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
    spawn("none", &[endpoint, ("OTEL_SDK_DISABLED", "true")]);
    let exporters = ["TRACES", "METRICS", "LOGS"].map(|signal| format!("OTEL_{signal}_EXPORTER"));
    let none = exporters.each_ref().map(|exporter| (exporter.as_str(), "none"));
    spawn("none", &[&[endpoint], &none[..]].concat());
}

#[test]
fn another_protocol_is_refused_by_the_name_of_its_variable() {
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
    spawn("refused", &[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]);
}

/// Returns everything that a child has sent to a collector over TLS. The system of the child trusts only the certificate authority in the
/// file `authority`.
fn over_tls(mode: &str, authority: &str) -> Vec<Post> {
    let collector = Collector::start_encrypted();
    let authority = tls_file(authority);
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.as_str()),
        ("SSL_CERT_FILE", authority.to_str().expect("text")),
    ];
    spawn(mode, &variables);
    collector.posts.try_iter().collect()
}

#[test]
fn a_collector_over_tls_is_used_if_the_system_trusts_its_authority() {
    let posts = over_tls("run", "authority.pem");
    assert_eq!(traces(&posts).len() as u64, STEPS + 1);
    assert_eq!(metrics_requests(&posts).len() as u64, STEPS);
    assert!(over_tls("unknown authority", "another.pem").is_empty());
}

// Clients of unencrypted connections need no certificates.
#[test]
fn a_machine_without_certificates_exports_without_tls_only() {
    let nothing = [("SSL_CERT_FILE", "/dev/null"), ("SSL_CERT_DIR", "/dev/null")];
    assert!(!Collector::of_child("run", &nothing).is_empty());
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://localhost:4318");
    spawn("no certificates", &[&[endpoint], &nothing[..]].concat());
}

#[test]
fn a_lost_collector_loses_only_unsent_data() {
    let (listener, address) = listen();
    drop(listener);
    spawn("lose", &[("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{address}"))]);
}

#[test]
fn an_unresponsive_collector_loses_only_unsent_data() {
    let (_listener, address) = listen();
    spawn("lose", &[("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{address}"))]);
}

#[test]
fn an_existing_subscriber_is_an_error() {
    spawn("subscribed", &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")]);
}
