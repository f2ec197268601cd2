//! Tests of the program's output: no foreign control sequences, no secrets, and no failure when the reader closes the stream.
#![cfg(feature = "torch")]

mod workspace;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use serde_json::{Value, json};
use workspace::{ProcessEnd, RECIPE, TestWorkspace, json as read_json};

/// A text that clears the screen, rings the bell, changes the color, sets the title of the window, returns the carriage and reverses the
/// text direction. Its control sequences begin with one and with two characters.
const FOREIGN: &str = "\u{1b}[2J\u{7}\u{9b}31m\u{1b}]0;title\u{7}\rover\u{202e}\u{7f}\n";

fn is_control(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t') || ('\u{202a}'..='\u{202e}').contains(&c)
}

/// Returns the output of a command, after asserting that it has no control characters.
fn printed(end: &ProcessEnd) -> String {
    let all = format!("{}{}", end.out, end.err);
    assert!(!all.contains(is_control), "{:?}", all);
    all
}

#[test]
fn foreign_text_is_escaped() {
    let workspace = TestWorkspace::new(RECIPE);
    let name = "\u{1b}[31m rows \u{9b}.jsonl";
    let row = |response: &Value| {
        json!({
            "data_source": FOREIGN, "response": response, "answer": FOREIGN, "prompt": FOREIGN,
            FOREIGN: FOREIGN, "domain": FOREIGN,
        })
    };
    workspace.write(name, &format!("{}\n{}\n", row(&json!("x")), row(&json!([FOREIGN]))));
    workspace.write("bad.jsonl", &format!("{}\n", json!({"prompt": [FOREIGN], FOREIGN: 1})));
    let score = ["score", "--reward", "exact", "--input", name, "--allow-errors"];
    for (args, status) in [
        (&score[..], 0),
        (&[&score[..], &["--json"]].concat(), 0),
        (&["data", "inspect", name], 0),
        (&["data", "inspect", "--json", name], 0),
        (&["data", "validate", name, "bad.jsonl"], 2),
        (&["data", "validate", "--json", "bad.jsonl"], 2),
        (&["data", "inspect", "--prompt-key", &format!("x{FOREIGN}"), "bad.jsonl"], 2),
        (&["data", FOREIGN], 2),
        (&["score", "--reward", FOREIGN, "--input", name], 2),
        (&["train", "--config", FOREIGN], 2),
        (&["train", "--config", "recipe.toml", FOREIGN], 2),
        (&["train", "--config", "recipe.toml", &format!("data.train_files={FOREIGN}")], 2),
        (&["simulate", "--config", FOREIGN], 2),
        (&["profile", "--config", FOREIGN], 2),
        (&["sft", "--config", FOREIGN], 2),
    ] {
        let end = workspace.run(args);
        assert_eq!(end.code, Some(status), "{args:?}: {end:?}");
        assert!(!printed(&end).is_empty(), "{args:?}");
    }
}

#[test]
fn files_and_json_keep_foreign_text_as_it_is() {
    let workspace = TestWorkspace::new(RECIPE);
    let answer = format!("<answer>{}</answer>", FOREIGN.trim());
    workspace.write("rows.jsonl", &format!("{}\n", json!({"response": answer, "answer": "x"})));
    let score = ["score", "--reward", "exact", "--input", "rows.jsonl", "--output"];
    workspace.ok(&[&score[..], &["out.jsonl"]].concat());
    let end = workspace.run(&[&score[..], &["-"]].concat());
    printed(&end);
    let from_file: Value = read_json(&workspace.path("out.jsonl"));
    let from_terminal: Value = serde_json::from_str(&end.out).expect("JSON");
    assert_eq!(from_file, from_terminal);
    let label = from_file["labels"]["answer"].as_str().expect("a text");
    assert!(label.contains("\u{9b}31m"), "{label:?}");
}

/// Reads one line of a command's output, closes the stream, and waits for the command.
fn first_line(workspace: &TestWorkspace, args: &[&str]) -> (String, ProcessEnd) {
    let mut child = workspace.command(args).spawn().expect("it starts");
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    output.read_line(&mut line).expect("a line");
    drop(output);
    (line, ProcessEnd::of(child))
}

