//! A folder with data, a small model and a recipe, and the program that trains on them.
#![allow(dead_code, reason = "every test of the program uses its own part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rollpacker::datasets::{WriteOptions, generate};
use rollpacker::stages::model::{Decoder, Family, ModelConfig, Rope, Tokenizer};
use serde_json::Value;

pub(crate) struct Workplace {
    folder: tempfile::TempDir,
}

/// What all runs have in common: little of everything.
pub(crate) const RECIPE: &str = r#"
[data]
train_files = "data/train.parquet"
train_batch_size = 4
max_prompt_length = 64
max_response_length = 24

[model]
path = "model"

[rollout]
n = 4

[schedule]
eta_prompts = 1.5
eta_responses = 1.5

[actor]
lr = 1e-4

[trainer]
total_training_steps = 4
device = "cpu"
default_local_dir = "run"
"#;

impl Workplace {
    pub(crate) fn new(recipe: &str) -> Self {
        let place = Self { folder: tempfile::tempdir().expect("a folder") };
        let chain = generate::ChainConfig { rows: 96, validation_rows: 4, ..Default::default() };
        generate::generate(&chain, &place.path("data"), WriteOptions::default()).expect("data");
        fresh_model(&place.path("model"));
        fs::write(place.path("recipe.toml"), recipe).expect("written");
        place
    }

    /// The same with a model that was fine-tuned by the recipe, on data of so many rows.
    pub(crate) fn warm(recipe: &str, rows: usize, validation_rows: usize) -> Self {
        let place = Self { folder: tempfile::tempdir().expect("a folder") };
        let [rows, validation_rows] = [rows, validation_rows].map(|rows| rows.to_string());
        let sizes = ["--rows", &rows, "--validation-rows", &validation_rows];
        place.ok(&[&["data", "generate", "--output", "data"][..], &sizes].concat());
        place.write("recipe.toml", recipe);
        place.ok(&["sft", "--config", "recipe.toml"]);
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("written");
    }

    /// The program in the folder, its output kept.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollpacker"));
        command.args(args);
        self.here(&mut command);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> End {
        End::of(self.command(args).spawn().expect("the program starts"))
    }

    /// What a command prints that is to succeed.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let end = self.run(args);
        assert_eq!(end.code, Some(0), "{args:?}: {end:?}");
        end.out
    }

    /// The error of a command that is refused with exit status 2.
    pub(crate) fn refused(&self, args: &[&str]) -> String {
        let end = self.run(args);
        assert_eq!(end.code, Some(2), "{args:?}: {end:?}");
        end.err
    }

    /// `rollpacker train` by the recipe.
    pub(crate) fn training(&self, args: &[&str]) -> Command {
        self.command(&[&["train", "--config", "recipe.toml"], args].concat())
    }

    pub(crate) fn ended(&self, args: &[&str]) -> End {
        End::of(self.training(args).spawn().expect("the program starts"))
    }

    /// A run that is to succeed.
    pub(crate) fn trained(&self, args: &[&str]) -> End {
        let end = self.ended(args);
        assert_eq!(end.code, Some(0), "{args:?}: {end:?}");
        end
    }

    /// Runs in the folder, with its output kept.
    pub(crate) fn here(&self, command: &mut Command) {
        command.current_dir(self.folder.path()).env("RUST_BACKTRACE", "0");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    }

    pub(crate) fn summary(&self, run: &str) -> Value {
        json(&self.path(run).join("summary.json"))
    }
}

/// How a process ended, and what it said.
#[derive(Debug)]
pub(crate) struct End {
    /// `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl End {
    pub(crate) fn of(child: Child) -> Self {
        let Output { status, stdout, stderr } = child.wait_with_output().expect("it ends");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: status.code(), out: text(stdout), err: text(stderr) }
    }

    /// Lines of standard error that say why it ended.
    pub(crate) fn errors(&self) -> Vec<&str> {
        self.err.lines().filter(|line| line.starts_with("error: ")).collect()
    }

    /// That the run failed, and with one line that holds all of `parts`.
    pub(crate) fn assert_failed(&self, parts: &[&str]) {
        assert_eq!(self.code, Some(1), "{self:?}");
        let [error] = self.errors()[..] else { panic!("one error is expected: {self:?}") };
        for part in parts {
            assert!(error.contains(part), "`{part}` is expected in: {error}");
        }
    }
}

pub(crate) fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

/// A model with random weights over the characters of the built-in task.
fn fresh_model(folder: &Path) {
    let tokenizer = Tokenizer::characters(generate::ALPHABET).expect("a tokenizer");
    let config = ModelConfig {
        family: Family::Qwen3,
        vocab_size: i64::try_from(tokenizer.vocab_size()).expect("few"),
        hidden_size: 32,
        intermediate_size: 64,
        layers: 1,
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
    let decoder = Decoder::init(config, 1, tch::Device::Cpu).expect("a model");
    decoder.save(folder).expect("written");
    tokenizer.save(folder).expect("written");
}
