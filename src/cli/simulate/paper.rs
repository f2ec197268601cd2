//! `rollpacker simulate paper`: prints the numbers of papers next to the simulated numbers.

use std::num::NonZero;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::super::exit_status::bad_input;
use super::{progress, threads};
use crate::simulate::paper::{PlanSize, Reproduction, render};
use crate::terminal;

/// Maximum of `--seeds`.
const MAX_SEEDS: u64 = 1_000_000;

#[derive(Debug, Args)]
pub(crate) struct PaperArgs {
    /// Print a JSON array with one object per number: source, item, setting, cell, paper, ours, error, and fitted (`true` if the model was
    /// fitted to the number).
    #[arg(long)]
    json: bool,
    /// Run only the tables and figures whose title contains this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Print the commands that run the jobs behind each table and figure, and run nothing.
    #[arg(long, conflicts_with = "json")]
    commands: bool,
    /// Number of seeds of each job, from 1 to 1000000.
    #[arg(long, value_name = "N", default_value = "2", value_parser = seed_count)]
    seeds: NonZero<u64>,
    /// Maximum number of steps of each job [default: as many as in the papers].
    #[arg(long, value_name = "N", conflicts_with = "commands")]
    steps: Option<NonZero<u64>>,
    /// Maximum number of concurrent runs [default: one per core].
    #[arg(long, value_name = "N", value_parser = super::thread_count)]
    threads: Option<NonZero<usize>>,
    /// Settings that override the settings of every job, such as `calibration.dispatch_interval=0`.
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
}

/// Parses a number of seeds from 1 to [`MAX_SEEDS`].
fn seed_count(text: &str) -> Result<NonZero<u64>, String> {
    let count = text.parse::<NonZero<u64>>().ok().filter(|count| count.get() <= MAX_SEEDS);
    count.ok_or_else(|| format!("expected 1 to {MAX_SEEDS}"))
}

pub(super) fn run(args: &PaperArgs) -> anyhow::Result<ExitCode> {
    let size = PlanSize { seeds: args.seeds, steps: args.steps };
    let reproduction = match Reproduction::new(&args.only, &args.overrides, size) {
        Ok(reproduction) => reproduction,
        Err(error) => return Ok(bad_input(&error)),
    };
    let text = if args.commands {
        commands(&reproduction)
    } else {
        match reproduction.runs() {
            Ok(runs) => args.cells(&reproduction, runs)?,
            Err(error) => return Ok(bad_input(&error)),
        }
    };
    terminal::print(&text).context("cannot print")?;
    Ok(ExitCode::SUCCESS)
}

impl PaperArgs {
    /// Runs the jobs and returns the numbers as text or as JSON. `runs` is the total number of runs, for the progress bar.
    fn cells(&self, reproduction: &Reproduction, runs: usize) -> anyhow::Result<String> {
        let bar = progress(runs as u64);
        let cells = reproduction.run(threads(self.threads), &|| bar.inc(1));
        bar.finish_and_clear();
        let cells = cells?;
        if self.json {
            return Ok(format!(
                "{}\n",
                serde_json::to_string_pretty(&cells).context("cannot print")?
            ));
        }
        Ok(render(&cells))
    }
}

fn commands(reproduction: &Reproduction) -> String {
    let item = |(title, setting, commands): (String, &str, Vec<String>)| {
        let lines: String = commands.iter().map(|command| format!("  {command}\n")).collect();
        format!("{title}\n  # {setting}\n{lines}")
    };
    reproduction.commands().into_iter().map(item).collect()
}
