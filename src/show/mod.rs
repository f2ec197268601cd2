//! The report of a run from its folder: curves, findings on why it does not learn, and responses.
//!
//! Only files are read, so a run that is being written, that was killed or that ended can be shown alike.

mod curve;
mod finding;
mod recent;
mod record;
mod response;
mod text;

use serde::Serialize;

pub(crate) use self::curve::Curve;
pub(crate) use self::finding::{Finding, Severity};
pub(crate) use self::record::RunRecord;
pub(crate) use self::response::{ResponsePick, ShownResponse};

use self::recent::Recent;
#[cfg(feature = "view")]
pub(crate) use self::recent::STEPS as FINDING_STEPS;
use crate::run_reader::ReadError;
#[cfg(feature = "view")]
use crate::run_reader::StepMetrics;

/// Returns the findings of a run with this many steps, the severest first, from its first and its last [`FINDING_STEPS`] steps.
#[cfg(feature = "view")]
pub(crate) fn findings<'a>(
    first: impl IntoIterator<Item = &'a StepMetrics>,
    last: impl IntoIterator<Item = &'a StepMetrics>,
    steps: usize,
) -> Vec<Finding> {
    let (first, last) = (first.into_iter().collect(), last.into_iter().collect());
    finding::findings(&Recent::of_ends(first, last, steps))
}

/// The report of a run. Its [`Display`](std::fmt::Display) is the text for a terminal of 80 columns.
#[derive(Debug, Serialize)]
pub(crate) struct RunReport {
    /// The settings and the end of the run.
    #[serde(flatten)]
    pub(crate) record: RunRecord,
    /// The metrics that tell most, over the steps.
    pub(crate) curves: Vec<Curve>,
    /// The findings over the last steps; the severest first.
    pub(crate) findings: Vec<Finding>,
    /// The step of `responses`.
    pub(crate) response_step: Option<u64>,
    /// Responses of one step.
    pub(crate) responses: Vec<ShownResponse>,
}

impl RunReport {
    /// Reads the run folder, and the responses that `pick` selects.
    ///
    /// # Errors
    /// If the folder is not that of a run, a file cannot be read, or the step or prompt of `pick` is not there.
    pub(crate) fn read(folder: &std::path::Path, pick: &ResponsePick) -> Result<Self, ReadError> {
        let record = RunRecord::read(folder)?;
        let step = response::step_of(folder, pick)?;
        let responses = match step {
            Some(step) => response::read(folder, step, pick)?,
            None => Vec::new(),
        };
        Ok(Self {
            curves: curve::curves(&record),
            findings: finding::findings(&Recent::of(&record)),
            response_step: step,
            responses,
            record,
        })
    }
}
