//! A temporary folder with data, a small model and a recipe, in which tests run the program.
#![allow(dead_code, reason = "every test of the program uses its own part")]

pub(crate) mod server;
#[path = "../../examples/small_model/mod.rs"]
mod small_model;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rollpacker::dataflow::clock::{Clock, WallClock};
use rollpacker::datasets::{WriteOptions, generate};
use rollpacker::stages::metrics::Metric;
use serde_json::Value;

pub(crate) struct TestWorkspace {
    folder: tempfile::TempDir,
}

/// The longest time that a test waits for anything. It only ends tests that would hang.
const MAX_WAIT: Duration = Duration::from_secs(15 * 60);

/// Waits until `is_done` returns `true`.
///
/// # Panics
///
/// Panics, naming `what`, if that does not happen within [`MAX_WAIT`].
pub(crate) fn wait_until(what: &str, mut is_done: impl FnMut() -> bool) {
    let clock = WallClock::start();
    while !is_done() {
        assert!(Duration::from_nanos(clock.now().0) < MAX_WAIT, "waited in vain until {what}");
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// The recipe of tests that need no recipe of their own. All sizes are small.
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

/// The small model of a test, and its fine-tuning. It is displayed as the section `[sft]` of a recipe.
#[derive(Clone, Copy)]
pub(crate) struct Sft {
    pub(crate) steps: u32,
    pub(crate) batch_size: u32,
    pub(crate) hidden_size: u32,
    pub(crate) layers: u32,
}

impl Sft {
    /// A model for tests in which it learns.
    pub(crate) const SMALL: Self = Self { steps: 8, batch_size: 8, hidden_size: 32, layers: 2 };
    /// A model for tests that only need one.
    pub(crate) const TINY: Self = Self { steps: 2, batch_size: 4, hidden_size: 16, layers: 1 };
}

impl fmt::Display for Sft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, batch_size, hidden_size, layers } = self;
        writeln!(f, "\n[sft]\ntrain_files = \"data/train.parquet\"\nsteps = {steps}")?;
        writeln!(f, "batch_size = {batch_size}\nhidden_size = {hidden_size}")?;
        writeln!(f, "intermediate_size = {}\nnum_hidden_layers = {layers}", 2 * hidden_size)?;
        writeln!(f, "num_attention_heads = 2\nnum_key_value_heads = 1")
    }
}

impl TestWorkspace {
    pub(crate) fn new(recipe: &str) -> Self {
        Self::with_rows(recipe, 96)
    }

    /// Creates a workspace with this many rows of data.
    pub(crate) fn with_rows(recipe: &str, rows: u64) -> Self {
        let workspace = Self { folder: tempfile::tempdir().expect("a folder") };
        let chain = generate::ChainConfig { rows, validation_rows: 4, ..Default::default() };
        generate::generate(&chain, &workspace.path("data"), WriteOptions::default()).expect("data");
        small_model::save(&workspace.path("model"), 1).expect("a model");
        fs::write(workspace.path("recipe.toml"), recipe).expect("written");
        workspace
    }

    /// Creates a workspace with data of this many rows and a model that is fine-tuned on them. Adds the section `[sft]` to the recipe.
    pub(crate) fn warm(recipe: &str, sft: Sft, rows: usize, validation_rows: usize) -> Self {
        let workspace = Self { folder: tempfile::tempdir().expect("a folder") };
        let [rows, validation_rows] = [rows, validation_rows].map(|rows| rows.to_string());
        let sizes = ["--rows", &rows, "--validation-rows", &validation_rows];
        workspace.ok(&[&["data", "generate", "--output", "data"][..], &sizes].concat());
        workspace.write("recipe.toml", &format!("{recipe}{sft}"));
        workspace.ok(&["sft", "--config", "recipe.toml"]);
        workspace
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("written");
    }

    /// Returns a command that runs the program in the folder and captures its output.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollpacker"));
        command.args(args);
        self.prepare(&mut command);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> ProcessEnd {
        ProcessEnd::of(self.command(args).spawn().expect("the program starts"))
    }

