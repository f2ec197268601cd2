//! Reports a run to the console, to the run folder and to a telemetry collector.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use rollpacker_dataflow::fault::Fault;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::snapshot::RestoredSnapshot;
use rollpacker_dataflow::step::Step;
use rollpacker_operators::report::{
    Lengths, Observer, ObserverState, StepProgress, StepReport, measure,
};
use rollpacker_operators::resume::ResumeError;
use rollpacker_operators::schedule::operator::Stop;
use rollpacker_stages::train::Metrics;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::exit_timer::ExitTimer;
use crate::findings::{Finding, FindingMonitor};
use crate::lifetime::EndReason;
use crate::progress::Console;
use crate::prompts::training_batch_larger_than_dataset;
use crate::recipe::Recipe;
use crate::run_folder::{RecordError, RunFolder, RunFolderExtent};
use crate::run_result::{RunResult, SkippedCounts};
use crate::run_writer::RunWriter;
use crate::telemetry::{Telemetry, log_warning};

/// Reports a run to the console, the run folder and a telemetry collector.
pub struct RunReporter {
    console: Console,
    writer: RunWriter,
    telemetry: Option<Telemetry>,
    /// The time within which a failed run must end.
    grace: Duration,
    /// The timer that ends the process of a failed run; `None` unless the run has failed.
    ending: Option<ExitTimer>,
    findings: FindingMonitor,
    totals: Totals,
    /// The metrics of the validation before the first step; `None` without such a validation.
    warm_start: Option<Metrics>,
}

#[derive(Serialize, Deserialize)]
struct ReporterSnapshot {
    totals: Totals,
    /// The extent of the run folder after the last step.
    extent: RunFolderExtent,
    /// The metrics of the validation before the first step; `None` if there was no such validation. JSON has no NaN and no infinity;
    /// such values are null.
    warm_start: Option<BTreeMap<String, Option<f64>>>,
}

const STATE_NAME: &str = "run";

/// Sums over the steps of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Totals {
    steps: u64,
    seconds: f64,
    rollout_seconds: f64,
    launched_tokens: usize,
    discarded_tokens: usize,
    trained_tokens: usize,
    trained_responses: usize,
    prompts: u64,
}

/// The content of `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunSummary {
    /// The reason why the run ended: `finished`, `stopped` or `out_of_time`.
    pub ended: EndReason,
    /// The number of steps trained, including the steps before a resumption.
    pub steps: u64,
    /// The number of prompts trained on.
    pub trained_prompts: u64,
    /// The number of prompts left out because they are longer than `data.max_prompt_length`, counted once per epoch.
    pub overlong_prompts: u64,
    /// The prompts that the curriculum skipped, counted once per epoch; `None` without a curriculum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_prompts: Option<SkippedCounts>,
    /// The scores on held-out prompts.
    pub validation: Validation,
    /// The wall time of steps, without validation. Time in which two steps overlap counts for the earlier step only.
    pub step_time_s: StepTime,
    /// The number of sampled tokens, including the tokens of aborted responses, per second of rollout; 0 without rollout.
    pub tokens_per_s: f64,
    /// The mean length in tokens of the responses trained on; 0 if there are none.
    pub mean_trained_length: f64,
    /// The number of tokens sampled.
    pub launched_tokens: usize,
    /// The number of tokens of responses that were neither trained on nor kept for a later step.
    pub discarded_tokens: usize,
}

/// The numbers of held-out prompts and the mean scores on them. A score is null if there was no validation at that time, or if errors
/// exclude all of its responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Validation {
    /// The number of validation prompts.
    pub prompts: usize,
    /// The number of validation prompts left out because they are longer than `data.max_prompt_length`.
    pub overlong_prompts: u64,
    /// The score before the first step, sampled as `rollout.val_kwargs` says.
    pub warm_start: Option<f64>,
    /// The score before the first step, decoded greedily.
    pub warm_start_greedy: Option<f64>,
    /// The score after the last step, sampled as `rollout.val_kwargs` says.
    #[serde(rename = "final")]
    pub final_sampled: Option<f64>,
    /// The score after the last step, decoded greedily.
    pub final_greedy: Option<f64>,
}

/// Step times in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepTime {
    /// The mean over the steps; 0 without steps.
    pub mean: f64,
    /// The sum over the steps.
    pub total: f64,
}

