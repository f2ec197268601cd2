//! `rollpacker profile`: measures the iteration times of a rollout engine.

#[cfg(feature = "torch")]
mod torch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;
use rollpacker_files::{Inputs, NewFile};
use rollpacker_stages::rollout::profile::{Phase, Row};

use super::exit_status::bad_input;
use crate::App;
use crate::profile;
use crate::recipe::error::Number;
use crate::recipe::limits;
use crate::simulate::profile::Profiled;
use crate::simulate::{self, Job};
use crate::terminal;

/// The default of `--budget` for an engine, in seconds. A simulated cluster has no default budget.
const BUDGET: f64 = 240.0;

/// Measure the iteration times of the rollout engine over batch sizes, lengths and instance counts.
#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    /// Recipe (TOML file) whose model, device and engine are measured, up to its longest prompts and responses; with `--simulated` a
    /// simulated job.
    #[arg(long)]
    config: PathBuf,
    /// Settings that override the settings of the file, by their dotted names.
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Parquet file to write.
    #[arg(long, short, default_value = "profile.parquet")]
    output: PathBuf,
    /// Measure the simulated cluster of a job, over batch sizes, lengths, instance counts and tensor-parallel sizes.
    #[arg(long)]
    simulated: bool,
    /// Time budget of the measurement in seconds, above 0 and at most 1e9; a larger budget measures a finer grid with more repeats
    /// [default: 240]. With `--simulated`, simulated seconds of the cluster [default: unlimited].
    #[arg(long)]
    budget: Option<f64>,
}

pub(crate) fn run(args: ProfileArgs, app: &App) -> anyhow::Result<ExitCode> {
    let opened = args.check().and_then(|()| {
        if args.simulated {
            let job =
                Job::read_with(&args.config, &args.overrides, &app.schedules, &app.placements)?;
            Ok(ProfileSubject::Simulated(Box::new(job)))
        } else {
            open_engine(&args, app)
        }
    });
    let opened = opened.and_then(|opened| {
        opened.inputs(&args.config).check_output(&args.output)?;
        Ok(opened)
    });
    let measured = match opened {
        Ok(opened) => opened.measure(args.budget)?,
        Err(error) => return Ok(bad_input(&error)),
    };
    profile::write(&args.output, &measured.rows)?;
    terminal::print(&text(&measured, &args)).context("cannot print")?;
    Ok(ExitCode::SUCCESS)
}

impl ProfileArgs {
    fn check(&self) -> anyhow::Result<()> {
        let budget = self.budget.unwrap_or(BUDGET);
        let found = Number(budget);
        ensure!(
            budget > 0.0 && budget.is_finite(),
            "option `--budget`: expected seconds above 0, found {found}"
        );
        ensure!(
            budget <= limits::MAX_SECONDS,
            "option `--budget`: expected at most 1e9 seconds, found {found}"
        );
        // A measurement takes minutes. Check first that the result can be written.
        drop(NewFile::create(&self.output)?);
        Ok(())
    }
}

/// The engine or the simulated cluster to measure, from a valid recipe or job.
enum ProfileSubject {
    Simulated(Box<Job>),
    #[cfg(feature = "torch")]
    Torch(torch::TorchSubject),
}

impl ProfileSubject {
    fn inputs(&self, config: &Path) -> Inputs {
        let mut inputs = match self {
            Self::Simulated(job) => job.inputs(),
            #[cfg(feature = "torch")]
            Self::Torch(opened) => opened.inputs(),
        };
        inputs.add(config);
        inputs
    }

    fn measure(self, budget: Option<f64>) -> anyhow::Result<Profiled> {
        match self {
            Self::Simulated(job) => simulate::profile::measure(&job, budget),
            #[cfg(feature = "torch")]
            Self::Torch(opened) => opened.measure(budget.unwrap_or(BUDGET)),
        }
    }
}

#[cfg(feature = "torch")]
fn open_engine(args: &ProfileArgs, app: &App) -> anyhow::Result<ProfileSubject> {
    torch::TorchSubject::open(&args.config, &args.overrides, app).map(ProfileSubject::Torch)
}

#[cfg(not(feature = "torch"))]
fn open_engine(_args: &ProfileArgs, _app: &App) -> anyhow::Result<ProfileSubject> {
    anyhow::bail!(
        "expected `--simulated` with a job: the engines of recipes need the feature `torch`, which this program was built without"
    )
}

fn text(measured: &Profiled, args: &ProfileArgs) -> String {
    let Profiled { rows, points, seconds } = measured;
    let cluster = if args.simulated { " of the simulated cluster" } else { "" };
    format!(
        "{}wrote {}: {} of {points} points, {seconds:.1} s{cluster}\n",
        table(rows),
        args.output.display(),
        rows.len()
    )
}

/// Formats a table of milliseconds for each phase, instance count and tensor-parallel size. Rows are batch sizes and columns are lengths in
/// tokens. Points that were not measured are blank.
fn table(rows: &[Row]) -> String {
    let block = |row: &Row| (row.phase, row.instances, row.tensor_parallel);
    rows.chunk_by(|one, next| block(one) == block(next)).map(block_text).collect()
}

fn block_text(rows: &[Row]) -> String {
    let Row { phase, instances, tensor_parallel, .. } = rows[0];
    let what = match phase {
        Phase::Prefill => "prefill: milliseconds by batch size and prompt length",
        Phase::Decode => "decode: milliseconds by batch size and context length",
    };
    let mut lengths: Vec<u32> = rows.iter().map(|row| row.tokens).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let header: String = lengths.iter().map(|length| format!("{length:>10}")).collect();
    let lines = rows.chunk_by(|one, next| one.batch_size == next.batch_size);
    let lines: String = lines.map(|line| line_text(line, &lengths)).collect();
    let plural = if instances == 1 { "instance" } else { "instances" };
    let devices = match tensor_parallel {
        1 => String::new(),
        devices => format!(" of {devices} devices"),
    };
    format!("{what}, {instances} {plural}{devices}\n{:>8}{header}\n{lines}\n", "")
}

/// Formats the measurements of one batch size as a line with a column for each of `lengths`. `rows` must not be empty.
fn line_text(rows: &[Row], lengths: &[u32]) -> String {
    let cell = |length: &u32| {
        let row = rows.iter().find(|row| row.tokens == *length);
        row.map_or(format!("{:>10}", ""), |row| format!("{:>10.3}", row.seconds * 1e3))
    };
    let cells: String = lengths.iter().map(cell).collect();
    format!("{:>8}{}\n", rows[0].batch_size, cells).trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn times_are_tabulated_by_batch_size_and_length() {
        let row = |phase, instances, batch_size, tokens, seconds| Row {
            phase,
            instances,
            tensor_parallel: 1,
            batch_size,
            tokens,
            seconds,
            repeats: 3,
        };
        let rows = [
            row(Phase::Prefill, 1, 1, 16, 0.001),
            row(Phase::Decode, 2, 1, 16, 0.001_25),
            row(Phase::Decode, 2, 1, 512, 0.002),
            row(Phase::Decode, 2, 64, 16, 1.5),
            Row { tensor_parallel: 4, ..row(Phase::Decode, 2, 1, 16, 0.000_5) },
        ];
        expect![[r#"
            prefill: milliseconds by batch size and prompt length, 1 instance
                            16
                   1     1.000

            decode: milliseconds by batch size and context length, 2 instances
                            16       512
                   1     1.250     2.000
                  64  1500.000

            decode: milliseconds by batch size and context length, 2 instances of 4 devices
                            16
                   1     0.500

        "#]]
        .assert_eq(&table(&rows));
    }
}