    /// Runs a command that must succeed, and returns its output. All metrics that it wrote must be in the table of metrics.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let end = self.run(args);
        assert_eq!(end.code, Some(0), "{args:?}: {end:?}");
        self.assert_metrics_are_in_the_table();
        end.out
    }

    /// Runs a command that must fail with exit status 2, and returns its error.
    pub(crate) fn run_refused(&self, args: &[&str]) -> String {
        let end = self.run(args);
        assert_eq!(end.code, Some(2), "{args:?}: {end:?}");
        end.err
    }

    /// Returns a command that runs `rollpacker train` with the recipe.
    pub(crate) fn train_command(&self, args: &[&str]) -> Command {
        self.command(&[&["train", "--config", "recipe.toml"], args].concat())
    }

    pub(crate) fn train_to_end(&self, args: &[&str]) -> ProcessEnd {
        ProcessEnd::of(self.train_command(args).spawn().expect("the program starts"))
    }

    /// Trains, and asserts that the run succeeds.
    pub(crate) fn train_ok(&self, args: &[&str]) -> ProcessEnd {
        let end = self.train_to_end(args);
        assert_eq!(end.code, Some(0), "{args:?}: {end:?}");
        self.assert_metrics_are_in_the_table();
        end
    }

    /// Asserts that each metric of the run folders in this folder has a row in the table of metrics.
    fn assert_metrics_are_in_the_table(&self) {
        let folders = fs::read_dir(self.folder.path()).expect("the folder is there").flatten();
        let files = folders.map(|at| at.path().join("metrics.jsonl")).filter(|path| path.exists());
        for line in files.flat_map(|path| json_lines(&path)) {
            for name in line["data"].as_object().expect("metrics by name").keys() {
                assert!(Metric::find(name).is_some(), "no row for the metric {name}");
            }
        }
    }

    /// Sets the folder of a command, and captures its output.
    pub(crate) fn prepare(&self, command: &mut Command) {
        command.current_dir(self.folder.path()).env("RUST_BACKTRACE", "0");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    }

    pub(crate) fn summary(&self, run: &str) -> Value {
        json(&self.path(run).join("summary.json"))
    }

    /// Returns the lines of the metrics of a run.
    pub(crate) fn metrics_lines(&self, run: &str) -> Vec<Value> {
        json_lines(&self.path(run).join("metrics.jsonl"))
    }

    /// Returns the path of the rollouts of a step.
    pub(crate) fn rollouts(&self, run: &str, step: u64) -> PathBuf {
        self.path(&format!("{run}/rollouts/step_{step:05}.parquet"))
    }
}

/// The exit code and the output of a process.
#[derive(Debug)]
pub(crate) struct ProcessEnd {
    /// The exit code; `None` if a signal ended the process.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl ProcessEnd {
    /// Waits for the end of a process. One that has not ended after [`MAX_WAIT`] is killed, so its test fails and shows its output.
    pub(crate) fn of(child: Child) -> Self {
        let id = child.id().to_string();
        let (ended, end) = mpsc::channel::<()>();
        let guard = thread::spawn(move || {
            if end.recv_timeout(MAX_WAIT) == Err(RecvTimeoutError::Timeout) {
                drop(Command::new("kill").args(["-KILL", &id]).status());
            }
        });
        let Output { status, stdout, stderr } = child.wait_with_output().expect("it ends");
        drop(ended);
        guard.join().expect("the guard ends");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: status.code(), out: text(stdout), err: text(stderr) }
    }

    /// Asserts that the process succeeded.
    #[track_caller]
    pub(crate) fn success(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// Asserts that the process refused its input.
    #[track_caller]
    pub(crate) fn refusal(self) -> Self {
        assert_eq!(self.code, Some(2), "{self:?}");
        self
    }

    /// Returns the lines of standard error that contain errors.
    pub(crate) fn errors(&self) -> Vec<&str> {
        self.err.lines().filter(|line| line.starts_with("error: ")).collect()
    }

    /// Asserts that the run failed with exactly one error line, which contains all of `parts`.
    pub(crate) fn assert_failed(&self, parts: &[&str]) {
        assert_eq!(self.code, Some(1), "{self:?}");
        let [error] = self.errors()[..] else { panic!("one error is expected: {self:?}") };
        for part in parts {
            assert!(error.contains(part), "`{part}` is expected in: {error}");
        }
    }
}

pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_str(&read(path)).expect("JSON")
}

/// Returns the values in a file of JSON lines.
pub(crate) fn json_lines(path: &Path) -> Vec<Value> {
    read(path).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns all rows of a Parquet file.
pub(crate) fn parquet_rows(path: &Path) -> RecordBatch {
    let file = fs::File::open(path);
    let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
    let schema = reader.schema().clone();
    let batches = reader.build().expect("readable").collect::<Result<Vec<_>, _>>();
    concat_batches(&schema, &batches.expect("readable")).expect("one schema")
}
