//! The command line: its commands, their arguments and their exit statuses.

mod data;
mod exit_status;
mod export;
pub(crate) mod keys;
mod new;
#[cfg(feature = "servers")]
mod probe;
mod profile;
mod score;
#[cfg(feature = "servers")]
mod serve;
#[cfg(any(feature = "view", feature = "servers"))]
mod server_runtime;
#[cfg(feature = "torch")]
mod sft;
mod show;
#[cfg(feature = "torch")]
mod signals;
mod simulate;
#[cfg(feature = "torch")]
mod train;
#[cfg(feature = "torch")]
mod training;
#[cfg(feature = "view")]
mod view;
#[cfg(feature = "torch")]
mod workers;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use rollpacker_dataflow::fault::Fault;

#[cfg(not(all(feature = "servers", feature = "view")))]
use self::exit_status::bad_input;
use self::exit_status::{BAD_INPUT, failed};
use crate::App;
use crate::terminal;

/// Reinforcement-learning post-training of language models as a streaming dataflow graph, with tail batching.
#[derive(Debug, Parser)]
#[command(name = "rollpacker", version)]
#[cfg_attr(not(feature = "torch"), command(after_help = WITHOUT_TORCH))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The text at the end of `--help` in a program without libtorch.
#[cfg(not(feature = "torch"))]
const WITHOUT_TORCH: &str = "This program was built without the feature `torch`: it has no `train`, `sft`, `serve` and `probe`.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a model by reinforcement learning on a prompt dataset.
    #[cfg(feature = "torch")]
    Train(train::TrainArgs),
    /// Train a small model from scratch on demonstrations, as a warm start.
    #[cfg(feature = "torch")]
    Sft(sft::SftArgs),
    #[cfg(not(feature = "torch"))]
    #[command(hide = true, disable_help_flag = true)]
    Train(UnavailableArgs),
    #[cfg(not(feature = "torch"))]
    #[command(hide = true, disable_help_flag = true)]
    Sft(UnavailableArgs),
    /// Simulate a job on a cluster under several schedules, and compare their speed and their statistical bias.
    Simulate(simulate::SimulateArgs),
    /// Measure the iteration times of the rollout engine over batch sizes, lengths and instance counts.
    Profile(profile::ProfileArgs),
    /// Serve a model over HTTP with vLLM's protocol, on the built-in torch engine.
    #[cfg(feature = "servers")]
    Serve(serve::ServeArgs),
    /// Check whether a running vLLM server has all that training needs, and compare it with the model that it serves.
    #[cfg(feature = "servers")]
    Probe(probe::ProbeArgs),
    #[cfg(not(feature = "servers"))]
    #[command(hide = true, disable_help_flag = true)]
    Serve(UnavailableArgs),
    #[cfg(not(feature = "servers"))]
    #[command(hide = true, disable_help_flag = true)]
    Probe(UnavailableArgs),
    /// Show a run: its settings, curves, findings on why it does not learn, and some of its responses.
    Show(show::ShowArgs),
    /// Export a run to TensorBoard or Perfetto.
    Export(export::ExportArgs),
    /// Show runs as a local web page, during the run and afterwards.
    #[cfg(feature = "view")]
    View(view::ViewArgs),
    #[cfg(not(feature = "view"))]
    #[command(hide = true, disable_help_flag = true)]
    View(UnavailableArgs),
    /// Score the rows of a file with a reward, without training.
    Score(score::ScoreArgs),
    /// Create a crate with a custom reward and schedule, a recipe and tests.
    New(new::NewArgs),
    /// List the keys of recipes, with type, unit, default, range and meaning.
    Keys(keys::KeysArgs),
    /// Inspect, validate, convert and generate prompt datasets.
    Data(data::DataArgs),
}

/// The arguments of a command that the program was built without. All arguments are accepted, so that the error names the missing feature.
#[cfg(not(all(feature = "servers", feature = "view")))]
#[derive(Debug, clap::Args)]
struct UnavailableArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<std::ffi::OsString>,
}

/// Prints an error that names the missing feature of a command, and returns the exit status [`BAD_INPUT`].
#[cfg(not(all(feature = "servers", feature = "view")))]
fn report_missing_feature(command: &str, feature: &str) -> ExitCode {
    bad_input(&anyhow::anyhow!(
        "`{command}` needs the feature `{feature}`, which this program was built without"
    ))
}

/// Returns the definition of the command line with all subcommands and flags, for example to generate shell completions.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Returns the definition of the command line, in which the help of `train` lists the names that a recipe may select.
fn command_for(app: &App) -> clap::Command {
    let lines =
        app.names().into_iter().map(|(key, names)| format!("  {key}: {}", names.join(", ")));
    let names = lines.collect::<Vec<_>>().join("\n");
    let help = format!("Names that a recipe may select:\n{names}");
    command().mut_subcommand("train", |train| train.after_help(help))
}

/// Runs the command that the command line names, prints errors on standard error, and returns the exit status. Help and wrong usage may end
/// the process instead.
#[must_use]
pub(crate) fn run(app: &App) -> ExitCode {
    let matches = command_for(app).try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return report_usage_error(&error),
    };
    dispatch(cli.command, app).unwrap_or_else(|error| {
        terminal::error(&error);
        let fault = error.downcast_ref::<Fault>();
        fault.map_or(ExitCode::FAILURE, |fault| failed(fault.origin))
    })
}

/// Prints the help, or the reason why the command line cannot be used, and ends the process. Returns [`BAD_INPUT`] only if the message
/// contains control sequences or secrets.
///
/// An argument quoted in the message may contain control sequences, because a shell expands file names into arguments. Such a message is
/// printed through [`terminal`], which escapes control sequences and redacts secrets.
fn report_usage_error(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if terminal::clean(&text) == text {
        error.exit();
    }
    terminal::warn(text.trim_end());
    ExitCode::from(BAD_INPUT)
}

fn dispatch(command: Command, app: &App) -> anyhow::Result<ExitCode> {
    match command {
        #[cfg(feature = "torch")]
        Command::Train(args) => train::run(args, app),
        #[cfg(feature = "torch")]
        Command::Sft(args) => sft::run_args(args, app),
        #[cfg(not(feature = "torch"))]
        Command::Train(_) => Ok(report_missing_feature("train", "torch")),
        #[cfg(not(feature = "torch"))]
        Command::Sft(_) => Ok(report_missing_feature("sft", "torch")),
        Command::Simulate(args) => simulate::run(args, app),
        Command::Profile(args) => profile::run(args, app),
        #[cfg(feature = "servers")]
        Command::Serve(args) => serve::run(&args),
        #[cfg(feature = "servers")]
        Command::Probe(args) => probe::run(&args),
        #[cfg(not(feature = "servers"))]
        Command::Serve(_) => Ok(report_missing_feature("serve", "servers")),
        #[cfg(not(feature = "servers"))]
        Command::Probe(_) => Ok(report_missing_feature("probe", "servers")),
        Command::Show(args) => show::run(&args),
        Command::Export(args) => export::run(&args),
        #[cfg(feature = "view")]
        Command::View(args) => view::run(&args),
        #[cfg(not(feature = "view"))]
        Command::View(_) => Ok(report_missing_feature("view", "view")),
        Command::Score(args) => score::run(args, app),
        Command::New(args) => new::run(&args),
        Command::Keys(args) => keys::run(&args, app),
        Command::Data(args) => data::run(args),
    }
}
