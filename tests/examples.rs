//! Tests that the examples run, and that their policies learn as documented.

use std::path::PathBuf;
use std::process::Command;

fn run(example: &str) -> Vec<String> {
    // `cargo test` builds the examples into a folder next to the tests.
    let mut path = PathBuf::from(env!("CARGO_BIN_EXE_rollpacker"));
    path.set_file_name("examples");
    let output = Command::new(path.join(example)).output().expect("the example starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {errors}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Returns the word with index `word` of a line as a number.
fn number(line: &str, word: usize) -> f64 {
    line.split_whitespace().nth(word).and_then(|word| word.parse().ok()).expect("a number")
}

#[test]
fn custom_pipeline_learns_to_say_seven() {
    let lines = run("custom_pipeline");
    assert_eq!(lines.len(), 30);
    let share = |line: &String| number(line, 2);
    assert!(share(&lines[0]) < 0.4 && share(&lines[29]) > 0.8, "{lines:#?}");
}

#[test]
fn custom_schedule_learns_to_say_seven_and_defers_prompts() {
    let lines = run("custom_schedule");
    assert_eq!(lines.len(), 30);
    let (share, deferred) = (|line: &String| number(line, 2), |line: &String| number(line, 4));
    assert!(share(&lines[0]) < 0.4 && share(&lines[29]) > 0.8, "{lines:#?}");
    assert!(lines[..29].iter().all(|line| deferred(line) == 2.0), "{lines:#?}");
    assert_eq!(deferred(&lines[29]), 0.0, "the last step defers no prompt");
}

#[test]
fn custom_advantage_raises_the_mean_digit() {
    let lines = run("custom_advantage");
    assert_eq!(lines.len(), 25);
    let digit = |line: &String| number(line, line.split_whitespace().count() - 1);
    assert!(digit(&lines[24]) > digit(&lines[0]) + 1.5, "{lines:#?}");
}

#[cfg(feature = "torch")]
#[test]
fn custom_reward_trains_two_steps() {
    let lines = run("custom_reward");
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| line.contains("characters")), "{lines:#?}");
}
