//! `rollpacker train`: trains a model as a recipe describes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use rollpacker_dataflow::cluster::{Cluster, ClusterError, Hosts};
use rollpacker_dataflow::exit::exit_now;
use rollpacker_files::{Inputs, check_replaceable};
use rollpacker_model::FOLDER_FILES;
use rollpacker_operators::schedule::operator::Stop;
use rollpacker_torch::train::ValueModel;
use toml::Table;

use super::exit_status::bad_input;
use super::signals::on_signal;
use super::training::{TrainingReport, exit_status, fault_kind, train};
use super::workers::Workers;
use crate::App;
use crate::lifetime::ENDED_EARLY;
use crate::recipe::{KnownNames, RawRecipe, Recipe, RecipeError, override_key, read_table, verl};
use crate::reporter::describe;
use crate::run_folder::RunFolder;
use crate::session::Session;
use crate::snapshots::{self, ResumeFromError, RunSnapshots, StartFrom};
use crate::telemetry::warnings;
use crate::terminal;

/// Train a model by reinforcement learning on a prompt dataset.
#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    /// Recipe (TOML file). Can be left out if the settings are complete.
    #[arg(long, required_unless_present = "overrides")]
    config: Option<PathBuf>,
    /// Settings that override the settings of the recipe, by their dotted names. verl's names are accepted (`docs/verl.md`).
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Run folder; overrides `trainer.default_local_dir`.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Number of workers of this process, each with its engine instances and a replica of the trainer; overrides `trainer.workers`.
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: Option<u16>,
    /// File with the addresses of all processes of the run, `host:port`, one per line. Start each process with the same recipe.
    #[arg(long, value_name = "FILE", requires = "process")]
    hostfile: Option<PathBuf>,
    /// Index of this process's line in the hostfile, from 0. Process 0 writes the run folder.
    #[arg(long, value_name = "I", requires = "hostfile")]
    process: Option<usize>,
    /// Resume from a snapshot in the run folder: the newest valid snapshot, or the snapshot taken after the given step. `latest` starts
    /// from the beginning if there is no snapshot yet.
    #[arg(long, value_name = "latest|STEP", num_args = 0..=1, default_missing_value = "latest")]
    resume: Option<String>,
    /// Remove the snapshots of an earlier run in the run folder, and start from the beginning.
    #[arg(long, conflicts_with = "resume")]
    overwrite: bool,
    /// Form of the progress, of warnings and of errors: lines of text, or one JSON object per line with `unix_s`, `level`, `message` and
    /// further fields.
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    log_format: LogFormat,
    /// Check all inputs and the snapshot to resume from, print the resolved recipe, the batch arithmetic and the graph, and exit without
    /// training.
    #[arg(long)]
    dry_run: bool,
    /// Hydra's folder of configurations, which is rejected with a reason.
    #[arg(long, hide = true)]
    config_path: Option<String>,
    /// Hydra's configuration, which is rejected with a reason.
    #[arg(long, hide = true)]
    config_name: Option<String>,
}

/// The format of progress, warnings and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Lines of text.
    Text,
    /// JSON lines.
    Json,
}

impl TrainArgs {
    /// Returns the start of the run. The value after `--resume` is optional, so an override that follows it is parsed as its value; it is
    /// moved back to the overrides.
    fn take_start(&mut self) -> anyhow::Result<StartFrom> {
        let written = match self.resume.take() {
            Some(setting) if setting.contains('=') => {
                self.overrides.insert(0, setting);
                "latest".to_owned()
            }
            Some(written) => written,
            None if self.overwrite => return Ok(StartFrom::Overwrite),
            None => return Ok(StartFrom::Empty),
        };
        let wrong = |error: ResumeFromError| anyhow!("--resume `{written}`: {error}");
        written.parse().map(StartFrom::Snapshot).map_err(wrong)
    }

    /// Rejects Hydra's options, which verl's scripts use to select a configuration in YAML.
    fn check_hydra(&self) -> anyhow::Result<()> {
        let written = [("config-path", &self.config_path), ("config-name", &self.config_name)];
        match written.into_iter().find_map(|(option, value)| Some((option, value.as_ref()?))) {
            None => Ok(()),
            Some((option, value)) => Err(anyhow!(
                "--{option}={value}: Hydra's configurations are not read: leave the option out, and write the keys of the configuration as overrides (docs/verl.md)"
            )),
        }
    }

