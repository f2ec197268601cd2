//! The report of a run from its folder: curves, findings on why it does not learn, and responses.
//!
//! Only files are read, so the run may be in progress, killed or finished.

mod curve;
mod record;
mod response;
mod text;

use serde::Serialize;

pub(crate) use self::curve::MetricCurve;
pub(crate) use self::record::RunRecord;
pub(crate) use self::response::{ResponsePick, ShownResponse};

use crate::findings::{Finding, findings};
use crate::run_reader::ReadError;

/// The report of a run. Its [`Display`](std::fmt::Display) is the text for a terminal of 80 columns.
#[derive(Debug, Serialize)]
pub(crate) struct RunReport {
    /// The settings of the run, its number of steps and the reason of its end.
    #[serde(flatten)]
    pub(crate) record: RunRecord,
    /// The curves of the most important metrics over the steps.
    pub(crate) curves: Vec<MetricCurve>,
    /// The findings over the last steps: first the trend of the score, then the problems by severity.
    pub(crate) findings: Vec<Finding>,
    /// The step of `responses`; `None` if the run wrote no rollouts.
    pub(crate) response_step: Option<u64>,
    /// The selected responses of `response_step`. Empty if the run wrote no rollouts, or if no prompt is selected and no response of the
    /// step has a score.
    pub(crate) responses: Vec<ShownResponse>,
}

impl RunReport {
    /// Reads the run folder, and the responses that `pick` selects.
    ///
    /// # Errors
    /// If the folder is not a run folder, a file cannot be read, or the step or prompt of `pick` does not exist.
    pub(crate) fn read(folder: &std::path::Path, pick: &ResponsePick) -> Result<Self, ReadError> {
        let record = RunRecord::read(folder)?;
        let step = response::step_of(folder, pick)?;
        let responses = match step {
            Some(step) => response::read(folder, step, pick)?,
            None => Vec::new(),
        };
        Ok(Self {
            curves: curve::curves(&record),
            findings: findings(&record.training_steps().collect()),
            response_step: step,
            responses,
            record,
        })
    }
}
