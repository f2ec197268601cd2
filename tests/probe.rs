//! Tests of `rollpacker probe` with `rollpacker serve` as the server, and with proxies that falsify answers.
#![cfg(all(feature = "servers", feature = "torch"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../stages/servers/tests/serve/client.rs"]
#[allow(dead_code, reason = "the tests of the server use other parts")]
mod client;
mod workspace;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::thread;

use client::{receive, send};
use rollpacker::stages::torch::model::Decoder;
use serde_json::{Value, json};
use tch::{Device, no_grad};
use workspace::server::Server;
use workspace::{ProcessEnd, RECIPE, TestWorkspace};

const GENERATE: &str = "/inference/v1/generate";
/// A part of the path of the folder with the perturbed weights.
const PERTURBED: &str = "rollpacker-probe-";
const PROMPT: [i32; 4] = [5, 9, 3, 8];

impl Server {
    fn get(&self, path: &str) -> Value {
        receive(send(self.address, "GET", path, "", "")).json()
    }

    /// Returns all that a probe must leave as it was: scores, label and pause.
    fn traces(&self) -> (Vec<Value>, Value, Value) {
        let body = json!({"token_ids": PROMPT, "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0}});
        let scored = receive(send(self.address, "POST", GENERATE, "", &body.to_string())).json();
        let score =
            |at: usize| scored["prompt_logprobs"][at][PROMPT[at].to_string()]["logprob"].clone();
        ((1..PROMPT.len()).map(score).collect(), self.get("/weight_info"), self.get("/is_paused"))
    }
}

/// The treatment of a call by a proxy.
enum Action {
    /// Passes a body to the server, and its answer to the client.
    Pass(String),
    /// Answers in the place of the server.
    Answer(u16, Value),
    /// Passes the body to the server, and answers with an error when the server has answered.
    Lose(String),
    /// Passes the body to the server, sends SIGINT to the process with this id when the server has answered, and never answers.
    Interrupt(String, u32),
}

/// Starts a proxy in front of a server and returns its URL. `treat` receives path and body of each call.
fn proxy(
    server: SocketAddr,
    treat: impl Fn(&str, String) -> Action + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let treat = Arc::new(treat);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let treat = Arc::clone(&treat);
            thread::spawn(move || handle(stream.unwrap(), server, &*treat));
        }
    });
    format!("http://{address}")
}

fn handle(stream: TcpStream, server: SocketAddr, treat: &dyn Fn(&str, String) -> Action) {
    let Some((method, path, body)) = read(&stream) else { return };
    let mut client = stream;
    let passed = |body: String| send(server, &method, &path, "", &body);
    match treat(&path, body) {
        // A client that is gone ends the call to the server, too.
        Action::Pass(body) => drop(std::io::copy(&mut passed(body), &mut client)),
        Action::Answer(status, json) => answer(client, status, &json),
        Action::Lose(body) => {
            receive(passed(body));
            answer(client, 500, &json!({"error": {"message": "lost"}}));
        }
        Action::Interrupt(body, process) => {
            receive(passed(body));
            let id = process.to_string();
            assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
            drop(client.read_to_end(&mut Vec::new()));
        }
    }
}

/// Reads method, path and body of a request; `None` if the client closed the connection.
fn read(stream: &TcpStream) -> Option<(String, String, String)> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut words = first.split(' ').map(str::to_owned);
    Some((words.next()?, words.next()?, String::from_utf8(body).unwrap()))
}

fn answer(mut client: TcpStream, status: u16, json: &Value) {
    let body = json.to_string();
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    drop(client.write_all((head + &body).as_bytes()));
}

/// Runs the probe. Returns its end and the report that it printed as JSON; `Null` if it printed no report.
fn probe(workspace: &TestWorkspace, url: &str) -> (ProcessEnd, Value) {
    let end = workspace.run(&["probe", url, "--model", "model", "--weights-folder", ".", "--json"]);
    let report = serde_json::from_str(&end.out).unwrap_or(Value::Null);
    (end, report)
}

/// Returns the names of the checks that training needs and that did not pass, with their results.
fn open(report: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let checks = report["checks"].as_array().unwrap().iter();
    let open = checks.filter(|one| one["needed"] == true && one["result"] != "passed");
    open.map(|one| (text(&one["check"]), text(&one["result"]))).collect()
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["checks"].as_array().unwrap().iter().find(|one| one["check"] == name).unwrap()
}

