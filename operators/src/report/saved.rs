//! The state of observers in snapshots.

use std::fs::File;
use std::io::{self, Write};

use rollpacker_dataflow::snapshot::{Part, RestoredSnapshot};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::resume::ResumeError;
use crate::resume::part::read_json;

/// The name of the snapshot part with the state of the observer.
pub(super) const PART: &str = "report";

/// The state that observers save in a snapshot, as named values.
#[derive(Default)]
pub struct ObserverState {
    values: Map<String, Value>,
    later: Vec<(String, LaterValue)>,
}

/// A function that returns a value and the files that the value refers to. It runs on the thread that writes the snapshot.
type LaterValue = Box<dyn FnOnce() -> io::Result<(Value, Vec<File>)> + Send>;

impl ObserverState {
    /// Saves `value` under `name`. Replaces the value that an earlier call saved under `name`.
    ///
    /// # Panics
    /// If `value` cannot be represented as JSON, for example because the keys of a map are not text or numbers.
    pub fn keep(&mut self, name: &str, value: &impl Serialize) {
        let value = serde_json::to_value(value).expect("invariant: observers keep plain data");
        self.values.insert(name.to_owned(), value);
    }

    /// Saves the value that `value` returns under `name`. The snapshot waits until the data of the returned files is on disk.
    ///
    /// `value` runs on the thread that writes the snapshot, so it may wait for another thread. If `value` returns an error, for example
    /// because an output file is missing, the snapshot is not written. The result replaces a value that [`keep`](Self::keep) saved under
    /// `name`.
    ///
    /// # Panics
    /// The thread that writes the snapshot panics if the result cannot be represented as JSON, as in [`keep`](Self::keep).
    pub fn keep_later<T: Serialize>(
        &mut self,
        name: &str,
        value: impl FnOnce() -> io::Result<(T, Vec<File>)> + Send + 'static,
    ) {
        let encoded = move || {
            let (value, files) = value()?;
            Ok((serde_json::to_value(value).expect("invariant: observers keep plain data"), files))
        };
        self.later.push((name.to_owned(), Box::new(encoded)));
    }

    /// Returns the value that a snapshot holds under `name`; `None` if the snapshot holds no such value.
    ///
    /// # Errors
    /// If the part of the observer cannot be read or is not a JSON object, or if the value is not a valid `T`.
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

    pub(super) fn part(self) -> Part {
        Part::from_writer("json", move |out| self.write(out))
    }

    fn write(mut self, out: &mut dyn Write) -> io::Result<()> {
        for (name, value) in self.later {
            let (value, files) = value()?;
            files.iter().try_for_each(File::sync_all)?;
            self.values.insert(name, value);
        }
        serde_json::to_writer(out, &self.values).map_err(io::Error::from)
    }
}
