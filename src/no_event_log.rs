//! A replacement for the event log in a program without the feature `cli`, which cannot write the event file of TensorBoard.

use std::path::Path;

use rollpacker_stages::train::Metrics;

use crate::run_files::events;
use crate::run_folder::RecordError;

/// An event log that cannot be created.
pub(crate) enum EventLog {}

impl EventLog {
    /// Refuses to write an event file.
    ///
    /// # Errors
    /// Always.
    pub(crate) fn create(run: &Path) -> Result<Self, RecordError> {
        let reason = "the logger `tensorboard` needs the feature `cli`, which this program was built without";
        Err(RecordError::of(&events(run))(&reason))
    }

    /// Is never called, because no event log can be created.
    ///
    /// # Errors
    /// Never.
    pub(crate) fn write(&mut self, _: u64, _: f64, _: &Metrics) -> Result<(), RecordError> {
        match *self {}
    }
}
