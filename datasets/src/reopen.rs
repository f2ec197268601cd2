//! The check that an input can be read several times.

use std::fs;
use std::path::Path;

use crate::error::DatasetError;

/// Checks that a file can be read several times, which excludes pipes, sockets and devices. A folder passes: opening it as a file fails
/// later.
pub(crate) fn check_reopens(path: &Path) -> Result<(), DatasetError> {
    let metadata = fs::metadata(path).map_err(DatasetError::io(path, "open"))?;
    match rollpacker_files::kind(metadata.file_type()) {
        Some(found) if !metadata.is_dir() => {
            Err(DatasetError::ReadOnce { file: path.to_owned(), found })
        }
        _ => Ok(()),
    }
}
