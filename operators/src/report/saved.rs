//! The state of observers in snapshots.

use std::fs::File;
use std::io::{self, Write};

use rollpacker_dataflow::snapshot::{Part, RestoredSnapshot};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::resume::ResumeError;
use crate::resume::part::read_json;

/// The name of the part.
pub(super) const PART: &str = "report";

/// The state that observers save in a snapshot, as named values, and the output files that the state refers to.
#[derive(Default)]
pub struct ObserverState {
    values: Map<String, Value>,
    files: Vec<File>,
    refused: Option<String>,
}

impl ObserverState {
    /// Saves `value` under `name`.
    ///
    /// # Panics
    /// If `value` cannot be represented as JSON. Plain data always can.
    pub fn keep(&mut self, name: &str, value: &impl Serialize) {
        let value = serde_json::to_value(value).expect("invariant: observers keep plain data");
        self.values.insert(name.to_owned(), value);
    }

    /// Makes the snapshot wait until the data written to `file` so far is on disk.
    pub fn sync_file(&mut self, file: File) {
        self.files.push(file);
    }

    /// Prevents the snapshot, for example because a file that it would refer to is missing. `reason` becomes the error.
    pub fn refuse(&mut self, reason: String) {
        self.refused = Some(reason);
    }

    /// Returns the value that a snapshot holds under `name`; `None` if it holds none.
    ///
    /// # Errors
    /// If the snapshot cannot be read, or the value is not a valid `T`.
    pub fn read<T: DeserializeOwned>(
        restored: &RestoredSnapshot,
        name: &str,
    ) -> Result<Option<T>, ResumeError> {
        let mut values: Map<String, Value> = read_json(restored, PART)?.unwrap_or_default();
        let Some(value) = values.remove(name) else { return Ok(None) };
        serde_json::from_value(value).map(Some).map_err(|error| ResumeError::Layout {
            step: restored.step(),
            part: PART,
            expected: format!("`{name}` in the layout that this version writes"),
            found: error.to_string(),
        })
    }

    /// Returns the state as a part.
    pub(super) fn part(self) -> Part {
        Part::written("json", move |out| self.write(out))
    }

    fn write(self, out: &mut dyn Write) -> io::Result<()> {
        if let Some(reason) = self.refused {
            return Err(io::Error::other(reason));
        }
        self.files.iter().try_for_each(File::sync_all)?;
        serde_json::to_writer(out, &self.values).map_err(io::Error::from)
    }
}
