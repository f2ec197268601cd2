//! Rewards that a function of a Python file computes.

use std::path::{Path, PathBuf};

use rollpacker_stages::catalog::{About, CatalogError, Options};
use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::field::{Field, Fields, fields, object};
use super::guard::duration;
use super::process::Pool;
use super::{Context, Reward, RewardError, Sample, Score, answer};

/// A reward that a function of a Python file computes, such as one written for verl or TRL. The file needs no changes.
///
/// The processes of the interpreter load the file once and stay alive from sample to sample. Each scores one sample at a time. If a process
/// dies, or its call exceeds the time limit or is dropped, only the sample of that call is affected: the process is killed with its group
/// and replaced by the next call.
///
/// The function may print: its standard output goes to standard error, whose end is quoted in the error of a process that died. An
/// exception is a fatal error with the end of its traceback; broken connections and timeouts (`ConnectionError`, `TimeoutError`) are
/// retryable.
pub struct PythonReward {
    pool: Pool,
    fields: Fields,
    json_ground_truth: bool,
}

/// The form in which a function takes samples and returns scores. Both forms may be coroutine functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PythonSignature {
    /// verl's: `compute_score(data_source, solution_str, ground_truth, extra_info)` returns a number, or a dict with the number `score`.
    /// Further numbers of the dict become components, and other values except None become labels.
    Verl,
    /// TRL's: `reward(prompts, completions, completion_ids, **columns)` takes lists and returns a list of numbers. The lists have one
    /// entry, because responses are scored as they end. None and NaN mean that the reward is not applicable. The fields of `extra_info`,
    /// the data source and the ground truth are columns. `log_metric` adds a component and `log_extra` a label.
    Trl,
}

documented! {
    /// Options of a [`PythonReward`].
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct PythonOptions {
        /// The Python file with the function. Relative paths start from the working directory. (verl: `custom_reward_function.path`)
        pub file: PathBuf,
        /// The name of the function. Default: `compute_score`. (verl: `custom_reward_function.name`)
        #[serde(default)]
        pub function: Option<String>,
        /// The Python interpreter, version 3.8 or later. Default: `python3`.
        #[serde(default = "interpreter")]
        pub interpreter: String,
        /// The maximum number of concurrent processes, which are started on demand. From 1 to 4096. Default: 1.
        #[serde(default = "processes")]
        pub processes: usize,
        /// The maximum time of a call of the function. Loading the file and waiting for a process do not count. From 1e-6 to 86400.
        /// Default: 600.
        #[serde(default)]
        pub timeout_s: Option<f64> [seconds],
        /// The form of the function: that of verl (`verl`) or that of TRL (`trl`). Default: recognized by the names of the function's
        /// parameters.
        #[serde(default)]
        pub signature: Option<PythonSignature>,
        /// `true` to pass prompts and completions as lists of messages, as TRL does for conversational datasets; `false` to pass them as
        /// texts. Only for a function in TRL's form. Default: `true`.
        #[serde(default)]
        pub conversational: Option<bool>,
        /// `true` to parse ground truths as JSON, so that the function receives lists and dicts; `false` to pass their texts. Default:
        /// `false`.
        #[serde(default)]
        pub json_ground_truth: bool,
        /// Further arguments of the function by name. Default: none. (verl: `custom_reward_function.reward_kwargs`)
        #[serde(default)]
        pub kwargs: Options,
    }
}

fn interpreter() -> String {
    "python3".to_owned()
}

fn processes() -> usize {
    1
}

/// The source of the program that each process executes: it loads the file and answers requests.
const RUNNER: &str = concat!(include_str!("results.py"), include_str!("runner.py"));

/// The Python program on the command line, which reads [`RUNNER`] from the first request. The command line thereby stays short in lists of
/// processes.
const START: &str = r#"import json, sys
setup = json.loads(sys.stdin.buffer.readline())
exec(compile(setup["runner"], "<rollpacker>", "exec"))"#;

/// The answer of a process to the first request, after it has loaded the function.
#[derive(Deserialize)]
struct Loaded {
    signature: PythonSignature,
}

