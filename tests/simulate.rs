//! Tests of `rollpacker simulate`: the errors before a run, and the report about a trace.

#![cfg(all(feature = "cli", feature = "report"))]

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

fn run_refused(folder: &Path, args: &[&str]) -> String {
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
        run_refused(folder, &["--report", "none/a.html"]),
        "error: --report none/a.html: expected a file in a folder that exists, found no folder none\n"
    );
    let error = run_refused(folder, &["--output", "."]);
    assert!(error.starts_with("error: --output .: expected a regular file"), "{error}");
    for other in ["a", "./a"] {
        let error = run_refused(folder, &["--output", "a", "--report", other]);
        assert_eq!(error, "error: --report and --output: expected two files, found one\n");
    }
    std::fs::write(folder.join("kept.html"), "kept").expect("written");
    let error =
        run_refused(folder, &["--report", "kept.html", "--output", "b", "--gantt-step", "3"]);
    assert_eq!(error, "error: --gantt-step: expected one of the 2 steps, found 3\n");
    assert_eq!(std::fs::read_to_string(folder.join("kept.html")).expect("read"), "kept");
    assert!(!folder.join("b").exists(), "nothing is left of the attempt");
}

#[test]
fn a_model_that_does_not_fit_is_refused_before_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = run_refused(folder.path(), &["model.name=Qwen2.5-32B"]);
    assert!(error.contains("key `rollout.tensor_parallel`: Qwen2.5-32B does not fit"), "{error}");
}

#[test]
fn truncated_responses_of_a_trace_are_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let lengths = "tokens\n100\n300\n8192\n9000\n20000\n";
    std::fs::write(folder.path().join("t.csv"), lengths).expect("written");
    let args = ["--trace", "t.csv", "--sweep", "data.max_response_length=8192,32768"];
    let text = String::from_utf8(simulate(folder.path(), &args).stdout).expect("text");
    let cut = "t.csv (column tokens): 2 of 5 responses are longer than data.max_response_length = 8192 and are truncated.";
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

/// Writes a trace of `prompts` prompts with `responses` responses each. Most of the variance of the lengths is within prompts.
fn trace(folder: &Path, prompts: u64, responses: u64) {
    let length = |n: u64| 100 + n.wrapping_mul(2_654_435_761) % 97 * (n % 89 + 1);
    let rows = (0..prompts).flat_map(|prompt| (0..responses).map(move |n| (prompt, n)));
    let rows: String = rows
        .map(|(prompt, n)| format!("{prompt},{},{}\n", 700 + prompt, length(prompt * 31 + n)))
        .collect();
    let text = format!("prompt_id,prompt_tokens,tokens\n{rows}");
    std::fs::write(folder.join("t.csv"), text).expect("written");
}

fn simulated(folder: &Path, args: &[&str]) -> (Value, String) {
    let output = simulate(folder, &[args, &["--json"]].concat());
    assert!(output.status.success(), "{output:?}");
    let errors = String::from_utf8(output.stderr).expect("text");
    (serde_json::from_slice(&output.stdout).expect("JSON"), errors)
}

// Regression test: the simulator assumed equal lengths for all responses to a prompt, and recommended tail batching as unbiased.
#[test]
fn a_trace_with_one_response_per_prompt_warns_and_shows_both_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    trace(folder, 400, 1);
    let args = ["--trace", "t.csv", "--sweep", "schedule.name=sync,fused,tail_batching"];
    let report = [&args[..], &["--report", "r.html"]].concat();
    let (json, errors) = simulated(folder, &report);
    let warning = "t.csv (column tokens): 400 prompts have 1.0 responses each on average";
    assert!(errors.starts_with(&format!("warning: {warning}")), "{errors}");
    assert!(json["warnings"][0].as_str().is_some_and(|text| text.starts_with(warning)));
    let page = std::fs::read_to_string(folder.join("r.html")).expect("written");
    assert!(page.contains(warning));
    let batched = &json["configurations"][2];
    assert_eq!(batched["label"], "tail_batching");
    let ratio = |end: &str| batched["ends"]["mean_ratio"][end].as_f64().expect("a number");
    assert!(ratio("low") < 0.9, "independent lengths are biased: {}", ratio("low"));
    assert!(ratio("low") < ratio("high"), "{} {}", ratio("low"), ratio("high"));
    let advice = &json["advice"][0];
    assert_ne!(advice["choice"], "tail_batching");
    assert_eq!(advice["ends"].as_array().map(Vec::len), Some(2));
    let text = String::from_utf8(simulate(folder, &args).stdout).expect("text");
    let row = text.lines().filter(|line| line.starts_with("tail_batching")).nth(1).expect("a row");
    assert!(row.contains('–'), "{row}");
    // With a given correlation nothing is uncertain.
    let (json, _) = simulated(folder, &[&args[..], &["lengths.correlation=0.3"]].concat());
    assert!(json["configurations"][2]["ends"].is_null());
    assert_eq!(json["trace"][0]["assumed"]["low"], 0.3);
}

