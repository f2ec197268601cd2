//! A file that appears only when it is whole.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::DatasetError;

/// A file being written beside its place; it moves there when finished, and is removed when given up.
#[derive(Debug)]
pub(crate) struct Partial {
    place: PathBuf,
    beside: PathBuf,
}

impl Partial {
    /// # Errors
    ///
    /// When the file cannot be created.
    pub(crate) fn create(place: &Path) -> Result<(Self, File), DatasetError> {
        let mut name = place.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        let beside = place.with_file_name(name);
        let file = File::create(&beside).map_err(DatasetError::io(&beside, "create"))?;
        Ok((Self { place: place.to_owned(), beside }, file))
    }

    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// # Errors
    ///
    /// When the file cannot be moved.
    pub(crate) fn finish(self) -> Result<(), DatasetError> {
        std::fs::rename(&self.beside, &self.place)
            .map_err(DatasetError::io(&self.place, "move into place"))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Behind `finish` there is nothing left to remove, and of a file that cannot be removed nobody could be told.
        std::fs::remove_file(&self.beside).ok();
    }
}