#[test]
fn a_closed_pipe_does_not_end_training() {
    let workspace = TestWorkspace::new(RECIPE);
    let (line, end) = first_line(&workspace, &["train", "--config", "recipe.toml"]);
    assert_eq!(end.code, Some(0), "{line}: {end:?}");
    assert_eq!(end.err, "");
    assert_eq!(workspace.summary("run")["steps"], 4);
    assert!(workspace.path("run/model/model.safetensors").exists());
    let two = ["train", "--config", "recipe.toml", "--workers", "2", "--out", "two"];
    let (line, end) = first_line(&workspace, &two);
    assert_eq!(end.code, Some(0), "{line}: {end:?}");
    assert_eq!(workspace.summary("two")["steps"], 4);
    let sft = ["sft", "--config", "recipe.toml", "--out", "warm", "sft.steps=12"];
    let sizes = ["sft.hidden_size=16", "sft.num_attention_heads=2", "sft.num_key_value_heads=2"];
    let data = ["sft.train_files=data/train.parquet", "sft.batch_size=2"];
    let (line, end) = first_line(&workspace, &[&sft[..], &sizes, &data].concat());
    assert_eq!(end.code, Some(0), "{line}: {end:?}");
    assert!(workspace.path("warm/model.safetensors").exists());
}

#[test]
fn a_run_prints_a_banner_and_a_summary() {
    let workspace = TestWorkspace::new(RECIPE);
    let end = workspace.train_ok(&["data.val_files=data/validation.parquet"]);
    let lines: Vec<&str> = end.out.lines().collect();
    assert_eq!(lines[0], format!("rollpacker {}", env!("CARGO_PKG_VERSION")));
    for line in [
        "  run folder  run",
        "  data        data/train.parquet: 96 prompts; validation: data/validation.parquet: 4 prompts",
        "  schedule    tail_batching, rounds launch up to 6 prompts x 6 responses",
    ] {
        assert!(lines.contains(&line), "{line}: {}", end.out);
    }
    assert!(lines[2].starts_with("  model       model: Qwen3, "), "{}", lines[2]);
    assert!(
        lines.iter().any(|line| line.starts_with("  trainer     torch on cpu, ")),
        "{}",
        end.out
    );
    let last = "run folder: run, model: run/model, next: rollpacker show run";
    assert_eq!(lines.last(), Some(&last));
    workspace.ok(&["show", "run"]);
}

#[test]
fn the_log_is_json_on_request() {
    let workspace = TestWorkspace::new(RECIPE);
    let end = workspace.train_ok(&["--log-format", "json"]);
    let lines = end.out.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let lines: Vec<_> = lines.collect();
    assert!(lines.iter().all(|line| line["unix_s"].is_f64() && line["level"] == "info"));
    let messages: Vec<_> =
        lines.iter().map(|line| line["message"].as_str().expect("text")).collect();
    assert_eq!(messages, ["start", "step", "step", "step", "step", "end"]);
    assert_eq!(lines[0]["run_folder"], "run");
    assert_eq!((&lines[4]["step"], &lines[5]["summary"]["steps"]), (&json!(4), &json!(4)));
    assert!(lines[1]["metrics"]["critic/score/mean"].is_f64(), "{}", lines[1]);
    let refused =
        workspace.run_refused(&["train", "--log-format", "json", "--config", "absent.toml"]);
    let line: Value = serde_json::from_str(&refused).expect("JSON");
    assert_eq!(line["level"], "error");
    assert!(line["message"].as_str().expect("text").contains("absent.toml"));
}

#[test]
fn a_run_warns_once_that_its_responses_are_truncated() {
    let workspace = TestWorkspace::new(RECIPE);
    let short = ["data.max_response_length=2", "trainer.total_training_steps=7"];
    let end = workspace.train_ok(&[&short[..], &["--log-format", "json"]].concat());
    let lines = end.out.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let warnings: Vec<_> = lines.filter(|line| line["level"] == "warn").collect();
    let [warning] = &warnings[..] else { panic!("expected one warning, found {warnings:?}") };
    assert_eq!(warning["metric"], "response_length/clip_ratio");
    assert!(warning["value"].as_f64().expect("a share") > 0.2, "{warning}");
    let message = warning["message"].as_str().expect("text");
    assert!(message.starts_with("step 5: "), "{message}");
    assert!(message.contains("Raise `data.max_response_length`"), "{message}");
    assert_eq!(end.err, "", "the console prints the warning");
}

#[test]
fn rust_log_selects_the_messages() {
    let workspace = TestWorkspace::new(RECIPE);
    let with = |value: &str, args: &[&str]| {
        let mut command = workspace.train_command(args);
        ProcessEnd::of(command.env("RUST_LOG", value).spawn().expect("it starts"))
    };
    let deterministic = ["trainer.deterministic=true", "trainer.total_training_steps=1"];
    let end = with("rollpacker_torch=debug", &deterministic).success();
    assert!(end.err.contains("debug: rollpacker_torch::rollout::"), "{end:?}");
    assert_eq!(with("", &[&deterministic[..], &["--out", "b"]].concat()).err, "");
    let end = with("rollpacker=loud", &[]).refusal();
    assert!(end.err.starts_with("error: RUST_LOG: expected directives"), "{end:?}");
}

