//! The command line.

mod data;
mod profile;
mod score;
#[cfg(feature = "torch")]
mod sft;
mod simulate;
#[cfg(feature = "torch")]
mod train;
#[cfg(feature = "torch")]
mod workers;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use rollpacker_rewards::{Code, CodeConfig, Registry};
use rollpacker_stages::catalog::CatalogError;

use crate::terminal;

/// Exit status for input that cannot be used: the command line, a recipe, a dataset or a model folder.
pub(crate) const BAD_INPUT: u8 = 2;

/// Reinforcement-learning post-training of language models as a streaming dataflow graph, with tail batching.
#[derive(Debug, Parser)]
#[command(name = "rollpacker", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a model by reinforcement learning on a prompt dataset.
    #[cfg(feature = "torch")]
    Train(train::TrainArgs),
    /// Train a small model from scratch on demonstrations, as a warm start.
    #[cfg(feature = "torch")]
    Sft(sft::SftArgs),
    /// Simulate a job on a cluster under several schedules, and compare their speed and their statistical bias.
    Simulate(simulate::SimulateArgs),
    /// Measure the iteration times of the rollout engine over batch sizes, lengths and instance counts.
    Profile(profile::ProfileArgs),
    /// Score the rows of a file with a reward, without training.
    Score(score::ScoreArgs),
    /// Inspect, validate, convert and generate prompt datasets.
    Data(data::DataArgs),
}

/// Returns the built-in rewards. The reward `code` prints how its sandbox is isolated when it starts.
fn registry() -> Registry {
    let registry = Registry::builtin().with("code", |config: CodeConfig| {
        let code = Code::start(config).map_err(CatalogError::start)?;
        terminal::warn(format!("sandbox of the reward `code`\n{}", code.isolation()).trim_end());
        Ok(code)
    });
    #[cfg(feature = "torch")]
    registry.set_judge_engine(std::sync::Arc::new(rollpacker_torch::judge::Models::default()));
    registry
}

/// Returns the definition of the command line with all subcommands and flags, for example to generate shell completions.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command that the command line names, prints errors on standard error, and returns the exit status.
#[must_use]
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refused(&error),
    };
    dispatch(cli.command).unwrap_or_else(|error| {
        terminal::error(&error);
        ExitCode::FAILURE
    })
}

/// Prints the help, or why the command line cannot be used.
///
/// An argument quoted in the message may contain control sequences, because a shell expands file names into arguments. Such a message is
/// printed through [`terminal`], which escapes them.
fn refused(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if terminal::clean(&text) == text {
        error.exit();
    }
    terminal::warn(text.trim_end());
    ExitCode::from(BAD_INPUT)
}

/// Prints why the input cannot be used, and returns the exit status [`BAD_INPUT`].
pub(crate) fn bad_input(error: &anyhow::Error) -> ExitCode {
    terminal::error(error);
    ExitCode::from(BAD_INPUT)
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        #[cfg(feature = "torch")]
        Command::Train(args) => train::run(args),
        #[cfg(feature = "torch")]
        Command::Sft(args) => sft::run_args(args),
        Command::Simulate(args) => simulate::run(args),
        Command::Profile(args) => profile::run(args),
        Command::Score(args) => score::run(args),
        Command::Data(args) => data::run(args),
    }
}
