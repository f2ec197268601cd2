//! `rollpacker train` on several workers.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use rollpacker_dataflow::cluster::{Cluster, ClusterError, Facts, Seat};
use rollpacker_dataflow::fault::Fault;
use rollpacker_operators::report::{Observer, StepReport};
use rollpacker_operators::schedule::operator::Stop;

use super::{BAD_INPUT, train};
use crate::recipe::Recipe;
use crate::session::{Common, Session};

/// Runs this process's workers to the end.
pub(super) fn train(
    recipe: &Recipe,
    session: &Session,
    cluster: &Cluster,
    stop: &Stop,
) -> anyhow::Result<ExitCode> {
    let (common, facts) = (session.common(), facts(recipe));
    let (recipe, stop) = (Arc::new(recipe.clone()), stop.clone());
    let ended =
        cluster.run(&facts, move |seat| worker(&common, &recipe, seat, &stop).map_err(fault));
    match ended {
        Ok(summaries) => {
            summaries.iter().flatten().try_for_each(|summary| train::print(summary))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            let message = match &error {
                ClusterError::Lost(fault) => format!("{}; resume with --resume", fault.message),
                other => other.to_string(),
            };
            // A standard error that is closed has no reader.
            drop(writeln!(std::io::stderr(), "error: {message}"));
            Ok(exit_code(&error))
        }
    }
}

/// What processes must agree on: the program and every setting.
fn facts(recipe: &Recipe) -> Facts {
    let version = ("version of the program".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    let settings =
        recipe.settings().into_iter().map(|(key, value)| (format!("value of {key}"), value));
    std::iter::once(version).chain(settings).collect()
}

/// One worker; the summary, if it is the first.
fn worker(
    common: &Common,
    recipe: &Recipe,
    seat: Seat,
    stop: &Stop,
) -> anyhow::Result<Option<String>> {
    let session = common.session(&seat)?;
    if seat.index() == 0 {
        return train::train(recipe, session, Some(seat), stop).map(Some);
    }
    let folder = recipe.raw.trainer.default_local_dir.join("model");
    session.train_at(Some(seat), stop, &folder, Silent, |_| {})?;
    Ok(None)
}

/// The observer of a worker that is told nothing.
struct Silent;

impl Observer for Silent {
    fn step(&mut self, _report: StepReport) {}
}

fn fault(error: anyhow::Error) -> Fault {
    error.downcast().unwrap_or_else(|error| Fault::new("worker", format!("{error:#}")))
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
        | ClusterError::Fault(_)
        | ClusterError::Lost(_) => ExitCode::FAILURE,
    }
}
