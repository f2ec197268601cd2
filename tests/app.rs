//! Tests of a command line with a reward and a schedule of its own: the example `own_command_line`.
#![cfg(feature = "torch")]

mod workplace;

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use workplace::{ProcessEnd, RECIPE, Workplace};

/// Runs a command of the example, which `cargo test` builds into a folder next to the tests.
fn run(place: &Workplace, args: &[&str]) -> ProcessEnd {
    let mut path = PathBuf::from(env!("CARGO_BIN_EXE_rollpacker"));
    path.set_file_name("examples");
    let mut command = Command::new(path.join("own_command_line"));
    place.here(command.args(args));
    ProcessEnd::of(command.spawn().expect("the example starts"))
}

fn ok(place: &Workplace, args: &[&str]) -> String {
    let end = run(place, args);
    assert_eq!(end.code, Some(0), "{args:?}: {end:?}");
    end.out
}

fn refused(place: &Workplace, args: &[&str]) -> String {
    let end = run(place, args);
    assert_eq!(end.code, Some(2), "{args:?}: {end:?}");
    end.err
}

#[test]
fn an_own_reward_scores_a_file() {
    let place = Workplace::new(RECIPE);
    place.write(
        "rows.jsonl",
        "{\"response\": \"short\"}\n{\"response\": \"longer than twenty characters\"}\n",
    );
    let score = ["score", "--reward", "terse", "--input", "rows.jsonl", "--output", "scores.jsonl"];
    ok(&place, &[&score[..], &["--option", "most=20"]].concat());
    let scores = std::fs::read_to_string(place.path("scores.jsonl")).expect("written");
    let score_of =
        |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["score"].as_f64();
    assert_eq!(scores.lines().map(score_of).collect::<Vec<_>>(), [Some(1.0), Some(0.0)]);
    let error = refused(&place, &[&score[..], &["--option", "least=1"]].concat());
    assert!(error.contains("least"), "{error}");
}

#[test]
fn an_own_schedule_is_simulated() {
    let place = Workplace::new(RECIPE);
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/sim/7b.toml");
    let simulate = |settings: &[&'static str]| {
        [&["simulate", "--config", job, "sim.steps=2", "--json"][..], settings].concat()
    };
    let surplus = "schedule.name=surplus";
    let text = ok(&place, &simulate(&[surplus, "schedule.share=0.25"]));
    let simulated: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(simulated["configurations"].as_array().map(Vec::len), Some(2), "with its baseline");
    let swept = ["--sweep", "schedule.share=0,0.5"];
    ok(&place, &[simulate(&[surplus, "schedule.share=0.25"]), swept.to_vec()].concat());

    let error = |settings: &[&'static str]| refused(&place, &simulate(settings));
    let bound = error(&[surplus, "schedule.share=2"]);
    assert!(bound.contains("`schedule.share`: expected a number from 0 to 1, found 2"), "{bound}");
    let unknown = error(&[surplus, "schedule.share=0", "schedule.eta_prompts=1"]);
    assert!(unknown.contains("schedule.eta_prompts"), "{unknown}");
    let misspelt = error(&["schedule.name=surplu"]);
    assert!(misspelt.contains("surplus"), "{misspelt}");
}

#[test]
fn an_own_schedule_and_an_own_reward_train_and_resume() {
    let place = Workplace::new(RECIPE);
    let train = [
        "train",
        "--config",
        "recipe.toml",
        "schedule.name=surplus",
        "schedule.share=0.5",
        "reward.routes={\"*\"=\"terse\"}",
        "reward.options.terse.most=20",
        "trainer.save_freq=1",
    ];
    let with = |more: &[&'static str]| [&train[..], more].concat();
    let described = ok(&place, &with(&["--dry-run"]));
    assert!(described.contains("surplus") && described.contains("share"), "{described}");
    ok(&place, &with(&["trainer.total_training_steps=2"]));
    assert_eq!(place.summary("run")["steps"], 2);
    ok(&place, &with(&["trainer.total_training_steps=3", "--resume"]));
    assert_eq!(place.summary("run")["steps"], 3);
    ok(&place, &with(&["trainer.total_training_steps=1", "--workers", "2", "--overwrite"]));
    let error = refused(&place, &with(&["schedule.share=-1", "--dry-run"]));
    assert!(error.contains("`schedule.share`: expected a number from 0 to 1"), "{error}");
}