#[test]
fn more_responses_per_prompt_narrow_the_correlation_interval() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let assumed = |responses| {
        trace(folder, 400, responses);
        let args = ["--trace", "t.csv", "--sweep", "schedule.name=sync"];
        simulated(folder, &args).0["trace"][0]["assumed"].clone()
    };
    let width =
        |assumed: &Value| assumed["high"].as_f64().zip(assumed["low"].as_f64()).map(|(h, l)| h - l);
    let (one, four) = (assumed(1), assumed(4));
    assert!(width(&four) < width(&one), "{one} {four}");
    assert!(one["estimate"].is_null() && four["estimate"].is_f64(), "{one} {four}");
    assert!(assumed(32).is_null());
    let error = run_refused(folder, &["--trace", "t.csv", "lengths.correlation=0.3"]);
    assert!(error.contains("key `lengths.correlation`: expected no value"), "{error}");
}

#[test]
fn recorded_prompt_lengths_are_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    trace(folder, 64, 8);
    let sweep = ["--trace", "t.csv", "--sweep", "schedule.name=sync"];
    let (found, _) = simulated(folder, &sweep);
    assert_eq!(found["trace"][0]["prompt_length_column"], "prompt_tokens");
    let named = [&sweep[..], &["--prompt-length-column", "prompt_id"]].concat();
    let (shorter, _) = simulated(folder, &named);
    assert_eq!(shorter["trace"][0]["prompt_length_column"], "prompt_id");
    let rollout = |json: &Value| json["configurations"][0]["stages"]["training"].as_f64();
    assert!(rollout(&shorter) < rollout(&found), "prompts of 0 to 63 tokens, not 700 and more");
    let error = run_refused(folder, &[&sweep[..], &["--prompt-length-column", "size"]].concat());
    assert!(error.contains("column `size` is absent"), "{error}");
}

#[test]
fn advice_is_within_a_job() {
    let folder = tempfile::tempdir().expect("a folder");
    let args = ["--sweep", "cluster.gpus=8,16", "--sweep", "schedule.name=sync,fused"];
    let (json, _) = simulated(folder.path(), &args);
    let advice = json["advice"].as_array().expect("a list");
    let jobs: Vec<&Value> = advice.iter().map(|one| &one["job"]).collect();
    assert_eq!(jobs, ["gpus=8", "gpus=16"]);
    for one in advice {
        let (job, choice) = (one["job"].as_str().expect("text"), one["choice"].as_str());
        assert!(choice.is_some_and(|choice| choice.starts_with(job)), "{one}");
        let names: Vec<&Value> = one["assumptions"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| &one["assumption"])
            .collect();
        assert!(names.iter().any(|name| *name == "no cost of the controller"), "{names:?}");
    }
    let (json, _) = simulated(folder.path(), &["--sweep", "cluster.gpus=8,16"]);
    assert_eq!(json["advice"].as_array().map(Vec::len), Some(0), "there is no schedule to choose");
}

#[test]
fn the_setup_of_each_configuration_is_in_every_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let args = ["--sweep", "schedule.name=sync", "--report", "r.html"];
    let (json, _) = simulated(folder.path(), &args);
    let setup = &json["configurations"][0]["setup"];
    assert_eq!(setup["rollout"][0]["instances"], 16);
    assert_eq!(
        (&setup["hand_out"], &setup["dispatch"]),
        (&"together".into(), &"prompt_chunks".into())
    );
    let text = String::from_utf8(simulate(folder.path(), &args).stdout).expect("text");
    assert!(text.contains("16 x TP1") && text.contains("hand-out"), "{text}");
    let page = std::fs::read_to_string(folder.path().join("r.html")).expect("written");
    assert!(page.contains("16 x TP1") && page.contains("prompt_chunks"), "{page}");
}