impl RunReporter {
    /// Creates the run folder and a reporter that writes into it. Removes the records of an earlier run in the folder. `prompts` is the
    /// number of prompts per epoch. The first record that cannot be written requests `stop`.
    ///
    /// # Errors
    /// If a file in the folder cannot be written or removed, the path of a record holds something that is not a regular file, or
    /// `trainer.logger` selects TensorBoard and the program was built without the feature `cli`.
    ///
    /// # Panics
    /// If the system cannot start the thread that writes the folder.
    pub fn start(
        recipe: &Recipe,
        prompts: u64,
        telemetry: Option<Telemetry>,
        stop: Stop,
    ) -> Result<Self, RecordError> {
        let (run, text) = (&recipe.run, recipe.to_toml());
        let folder = RunFolder::create(&run.default_local_dir, &text, run.write_rollouts)?;
        let folder = with_loggers(folder, recipe)?;
        Ok(Self::of(recipe, prompts, telemetry, stop, folder))
    }

    fn read_state(restored: &RestoredSnapshot) -> Result<Option<ReporterSnapshot>, ResumeError> {
        ObserverState::read(restored, STATE_NAME)
    }

    /// Returns the extent of the run folder when a snapshot was taken; `None` for a run without a run folder.
    pub(crate) fn extent(
        restored: &RestoredSnapshot,
    ) -> Result<Option<RunFolderExtent>, ResumeError> {
        Ok(Self::read_state(restored)?.map(|kept| kept.extent))
    }

    /// Continues in the run folder after the last step of a snapshot.
    ///
    /// # Errors
    /// If the snapshot contains no readable state of the run, the folder lacks records that the snapshot continues, or
    /// [`start`](Self::start) would fail.
    ///
    /// # Panics
    /// If the system cannot start the thread that writes the folder.
    pub fn resume(
        recipe: &Recipe,
        prompts: u64,
        telemetry: Option<Telemetry>,
        stop: Stop,
        restored: &RestoredSnapshot,
    ) -> anyhow::Result<Self> {
        let Some(kept) = Self::read_state(restored)? else {
            bail!("the snapshot after step {} has no run folder", restored.step().next());
        };
        let (path, text) = (&recipe.run.default_local_dir, recipe.to_toml());
        let folder = RunFolder::resume(path, &text, recipe.run.write_rollouts, kept.extent)?;
        let folder = with_loggers(folder, recipe)?;
        let mut run = Self::of(recipe, prompts, telemetry, stop, folder);
        let number = |(name, value): (String, Option<f64>)| (name, value.unwrap_or(f64::NAN));
        run.warm_start = kept.warm_start.map(|all| all.into_iter().map(number).collect());
        run.totals = kept.totals;
        run.console.print_line(&format!("resumed from step {}", kept.extent.steps));
        Ok(run)
    }

    fn of(
        recipe: &Recipe,
        prompts: u64,
        telemetry: Option<Telemetry>,
        stop: Stop,
        folder: RunFolder,
    ) -> Self {
        let responses = usize::try_from(recipe.rollout.n).unwrap_or(usize::MAX);
        let wanted = recipe.data.train_batch_size * responses;
        Self {
            console: Console::new(expected_steps(recipe, prompts), wanted),
            writer: RunWriter::start(folder, stop),
            telemetry,
            grace: shutdown_grace(recipe),
            ending: None,
            findings: FindingMonitor::default(),
            totals: Totals::default(),
            warm_start: None,
        }
    }

    /// Prints a line on the console; with JSON output, as the message of an object. Errors of writing are ignored.
    pub fn print_line(&self, line: &str) {
        self.console.print_line(line);
    }

    #[cfg(feature = "cli")]
    pub(crate) fn console(&self) -> &Console {
        &self.console
    }

    /// Returns the folder for the trained model.
    #[must_use]
    pub fn model_folder(&self) -> PathBuf {
        RunFolder::model(self.writer.path())
    }

    /// Reports a validation that does not belong to a training step. `step` is the number of steps that were trained before it. At
    /// step 0, the metrics become the warm start in the summary.
    pub fn report_validation(&mut self, step: u64, metrics: &Metrics) {
        self.console.report_validation(step, metrics);
        if step == 0 {
            self.warm_start = Some(metrics.clone());
        }
        self.export_metrics(metrics);
        self.writer.write_metrics(step, "validation", metrics.clone());
    }

