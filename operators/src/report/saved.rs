//! What observers keep in snapshots.

use std::fs::File;
use std::io::{self, Write};

use rollpacker_dataflow::snapshot::{Part, Restored};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Observer;
use crate::resume::ResumeError;
use crate::resume::part::read_json;

/// The part.
pub(super) const PART: &str = "report";

/// What observers keep in a snapshot, each under a name of its own, and the files that it counts on.
#[derive(Default)]
pub struct Saved {
    values: Map<String, Value>,
    files: Vec<File>,
    refused: Option<String>,
}

impl Saved {
    /// Keeps `value` under `name`.
    ///
    /// # Panics
    /// If it is no JSON: of plain data every value is.
    pub fn keep(&mut self, name: &str, value: &impl Serialize) {
        let value = serde_json::to_value(value).expect("invariant: observers keep plain data");
        self.values.insert(name.to_owned(), value);
    }

    /// What was written to `file` until now is on the disk before the snapshot is.
    pub fn count_on(&mut self, file: File) {
        self.files.push(file);
    }

    /// There can be no snapshot, for this reason: what it counts on is not there.
    pub fn refuse(&mut self, reason: String) {
        self.refused = Some(reason);
    }

    /// What a snapshot has under `name`; none if nothing was kept.
    ///
    /// # Errors
    /// If the snapshot cannot be read, or what it has is no `T`.
    pub fn read<T: DeserializeOwned>(
        restored: &Restored,
        name: &str,
    ) -> Result<Option<T>, ResumeError> {
        let mut values: Map<String, Value> = read_json(restored, PART)?.unwrap_or_default();
        let Some(value) = values.remove(name) else { return Ok(None) };
        serde_json::from_value(value).map(Some).map_err(|error| ResumeError::Layout {
            step: restored.step(),
            part: PART,
            expected: format!("`{name}` as this version writes it"),
            found: error.to_string(),
        })
    }

    fn write(self, out: &mut dyn Write) -> io::Result<()> {
        if let Some(reason) = self.refused {
            return Err(io::Error::other(reason));
        }
        self.files.iter().try_for_each(File::sync_all)?;
        serde_json::to_writer(out, &self.values).map_err(io::Error::from)
    }
}

/// What an observer keeps, as a part.
pub(super) fn part(observer: &impl Observer) -> Part {
    let mut saved = Saved::default();
    observer.save(&mut saved);
    Part::written("json", move |out| saved.write(out))
}
