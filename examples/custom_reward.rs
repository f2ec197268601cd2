//! A custom reward with the built-in stages. The reward is registered under a name, and a recipe routes to that name. The program trains
//! two steps of GRPO on a randomly initialized model that is rewarded for short answers.
//!
//! `cargo run --example custom_reward`

#![allow(clippy::print_stdout, reason = "a program")]

use rollpacker::datasets::{WriteOptions, generate};
use rollpacker::prelude::*;
use rollpacker::recipe::{RawRecipe, raw};
use rollpacker::stages::model::{Family, ModelConfig, Rope, Tokenizer};
use rollpacker::stages::torch::model::Decoder;

/// A reward of 1 for an empty response that halves with every `halved_every` characters.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Terse {
    halved_every: f64,
}

impl Reward for Terse {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let length = sample.response.chars().count() as f64;
        let value = 0.5_f64.powf(length / self.halved_every);
        Ok(Score::from(value).component("characters", length))
    }
}

/// The section `[reward]` of the recipe, as a recipe file would contain it.
const REWARD: &str = r#"
routes = { "rollpacker/*" = "terse" }
options.terse = { halved_every = 10 }
"#;

struct Print;

impl Observer for Print {
    fn step(&mut self, report: StepReport) {
        println!("step {}: {:.1} characters", report.step, measure(&report)["reward/characters"]);
    }
}

fn main() -> anyhow::Result<()> {
    let temporary = tempfile::tempdir()?;
    let folder = temporary.path();
    let chain = generate::ChainConfig { rows: 32, validation_rows: 4, ..Default::default() };
    let data = generate::generate(&chain, folder, WriteOptions::default())?;
    fresh_model(&folder.join("model"))?;
    let recipe = RawRecipe {
        data: raw::Data {
            train_files: vec![data.train.display().to_string()],
            train_batch_size: 4,
            max_response_length: 24,
            ..Default::default()
        },
        model: raw::Model { path: folder.join("model") },
        rollout: raw::Rollout { n: 4, ..Default::default() },
        actor: raw::Actor { lr: 1e-3, ..Default::default() },
        reward: toml::from_str(REWARD)?,
        trainer: raw::Trainer { total_training_steps: Some(2), ..Default::default() },
        ..Default::default()
    };
    let registry = Registry::builtin().with("terse", |terse: Terse| Ok(terse));
    let session = rollpacker::session::Session::open_with(recipe.resolve()?, &registry)?;
    session.train(&Stop::default(), &folder.join("trained"), Print, |_| {})?;
    Ok(())
}

/// Writes a model with random weights for the characters of the built-in task.
fn fresh_model(folder: &std::path::Path) -> anyhow::Result<()> {
    let tokenizer = Tokenizer::characters(generate::ALPHABET)?;
    let config = ModelConfig {
        family: Family::Qwen3,
        vocab_size: i64::try_from(tokenizer.vocab_size())?,
        hidden_size: 32,
        intermediate_size: 64,
        layers: 2,
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        rms_norm_eps: 1e-6,
        rope: Rope::Default { theta: 10_000.0 },
        tie_word_embeddings: true,
        attention_bias: false,
        max_position_embeddings: 1024,
        initializer_range: 0.02,
        eos_token_ids: tokenizer.token_to_id("<|eos|>").into_iter().collect(),
        bos_token_id: None,
        pad_token_id: None,
    };
    Decoder::init(config, 1, tch::Device::Cpu)?.save(folder)?;
    Ok(tokenizer.save(folder)?)
}