    /// Reports the last validation and the reason of an early end, ends the export of telemetry, writes the summary, and returns it as
    /// JSON.
    ///
    /// # Errors
    /// If the summary, or any record before it, could not be written. An error that [`take_failure`](Self::take_failure) has returned does
    /// not count.
    pub fn finish(&mut self, finished: &RunResult) -> Result<String, RecordError> {
        if let Some(last) = &finished.last {
            self.report_validation(self.totals.steps, last);
        }
        if let Some(why) = early_end_text(finished.ended) {
            self.console.print_line(&format!("ended after step {}: {why}", self.totals.steps));
        }
        self.console.finish();
        if let Some(Err(lost)) = self.telemetry.take().map(Telemetry::shutdown) {
            self.console.print_line(&format!("warning: {lost}"));
        }
        let warm_start = finished.warm_start.clone().or_else(|| self.warm_start.clone());
        let summary = self.totals.summary(&RunResult { warm_start, ..finished.clone() });
        let text =
            serde_json::to_string_pretty(&summary).expect("invariant: a summary is plain data");
        self.writer.finish(summary)?;
        Ok(text)
    }

    /// Waits until the records so far are written, and takes the first error of a record that could not be written. Returns `None` if all
    /// were written.
    pub fn take_failure(&mut self) -> Option<RecordError> {
        self.writer.take_failure()
    }

    /// Prints a warning, and emits it as a log record. `fields` are printed in JSON lines only.
    fn warn(&self, text: &str, fields: Map<String, Value>) {
        log_warning(text);
        self.console.print(&format!("warning: {text}"), fields);
    }

    fn warn_finding(&self, step: u64, finding: &Finding) {
        let Finding { metric, value, problem, advice, .. } = finding;
        let fields = [("step", json!(step)), ("metric", json!(metric)), ("value", json!(value))];
        let fields = fields.map(|(name, value)| (name.to_owned(), value));
        self.warn(&format!("step {step}: {problem} {advice}"), fields.into_iter().collect());
    }

    fn export_metrics(&self, metrics: &Metrics) {
        if let Some(telemetry) = &self.telemetry {
            telemetry.record(metrics);
        }
    }
}

impl Observer for RunReporter {
    fn progress(&mut self, progress: &StepProgress) {
        self.console.progress(progress);
    }

    fn warning(&mut self, warning: &Fault) {
        self.warn(&warning.to_string(), Map::new());
    }

    fn failed(&mut self, fault: &Fault) {
        self.ending = Some(ExitTimer::begin(self.grace, fault.to_string()));
    }

    fn step(&mut self, report: StepReport) {
        let metrics = measure(&report);
        let round = round(&report);
        self.totals.add(&report, &metrics);
        let step = report.step.0 + 1;
        self.console.step(step, &round, &metrics);
        for finding in self.findings.step(&metrics) {
            self.warn_finding(step, &finding);
        }
        self.export_metrics(&metrics);
        self.writer.step(report, round, metrics);
    }

    fn save(&self, saved: &mut ObserverState) {
        let number = |(name, value): (&String, &f64)| {
            (name.clone(), Some(*value).filter(|value| value.is_finite()))
        };
        let warm_start = self.warm_start.as_ref().map(|all| all.iter().map(number).collect());
        let (totals, extent) = (self.totals, self.writer.save(self.totals.steps));
        saved.keep_later(STATE_NAME, move || {
            let (extent, files) = extent()?;
            Ok((ReporterSnapshot { totals, extent, warm_start }, files))
        });
    }

    fn snapshot(&mut self, _step: Step, metrics: &Metrics) {
        self.export_metrics(metrics);
    }
}

impl Totals {
    fn add(&mut self, report: &StepReport, metrics: &Metrics) {
        let metric = |name: &str| metrics.get(name).copied().unwrap_or(0.0);
        let trained = Lengths::of(&report.groups);
        self.steps += 1;
        self.seconds += metric("perf/time_per_step");
        self.rollout_seconds += metric("timing_s/gen");
        self.launched_tokens += metric("rollout/launched_tokens") as usize;
        self.discarded_tokens += metric("rollout/discarded_tokens") as usize;
        self.trained_tokens += trained.total();
        self.trained_responses += trained.finished.len();
        // A group that cannot be scored is dropped after its prompt is admitted.
        self.prompts +=
            (metric("schedule/admitted_prompts") - metric("reward/dropped_groups")) as u64;
    }

    fn summary(&self, finished: &RunResult) -> RunSummary {
        let score = |metrics: &Option<Metrics>, name: &str| {
            metrics.as_ref().and_then(|all| all.get(name).copied())
        };
        let per = |sum: f64, count: f64| if count > 0.0 { sum / count } else { 0.0 };
        RunSummary {
            ended: finished.ended,
            steps: self.steps,
            trained_prompts: self.prompts,
            overlong_prompts: finished.overlong_prompts,
            skipped_prompts: finished.skipped,
            validation: Validation {
                prompts: finished.validation_prompts.prompts,
                overlong_prompts: finished.validation_prompts.overlong_prompts,
                warm_start: score(&finished.warm_start, "val/score"),
                warm_start_greedy: score(&finished.warm_start, "val/greedy_score"),
                final_sampled: score(&finished.last, "val/score"),
                final_greedy: score(&finished.last, "val/greedy_score"),
            },
            step_time_s: StepTime {
                mean: per(self.seconds, self.steps as f64),
                total: self.seconds,
            },
            tokens_per_s: per(self.launched_tokens as f64, self.rollout_seconds),
            mean_trained_length: per(self.trained_tokens as f64, self.trained_responses as f64),
            launched_tokens: self.launched_tokens,
            discarded_tokens: self.discarded_tokens,
        }
    }
}