    /// Reads the recipe with the settings of the command line, which may have verl's keys. Prints how verl's keys were translated, unless
    /// an override has an error.
    fn read(&self, app: &App) -> Result<Recipe, RecipeError> {
        let config = self.config.as_deref();
        let mut settings = config.map_or_else(|| Ok(Table::new()), read_table)?;
        let rewards: Vec<&str> = app.rewards.names().collect();
        let translation = verl::translate(&settings, &self.overrides, &rewards);
        if translation.errors.is_empty() {
            translation.notes().iter().for_each(|note| terminal::warn(note));
        }
        let mut errors = translation.errors;
        errors.extend(
            translation
                .overrides
                .iter()
                .filter_map(|text| override_key::<RawRecipe>(&mut settings, text).err()),
        );
        let (catalogs, App { schedules, placements, .. }) = (app.catalogs(), app);
        let others = |choices: &_, rewards: &_| catalogs.errors(choices, rewards);
        let names = KnownNames { schedules, placements, others: &others };
        Recipe::from_settings(settings, errors, names, |run| {
            if let Some(out) = &self.out {
                run.default_local_dir.clone_from(out);
            }
            if let Some(workers) = self.workers {
                run.workers = workers.into();
            }
        })
    }
}

pub(crate) fn run(mut args: TrainArgs, app: &App) -> anyhow::Result<ExitCode> {
    if args.log_format == LogFormat::Json {
        terminal::use_json_lines();
    }
    let stop = RunStop::default();
    if !args.dry_run {
        stop.on_signal(args.process.is_none_or(|process| process == 0))?;
    }
    let opened = match OpenedRun::open(&mut args, app) {
        Ok(opened) => opened,
        Err(error) => return Ok(bad_input(&error)),
    };
    let data = opened.session.data_fingerprint()?;
    if args.dry_run { opened.describe(data) } else { opened.train(data, stop.begin()) }
}

/// A run whose inputs have been checked.
struct OpenedRun {
    recipe: Recipe,
    session: Session,
    /// The workers of the run; `None` for a single worker of a single process.
    cluster: Option<Cluster>,
    start: StartFrom,
}

impl OpenedRun {
    /// Opens and checks the inputs, and prints warnings about them.
    fn open(args: &mut TrainArgs, app: &App) -> anyhow::Result<Self> {
        warnings::check()?;
        args.check_hydra()?;
        let start = args.take_start()?;
        let recipe = args.read(app)?;
        check_outputs(&recipe, args.config.as_deref())?;
        let cluster = cluster(&recipe, args.hostfile.as_deref(), args.process)?;
        let session = Session::open_with_catalogs(recipe.clone(), &app.catalogs())?;
        if session.has_critic() {
            let files = ValueModel::FILES.map(|name| Path::new(ValueModel::FOLDER).join(name));
            check_model_files(&recipe.run.default_local_dir, &files)?;
        }
        session.check_data()?;
        let opened = Self { recipe, session, cluster, start };
        if opened.is_leader() {
            opened.session.warnings()?.iter().for_each(|warning| terminal::warn(warning));
        }
        Ok(opened)
    }