#[test]
fn a_closed_pipe_of_scores_is_not_an_error() {
    let workspace = TestWorkspace::new(RECIPE);
    workspace.write("rows.jsonl", &"{\"response\": \"1\", \"answer\": \"1\"}\n".repeat(20_000));
    let score = ["score", "--reward", "exact", "--input", "rows.jsonl", "--output", "-"];
    let (line, end) = first_line(&workspace, &score);
    assert!(line.starts_with(r#"{"index":0,"#), "{line}");
    assert_eq!(end.code, Some(0), "{end:?}");
    assert!(!end.err.contains("error"), "{end:?}");
}

/// Starts a server that answers every request with the request's own headers, in turn as an error message and as labels. Returns its
/// address.
fn repeating_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            answer(stream, number);
        }
    });
    address.to_string()
}

fn answer(stream: TcpStream, number: usize) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    let mut length = 0;
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).expect("a line") > 0 {
        let line = head.lines().next_back().unwrap_or_default().to_lowercase();
        length = line
            .strip_prefix("content-length: ")
            .map_or(length, |text| text.trim().parse().expect("a number"));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body");
    let (status, body) = match number % 2 {
        0 => (403, json!({"error": {"message": head}})),
        _ => (200, json!({"score": 1.0, "why": head, head: 1})),
    };
    let (mut stream, body) = (reader.into_inner(), body.to_string());
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).expect("written");
}

/// Returns every file below a folder that contains one of the secrets.
fn leaks(folder: &Path, secrets: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(leaks(&path, secrets));
        } else if let Ok(bytes) = fs::read(&path) {
            let text = String::from_utf8_lossy(&bytes);
            let leaked = secrets.iter().filter(|secret| text.contains(**secret));
            found.extend(leaked.map(|secret| format!("{}: {secret}", path.display())));
        }
    }
    found
}

#[test]
fn no_secret_is_printed_or_written() {
    let workspace = TestWorkspace::new(RECIPE);
    workspace.write("rows.jsonl", &"{\"response\": \"1\", \"answer\": \"1\"}\n".repeat(4));
    let url = format!("http://user:pass-word@{}/rm?key=query-key-1", repeating_server());
    // `user:pass-word` in Base64, as the client encodes it.
    let secrets = ["bearer-key-1", "pass-word", "query-key-1", "dXNlcjpwYXNzLXdvcmQ"];
    let checked = |mut command: std::process::Command, status: i32| {
        let child = command.env("SCORER_KEY", "bearer-key-1").spawn().expect("it starts");
        let end = ProcessEnd::of(child);
        assert_eq!(end.code, Some(status), "{end:?}");
        let all = format!("{}{}", end.out, end.err);
        assert!(!secrets.iter().any(|secret| all.contains(secret)), "{all}");
        all
    };
    // User information in the URL replaces the key, so the first URL sends the password and the second URL sends the key.
    for url in [&url, &url.replace("user:pass-word@", "")] {
        let options = [&format!("url={url}"), "api_key_env=SCORER_KEY"];
        let options = options.iter().flat_map(|option| ["--option", option]);
        let score = ["score", "--reward", "http", "--input", "rows.jsonl", "--output", "out.jsonl"];
        let score: Vec<&str> = score.into_iter().chain(options).collect();
        let stderr = checked(workspace.command(&[&score[..], &["--concurrency", "1"]].concat()), 1);
        assert!(stderr.contains("[redacted]"), "{stderr}");
        let scores = fs::read_to_string(workspace.path("out.jsonl")).expect("read");
        assert!(scores.contains("\"why\":") && scores.contains("403"), "{scores}");
        assert!(scores.contains("authorization: ") && scores.contains("[redacted]"), "{scores}");
    }

    let reward = format!(
        "[reward]\nroutes = {{ \"*\" = \"http\" }}\non_error = \"zero\"\n[reward.options.http]\nurl = \"{url}\"\napi_key_env = \"SCORER_KEY\"\n"
    );
    let recipes = tempfile::tempdir().expect("a folder");
    let recipe = recipes.path().join("recipe.toml");
    fs::write(&recipe, format!("{RECIPE}{reward}")).expect("written");
    let recipe = recipe.display().to_string();
    let train = ["train", "--config", &recipe, "trainer.save_freq=2"];
    checked(workspace.command(&[&train[..], &["--dry-run"]].concat()), 0);
    checked(workspace.command(&train), 0);
    let more = ["trainer.total_training_steps=5", "--resume"];
    checked(workspace.command(&[&train[..], &more].concat()), 0);
    assert_eq!(leaks(&workspace.path(""), &secrets), Vec::<String>::new());
    // The placeholder of redacted credentials is not accepted as a credential.
    let recorded = ["train", "--config", "run/recipe.toml", "--out", "again"];
    assert!(checked(workspace.command(&recorded), 2).contains("expected credentials"));
    let own = ["train", "--config", &recipe, "trainer.stall_timeout=http://a:pass-word@b"];
    checked(workspace.command(&own), 2);
}
