//! `rollpacker simulate`: what it refuses before it runs, and what it says of a trace.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn simulate(folder: &Path, args: &[&str]) -> Output {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/sim/7b.toml");
    Command::new(env!("CARGO_BIN_EXE_rollpacker"))
        .current_dir(folder)
        .args(["simulate", "--config"])
        .arg(config)
        .args(["sim.steps=2", "data.train_batch_size=16"])
        .args(args)
        .output()
        .expect("it runs")
}

fn refused(folder: &Path, args: &[&str]) -> String {
    let output = simulate(folder, args);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn files_that_cannot_be_written_are_refused_before_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    assert_eq!(
        refused(folder, &["--report", "none/a.html"]),
        "error: --report none/a.html: expected a file in a folder that exists, found no folder none\n"
    );
    let error = refused(folder, &["--output", "."]);
    assert!(error.starts_with("error: --output .: expected a regular file"), "{error}");
    for other in ["a", "./a"] {
        let error = refused(folder, &["--output", "a", "--report", other]);
        assert_eq!(error, "error: --report and --output: expected two files, found one\n");
    }
    std::fs::write(folder.join("kept.html"), "kept").expect("written");
    let error = refused(folder, &["--report", "kept.html", "--output", "b", "--gantt-step", "3"]);
    assert_eq!(error, "error: --gantt-step: expected one of the 2 steps, found 3\n");
    assert_eq!(std::fs::read_to_string(folder.join("kept.html")).expect("read"), "kept");
    assert!(!folder.join("b").exists(), "nothing is left of the attempt");
}

#[test]
fn a_model_that_does_not_fit_is_refused_before_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = refused(folder.path(), &["model.name=Qwen2.5-32B"]);
    assert!(error.contains("key `rollout.tensor_parallel`: Qwen2.5-32B does not fit"), "{error}");
}

#[test]
fn what_is_cut_of_a_trace_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let lengths = "tokens\n100\n300\n8192\n9000\n20000\n";
    std::fs::write(folder.path().join("t.csv"), lengths).expect("written");
    let args = ["--trace", "t.csv", "--sweep", "data.max_response_length=8192,32768"];
    let text = String::from_utf8(simulate(folder.path(), &args).stdout).expect("text");
    let cut = "t.csv (column tokens): 2 of 5 responses are longer than data.max_response_length = 8192, and cut to it.";
    let whole =
        "t.csv (column tokens): 5 responses, none longer than data.max_response_length = 32768.";
    assert!(text.contains(cut) && text.contains(whole), "{text}");
    let args = [&args[..], &["--json", "--report", "r.html"]].concat();
    let json: Value = serde_json::from_slice(&simulate(folder.path(), &args).stdout).expect("JSON");
    let counts = |index: usize| (&json["trace"][index]["cut"], &json["trace"][index]["responses"]);
    assert_eq!((counts(0), counts(1)), ((&2.into(), &5.into()), (&0.into(), &5.into())));
    let page = std::fs::read_to_string(folder.path().join("r.html")).expect("written");
    assert!(page.contains(cut) && page.contains(whole));
}
