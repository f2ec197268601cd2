//! Reading of files that must be regular. Opening a pipe blocks until another process opens it for writing, and reading a device may never
//! end.

use std::fs::{self, File, FileType};
use std::io::{self, Error, ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Opens a regular file for reading.
///
/// # Errors
///
/// If the file cannot be opened or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    match kind(fs::metadata(path)?.file_type()) {
        Some(found) => Err(invalid(format!("expected a regular file, found {found}"))),
        None => File::open(path),
    }
}

/// Reads a regular file of at most `max` bytes.
///
/// # Errors
///
/// If the file cannot be opened or read, is not a regular file, or is larger than `max` bytes.
///
/// ```
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("config.json");
/// std::fs::write(&path, "{}")?;
/// assert_eq!(rollpacker_files::read(&path, 2)?, b"{}");
/// assert_eq!(
///     rollpacker_files::read(&path, 1).unwrap_err().to_string(),
///     "expected at most 1 bytes, found more",
/// );
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::with_capacity(usize::try_from(length.min(max)).unwrap_or(0));
    // Read one byte more than allowed to detect a larger file. The reported length does not suffice: it is 0 for files in /proc.
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(invalid(format!("expected at most {max} bytes, found more")));
    }
    Ok(bytes)
}

/// Reads a regular file of at most `max` bytes as UTF-8 text.
///
/// # Errors
///
/// If [`read`] fails, or the file is not UTF-8.
pub fn read_to_string(path: &Path, max: u64) -> io::Result<String> {
    String::from_utf8(read(path, max)?).map_err(|error| invalid(error.to_string()))
}

/// Returns the name of a file type for messages, such as `a pipe`; `None` for a regular file.
#[must_use]
pub fn kind(found: FileType) -> Option<&'static str> {
    Some(match found {
        found if found.is_file() => return None,
        found if found.is_symlink() => "a symbolic link",
        found if found.is_dir() => "a folder",
        found if found.is_fifo() => "a pipe",
        found if found.is_socket() => "a socket",
        _ => "a device",
    })
}

fn invalid(reason: String) -> Error {
    Error::new(ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_refused_without_waiting_for_a_writer() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo runs").success());
        let error = read(&pipe, 1).expect_err("refused").to_string();
        assert_eq!(error, "expected a regular file, found a pipe");
        let error = read(folder.path(), 1).expect_err("refused").to_string();
        assert_eq!(error, "expected a regular file, found a folder");
        assert_eq!(open(&folder.path().join("absent")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_file_whose_length_is_reported_as_0_is_read() {
        let stat = read(Path::new("/proc/self/stat"), 1 << 20).expect("read");
        assert!(!stat.is_empty());
    }
}
