//! Tests of `rollpacker train` and `score` with an in-process judge, on the actor's instances and on separate ones.
#![cfg(feature = "torch")]

mod workspace;

use std::fs;
use std::path::Path;

use rollpacker_model::{ModelConfig, Tokenizer};
use rollpacker_torch::model::Decoder;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};
use workspace::{Sft, TestWorkspace};

const RECIPE: &str = r#"
[data]
train_files = ["data/train.parquet"]
val_files = "data/validation.parquet"
train_batch_size = 4
max_response_length = 32

[model]
path = "warm"

[rollout]
n = 2

[schedule]
name = "sync"

[reward.routes]
"*" = "judge"

[reward.options.judge]
engine = "torch"
model_path = "judge"
device = "cpu"
colocated = true
guest_tokens = 64
kv_cache_tokens = 8192
max_tokens = 20

[trainer]
total_training_steps = 3
test_freq = 2
device = "cpu"
default_local_dir = "run"
"#;

/// The characters that the judge's model reads and writes.
const ALPHABET: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \n.,:;?!+-*/=()<>[]{}'`\"|_#%&@";

/// Writes a model that answers every prompt with `text`, in which no character occurs twice. Each token is one direction of the residual
/// stream, the only layer adds nothing, and the head maps each token to the next.
fn speaker(folder: &Path, text: &str) {
    let tokenizer = Tokenizer::characters(ALPHABET).expect("distinct");
    let vocab = tokenizer.vocab_size() as i64;
    fs::create_dir_all(folder).expect("made");
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": 128,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
        "head_dim": 8, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 4096,
        "tie_word_embeddings": false, "hidden_act": "silu", "eos_token_id": 1, "initializer_range": 0.02,
    });
    fs::write(folder.join("config.json"), config.to_string()).expect("written");
    let config = ModelConfig::from_folder(folder).expect("a configuration");
    let decoder = Decoder::init(config, 0, Device::Cpu).expect("room");
    let token_ids = tokenizer.encode(&format!(">{text}<|eos|>")).expect("of the alphabet");
    let steps: Vec<(i64, i64)> =
        token_ids.windows(2).map(|pair| (pair[1].into(), pair[0].into())).collect();
    let own: Vec<(i64, i64)> = (0..vocab).map(|token| (token, token)).collect();
    for (name, parameter) in decoder.parameters() {
        let ones = match name.as_str() {
            "model.embed_tokens.weight" => &own,
            "lm_head.weight" => &steps,
            name if name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") => {
                &vec![]
            }
            _ => continue,
        };
        let table = Tensor::zeros(parameter.size(), (Kind::Float, Device::Cpu));
        for (row, column) in ones {
            let _same_memory = table.get(*row).get(*column).fill_(1.0);
        }
        tch::no_grad(|| parameter.shallow_clone().copy_(&table));
    }
    decoder.save(folder).expect("saved");
    tokenizer.save(folder).expect("saved");
    let template = "{% for message in messages %}{{ message.content }}\n{% endfor %}>";
    fs::write(folder.join("chat_template.jinja"), template).expect("written");
}

#[test]
fn a_judge_on_the_actors_instances_scores_every_response() {
    let workspace = TestWorkspace::warm(
        RECIPE,
        Sft { steps: 1, batch_size: 4, hidden_size: 32, layers: 1 },
        32,
        4,
    );
    speaker(&workspace.path("judge"), "Verdict: YES");
    workspace.train_ok(&[]);
    let lines = workspace.metrics_lines("run");
    let steps: Vec<&Value> =
        lines.iter().filter(|line| line["data"]["critic/score/mean"].is_number()).collect();
    assert_eq!(steps.len(), 3);
    for step in steps {
        let data = &step["data"];
        assert_eq!(
            (&data["critic/score/mean"], &data["critic/score/min"]),
            (&json!(1.0), &json!(1.0))
        );
        assert!(data["rollout/guest_tokens"].as_f64().is_some_and(|tokens| tokens > 0.0), "{data}");
        assert!(
            data["rollout/guest_slowdown"].as_f64().is_some_and(|ratio| ratio >= 0.0),
            "{data}"
        );
    }
    let validated: Vec<f64> =
        lines.iter().filter_map(|line| line["data"]["val/score"].as_f64()).collect();
    assert_eq!(validated, vec![1.0; validated.len()], "before, during and after the engine's work");
    assert!(validated.len() >= 3);

    let row = json!({"data_source": "any", "response": "It is 4.", "prompt": "2+2?"});
    workspace.write("rows.jsonl", &row.to_string());
    let scores = workspace.ok(&[
        "score",
        "--reward",
        "recipe.toml",
        "--input",
        "rows.jsonl",
        "--output",
        "-",
    ]);
    let score: Value = serde_json::from_str(&scores).expect("a line of JSON");
    assert_eq!(score["score"], 1.0, "on a thread of its own: {score}");
}
