//! The reward `code`: code that must pass tests.

mod calls;
mod cases;
mod complete;
mod extract;
mod node;
mod python;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_sandbox::{
    Check, Job, Outcome, Probe, Sandbox, SandboxConfig, SandboxError, Verdict,
};
use rollpacker_stages::catalog::{About, OptionDocs};
use rollpacker_stages::documented;
use rollpacker_stages::documented::Field;
use rollpacker_stages::reward::{Execution, Limits};
use serde::{Deserialize, Serialize};

use super::{Context, Reward, RewardError, Sample, Score};
use complete::{Completed, complete};
use extract::{Fences, Program, Wanted};

documented! {
    /// Options of the reward `code`.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct CodeConfig {
        /// The value of a response: 1 if every test case passes and otherwise 0 (`all`), or the fraction of the cases that pass
        /// (`fraction`). Default: `all`.
        pub score: CodeScore,
        /// The settings of the sandbox in which code runs.
        pub sandbox: SandboxConfig,
    }
}

/// The rule that maps the results of the test cases to the value of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeScore {
    /// 1 if every test case passes, otherwise 0. The first failure ends the run: later cases are skipped.
    #[default]
    All,
    /// The fraction of the test cases that pass.
    Fraction,
}

/// A reward that scores the code in a response by the tests of its prompt, in a [sandbox](rollpacker_sandbox).
///
/// The code is one program, taken from the response after the thinking: the last fenced block that defines the names that the tests use,
/// with the imports and helpers of other blocks. Without a fence, it is the code in the text. If the tests only compare standard output,
/// the last fenced block may also be in another language of the sandbox; it is then the whole program. The tests have one of the forms of
/// [`Check`]. They are read from the ground truth or, for ROLL's columns, from the extra fields.
///
/// Components: `passed`, the fraction of the cases that passed, and `seconds`, the total charged time of the cases. Labels: `outcome`,
/// which is `passed`, the outcome of the first case that did not pass, or `no_code` if there was nothing to run; and `message`, the reason
/// why that case did not pass. If an earlier case failed or the job ended early, the cases that were not run count as not passed, as far as
/// their number is known; a text of tests that was not run counts as one case. Tests that skip themselves do not count.
#[derive(Clone)]
pub struct Code {
    score: CodeScore,
    sandbox: Sandbox,
    fences: Fences,
    python: Fences,
}

/// The documentation of the options of [`SandboxConfig`], whose crate does not depend on [`documented!`].
const SANDBOX: [Field; 12] = [
    Field::new("sandbox.isolation", &["The isolation of code from the machine. Default: `full`."]),
    Field::new("sandbox.slots", &["The number of concurrent jobs. From 1 to 1024. Default: the number of cores."]),
    Field::new("sandbox.python", &["The interpreter, by name or path. Default: `python3`."]),
    Field::new("sandbox.preload", &["Modules that are imported once, so that jobs can use them without a loading time. Default: none."]),
    Field::new("sandbox.binds", &["Files and folders that code may read in addition to the interpreter and the system's libraries. Default: none."]),
    Field::new("sandbox.memory_bytes", &["The maximum memory of a process, in addition to that of the interpreter. At least 1048576. Default: 512 MiB."]).in_unit("bytes"),
    Field::new("sandbox.processes", &["The maximum number of processes and threads of a run. At least 1. Default: 32."]),
    Field::new("sandbox.file_bytes", &["The maximum size of a written file. At least 0. Default: 16 MiB."]).in_unit("bytes"),
    Field::new("sandbox.open_files", &["The maximum number of open files of a process. At least 4. Default: 64."]),
    Field::new("sandbox.tmpfs_bytes", &["The size of the private /tmp. At least 0. Default: 64 MiB."]).in_unit("bytes"),
    Field::new("sandbox.output_bytes", &["The maximum size of a run's output that is kept. At least 0. Default: 1 MiB."]).in_unit("bytes"),
    Field::new("sandbox.languages", &["Languages in addition to `python`, by name: tables with `fences`, `file`, `compile` and `run`. Default: none."]),
];