/// Adds the TensorBoard event file if `trainer.logger` selects it.
fn with_loggers(folder: RunFolder, recipe: &Recipe) -> Result<RunFolder, RecordError> {
    if recipe.tensorboard { folder.with_events() } else { Ok(folder) }
}

fn early_end_text(ended: EndReason) -> Option<&'static str> {
    match ended {
        EndReason::Finished => None,
        EndReason::Stopped => Some("a stop was requested"),
        EndReason::OutOfTime => Some("another step may not fit into trainer.max_wall_time"),
    }
}

fn round(report: &StepReport) -> String {
    let mut rounds = report.decisions.iter().map(|batch| batch.text(column::ROUND).value(0));
    rounds.next_back().unwrap_or("none").to_owned()
}

/// Returns the time that a failed run may take to end: the stall timeout, but at least 1 s and at most 30 s; 30 s if the watchdog is
/// disabled.
fn shutdown_grace(recipe: &Recipe) -> Duration {
    let (min, max) = (Duration::from_secs(1), Duration::from_secs(30));
    let watch = recipe.watch();
    watch.map_or(max, |watch| Duration::from_nanos(watch.after.0).clamp(min, max))
}

/// Returns the expected number of steps, at most `trainer.total_training_steps`, assuming that no prompts are left out. `prompts` is the
/// number of prompts per epoch.
pub(crate) fn expected_steps(recipe: &Recipe, prompts: u64) -> u64 {
    let (data, run) = (&recipe.data, &recipe.run);
    let steps = prompts.div_ceil(data.train_batch_size as u64) * u64::from(run.total_epochs);
    run.total_training_steps.map_or(steps, |limit| limit.min(steps))
}

/// Returns a description of the run before it starts: the resolved recipe, the batch arithmetic and the graph. `prompts` is the number of
/// prompts per epoch.
#[must_use]
pub fn describe(recipe: &Recipe, prompts: u64) -> String {
    let (p0, r0, choices) = (recipe.data.train_batch_size, recipe.rollout.n, &recipe.choices);
    let mut text = format!("# resolved recipe\n{}\n# batch arithmetic\n", recipe.to_toml());
    let steps = expected_steps(recipe, prompts);
    // Writing to a string does not fail.
    let _ = writeln!(text, "prompts of an epoch       {prompts}");
    if let Some(note) = training_batch_larger_than_dataset(p0, prompts) {
        let _ = writeln!(text, "{note}");
    }
    let _ = writeln!(
        text,
        "a step trains on          {p0} prompts x {r0} responses = {} responses",
        p0 * r0 as usize
    );
    let launched = recipe.launched;
    if launched != (p0, r0) {
        let _ = writeln!(
            text,
            "a round launches up to    {} prompts x {} responses = {} responses",
            launched.0,
            launched.1,
            launched.0 * launched.1 as usize
        );
    }
    let _ =
        writeln!(text, "steps                     about {steps}, fewer if prompts are left out");
    let _ = writeln!(
        text,
        "micro-batches             at most {} tokens, without padding",
        recipe.trainer.micro_batch_tokens
    );
    let _ = match recipe.describe_placement() {
        Some(placement) => writeln!(text, "placement                 {placement}"),
        None => writeln!(text, "training threads          {}", recipe.trainer.threads),
    };
    let _ = write!(
        text,
        "\n# graph\nprompts -> schedule({}) <-> rollout({} x {}) -> reward({}) -> group -> advantage({}) -> gradient({}) -> update{}\n   \
         ^ policies(staleness {}): from update to schedule and rollout\n",
        recipe.schedule_name(),
        choices.engine.name(),
        recipe.engine_instances(),
        recipe
            .reward
            .routes
            .iter()
            .map(|(source, routed)| format!("{source}={routed}"))
            .collect::<Vec<_>>()
            .join(" "),
        choices.estimator.name(),
        choices.trainer.name(),
        if recipe.val_data.is_some() { " -> validate" } else { "" },
        recipe.staleness,
    );
    text
}
