//! `rollpacker train` with several workers.

use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use rollpacker_dataflow::cluster::{Cluster, ClusterError, RunFacts, WorkerHandle};
use rollpacker_dataflow::fault::{Fault, HasOrigin, Origin};
use rollpacker_operators::report::{Observer, StepReport};
use rollpacker_operators::schedule::operator::Stop;

use super::train::{TrainingReport, train};
use super::{BAD_INPUT, failed};
use crate::engines::ServersUnavailable;
use crate::recipe::{Recipe, RecipeError};
use crate::run_folder::RunFolder;
use crate::session::{Session, SharedInputs};
use crate::snapshots::RunSnapshots;
use crate::terminal;

/// The inputs of the workers of this process.
pub(super) struct Workers {
    pub(super) recipe: Recipe,
    /// The fingerprint of the training prompts.
    pub(super) data: u64,
    /// The snapshots as process 0 has opened them; empty in the other processes.
    pub(super) snapshots: RunSnapshots,
    pub(super) stop: Stop,
}

impl Workers {
    /// Runs the workers of this process to the end of the run.
    ///
    /// Process 0 publishes a note about its snapshots when the processes connect. In every other process the first worker that starts joins
    /// the snapshots by that note, and the other workers clone the result, because all workers of a process must share one snapshot plan.
    /// The report comes from worker 0 of the whole cluster, so that only process 0 prints a summary.
    pub(super) fn train(self, session: &Session, cluster: &Cluster) -> anyhow::Result<ExitCode> {
        let (facts, note) = (self.facts(), self.snapshots.note());
        let (inputs, process) = (session.shared_inputs(), cluster.process());
        // The workers of one process share one snapshot plan.
        let joined: Mutex<Option<RunSnapshots>> = Mutex::default();
        let ended = cluster.run(&facts, &note, move |handle| {
            let snapshots = match process {
                0 => Ok(self.snapshots.clone()),
                _ => self.join_snapshots(&joined, handle.note()),
            };
            snapshots.and_then(|snapshots| self.worker(&inputs, snapshots, handle)).map_err(fault)
        });
        match ended {
            Ok(reports) => {
                let report = reports.into_iter().flatten().next();
                report.map_or(Ok(ExitCode::SUCCESS), TrainingReport::report)
            }
            Err(error) => {
                let message = match &error {
                    ClusterError::Lost(fault) => format!("{}; resume with --resume", fault.message),
                    other => other.to_string(),
                };
                terminal::warn(&format!("error: {message}"));
                Ok(exit_code(&error))
            }
        }
    }

    /// Returns the facts on which all processes must agree: the version, the prompts, and every setting except the path of the run folder.
    fn facts(&self) -> RunFacts {
        let version = ("version of the program".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        // The fingerprint depends on some settings and comes after them, because the first difference is reported.
        let prompts = ("fingerprint of the prompts".to_owned(), format!("{:016x}", self.data));
        let settings = self.recipe.settings().into_iter();
        let shared = settings.filter(|(key, _)| key != "trainer.default_local_dir");
        let shared = shared.map(|(key, value)| (format!("value of {key}"), value));
        std::iter::once(version).chain(shared).chain([prompts]).collect()
    }

    fn join_snapshots(
        &self,
        joined: &Mutex<Option<RunSnapshots>>,
        note: &str,
    ) -> anyhow::Result<RunSnapshots> {
        let mut joined = joined.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshots = match joined.take() {
            Some(snapshots) => snapshots,
            None => RunSnapshots::join(&self.recipe, self.data, note)?,
        };
        Ok(joined.insert(snapshots).clone())
    }

    /// Runs one worker. Returns the report if it is the first worker of the cluster.
    fn worker(
        &self,
        inputs: &SharedInputs,
        snapshots: RunSnapshots,
        handle: WorkerHandle,
    ) -> anyhow::Result<Option<TrainingReport>> {
        if handle.index() == 0 {
            let session = inputs.session(&handle)?;
            return train(&self.recipe, session, snapshots, Some(handle), &self.stop).map(Some);
        }
        let session = inputs.clone().with_snapshots(snapshots).session(&handle)?;
        let folder = RunFolder::model(&self.recipe.run.default_local_dir);
        session.train_worker(Some(handle), &self.stop, &folder, Silent, |_| {})?;
        Ok(None)
    }
}

/// An observer that ignores all events, for workers other than the first.
struct Silent;

impl Observer for Silent {
    fn step(&mut self, _report: StepReport) {}
}

fn fault(error: anyhow::Error) -> Fault {
    error.downcast().unwrap_or_else(|error| {
        let origin = if error.is::<RecipeError>() {
            Origin::User
        } else if error.is::<ServersUnavailable>() {
            Origin::Environment
        } else {
            Origin::Program
        };
        Fault::new("worker", origin, terminal::with_causes(&error))
    })
}

fn exit_code(error: &ClusterError) -> ExitCode {
    match error {
        ClusterError::Read { .. }
        | ClusterError::Address { .. }
        | ClusterError::Hosts { .. }
        | ClusterError::Process { .. }
        | ClusterError::Listen { .. }
        | ClusterError::Mismatch { .. } => ExitCode::from(BAD_INPUT),
        ClusterError::Missing { .. }
        | ClusterError::Connection { .. }
        | ClusterError::System { .. }
        | ClusterError::Fault(_) => failed(error.origin()),
        // The message has the advice.
        ClusterError::Lost(_) => ExitCode::FAILURE,
    }
}