impl Code {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About =
        About::new(&[], "code that runs against tests in a sandbox", "this project");

    /// Returns the documentation of the options.
    #[must_use]
    pub fn option_docs() -> OptionDocs {
        OptionDocs::of::<CodeConfig>()
            .and(OptionDocs::new::<SandboxConfig>(&SANDBOX).without_defaults())
    }

    /// Starts the sandbox.
    ///
    /// # Errors
    /// [`SandboxError::NoIsolation`] if the machine cannot isolate code, [`SandboxError::Start`] if the interpreter or a slot of the
    /// sandbox cannot be started, and [`SandboxError::Bound`] or [`SandboxError::Language`] if a setting is invalid.
    pub fn start(config: CodeConfig) -> Result<Self, SandboxError> {
        let python =
            Fences::from([("python".to_owned(), vec!["py".to_owned(), "python3".to_owned()])]);
        let mut fences = python.clone();
        fences.extend(
            config
                .sandbox
                .languages
                .iter()
                .map(|(name, language)| (name.clone(), language.fences.clone())),
        );
        let sandbox = Sandbox::start(config.sandbox)?;
        Ok(Self { score: config.score, sandbox, fences, python })
    }

    /// Returns the isolation in force, as probed at start-up.
    #[must_use]
    pub fn isolation(&self) -> &Probe {
        self.sandbox.active()
    }

    /// Returns the sandbox job for a response, or `None` if the response contains no code.
    fn job(&self, sample: &Sample, limits: &Limits) -> Result<Option<Job>, RewardError> {
        let mut check = cases::check(sample)?;
        if self.score == CodeScore::All {
            check = check.with_stop_at_failure();
        }
        let fences = if check.needs_python() { &self.python } else { &self.fences };
        let Some(Program { language, code }) = program(&sample.response, fences, &check) else {
            return Ok(None);
        };
        let solution = solution(code, &mut check);
        let reference = reference_time(sample)?;
        let seconds = (0..=limits.anchors.len())
            .map(|case| limits.max_run_time(case, reference).as_secs_f64())
            .collect();
        Ok(Some(Job { solution, language: language.to_owned(), check, seconds }))
    }

    fn value(&self, passed: f64) -> f64 {
        match self.score {
            CodeScore::All => f64::from(passed >= 1.0),
            CodeScore::Fraction => passed,
        }
    }
}

impl Reward for Code {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        let Some(job) = self.job(sample, &context.limits)? else {
            return Ok(Score::from(0.0)
                .component("passed", 0.0)
                .component("seconds", 0.0)
                .label("outcome", "no_code"));
        };
        let mut verdict = self.sandbox.run(&job).await.map_err(reward_error)?;
        let executions = judge_limits(&mut verdict, &context.limits, reference_time(sample)?);
        let min_cases = if verdict.complete { 0 } else { job.check.min_cases() };
        let cases = verdict.cases.len().max(min_cases);
        let passed = fraction(verdict.passed(), cases);
        let mut score = Score::from(self.value(passed))
            .component("passed", passed)
            .component("seconds", verdict.cases.iter().map(|case| case.seconds).sum())
            .label("outcome", outcome_name(verdict.outcome()));
        if let Some(case) = verdict.cases.iter().find(|case| case.outcome != Outcome::Passed) {
            score = score.label("message", case.message.clone());
        }
        score.executions = executions;
        Ok(score)
    }
}

/// Returns the program of a response, or `None` if there is none or it is blank. Checks of the response text run no program and get an
/// empty program.
fn program<'a>(response: &str, fences: &'a Fences, check: &Check) -> Option<Program<'a>> {
    if matches!(check, Check::Text { .. }) {
        return Some(Program { language: "python", code: String::new() });
    }
    extract::extract(response, fences, &wanted(check))
        .filter(|program| !program.code.trim().is_empty())
}

