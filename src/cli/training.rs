//! The training of the worker that records the run, its report, and the exit statuses of its errors.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::Context;
use rollpacker_dataflow::cluster::WorkerHandle;
use rollpacker_dataflow::fault::{Fault, FaultKind};
use rollpacker_operators::schedule::operator::Stop;
use serde_json::Value;

use super::exit_status::BAD_INPUT;
use crate::banner::{self, StartBanner};
use crate::engines::ServersUnavailable;
use crate::lifetime::{ENDED_EARLY, EndReason};
use crate::prompts::training_batch_larger_than_dataset;
use crate::recipe::{Recipe, RecipeError};
use crate::reporter::RunReporter;
use crate::run_folder::{RecordError, RunFolder};
use crate::session::Session;
use crate::snapshots::{RunSnapshots, RunSnapshotsError};
use crate::telemetry::{Telemetry, warnings};
use crate::terminal;

/// The results of a run that ended without an error, also of a run that ended early.
pub(super) struct TrainingReport {
    run: PathBuf,
    model: PathBuf,
    summary: String,
    ended: EndReason,
}

impl TrainingReport {
    /// Prints the summary and the last line, and returns the exit status.
    pub(super) fn report(self) -> anyhow::Result<ExitCode> {
        let Self { run, model, summary, ended } = &self;
        let lines = if terminal::is_json() {
            let mut fields = banner::end_fields(run, model, *ended);
            let summary: Value = serde_json::from_str(summary).context("cannot print")?;
            fields.insert("summary".to_owned(), summary);
            terminal::json_line("end", fields)
        } else {
            format!("{summary}\n{}", banner::end_line(run, model, *ended))
        };
        terminal::print_line(&lines).context("cannot print")?;
        Ok(match self.ended {
            EndReason::Finished => ExitCode::SUCCESS,
            EndReason::Stopped | EndReason::OutOfTime => ExitCode::from(ENDED_EARLY),
        })
    }
}

/// Trains and records the run. With a `handle`, the run has several workers, and the calling thread is the first of them.
pub(super) fn train(
    recipe: &Recipe,
    session: Session,
    snapshots: RunSnapshots,
    handle: Option<WorkerHandle>,
    stop: &Stop,
) -> anyhow::Result<TrainingReport> {
    let telemetry = Telemetry::of_run(&recipe.run.default_local_dir)?;
    let prompts = session.prompts();
    warnings::print();
    let run = match &snapshots.restored {
        None => RunReporter::start(recipe, prompts, telemetry, stop.clone())?,
        Some(restored) => RunReporter::resume(recipe, prompts, telemetry, stop.clone(), restored)?,
    };
    StartBanner::of(recipe, &session).print(run.console());
    let batch = training_batch_larger_than_dataset(recipe.data.train_batch_size, prompts);
    snapshots.notes.iter().chain(&batch).for_each(|note| run.print_line(note));
    let run = Rc::new(RefCell::new(run));
    let mut session = session.with_snapshots(snapshots);
    if recipe.run.write_rollouts {
        let folder = RunFolder::validation(&recipe.run.default_local_dir);
        session = session.with_validation_folder(folder);
    }
    let folder = run.borrow().model_folder();
    let reporter = run.clone();
    let finished = session
        .train_worker(handle, stop, &folder, run.clone(), |metrics| {
            reporter.borrow_mut().report_validation(0, metrics)
        })
        .map_err(|error| match run.borrow_mut().take_failure() {
            Some(failure) => {
                let mut fault = record_fault(&failure);
                let other = terminal::with_causes(&error);
                // The refused snapshot may already have reported the same failure.
                if !other.contains(&failure.to_string()) {
                    fault.message = format!("{}; the run also failed with: {other}", fault.message);
                }
                fault.into()
            }
            None => error,
        })?;
    let summary = run.borrow_mut().finish(&finished).map_err(|error| record_fault(&error))?;
    let run = recipe.run.default_local_dir.clone();
    Ok(TrainingReport { run, model: folder, summary, ended: finished.ended })
}

/// Returns the fault with which a file of the run folder that cannot be written ends the run.
fn record_fault(error: &RecordError) -> Fault {
    Fault::of("run folder", error)
}

/// Returns the kind of fault with which `error` ends the run.
pub(super) fn fault_kind(error: &anyhow::Error) -> FaultKind {
    // The engine checks its options when it starts. Processes other than the first open the snapshots when they start.
    if error.is::<RecipeError>() || error.is::<RunSnapshotsError>() {
        FaultKind::BadInput
    } else if error.is::<ServersUnavailable>() {
        FaultKind::Unavailable
    } else {
        error.downcast_ref().map_or(FaultKind::Failure, |fault: &Fault| fault.kind)
    }
}

/// Returns the exit status of a run that ended with a fault of this kind; `None` for a failure.
pub(super) fn exit_status(kind: FaultKind) -> Option<u8> {
    match kind {
        FaultKind::BadInput => Some(BAD_INPUT),
        FaultKind::Unavailable => Some(ENDED_EARLY),
        FaultKind::Failure => None,
    }
}
