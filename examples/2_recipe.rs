//! A reward in a recipe: it is registered under a name with options, and a recipe routes to that name. The program trains two steps of GRPO
//! on a model with random weights that is rewarded for short answers.
//!
//! `cargo run --example 2_recipe`

#![allow(clippy::print_stdout, reason = "a program")]

#[path = "small_model/mod.rs"]
mod small_model;

use rollpacker::datasets::{WriteOptions, generate};
use rollpacker::prelude::*;
use rollpacker::recipe::Recipe;

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

/// The recipe without the paths of the data and of the model, which `main` sets.
const RECIPE: &str = r#"
[data]
train_batch_size = 4
max_response_length = 24
[rollout]
n = 4
[reward]
routes = { "rollpacker/*" = "terse" }
options.terse = { halved_every = 10 }
[actor]
lr = 1e-3
[trainer]
total_training_steps = 2
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
    let (path, model) = (folder.join("recipe.toml"), folder.join("model"));
    small_model::save(&model, 2)?;
    std::fs::write(&path, RECIPE)?;
    let paths = [("data.train_files", &data.train), ("model.path", &model)];
    let overrides = paths.map(|(key, path)| format!("{key}={}", path.display()));
    let recipe = Recipe::read(&path, &overrides)?;
    let registry = Registry::builtin().with("terse", |terse: Terse| Ok(terse));
    let session = rollpacker::session::Session::open_with(recipe, &registry)?;
    session.train(&Stop::default(), &folder.join("trained"), Print, |_| {})?;
    Ok(())
}