/// Returns the definitions that a check requires of a solution.
fn wanted(check: &Check) -> Wanted {
    match check {
        Check::Entry { entry_point, prompt, .. } => {
            Wanted::names([first_name(entry_point)], prompt.is_some())
        }
        Check::Calls { function, .. } => Wanted::names([function, "Solution"], false),
        Check::Tests { tests, .. } => Wanted::of_tests(tests),
        Check::Stdio { .. } | Check::Runs | Check::Text { .. } => Wanted::Program,
    }
}

/// Returns the name with which an entry point begins: `Solution` for `Solution().add`.
fn first_name(entry_point: &str) -> &str {
    entry_point.split(|it: char| !it.is_alphanumeric() && it != '_').next().unwrap_or_default()
}

/// Returns the solution for the extracted code. If the check has a prompt and the code is only the body of the function, the prompt is
/// placed before it. If the code is the whole function, the part of the prompt before the function is appended to `import_prefix`.
fn solution(code: String, check: &mut Check) -> String {
    let Check::Entry { entry_point, prompt: Some(prompt), import_prefix, .. } = check else {
        return code;
    };
    let Completed { solution, preamble } = complete(&code, prompt, first_name(entry_point));
    if !import_prefix.is_empty() && !import_prefix.ends_with('\n') {
        import_prefix.push('\n');
    }
    import_prefix.push_str(&preamble);
    solution
}

/// Returns the time that a correct solution takes according to the dataset: the extra field `reference_time`, in seconds. Returns `None` if
/// the field is missing or null.
fn reference_time(sample: &Sample) -> Result<Option<Nanos>, RewardError> {
    let extra = sample.extra()?;
    let Some(found) = extra.get("reference_time").filter(|found| !found.is_null()) else {
        return Ok(None);
    };
    let seconds = found.as_f64().filter(|seconds| *seconds > 0.0 && seconds.is_finite());
    let wrong = || {
        RewardError::fatal(format_args!(
            "field `reference_time`: expected seconds above 0, found {found}"
        ))
    };
    seconds.map(Nanos::from_secs_f64).map(Some).ok_or_else(wrong)
}

/// Returns the executions from which later limits are learned. An audit runs cases past their limits: the outcome of a case that passed
/// only after its limit becomes [`Outcome::Timeout`].
fn judge_limits(
    verdict: &mut Verdict,
    limits: &Limits,
    reference: Option<Nanos>,
) -> Vec<Execution> {
    let mut executions = Vec::with_capacity(verdict.cases.len());
    for (number, case) in verdict.cases.iter_mut().enumerate() {
        let limit = limits.of(number, reference);
        let took = Nanos::from_secs_f64(case.seconds);
        let correct = case.outcome == Outcome::Passed;
        executions.push(limits.execution(number, reference, took, correct));
        if correct && took > limit {
            case.outcome = Outcome::Timeout;
            case.message =
                format!("passed after {:.3} s, limit {:.3} s", case.seconds, limit.as_secs_f64());
        }
    }
    executions
}

#[expect(clippy::cast_precision_loss, reason = "numbers of test cases are small")]
fn fraction(passed: usize, of: usize) -> f64 {
    if of == 0 { 0.0 } else { passed as f64 / of as f64 }
}

/// Returns the name of an outcome in labels.
fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "passed",
        Outcome::Failed => "failed",
        Outcome::RuntimeError => "runtime_error",
        Outcome::CompileError => "compile_error",
        Outcome::Timeout => "timeout",
        Outcome::Memory => "memory",
        Outcome::Forbidden => "forbidden",
    }
}

fn reward_error(error: SandboxError) -> RewardError {
    match error {
        SandboxError::Fault { .. } => RewardError::retryable(error),
        _ => RewardError::fatal(error),
    }
}

#[cfg(test)]
mod tests;