impl PythonReward {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About =
        About::new(&[], "a function of a Python file, as written for verl or TRL", "verl, TRL");

    /// Loads the file in a process to check it, and blocks the calling thread meanwhile.
    ///
    /// # Errors
    /// If an option is out of range, the file does not exist, the interpreter cannot be started, the file cannot be loaded, the function is
    /// missing or takes other arguments, or `conversational` is set for a function in verl's form.
    pub fn new(options: PythonOptions) -> Result<Self, CatalogError> {
        let file = options.file.display();
        check_file(&options.file)?;
        let command = vec![options.interpreter.clone(), "-c".to_owned(), START.to_owned()];
        let pool = Pool::new(command, options.processes)?
            .with_setup(&format!("`{file}`"), setup(&options));
        let pool = match options.timeout_s {
            Some(seconds) => pool.with_limit(duration("timeout_s", seconds)?),
            None => pool,
        };
        let Loaded { signature } = loaded(&pool, &options.file)?;
        if signature == PythonSignature::Verl && options.conversational.is_some() {
            let expected = "no value with verl's signature, whose responses are texts";
            return Err(CatalogError::out_of_range("conversational", expected, "one"));
        }
        Ok(Self {
            pool,
            fields: signature.fields(options.conversational.unwrap_or(true)),
            json_ground_truth: options.json_ground_truth,
        })
    }

    fn request(&self, sample: &Sample) -> Result<Options, RewardError> {
        let mut request = object(&self.fields, sample)?;
        if let Some(truth) = sample.ground_truth.as_deref().filter(|_| self.json_ground_truth) {
            let truth = serde_json::from_str(truth).map_err(|error| {
                RewardError::fatal(format_args!(
                    "field `ground_truth`: expected JSON because of `json_ground_truth`, found {error}"
                ))
            })?;
            request.insert("ground_truth".to_owned(), truth);
        }
        Ok(request)
    }
}

impl PythonSignature {
    /// Returns the fields of a request by the names that the runner expects.
    fn fields(self, is_conversational: bool) -> Fields {
        let prompt = if is_conversational { Field::Messages } else { Field::Prompt };
        let mut all = fields([
            ("data_source", Field::DataSource),
            ("ground_truth", Field::GroundTruth),
            ("extra_info", Field::ExtraInfo),
        ]);
        all.extend(match self {
            Self::Verl => fields([("solution_str", Field::Response)]),
            Self::Trl => fields([
                ("prompt", prompt),
                ("response", Field::Response),
                ("response_ids", Field::ResponseIds),
            ]),
        });
        all
    }
}

impl Reward for PythonReward {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let answer = self.pool.request(self.request(sample)?).await?;
        answer::score(&answer, None)
    }
}

/// Returns the first request of every process.
fn setup(options: &PythonOptions) -> Options {
    let setup = [
        ("runner", json!(RUNNER)),
        ("file", json!(options.file)),
        ("function", json!(options.function)),
        ("signature", json!(options.signature)),
        ("kwargs", json!(options.kwargs)),
    ];
    setup.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
}

fn check_file(file: &Path) -> Result<(), CatalogError> {
    let found = match std::fs::metadata(file) {
        Ok(metadata) if metadata.is_file() => return Ok(()),
        Ok(_) => "not a file".to_owned(),
        Err(error) => error.to_string(),
    };
    let found = format!("`{}`: {found}", file.display());
    Err(CatalogError::out_of_range("file", "a Python file", found))
}

/// Loads the file in a process, ends the process, and returns the description of the function.
fn loaded(pool: &Pool, file: &Path) -> Result<Loaded, CatalogError> {
    // A registry may be used within a runtime, in which no other runtime can run: use a thread without one.
    let probe = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(CatalogError::start)?;
        runtime.block_on(pool.probe()).map_err(|error| CatalogError::Start(error.reason))
    };
    let answer = std::thread::scope(|scope| scope.spawn(probe).join());
    let answer = answer.expect("invariant: a probe does not panic")?;
    serde_json::from_value(answer).map_err(|error| {
        CatalogError::Start(format!("cannot load `{}`: unreadable answer: {error}", file.display()))
    })
}

#[cfg(test)]
mod tests;
