//! The file operations of snapshots. A crash may occur before or after each of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::Path;

/// The part of a file system that snapshots need. Tests use an implementation in memory that crashes or loses power at any operation.
pub(crate) trait Files: Send + Sync {
    /// Creates a folder and its parents.
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// Creates an empty file; fails with [`ErrorKind::AlreadyExists`] if it exists.
    fn create_new(&self, path: &Path) -> io::Result<()>;

    /// Creates or truncates a file and fills it. On return the content is durable; the name may not be.
    fn write(
        &self,
        path: &Path,
        fill: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()>;

    /// Makes the content of a file durable. Used for files that another writer has written.
    fn sync(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;

    /// Renames a file atomically and replaces an existing file at `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file. Succeeds if the file does not exist.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes a folder with its content. Succeeds if the folder does not exist.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;

    /// Returns the names in a folder in sorted order; an empty list if the folder does not exist.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;

    /// Returns the length of a file in bytes.
    fn length(&self, path: &Path) -> io::Result<u64>;

    fn open(&self, path: &Path) -> io::Result<Box<dyn Read>>;
}

/// The file system of the operating system.
pub(crate) struct Disk;

impl Files for Disk {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn create_new(&self, path: &Path) -> io::Result<()> {
        OpenOptions::new().write(true).create_new(true).open(path).map(drop)
    }

    fn write(
        &self,
        path: &Path,
        fill: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut writer = BufWriter::new(File::create(path)?);
        fill(&mut writer)?;
        writer.into_inner()?.sync_all()
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        ignore_not_found(fs::remove_file(path))
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        ignore_not_found(fs::remove_dir_all(path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<Vec<_>>>()?;
        names.sort_unstable();
        Ok(names)
    }

    fn length(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Read>> {
        Ok(Box::new(rollpacker_files::open(path)?))
    }
}

fn ignore_not_found(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

pub(crate) fn read_all(files: &dyn Files, path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    files.open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("part");
        fs::write(&file, "rows").expect("written");
        assert_eq!(read_all(&Disk, &file).expect("a file"), b"rows");
        for (path, found) in [(folder.path(), "a folder"), (Path::new("/dev/null"), "a device")] {
            let error = read_all(&Disk, path).expect_err("no file").to_string();
            assert_eq!(error, format!("expected a regular file, found {found}"));
        }
    }
}