fn no_folder_is_left(workspace: &TestWorkspace) {
    let entries = std::fs::read_dir(workspace.path(".")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.contains(PERTURBED)).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn a_server_of_this_program_passes_and_keeps_its_weights() {
    let workspace = TestWorkspace::new(RECIPE);
    let server = Server::start(&workspace, &[]);
    let before = server.traces();
    let url = server.url();
    let (end, report) = probe(&workspace, &url);
    assert_eq!(end.code, Some(0), "{end:?}");
    assert_eq!(report["passed"], true);
    for one in report["checks"].as_array().unwrap() {
        assert_eq!((&one["result"], &one["advice"]), (&json!("passed"), &Value::Null), "{one}");
    }
    assert_eq!(report["summary"], format!("{url} has all that training needs"));
    let figure =
        |name: &str, figure: &str| check(&report, name)["figures"][figure].as_f64().unwrap();
    assert!(figure("logprobs", "max") < 1e-4);
    assert!(figure("weight_update", "max") < 1e-4 && figure("weight_update", "to_old") > 1e-2);
    assert!(figure("sampling", "p") >= 1e-4 && figure("sampling", "degrees") > 5.0);
    assert_eq!(figure("context", "max"), 1024.0);
    assert_eq!(server.traces(), before);
    no_folder_is_left(&workspace);
    let options = ["--served-model-name", "other", "--max-model-len", "1025"];
    let table =
        workspace.run(&[&["probe", &url, "--model", "model"][..], &options].concat()).refusal();
    for line in [
        "check              result       needed   details",
        "model              failed       yes      expected the model `other`, found `model`",
        "context            failed       yes      expected room for 1025 tokens of prompt and response (max 1024)",
        "cannot be used for training: model (failed), context (failed)",
    ] {
        assert!(table.out.contains(line), "{line}: {}", table.out);
    }
}

#[test]
fn a_server_that_keeps_its_old_weights_is_detected() {
    let workspace = TestWorkspace::new(RECIPE);
    let server = Server::start(&workspace, &[]);
    let url = proxy(server.address, |path, body| match path {
        "/collective_rpc" => Action::Answer(200, json!({"results": [null]})),
        _ => Action::Pass(body),
    });
    let (end, report) = probe(&workspace, &url);
    assert_eq!(end.code, Some(2), "{end:?}");
    let expected = [("weight_update", "failed"), ("prefix_cache", "not_checked")];
    let expected = expected.map(|(name, result)| (name.to_owned(), result.to_owned()));
    assert_eq!(open(&report), expected);
    let update = check(&report, "weight_update");
    let details = update["details"].as_str().unwrap();
    assert!(details.starts_with("the server loaded other weights and still uses the old ones"));
    assert!(report["summary"].as_str().unwrap().contains("weight_update (failed)"), "{report}");
    no_folder_is_left(&workspace);
}

/// vLLM on CPU keeps the old head of a model with tied embeddings.
#[test]
fn a_server_that_loads_only_some_tensors_is_detected() {
    let workspace = TestWorkspace::new(RECIPE);
    let server = Server::start(&workspace, &[]);
    let before = server.traces();
    let (model, part) = (workspace.path("model"), workspace.path("part"));
    let url = proxy(server.address, move |_, body| {
        if !body.contains(PERTURBED) {
            return Action::Pass(body);
        }
        let mut call: Value = serde_json::from_str(&body).unwrap();
        let folder = call["kwargs"]["weights_path"].as_str().unwrap().to_owned();
        let perturbed = Decoder::load(Path::new(&folder), Device::Cpu).unwrap();
        let first = Decoder::load(&model, Device::Cpu).unwrap();
        let both = perturbed.parameters().iter().zip(first.parameters());
        for ((_, new), (_, old)) in both.filter(|((name, _), _)| name == "model.norm.weight") {
            no_grad(|| new.shallow_clone().copy_(old));
        }
        perturbed.save(&part).unwrap();
        call["kwargs"]["weights_path"] = json!(part);
        Action::Pass(call.to_string())
    });
    let (end, report) = probe(&workspace, &url);
    assert_eq!(end.code, Some(2), "{end:?}");
    let update = check(&report, "weight_update");
    assert_eq!(update["result"], "failed");
    let figure = |name: &str| update["figures"][name].as_f64().unwrap();
    assert!(figure("mean") > figure("mean_before") + 1e-3, "{update}");
    assert_eq!(server.traces(), before);
}

#[test]
fn a_server_that_samples_differently_is_detected() {
    let workspace = TestWorkspace::new(RECIPE);
    let server = Server::start(&workspace, &[]);
    let url =
        proxy(server.address, |_, body| Action::Pass(body.replace("\"top_k\":0", "\"top_k\":12")));
    let (end, report) = probe(&workspace, &url);
    assert_eq!(end.code, Some(2), "{end:?}");
    assert_eq!(open(&report), [("sampling".to_owned(), "failed".to_owned())]);
}

#[test]
fn missing_properties_of_a_server_are_reported() {
    let workspace = TestWorkspace::new(RECIPE);
    let server = Server::start(&workspace, &[]);
    let before = server.traces();
    let url = proxy(server.address, |path, body| match path {
        "/is_paused" | "/collective_rpc" | "/resume" => {
            Action::Answer(404, json!({"detail": "Not Found"}))
        }
        path if path.starts_with("/pause") => Action::Answer(404, json!({"detail": "Not Found"})),
        _ => Action::Pass(body),
    });
    let (end, report) = probe(&workspace, &url);
    assert_eq!(end.code, Some(2), "{end:?}");
    for name in ["calls", "pause_abort", "pause_wait", "pause_keep", "weight_update"] {
        let found = check(&report, name);
        assert_eq!(found["result"], "missing", "{found}");
        assert!(found["advice"].is_string());
    }
    assert_eq!(check(&report, "logprobs")["result"], "passed");
    assert_eq!(server.traces(), before);
}

#[test]
fn first_weights_are_loaded_again_after_an_error_and_after_a_signal() {
    let workspace = TestWorkspace::new(RECIPE);
    let server = Server::start(&workspace, &[]);
    let before = server.traces();
    let url = proxy(server.address, |_, body| {
        if body.contains(PERTURBED) { Action::Lose(body) } else { Action::Pass(body) }
    });
    let (end, report) = probe(&workspace, &url);
    assert_eq!(end.code, Some(2), "{end:?}");
    assert_eq!(check(&report, "weight_update")["result"], "failed");
    assert_eq!(check(&report, "weights_restored")["result"], "passed", "{report}");
    assert_eq!(server.traces(), before);

    let process = Arc::new(OnceLock::new());
    let process_handle = Arc::clone(&process);
    let url = proxy(server.address, move |_, body| {
        if body.contains(PERTURBED) {
            Action::Interrupt(body, *process_handle.wait())
        } else {
            Action::Pass(body)
        }
    });
    let args = ["probe", &url, "--model", "model", "--weights-folder", ".", "--json"];
    let child = workspace.command(&args).spawn().unwrap();
    process.set(child.id()).unwrap();
    let end = ProcessEnd::of(child);
    assert_eq!(end.code, Some(75), "{end:?}");
    let report: Value = serde_json::from_str(&end.out).unwrap();
    assert_eq!((&report["interrupted"], &report["passed"]), (&json!(true), &json!(false)));
    assert_eq!(check(&report, "weights_restored")["result"], "passed", "{report}");
    assert_eq!(server.traces(), before);
    no_folder_is_left(&workspace);
}

#[test]
fn an_unreachable_server_can_be_probed_later() {
    let workspace = TestWorkspace::new(RECIPE);
    let (end, _) = probe(&workspace, "http://127.0.0.1:9");
    assert_eq!(end.code, Some(75), "{end:?}");
    assert!(end.err.starts_with("error: http://127.0.0.1:9/health: "), "{end:?}");
    for (args, expected) in [
        (["http://127.0.0.1:9", "--model", "nowhere"], "nowhere"),
        (["ftp://127.0.0.1:9", "--model", "model"], "expected `http` or `https`"),
        (["http://127.0.0.1:9", "--model=model", "--timeout=0"], "option `--timeout`"),
        (["http://127.0.0.1:9", "--model=model", "--weights-folder=no"], "`--weights-folder`"),
        (["http://127.0.0.1:9", "--model=model", "--api-key-env=NO_SUCH_KEY"], "`NO_SUCH_KEY`"),
    ] {
        let error = workspace.run_refused(&[&["probe"][..], &args].concat());
        assert!(error.contains(expected), "{error}");
    }
}
