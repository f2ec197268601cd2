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
use rollpacker_stages::reward::{Code, CodeConfig, Registry};

use crate::terminal;

/// Exit status of input that cannot be used: a recipe, a dataset, a model folder.
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
    /// Simulate a job on a cluster, schedule beside schedule: how fast, and at what statistical price.
    Simulate(simulate::SimulateArgs),
    /// Measure what the iterations of the rollout engine cost, over batch sizes, lengths and instances.
    Profile(profile::ProfileArgs),
    /// Score rows of a file by a reward, outside of any training.
    Score(score::ScoreArgs),
    /// Inspect, validate, convert and generate prompt datasets.
    Data(data::DataArgs),
}

/// The rewards that come with the project; one that runs code says what keeps it in.
fn registry() -> Registry {
    Registry::builtin().with("code", |config: CodeConfig| {
        let code = Code::start(config)?;
        terminal::warn(format!("sandbox of the reward `code`\n{}", code.isolation()).trim_end());
        Ok(code)
    })
}

/// Returns the command line with all its subcommands and flags, as for completions of a shell.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command of the command line, prints what went wrong, and returns the exit status.
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

/// Prints help, or why the command line cannot be used. An argument that it repeats may hold control sequences: a shell expands names of
/// files into arguments.
fn refused(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if terminal::clean(&text) == text {
        error.exit();
    }
    terminal::warn(text.trim_end());
    ExitCode::from(BAD_INPUT)
}

/// Prints why the input cannot be used, and returns the exit status.
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
