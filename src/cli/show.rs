//! `rollpacker show`: prints the report of a run.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::exit_status::bad_input;
use crate::show::{ResponsePick, RunReport};
use crate::terminal;

/// Show a run: its settings, curves, findings on why it does not learn, and some of its responses.
///
/// Only files of the run folder are read, so the run may still be in progress. Exits with 2 if the folder is not a run folder, a file
/// cannot be read, or the step or the prompt has no responses.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Folder of the run.
    run: PathBuf,
    /// Step whose responses are shown, from 1 [default: the last step with rollouts].
    #[arg(long)]
    step: Option<u64>,
    /// Show all responses to this prompt instead.
    #[arg(long, value_name = "ID")]
    prompt: Option<u64>,
    /// Number of responses to show of each kind: best, worst and random.
    #[arg(long, default_value_t = 1)]
    responses: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let pick = ResponsePick { step: args.step, prompt: args.prompt, count: args.responses };
    let report = match RunReport::read(&args.run, &pick) {
        Ok(report) => report,
        Err(error) => return Ok(bad_input(&error.into())),
    };
    if args.json {
        terminal::print_line(&serde_json::to_string(&report)?).context("cannot print")?;
    } else {
        terminal::print(&report.to_string()).context("cannot print")?;
    }
    Ok(ExitCode::SUCCESS)
}
