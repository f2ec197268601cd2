//! `rollpacker profile` on a model made for the test.
#![cfg(feature = "torch")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rollpacker::profile;
use rollpacker::stages::rollout::profile::Phase;

const RECIPE: &str = r#"
[data]
max_prompt_length = 20
max_response_length = 30

[model]
path = "model"

[rollout]
instances = 2
max_num_seqs = 3

[trainer]
device = "cpu"

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
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path();
    ok(folder, &["data", "generate", "--output", "data", "--rows", "4", "--validation-rows", "1"]);
    fs::write(folder.join("recipe.toml"), RECIPE).expect("written");
    ok(folder, &["sft", "--config", "recipe.toml"]);

    let printed = ok(folder, &["profile", "--config", "recipe.toml", "--budget", "60"]);
    let rows = profile::read(&folder.join("profile.parquet")).expect("readable");
    let points: BTreeSet<_> = rows.iter().map(|row| row.point()).collect();
    // 2 instance counts x batches of 1, 2 and 3 x (prompts of 16 and 20, contexts of 16, 32 and 50).
    assert_eq!((rows.len(), points.len()), (30, 30));
    assert!(rows.iter().all(|row| row.seconds > 0.0 && row.seconds < 10.0 && row.repeats >= 3));
    assert_eq!(rows.iter().filter(|row| row.phase == Phase::Prefill).count(), 12);
    assert!(printed.contains("decode: milliseconds by batch size and context length, 2 instances"));
    assert!(printed.ends_with("wrote profile.parquet: 30 of 30 points\n"), "{printed}");

    let refused = |args: &[&str], expected: &str| {
        let output = rollpacker(folder, &[&["profile", "--config", "recipe.toml"], args].concat());
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(expected), "{told}");
    };
    refused(&["--budget", "0"], "option `--budget`: expected seconds above 0, found 0");
    refused(&["model.path=nowhere"], "nowhere");
    refused(&["data.max_response_length=9999"], "data.max_response_length");
}