    /// Returns `true` in the process that writes the run folder.
    fn is_leader(&self) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| cluster.process() == 0)
    }

    /// Checks the snapshots and prints the resolved recipe, the batch arithmetic and the graph. `data` is the fingerprint of the prompts.
    fn describe(&self, data: u64) -> anyhow::Result<ExitCode> {
        // The snapshots are the leader's, as in a run.
        if self.is_leader()
            && let Err(error) = RunSnapshots::check(&self.recipe, data, self.start)
        {
            return Ok(bad_input(&error.into()));
        }
        let text = describe(&self.recipe, self.session.prompts());
        terminal::print(&text).context("cannot print")?;
        Ok(ExitCode::SUCCESS)
    }

    /// Opens the snapshots and trains to the end of the run. `data` is the fingerprint of the prompts.
    fn train(self, data: u64, stop: Stop) -> anyhow::Result<ExitCode> {
        let is_leader = self.is_leader();
        let Self { recipe, session, cluster, start } = self;
        // With several processes, process 0 opens the snapshots and the others join them.
        let opened = if is_leader {
            RunSnapshots::open(&recipe, data, start)
        } else {
            Ok(RunSnapshots::default())
        };
        let snapshots = match opened {
            Ok(snapshots) => snapshots,
            Err(error) => return Ok(bad_input(&error.into())),
        };
        if let Some(cluster) = cluster {
            return Workers { recipe, data, snapshots, stop }.train(&session, &cluster);
        }
        let trained = train(&recipe, session, snapshots, None, &stop);
        trained.and_then(TrainingReport::report).or_else(|error| {
            match exit_status(fault_kind(&error)) {
                Some(status) => {
                    terminal::error(&error);
                    Ok(ExitCode::from(status))
                }
                None => Err(error),
            }
        })
    }
}

/// Rejects a run folder whose files are inputs of the run. The model may be an input: it is read completely before it is replaced.
fn check_outputs(recipe: &Recipe, config: Option<&Path>) -> anyhow::Result<()> {
    let folder = &recipe.run.default_local_dir;
    let inputs = recipe.inputs();
    let key = || run_folder_key(folder);
    RunFolder::check(folder, &inputs).with_context(key)?;
    inputs.check_folder(&snapshots::folder(folder)).with_context(key)?;
    check_model_files(folder, &FOLDER_FILES)?;
    // The recipe in the run folder may itself be the input, unless recording it would remove credentials from it.
    if recipe.has_credentials() {
        Inputs::of(config).check_output(&RunFolder::recipe(folder)).with_context(key)?;
    }
    Ok(())
}

/// Rejects a run folder in which something other than a regular file has the path of a file of the trained model. `files` are relative to
/// the folder of the model.
fn check_model_files(folder: &Path, files: &[impl AsRef<Path>]) -> anyhow::Result<()> {
    let model = RunFolder::model(folder);
    let mut paths = files.iter().map(|name| model.join(name));
    paths.try_for_each(|path| check_replaceable(&path)).with_context(|| run_folder_key(folder))
}

fn run_folder_key(folder: &Path) -> String {
    format!("key `trainer.default_local_dir`: {}", folder.display())
}

/// Returns the cluster of workers, or `None` for a single worker of a single process.
fn cluster(
    recipe: &Recipe,
    hostfile: Option<&Path>,
    process: Option<usize>,
) -> Result<Option<Cluster>, ClusterError> {
    let threads = recipe.run.workers;
    match (hostfile, process) {
        (Some(hostfile), Some(process)) => {
            Cluster::with_processes(threads, Hosts::read(hostfile)?, process).map(Some)
        }
        _ => Ok((threads > 1).then(|| Cluster::with_threads(threads))),
    }
}

/// The end of a run by a signal.
#[derive(Clone, Default)]
struct RunStop {
    stop: Stop,
    /// Whether the inputs have been opened. Before that, the run has written nothing.
    has_begun: Arc<AtomicBool>,
}

impl RunStop {
    /// Installs a handler for SIGINT, SIGTERM and SIGHUP. The first signal requests a stop after the open round, or ends a run that has
    /// not begun at once; a second signal ends the process at once.
    ///
    /// With several processes, only the leader can end the run. The others print a notice.
    fn on_signal(&self, is_leader: bool) -> anyhow::Result<()> {
        let Self { stop, has_begun } = self.clone();
        let notice = if is_leader {
            "the run ends after the current step, or fails if it makes no progress for trainer.stall_timeout; a second signal ends it now"
        } else {
            "the run continues: only process 0 can end it; a second signal ends this process and thereby the run"
        };
        on_signal(notice, move || {
            if !has_begun.load(Ordering::Relaxed) {
                terminal::warn("a signal ended the run before its first step");
                exit_now(ENDED_EARLY.into());
            }
            stop.request();
        })
    }

    /// Marks the beginning of the run, and returns its stop.
    fn begin(self) -> Stop {
        self.has_begun.store(true, Ordering::Relaxed);
        self.stop
    }
}
