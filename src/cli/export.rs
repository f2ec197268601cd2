//! `rollpacker export`: writes a run folder in the formats of other tools.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use rollpacker_files::FileError;

use super::exit_status::bad_input;
use crate::export::perfetto::{self, TraceFile};
use crate::export::step_range::StepRange;
use crate::export::tensorboard::{self, EventFile};
use crate::run_reader::ReadError;
use crate::show::RunRecord;
use crate::terminal;

/// Export a run to TensorBoard or Perfetto.
///
/// Only files of the run folder are read, so the run may still be in progress. Exits with 2 if the run folder or the selected steps cannot
/// be read, or an output file cannot be created.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("formats").required(true).multiple(true))]
pub(crate) struct ExportArgs {
    /// Folder of the run.
    run: PathBuf,
    /// Folder to write a TensorBoard event file to, with a scalar per metric and step. A file of an earlier export is replaced.
    #[arg(long, value_name = "FOLDER", group = "formats")]
    tensorboard: Option<PathBuf>,
    /// File to write a trace for Perfetto (Chrome trace JSON) to, with the responses of each instance and of each sample, and the stages of
    /// each step.
    #[arg(long, value_name = "FILE", group = "formats")]
    perfetto: Option<PathBuf>,
    /// Steps of the trace: `12`, `3-8`, or `3-` to the last [default: all].
    #[arg(long, value_name = "RANGE", requires = "perfetto")]
    steps: Option<StepRange>,
}

pub(crate) fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    match args.write() {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.is::<ReadError>() || error.is::<FileError>() => Ok(bad_input(&error)),
        Err(error) => Err(error),
    }
}

impl ExportArgs {
    fn write(&self) -> anyhow::Result<()> {
        let run = RunRecord::read(&self.run)?;
        if let Some(folder) = &self.tensorboard {
            let EventFile { path, metrics, scalars } = tensorboard::write(&run, folder)?;
            let path = path.display();
            terminal::print_line(&format!("{path}: {scalars} values of {metrics} metrics"))?;
        }
        if let Some(file) = &self.perfetto {
            let range = self.steps.unwrap_or(StepRange::ALL);
            let TraceFile { steps, responses, without_rollouts } =
                perfetto::write(&run, range, file)?;
            let path = file.display();
            terminal::print_line(&format!("{path}: {responses} responses of {steps} steps"))?;
            if without_rollouts > 0 {
                terminal::warn(&format!(
                    "note: {without_rollouts} steps have no responses; `trainer.write_rollouts` writes them"
                ));
            }
        }
        Ok(())
    }
}
