//! The operations on files that snapshots are made of, each of which a crash may come before or after.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::Path;

/// A file system, as far as snapshots need one. The tests put one below it that dies, or loses power, at any operation.
pub(crate) trait Files: Send + Sync {
    /// Makes a folder, and those above it.
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// Makes an empty file that nobody has made before; [`ErrorKind::AlreadyExists`] otherwise.
    fn create_new(&self, path: &Path) -> io::Result<()>;

    /// Makes a file, or empties it, and fills it. When this returns, its content is on the disk; its name need not be.
    fn write(
        &self,
        path: &Path,
        fill: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()>;

    /// Brings the content of a file that someone else wrote to the disk.
    fn sync(&self, path: &Path) -> io::Result<()>;

    /// Brings the names in a folder to the disk.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;

    /// Gives a file another name at once, in place of whatever had it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file; one that is not there is removed.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes a folder with all that is in it; one that is not there is removed.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;

    /// The names in a folder, in order; none if it is not there.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;

    /// The length of a file in bytes.
    fn length(&self, path: &Path) -> io::Result<u64>;

    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<Box<dyn Read>>;
}

/// The files of the system.
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
        absent_is_fine(fs::remove_file(path))
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        absent_is_fine(fs::remove_dir_all(path))
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
        Ok(Box::new(File::open(path)?))
    }
}

fn absent_is_fine(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
