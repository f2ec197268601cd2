//! `rollpacker simulate`: simulates a job in virtual time, sweeps its settings, and compares with a baseline.

mod paper;

use std::io::IsTerminal;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rollpacker_files::{FileError, Inputs, NewFile, is_same_file};
use serde::Serialize;

use self::paper::PaperArgs;
use super::exit_status::bad_input;
use crate::App;
use crate::memory::{Estimate, simulation_parts};
use crate::recipe::error::Number;
use crate::recipe::limits;
use crate::simulate::advice::Advice;
use crate::simulate::axis::Axis;
use crate::simulate::configuration::ConfigurationRuns;
use crate::simulate::outcome::GanttStep;
use crate::simulate::raw::{RawJob, Source};
use crate::simulate::study::Study;
use crate::simulate::sweep::Sweep;
use crate::simulate::trace::TraceSummary;
use crate::simulate::{Job, Summary, parquet, perfetto, run as simulation, table};
use crate::terminal;

/// Simulate a job on a cluster under several schedules, and compare their speed and their statistical bias.
#[derive(Debug, Args)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub(crate) struct SimulateArgs {
    #[command(subcommand)]
    command: Option<Simulation>,
    /// Job (TOML file). Give `--config` several times to simulate several jobs one after the other.
    #[arg(long, required = true)]
    config: Vec<PathBuf>,
    /// Settings that override the settings of the job, by their dotted names.
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Setting to sweep and its values; several sweeps are combined. `schedule.name=all` sweeps every schedule.
    #[arg(long, value_name = "KEY=A,B,C")]
    sweep: Vec<String>,
    /// Number of seeds of each configuration; overrides `sim.seeds`.
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Recorded response lengths of a run, in a file or a folder of files. Without `--sweep`, every schedule is simulated. The output ends
    /// with advice on the schedule.
    #[arg(long, value_name = "PATH")]
    trace: Option<PathBuf>,
    /// Column of the response lengths in the trace.
    #[arg(long, requires = "trace")]
    length_column: Option<String>,
    /// Column of the prompt keys in the trace.
    #[arg(long, requires = "trace")]
    prompt_column: Option<String>,
    /// Column of the prompt lengths in the trace.
    #[arg(long, requires = "trace")]
    prompt_length_column: Option<String>,
    /// Folder of the tokenizer that counts the tokens if the trace contains texts.
    #[arg(long, requires = "trace", value_name = "FOLDER")]
    tokenizer: Option<PathBuf>,
    /// Maximum relative difference between the mean trained length and the policy's mean length that counts as low bias, at least 0.
    #[arg(long, default_value_t = 0.03, value_name = "SHARE")]
    max_bias: f64,
    /// Print JSON: an object for one job, a list of objects for several.
    #[arg(long)]
    json: bool,
    /// HTML file to write a report with charts to.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Step, from 1, whose Gantt chart the report shows [default: the slowest step].
    #[arg(long, value_name = "N", requires = "report")]
    gantt_step: Option<u64>,
    /// Parquet file to write every step of every run to.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// File to write a trace for Perfetto (Chrome trace JSON) to, with the responses of each instance and of each sample, and the stages of
    /// each step. The configurations of a sweep are side by side, each with its first seed.
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// Number of steps after the warm-up in the trace, from 1.
    #[arg(long, value_name = "N", default_value = "8", requires = "perfetto")]
    perfetto_steps: NonZero<u64>,
    /// Maximum number of concurrent runs [default: one per core].
    #[arg(long, value_name = "N", value_parser = thread_count)]
    threads: Option<NonZero<usize>>,
}

/// Subcommands of `simulate`.
#[derive(Debug, Subcommand)]
enum Simulation {
    /// Reproduce measurements of papers, and print the papers' numbers next to the simulated numbers.
    Paper(PaperArgs),
}

