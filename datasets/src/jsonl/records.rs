//! JSONL rows as generic records.

use std::path::Path;
use std::sync::Arc;

use crate::error::DatasetError;
use crate::file::FileContent;
use crate::json_object::JsonObject;
use crate::jsonl::bad_line;
use crate::jsonl::lines::Lines;

/// An iterator over the lines of a file as JSON objects.
pub(crate) struct JsonlRecords {
    lines: Lines<FileContent>,
    row: u64,
}

impl JsonlRecords {
    pub(crate) fn of(path: &Arc<Path>, content: FileContent) -> Self {
        Self { lines: Lines::of(path, content), row: 0 }
    }
}

impl Iterator for JsonlRecords {
    type Item = Result<JsonObject, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.lines.next_line() {
            Ok(None) => None,
            Err(error) => Some(Err(error)),
            Ok(Some(_)) => {
                let row = self.row;
                self.row += 1;
                let object = self.lines.object();
                Some(object.map_err(|found| bad_line(&self.lines.path, row, found)))
            }
        }
    }
}
