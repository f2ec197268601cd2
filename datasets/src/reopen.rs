//! The check that an input can be read several times.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use crate::error::DatasetError;

/// Checks that a file can be read several times, which excludes pipes and devices. A folder passes: opening it as a file fails later.
pub(crate) fn check_reopens(path: &Path) -> Result<(), DatasetError> {
    let metadata = fs::metadata(path).map_err(DatasetError::io(path, "open"))?;
    let found = match metadata.file_type() {
        found if found.is_file() || found.is_dir() => return Ok(()),
        found if found.is_fifo() => "a pipe",
        found if found.is_socket() => "a socket",
        _ => "a device",
    };
    Err(DatasetError::ReadOnce { file: path.to_owned(), found })
}
