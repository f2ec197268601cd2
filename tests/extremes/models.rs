//! Tests of the numbers in the files of a model folder.

use std::fs;
use std::panic::catch_unwind;

use rollpacker::stages::torch::model::Decoder;
use serde_json::{Value, json};

use crate::program::{self, Case, owned};
use crate::workspace::{RECIPE, TestWorkspace};
use crate::{names, numbers};

/// The command line of a run of one step.
const TRAIN: [&str; 5] =
    ["train", "--config", "recipe.toml", "schedule.name=fused", "trainer.total_training_steps=1"];

/// Returns values of a size, an id or a factor, as JSON.
fn extremes() -> Vec<Value> {
    let whole = [i64::MIN, -1, 0, 1, i64::from(i32::MAX), 1 << 32, i64::MAX];
    let broken = [5e-324, 1e-30, 1e30, f64::MAX];
    let whole = whole.into_iter().map(Value::from);
    whole.chain([json!(u64::MAX)]).chain(broken.into_iter().map(Value::from)).collect()
}

#[test]
fn every_number_of_a_configuration_is_fit_to_train_with_or_named() {
    let workspace = TestWorkspace::new(RECIPE);
    let original = fs::read_to_string(workspace.path("model/config.json")).expect("readable");
    let mut original: Value = serde_json::from_str(&original).expect("JSON");
    original["pad_token_id"] = json!(0);
    original["bos_token_id"] = json!(1);
    let llama3 = json!({ "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32 });
    original["rope_parameters"] = llama3;
    let (paths, mut cases) = (numbers(&original), Vec::new());
    assert!(paths.len() > 18, "{paths:?}");
    for (number, (path, _)) in paths.iter().enumerate() {
        let key = path.rsplit('.').next().expect("a name").to_owned();
        for (at, value) in extremes().into_iter().enumerate() {
            let mut config = original.clone();
            *at_path(&mut config, path) = value.clone();
            let folder = format!("models/{number}-{at}");
            copy(&workspace, &folder, &config);
            let read = catch_unwind(|| Decoder::check_folder(&workspace.path(&folder)).map(drop));
            match read.unwrap_or_else(|_| panic!("{key} = {value} panics")) {
                // Errors about tensors of unexpected sizes contain the names of the tensors.
                Err(error) => {
                    let error = error.to_string();
                    let named = names(&error, &[&key, "tensor", "self_attn", "model.layers"]);
                    assert!(named, "{key} = {value}: {error}");
                }
                Ok(()) => {
                    let own = [format!("model.path={folder}"), format!("--out=run/{number}-{at}")];
                    let args = owned(&TRAIN).into_iter().chain(own).collect();
                    let context = "data.max_response_length".to_owned();
                    cases.push(Case { args, keys: vec![key.clone(), context] });
                }
            }
        }
    }
    program::check(&workspace, &cases);
}

#[test]
fn ends_of_sequence_outside_of_the_vocabulary_are_refused_by_file_and_key() {
    let workspace = TestWorkspace::new(RECIPE);
    for ids in ["19", "[1, 2147483647]", "-1"] {
        workspace.write("model/generation_config.json", &format!("{{\"eos_token_id\": {ids}}}"));
        let error = workspace.run_refused(&["train", "--config", "recipe.toml", "--dry-run"]);
        let expected =
            "generation_config.json: key `eos_token_id`: expected token ids from 0 to 18";
        assert!(error.contains(expected), "{ids}: {error}");
    }
}

#[test]
fn numbers_of_a_tokenizer_are_accepted_or_name_the_tokenizer() {
    let workspace = TestWorkspace::new(RECIPE);
    let path = workspace.path("model/tokenizer.json");
    let original: Value =
        serde_json::from_str(&fs::read_to_string(&path).expect("readable")).expect("JSON");
    let mut paths: Vec<String> = vec!["added_tokens.0.id".to_owned()];
    // Each character of the alphabet is an entry of the vocabulary. Two of them suffice.
    paths.extend(numbers(&original).into_iter().map(|(path, _)| path).step_by(10));
    for path in &paths {
        for value in [json!(-1), json!(u32::MAX), json!(1 << 31), json!(u64::MAX)] {
            let mut tokenizer = original.clone();
            *at_path(&mut tokenizer, path) = value.clone();
            workspace.write("model/tokenizer.json", &tokenizer.to_string());
            let end = program::run(&workspace, &owned(&TRAIN));
            let is_reported = end.code == Some(0) || names(&end.err, &["tokenizer"]);
            assert!(is_reported && matches!(end.code, Some(0..=2)), "{path} = {value}: {end:?}");
            drop(fs::remove_dir_all(workspace.path("run")));
        }
    }
}

/// Returns the value with a dotted name.
fn at_path<'a>(value: &'a mut Value, path: &str) -> &'a mut Value {
    let pointer = path.split('.').map(|name| format!("/{name}")).collect::<String>();
    value.pointer_mut(&pointer).expect("it is there")
}

/// Copies the model with another configuration.
fn copy(workspace: &TestWorkspace, folder: &str, config: &Value) {
    fs::create_dir_all(workspace.path(folder)).expect("made");
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(workspace.path("model").join(file), workspace.path(folder).join(file))
            .expect("copied");
    }
    workspace.write(&format!("{folder}/config.json"), &config.to_string());
}
