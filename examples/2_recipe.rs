//! A reward in a recipe: it is registered under a name with options, and a recipe routes to that name. The program trains two steps of GRPO
//! on a model with random weights that is rewarded for short answers.
//!
//! `cargo run --example 2_recipe`

#![allow(clippy::print_stdout, reason = "a program")]

#[path = "small_model/mod.rs"]
mod small_model;

use rollpacker::datasets::{WriteOptions, generate};
use rollpacker::prelude::*;
use rollpacker::recipe::{RawRecipe, raw};

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
    small_model::save(&folder.join("model"))?;
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
