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

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rollpacker_stages::reward::{Code, CodeConfig, Registry};

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
        // Nobody reads standard error where it is closed.
        drop(write!(io::stderr(), "sandbox of the reward `code`\n{}", code.isolation()));
        Ok(code)
    })
}

/// Runs what the command line asks for.
///
/// # Errors
/// What went wrong, to be shown to a person.
pub fn run() -> anyhow::Result<ExitCode> {
    match Cli::parse().command {
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
