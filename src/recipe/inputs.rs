//! The input files that a recipe names. Commands reject outputs that would overwrite them.

use std::path::Path;

use rollpacker_datasets::DatasetConfig;
use rollpacker_files::Inputs;
use toml::Value;

use super::Recipe;
use super::raw::{RawRecipe, Reward};

impl Recipe {
    /// Returns the files that a run of this recipe reads: datasets, models, the profile of the engine, recorded lengths, and the files that
    /// options of rewards, the engine, the trainer and the placement name.
    ///
    /// Paths that do not exist are ignored here. The code that reads them reports the error.
    #[must_use]
    pub fn inputs(&self) -> Inputs {
        self.raw.inputs()
    }

    /// Returns the [inputs](Self::inputs) without the profile, which `rollpacker profile` measures again.
    #[cfg(all(feature = "cli", feature = "torch"))]
    pub(crate) fn profiling_inputs(&self) -> Inputs {
        let mut raw = self.raw.clone();
        raw.rollout.profile = None;
        raw.inputs()
    }
}

impl RawRecipe {
    fn inputs(&self) -> Inputs {
        let Self { data, model, rollout, placement, reward, actor, critic, sft, .. } = self;
        let mut inputs = reward.inputs();
        let datasets = [&data.train_files, &data.val_files, &sft.train_files];
        for pattern in datasets.into_iter().flatten() {
            let paths = DatasetConfig::of([pattern.as_str()]).paths().unwrap_or_default();
            paths.iter().for_each(|path| inputs.add(path));
        }
        let named = [critic.path.as_ref(), rollout.replay_lengths.as_ref()];
        let named = named.into_iter().chain([rollout.profile.as_ref(), Some(&model.path)]);
        named.flatten().for_each(|path| inputs.add(path));
        let options = [&rollout.engine_options, &actor.strategy_options, &placement.options];
        let options = options.into_iter().flat_map(|options| options.values());
        options.for_each(|option| add_paths(option, &mut inputs));
        inputs
    }
}

impl Reward {
    /// Returns the files that reward options name, at any nesting depth.
    #[must_use]
    pub fn inputs(&self) -> Inputs {
        let mut inputs = Inputs::default();
        let options = self.options.values().flat_map(|options| options.values());
        options.for_each(|option| add_paths(option, &mut inputs));
        inputs
    }
}

/// Adds the files that strings in `option` name, at any nesting depth, such as a program or one of its arguments. If a string names a
/// folder, such as a model, adds the files in the folder. Strings that are not paths of files or folders add nothing.
fn add_paths(option: &Value, inputs: &mut Inputs) {
    match option {
        Value::String(text) => inputs.add(Path::new(text)),
        Value::Array(values) => values.iter().for_each(|value| add_paths(value, inputs)),
        Value::Table(table) => table.values().for_each(|value| add_paths(value, inputs)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_file_that_a_recipe_names_is_an_input() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        for name in [
            "train-0.jsonl",
            "val.jsonl",
            "sft.jsonl",
            "scorer.py",
            "lengths",
            "engine.json",
            "other",
        ] {
            fs::write(path(name), "").expect("written");
        }
        for name in ["model", "critic", "judge"] {
            fs::create_dir(path(name)).expect("made");
            fs::write(path(name).join("config.json"), "").expect("written");
        }
        let folder_path = folder.path().display();
        let text = format!(
            r#"
            data.train_files = "{folder_path}/train-*.jsonl"
            data.val_files = ["{folder_path}/absent.jsonl", "{folder_path}/val.jsonl"]
            sft.train_files = "{folder_path}/sft.jsonl"
            model.path = "{folder_path}/model"
            critic.path = "{folder_path}/critic"
            rollout.replay_lengths = "{folder_path}/lengths"
            reward.options.process.command = ["python3", "{folder_path}/scorer.py"]
            rollout.engine_options.profile = "{folder_path}/engine.json"
            reward.options.judge.engine = {{ path = "{folder_path}/judge" }}
            "#
        );
        fs::write(path("recipe.toml"), text).expect("written");
        let inputs = Recipe::read(&path("recipe.toml"), &[]).expect("a recipe").inputs();
        let read =
            ["train-0.jsonl", "val.jsonl", "sft.jsonl", "scorer.py", "lengths", "engine.json"];
        let folders = ["model/config.json", "critic/config.json", "judge/config.json"];
        for name in read.into_iter().chain(folders) {
            assert!(inputs.check_output(&path(name)).is_err(), "{name}");
        }
        assert!(inputs.check_output(&path("other")).is_ok());
    }
}