pub(crate) fn run(args: SimulateArgs, app: &App) -> anyhow::Result<ExitCode> {
    if let Some(Simulation::Paper(args)) = args.command {
        return paper::run(&args);
    }
    let sweeps = args.check().and_then(|()| {
        args.config.iter().map(|path| args.sweep(path, app)).collect::<Result<Vec<_>, _>>()
    });
    let sweeps = match sweeps {
        Ok(sweeps) => sweeps,
        Err(error) => return Ok(bad_input(&error)),
    };
    let mut jobs = Vec::new();
    for (position, sweep) in sweeps.into_iter().enumerate() {
        let title = sweep.job().map(|job| job.title()).unwrap_or_default();
        let tolerance = args.advises()?.then_some(args.max_bias);
        let study = Study::of(&sweep, tolerance, &|sweep| args.execute(sweep))?;
        args.write(&title, &study)?;
        let simulated = JobResult::of(title, study);
        simulated
            .warnings
            .iter()
            .for_each(|warning| terminal::warn(&format!("warning: {warning}")));
        if !args.json {
            let apart = if position > 0 { "\n" } else { "" };
            let text = format!("{apart}{}", simulated.text());
            terminal::print(&text).context("cannot print")?;
        }
        jobs.push(simulated);
    }
    if args.json {
        let text = json(&jobs).context("cannot print")?;
        terminal::print_line(&text).context("cannot print")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The results of a job, as they are printed.
#[derive(Serialize)]
struct JobResult {
    job: String,
    trace: Vec<TraceSummary>,
    warnings: Vec<String>,
    configurations: Vec<Summary>,
    advice: Vec<Advice>,
}

impl JobResult {
    fn of(job: String, study: Study) -> Self {
        let warnings = study.warnings();
        let Study { traces, summaries, advice, .. } = study;
        Self { job, trace: traces, warnings, configurations: summaries, advice }
    }

    fn text(&self) -> String {
        let Self { job, trace, configurations, advice, .. } = self;
        let advice: String = advice.iter().map(|advice| format!("\n{}\n", advice.text)).collect();
        format!("{job}\n\n{}{}{advice}", table::render(configurations), table::footer(trace))
    }
}

/// Formats results as JSON: one object for one job, and a list of objects for several.
fn json(jobs: &[JobResult]) -> serde_json::Result<String> {
    match jobs {
        [job] => serde_json::to_string_pretty(job),
        jobs => serde_json::to_string_pretty(jobs),
    }
}

impl SimulateArgs {
    /// Checks the options. Files can be written for a single job only.
    fn check(&self) -> anyhow::Result<()> {
        #[cfg(not(feature = "report"))]
        ensure!(
            self.report.is_none(),
            "--report needs the feature `report`, which this program was built without"
        );
        let outputs: Vec<_> = self.outputs().collect();
        ensure!(
            self.config.len() == 1 || outputs.is_empty(),
            "--report, --output and --perfetto: expected one --config, found {}",
            self.config.len()
        );
        for (index, (flag, path)) in outputs.iter().enumerate() {
            let same = outputs[..index].iter().find(|(_, other)| is_same_file(other, path));
            if let Some((other, _)) = same {
                bail!("{other} and {flag}: expected two files, found one");
            }
        }
        // Check that the files can be written before the jobs run.
        for (flag, path) in outputs {
            NewFile::create(path).map_err(with_flag(flag))?;
        }
        ensure!(
            self.gantt_step != Some(0),
            "--gantt-step: expected the number of a step, from 1, found 0"
        );
        ensure!(
            self.max_bias.is_finite() && self.max_bias >= 0.0,
            "--max-bias: expected a number, at least 0, found {}",
            Number(self.max_bias)
        );
        Ok(())
    }

    fn sweep(&self, path: &Path, app: &App) -> anyhow::Result<Sweep> {
        let mut axes =
            self.sweep.iter().map(|text| Axis::parse(text)).collect::<Result<Vec<_>, _>>()?;
        // With a trace the question is which schedule to choose: sweep all of them.
        if self.trace.is_some() && axes.is_empty() {
            axes.push(Axis::schedules());
        }
        let mut sweep = Sweep::read(path, &self.overrides, &axes, &|raw| self.change(raw, app))?;
        for job in sweep.jobs_mut() {
            let mut estimate = Estimate::default();
            estimate.extend(simulation_parts(job, threads(self.threads).get() as u64));
            estimate.check()?;
        }
        if let Some(step) = self.gantt_step {
            let steps = sweep.min_steps();
            ensure!(step <= steps, "--gantt-step: expected one of the {steps} steps, found {step}");
        }
        if self.report.is_some() {
            let charted = self.gantt_step.map_or(GanttStep::Slowest, GanttStep::Step);
            sweep.jobs_mut().for_each(|job| job.charted = charted);
        }
        if self.perfetto.is_some() {
            sweep.jobs_mut().for_each(|job| job.traced_steps = self.perfetto_steps.get());
        }
        for (flag, path) in self.outputs() {
            let inputs = Inputs::of(&self.config);
            inputs.check_output(path).map_err(with_flag(flag))?;
            let refuse = |job: &mut Job| job.inputs().check_output(path);
            sweep.jobs_mut().try_for_each(refuse).map_err(with_flag(flag))?;
        }
        Ok(sweep)
    }

    /// Returns the files to write, with the options that name them.
    fn outputs(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let named = [
            ("--report", &self.report),
            ("--output", &self.output),
            ("--perfetto", &self.perfetto),
        ];
        named.into_iter().filter_map(|(flag, path)| Some((flag, path.as_deref()?)))
    }

    fn change(&self, raw: &mut RawJob, app: &App) {
        raw.schedule.schedules = app.schedules.clone();
        raw.pipeline.placements = app.placements.clone();
        if let Some(seeds) = self.seeds {
            raw.sim.seeds = seeds;
        }
        if let Some(trace) = &self.trace {
            raw.lengths.source = Source::Trace;
            raw.lengths.file = Some(trace.clone());
            raw.lengths.length_column.clone_from(&self.length_column);
            raw.lengths.prompt_column.clone_from(&self.prompt_column);
            raw.lengths.prompt_length_column.clone_from(&self.prompt_length_column);
            raw.lengths.tokenizer.clone_from(&self.tokenizer);
            // The trace replaces the distribution that the job draws from.
            raw.lengths.domains.clear();
        }
    }

    /// Returns `true` if the output ends with advice on the schedule. This is so with a trace, or if a swept key controls how the job is
    /// scheduled, such as `schedule.name` or `pipeline.staleness`.
    ///
    /// # Errors
    /// If an argument of `--sweep` cannot be parsed.
    fn advises(&self) -> anyhow::Result<bool> {
        let axes =
            self.sweep.iter().map(|text| Axis::parse(text)).collect::<Result<Vec<_>, _>>()?;
        Ok(self.trace.is_some() || axes.iter().any(Axis::is_of_schedule))
    }

    fn execute(&self, sweep: Sweep) -> anyhow::Result<Vec<ConfigurationRuns>> {
        let bar = progress(sweep.runs() as u64);
        let runs = sweep.run(threads(self.threads), &simulation::run, &|| bar.inc(1));
        bar.finish_and_clear();
        runs
    }

    fn write(&self, title: &str, study: &Study) -> anyhow::Result<()> {
        if let Some(path) = &self.output {
            parquet::write(path, &study.runs)?;
        }
        if let Some(path) = &self.perfetto {
            perfetto::write(path, title, &study.runs)?;
        }
        #[cfg(feature = "report")]
        if let Some(path) = &self.report {
            crate::simulate::report::HtmlReport { title, study }.write(path)?;
        }
        Ok(())
    }
}

/// Returns a function that adds the option `flag` to the message of an error about the file that the option names.
fn with_flag(flag: &'static str) -> impl Fn(FileError) -> anyhow::Error {
    move |error| anyhow!("{flag} {error}")
}

/// Parses a number of threads from 1 to [`limits::MAX_THREADS`].
fn thread_count(text: &str) -> Result<NonZero<usize>, String> {
    let count =
        text.parse::<NonZero<usize>>().ok().filter(|count| count.get() <= limits::MAX_THREADS);
    count.ok_or_else(|| format!("expected 1 to {}", limits::MAX_THREADS))
}

/// Returns the requested number of threads, or one per core, or 1 if the number of cores is unknown.
fn threads(wanted: Option<NonZero<usize>>) -> NonZero<usize> {
    let one = NonZero::<usize>::MIN;
    wanted.or(std::thread::available_parallelism().ok()).unwrap_or(one)
}

/// Returns a progress bar over the runs. It is visible only if standard error is a terminal and there are several runs.
fn progress(runs: u64) -> ProgressBar {
    let shown = runs > 1 && std::io::stderr().is_terminal();
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{bar:20} {pos}/{len} runs (eta {eta})");
    let style = style.expect("invariant: the template is valid");
    let bar = ProgressBar::with_draw_target(Some(runs), target).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
