//! `rollpacker train` with several workers.

use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use rollpacker_dataflow::cluster::{Cluster, ClusterError, RunFacts, WorkerHandle};
use rollpacker_dataflow::fault::{Fault, FaultKind, HasOrigin, Origin};
use rollpacker_operators::report::{Observer, StepReport};
use rollpacker_operators::schedule::operator::Stop;

use super::exit_status::{BAD_INPUT, failed};
use super::training::{TrainingReport, exit_status, fault_kind, train};
use crate::recipe::Recipe;
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

/// Returns the fault that reports `error` to all processes.
fn fault(error: anyhow::Error) -> Fault {
    let kind = fault_kind(&error);
    let origin = match kind {
        FaultKind::BadInput => Origin::User,
        FaultKind::Unavailable => Origin::Environment,
        FaultKind::Failure => Origin::Program,
    };
    let new = |error: anyhow::Error| Fault::new("worker", origin, terminal::with_causes(&error));
    Fault { kind, ..error.downcast().unwrap_or_else(new) }
}

/// Returns the exit status of a run that ended with `error`, and prints advice for a failure.
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
        | ClusterError::System { .. } => failed(error.origin()),
        ClusterError::Fault(fault) => {
            exit_status(fault.kind).map_or_else(|| failed(fault.origin), ExitCode::from)
        }
        // The message has the advice.
        ClusterError::Lost(_) => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::ServersUnavailable;
    use crate::lifetime::ENDED_EARLY;
    use crate::recipe::error::out_of_bounds;

    #[test]
    fn all_processes_end_with_the_status_of_the_error() {
        let lost = Fault::new("rollout", Origin::Environment, "no server answers");
        let unavailable = Fault { kind: FaultKind::Unavailable, ..lost.clone() };
        let errors = [
            (anyhow::Error::from(out_of_bounds("rollout.n", "1", 0)), Some(BAD_INPUT)),
            (anyhow::Error::from(lost.clone()).context(ServersUnavailable), Some(ENDED_EARLY)),
            (anyhow::Error::from(unavailable), Some(ENDED_EARLY)),
            (anyhow::Error::from(lost), None),
            (anyhow::anyhow!("the disk is full"), None),
        ];
        for (error, expected) in errors {
            assert_eq!(exit_status(fault_kind(&error)), expected, "{error:#}");
            // Another process receives the fault as a message.
            let message = serde_json::to_string(&fault(error)).expect("JSON");
            let fault = serde_json::from_str(&message).expect("a fault");
            let code = exit_code(&ClusterError::Fault(fault));
            let expected = expected.map_or(ExitCode::FAILURE, ExitCode::from);
            assert_eq!(format!("{code:?}"), format!("{expected:?}"));
        }
    }
}
