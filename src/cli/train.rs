//! `rollpacker train`: a recipe, run to its end.

use std::cell::RefCell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::Context;
use clap::Args;

use super::{BAD_INPUT, workers};
use crate::recipe::Recipe;
use crate::run::{Run, describe};
use crate::session::Session;
use crate::telemetry::Telemetry;
use rollpacker_dataflow::cluster::{Cluster, ClusterError, Hosts, Seat};
use rollpacker_operators::schedule::operator::Stop;

/// Train a model by reinforcement learning on a prompt dataset.
#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    /// The recipe, a TOML file.
    #[arg(long)]
    config: PathBuf,
    /// Settings that replace those of the recipe, by their dotted names.
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Run folder; replaces the recipe's.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Workers of this process; replaces the recipe's. Each has engine instances and a replica of the trainer.
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
    /// Addresses of all processes of the run, `host:port`, one a line. Each is started with the same recipe.
    #[arg(long, value_name = "FILE", requires = "process")]
    hostfile: Option<PathBuf>,
    /// Which line of the hostfile this process is, from 0. The first writes the run folder.
    #[arg(long, value_name = "I", requires = "hostfile")]
    process: Option<usize>,
    /// Check everything, print the resolved recipe, the batch arithmetic and the graph, and train nothing.
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: TrainArgs) -> anyhow::Result<ExitCode> {
    let opened = Recipe::read(&args.config, &args.overrides).map_err(anyhow::Error::from).and_then(
        |mut recipe| {
            if let Some(out) = args.out {
                recipe.raw.trainer.default_local_dir = out;
            }
            if let Some(workers) = args.workers {
                recipe.raw.trainer.workers = usize::from(workers);
            }
            let cluster = cluster(&recipe, args.hostfile.as_deref(), args.process)?;
            let session = Session::open_with(recipe.clone(), &super::registry())?;
            session.check_rewards()?;
            Ok((recipe, session, cluster))
        },
    );
    let (recipe, session, cluster) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            drop(writeln!(std::io::stderr(), "error: {error:#}"));
            return Ok(ExitCode::from(BAD_INPUT));
        }
    };
    if args.dry_run {
        let text = describe(&recipe, session.prompts())?;
        write!(std::io::stdout(), "{text}").context("cannot print")?;
        return Ok(ExitCode::SUCCESS);
    }
    let stop = stop_on_signal()?;
    match cluster {
        None => print(&train(&recipe, session, None, &stop)?)?,
        Some(cluster) => return workers::train(&recipe, &session, &cluster, &stop),
    }
    Ok(ExitCode::SUCCESS)
}

/// The workers of a run, if there are several, or several processes.
fn cluster(
    recipe: &Recipe,
    hostfile: Option<&Path>,
    process: Option<usize>,
) -> Result<Option<Cluster>, ClusterError> {
    let threads = recipe.raw.trainer.workers;
    match (hostfile, process) {
        (Some(hostfile), Some(process)) => {
            Cluster::of_processes(threads, Hosts::read(hostfile)?, process).map(Some)
        }
        _ => Ok((threads > 1).then(|| Cluster::of_threads(threads))),
    }
}

fn stop_on_signal() -> anyhow::Result<Stop> {
    let stop = Stop::default();
    let requested = stop.clone();
    ctrlc::set_handler(move || {
        if requested.is_requested() {
            std::process::exit(130);
        }
        requested.request();
    })
    .context("cannot listen for Ctrl-C")?;
    Ok(stop)
}

/// Trains and reports, as one worker of several where there is a `seat`; the summary.
pub(super) fn train(
    recipe: &Recipe,
    session: Session,
    seat: Option<Seat>,
    stop: &Stop,
) -> anyhow::Result<String> {
    let prompts = session.prompts();
    let run =
        Rc::new(RefCell::new(Run::start(recipe, prompts, Telemetry::from_env()?, stop.clone())?));
    let folder = run.borrow().model_folder();
    let validated = run.clone();
    let finished = session.train_at(seat, stop, &folder, run.clone(), |metrics| {
        validated.borrow_mut().validated(0, metrics)
    })?;
    let summary = run.borrow_mut().finish(&finished)?;
    Ok(summary)
}

pub(super) fn print(summary: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{summary}").context("cannot print")
}
