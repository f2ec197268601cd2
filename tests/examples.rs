//! Tests that the examples run, and that their policies learn as documented. `tests/app.rs` runs the commands of `7_command_line`.

use std::path::PathBuf;
use std::process::Command;

/// Runs an example with arguments, and returns the lines that it prints.
fn run(example: &str, args: &[&str]) -> Vec<String> {
    // `cargo test` builds the examples into a folder next to the tests.
    let mut path = PathBuf::from(env!("CARGO_BIN_EXE_rollpacker"));
    path.set_file_name("examples");
    let output = Command::new(path.join(example)).args(args).output().expect("the example starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {errors}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Returns the word with index `word` of a line as a number.
fn number(line: &str, word: usize) -> f64 {
    line.split_whitespace().nth(word).and_then(|word| word.parse().ok()).expect("a number")
}

/// Asserts that the share of sevens, the third word of each line, rises over 30 steps.
fn assert_learns_to_say_seven(lines: &[String]) {
    assert_eq!(lines.len(), 30);
    let share = |line: &String| number(line, 2);
    assert!(share(&lines[0]) < 0.4 && share(&lines[29]) > 0.8, "{lines:#?}");
}

#[test]
fn rewards_score_by_data_source() {
    let lines = run("1_reward", &[]);
    let expected = [
        r#""17 + 25 = 42, A: 42": 1 {"answer": "42"}"#,
        r#""A: 41": 0 {"answer": "41"}"#,
        r#""forty-two": 0 {"answer": "none"}"#,
        r#""Roses are red": 1 {}"#,
    ];
    assert_eq!(lines[..4], expected);
    assert!(lines[4].contains("expected a ground truth"), "{lines:#?}");
}

#[cfg(feature = "torch")]
#[test]
fn a_recipe_with_a_custom_reward_trains_two_steps() {
    let lines = run("2_recipe", &[]);
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| line.contains("characters")), "{lines:#?}");
}

#[test]
fn a_custom_advantage_raises_the_mean_digit() {
    let lines = run("3_advantage", &[]);
    assert_eq!(lines.len(), 25);
    let digit = |line: &String| number(line, line.split_whitespace().count() - 1);
    assert!(digit(&lines[24]) > digit(&lines[0]) + 1.5, "{lines:#?}");
}

#[cfg(feature = "cli")]
#[test]
fn a_round_policy_is_simulated() {
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/sim/7b.toml");
    let settings = ["schedule.name=first", "schedule.extra=32", "sim.steps=2"];
    let lines = run("4_round_policy", &[&["simulate", "--config", job][..], &settings].concat());
    assert!(lines.iter().any(|line| line.starts_with("first ")), "{lines:#?}");
}

#[test]
fn a_custom_schedule_learns_to_say_seven_and_defers_prompts() {
    let lines = run("5_schedule", &[]);
    assert_learns_to_say_seven(&lines);
    let deferred = |line: &String| number(line, 4);
    assert!(lines[..29].iter().all(|line| deferred(line) == 2.0), "{lines:#?}");
    assert_eq!(deferred(&lines[29]), 0.0, "the last step defers no prompt");
}

#[test]
fn an_assembled_graph_learns_to_say_seven() {
    assert_learns_to_say_seven(&run("6_pipeline", &[]));
}

#[cfg(all(feature = "cli", feature = "torch"))]
#[test]
fn a_custom_command_line_lists_its_parts() {
    let lines = run("7_command_line", &["help", "train"]).join("\n");
    for name in ["terse", "surplus", "early", "uniform", "sgd"] {
        assert!(lines.contains(name), "{name}: {lines}");
    }
}

#[test]
fn an_engine_over_http_learns_to_say_seven() {
    assert_learns_to_say_seven(&run("8_http_engine", &[]));
}
