//! Tests of `rollpacker profile` with a model created for the test.
#![cfg(feature = "torch")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rollpacker::profile;
use rollpacker::stages::rollout::profile::{Phase, Row};

const RECIPE: &str = r#"
[data]
train_files = ["data/train.parquet"]
train_batch_size = 2
max_prompt_length = 20
max_response_length = 30

[model]
path = "model"

[rollout]
instances = 2
max_num_seqs = 3

[trainer]
device = "cpu"
write_rollouts = false

[sft]
train_files = "data/train.parquet"
steps = 1
batch_size = 2
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
"#;

fn rollpacker(folder: &Path, args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_rollpacker");
    Command::new(program).args(args).current_dir(folder).output().expect("the program starts")
}

fn ok(folder: &Path, args: &[&str]) -> String {
    let output = rollpacker(folder, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_profile_covers_what_the_recipe_allows_and_reads_back() {
    let workspace = tempfile::tempdir().expect("a folder");
    let folder = workspace.path();
    ok(folder, &["data", "generate", "--output", "data", "--rows", "4", "--validation-rows", "1"]);
    fs::write(folder.join("recipe.toml"), RECIPE).expect("written");
    ok(folder, &["sft", "--config", "recipe.toml"]);

    let printed = ok(folder, &["profile", "--config", "recipe.toml", "--budget", "60"]);
    let rows = profile::read(&folder.join("profile.parquet")).expect("readable");
    let points: BTreeSet<_> = rows.iter().map(|row| row.point()).collect();
    // 2 instance counts x batch sizes 1, 2 and 3 x (prompts of 16 and 20 tokens, contexts of 16, 32 and 50 tokens).
    assert_eq!((rows.len(), points.len()), (30, 30));
    assert!(rows.iter().all(|row| row.seconds > 0.0 && row.seconds < 10.0 && row.repeats >= 3));
    assert_eq!(rows.iter().filter(|row| row.phase == Phase::Prefill).count(), 12);
    assert!(printed.contains("decode: milliseconds by batch size and context length, 2 instances"));
    assert!(printed.contains("wrote profile.parquet: 30 of 30 points, "), "{printed}");

    let refused = |args: &[&str], expected: &str| {
        let output = rollpacker(folder, &[&["profile", "--config", "recipe.toml"], args].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    };
    refused(&["--budget", "0"], "option `--budget`: expected seconds above 0, found 0");
    refused(&["model.path=nowhere"], "nowhere");
    refused(&["data.max_response_length=9999"], "data.max_response_length");
}

/// The initial profile claims an hour per iteration. At the end of the run it must contain the measured times.
#[test]
fn a_run_renews_a_profile_that_drifted() {
    let workspace = tempfile::tempdir().expect("a folder");
    let folder = workspace.path();
    ok(folder, &["data", "generate", "--output", "data", "--rows", "24", "--validation-rows", "1"]);
    fs::write(folder.join("recipe.toml"), RECIPE).expect("written");
    ok(folder, &["sft", "--config", "recipe.toml"]);
    let (phase, seconds, repeats) = (Phase::Decode, 3600.0, 3);
    let rows: Vec<_> = [1, 2]
        .into_iter()
        .flat_map(|instances| [1, 3].map(|batch_size| (instances, batch_size)))
        .flat_map(|(instances, batch_size)| {
            [32, 4096].map(|tokens| (instances, batch_size, tokens))
        })
        .map(|(instances, batch_size, tokens)| Row {
            phase,
            instances,
            tensor_parallel: 1,
            batch_size,
            tokens,
            seconds,
            repeats,
        })
        .collect();
    let path = folder.join("p.parquet");
    profile::write(&path, &rows).expect("written");
    let train = [
        "train",
        "--config",
        "recipe.toml",
        "--out",
        "run",
        "data.max_prompt_length=64",
        "rollout.n=3",
        "schedule.name=sync",
        "trainer.total_training_steps=30",
        "rollout.profile=p.parquet",
    ];
    ok(folder, &train);
    let metrics = fs::read_to_string(folder.join("run/metrics.jsonl")).expect("written");
    let metrics: Vec<serde_json::Value> =
        metrics.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    let of = |name: &str| metrics.iter().filter_map(|line| line["data"][name].as_f64()).collect();
    let (ratios, drifted): (Vec<f64>, Vec<f64>) =
        (of("profile/drift/max_ratio"), of("profile/drifted_cells"));
    assert!(ratios[0] > 1000.0, "{ratios:?}");
    assert_eq!(drifted[..7], [0.0; 7], "eight steps are wanted");
    let renewed = profile::read(&path).expect("readable");
    let changed: Vec<_> = renewed.iter().filter(|row| row.seconds != seconds).collect();
    // Four cells share 30 steps, so that each is seen in about one of eight steps at any load of the machine. A renewed cell may
    // drift again.
    assert!(changed.len() as f64 <= drifted.iter().sum() && renewed.len() == rows.len());
    assert!(!changed.is_empty() && changed.iter().all(|row| row.seconds < 10.0), "{changed:?}");
    assert!(
        changed.iter().all(|row| row.tokens == 32),
        "cells of 4096 tokens cannot have changed: {changed:?}"
    );

    let refused = rollpacker(folder, &[&train[..], &["rollout.profile=none.parquet"]].concat());
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("key `rollout.profile`: cannot read none.parquet"), "{stderr}");
}
