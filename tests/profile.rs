//! Tests of `rollpacker profile` with a model created for the test.
#![cfg(feature = "torch")]

mod workspace;

use std::collections::BTreeSet;

use rollpacker::profile;
use rollpacker::stages::rollout::profile::{Phase, Row};
use workspace::{Sft, TestWorkspace};

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
"#;

const SFT: Sft = Sft { steps: 1, batch_size: 2, ..Sft::TINY };

#[test]
fn a_profile_covers_what_the_recipe_allows_and_reads_back() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 4, 1);

    let printed = workspace.ok(&["profile", "--config", "recipe.toml", "--budget", "60"]);
    let rows = profile::read(&workspace.path("profile.parquet")).expect("readable");
    let points: BTreeSet<_> = rows.iter().map(|row| row.point()).collect();
    // 2 instance counts x batch sizes 1, 2 and 3 x (prompts of 16 and 20 tokens, contexts of 16, 32 and 50 tokens).
    assert_eq!((rows.len(), points.len()), (30, 30));
    assert!(rows.iter().all(|row| row.seconds > 0.0 && row.seconds < 10.0 && row.repeats >= 3));
    assert_eq!(rows.iter().filter(|row| row.phase == Phase::Prefill).count(), 12);
    assert!(printed.contains("decode: milliseconds by batch size and context length, 2 instances"));
    assert!(printed.contains("wrote profile.parquet: 30 of 30 points, "), "{printed}");

    let refused = |args: &[&str], expected: &str| {
        let profile = ["profile", "--config", "recipe.toml"];
        let error = workspace.run_refused(&[&profile, args].concat());
        assert!(error.contains(expected), "{error}");
    };
    refused(&["--budget", "0"], "option `--budget`: expected seconds above 0, found 0");
    refused(&["model.path=nowhere"], "nowhere");
    refused(&["model.path="], "key `model.path`: expected a folder in Hugging Face format");
    refused(&["data.max_response_length=9999"], "data.max_response_length");
}

/// The initial profile claims an hour per iteration. At the end of the run, it must have measured times in cells that the run has seen.
#[test]
fn a_run_renews_a_profile_that_drifted() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 24, 1);
    let (phase, seconds, repeats) = (Phase::Decode, 3600.0, 3);
    let cells = [1, 2].map(|instances| [1, 3].map(|batch_size| (instances, batch_size)));
    let rows = cells.into_iter().flatten().flat_map(|(instances, batch_size)| {
        let tensor_parallel = 1;
        [32, 4096].map(|tokens| Row {
            phase,
            instances,
            tensor_parallel,
            batch_size,
            tokens,
            seconds,
            repeats,
        })
    });
    let rows: Vec<_> = rows.collect();
    let path = workspace.path("p.parquet");
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
    workspace.ok(&train);
    let metrics = workspace.metrics_lines("run");
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

    let error = workspace.run_refused(&[&train[..], &["rollout.profile=none.parquet"]].concat());
    assert!(error.contains("key `rollout.profile`: cannot read none.parquet"), "{error}");
}
