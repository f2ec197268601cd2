//! A file that appears when it is complete.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::regular::kind;
use crate::{FileError, is_same_file};

const PREFIX: &str = ".rollpacker-";
const SUFFIX: &str = ".partial";

/// A file that is written under a temporary name in the folder of its final path, and renamed by [`finish`](Self::finish). If the value is
/// dropped before that, the temporary file is removed.
///
/// A process that is killed leaves the temporary file behind: see [`remove_abandoned`].
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    file: NamedTempFile,
}

impl NewFile {
    /// Creates an empty file next to `path`, with the permissions of the file that it will replace, or with default permissions if there is
    /// no such file.
    ///
    /// # Errors
    ///
    /// If `path` cannot be examined or holds something that is not a regular file, its folder does not exist, or the file cannot be created
    /// in the folder.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        check_replaceable(path)?;
        let folder = folder_of(path);
        if !folder.is_dir() {
            let (path, folder) = (path.to_owned(), folder.to_owned());
            return Err(FileError::NoFolder { path, folder });
        }
        let replaced = fs::metadata(path).map(|replaced| replaced.permissions());
        let created = tempfile::Builder::new()
            .prefix(PREFIX)
            .suffix(SUFFIX)
            // The system removes the bits of the umask.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .and_then(|file| {
                replaced.map_or(Ok(()), |kept| file.as_file().set_permissions(kept))?;
                Ok(file)
            });
        let file = created.map_err(FileError::io(path, "create"))?;
        // The lock tells `remove_abandoned` that the file is still being written. On a file system without locks, the attempt fails and
        // nothing is removed.
        drop(file.as_file().try_lock());
        Ok(Self { path: path.to_owned(), file })
    }

    /// Returns the final path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the file until it is finished, for writers that open files themselves.
    #[must_use]
    pub fn temporary_path(&self) -> &Path {
        self.file.path()
    }

    /// Syncs the content to disk and renames the file to its final path.
    ///
    /// # Errors
    ///
    /// If the system reports an error, or the path was meanwhile taken by something that must not be replaced.
    pub fn finish(self) -> Result<(), FileError> {
        self.finish_open().map(drop)
    }

    /// Finishes the file as [`finish`](Self::finish) does. Returns the open file, positioned after its content.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    pub fn finish_open(self) -> Result<File, FileError> {
        self.file.as_file().sync_all().map_err(FileError::io(&self.path, "write"))?;
        self.rename()
    }

    /// Renames the file to its final path without syncing its content, which the caller must do. Returns the open file, positioned after
    /// its content.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    pub fn rename(self) -> Result<File, FileError> {
        check_replaceable(&self.path)?;
        self.file
            .persist(&self.path)
            .map_err(|error| FileError::io(&self.path, "rename")(error.error))
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_file_mut().flush()
    }
}

/// Removes the temporary files that killed processes left in a folder. Files that are still being written are kept, and so are files that
/// cannot be opened or locked. A folder that does not exist contains none.
///
/// # Errors
///
/// If the folder cannot be read, or a file cannot be removed.
pub fn remove_abandoned(folder: &Path) -> Result<(), FileError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(FileError::io(folder, "read"))?,
    };
    for entry in entries {
        let entry = entry.map_err(FileError::io(folder, "read"))?;
        let name = entry.file_name();
        let is_temporary =
            name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        let path = entry.path();
        let is_abandoned = || File::open(&path).is_ok_and(|file| file.try_lock().is_ok());
        if is_temporary && is_abandoned() {
            fs::remove_file(&path).map_err(FileError::io(&path, "remove"))?;
        }
    }
    Ok(())
}

/// Writes a whole file, which appears at `path` when it is complete.
///
/// # Errors
///
/// If the file cannot be created (see [`NewFile::create`]), written, or renamed (see [`NewFile::finish`]).
pub fn write(path: &Path, contents: &[u8]) -> Result<(), FileError> {
    let mut file = NewFile::create(path)?;
    file.write_all(contents).map_err(FileError::io(path, "write"))?;
    file.finish()
}

/// Copies a file to `path`, unless `from` and `path` are the same file.
///
/// # Errors
///
/// If `from` cannot be read, or `path` cannot be written (see [`write()`]).
pub fn copy(from: &Path, path: &Path) -> Result<(), FileError> {
    if is_same_file(from, path) {
        return Ok(());
    }
    let mut source = File::open(from).map_err(FileError::io(from, "open"))?;
    let mut file = NewFile::create(path)?;
    io::copy(&mut source, &mut file).map_err(FileError::io(path, "write"))?;
    file.finish()
}

/// Checks that `path` is free or holds a regular file. A symbolic link is rejected, regardless of its target, because a rename would
/// replace the link.
///
/// # Errors
///
/// [`FileError::NotRegular`] if `path` holds something else, [`FileError::Io`] if `path` cannot be examined.
pub fn check_replaceable(path: &Path) -> Result<(), FileError> {
    match fs::symlink_metadata(path) {
        Ok(found) => kind(found.file_type())
            .map_or(Ok(()), |found| Err(FileError::NotRegular { path: path.to_owned(), found })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(FileError::io(path, "examine")(error)),
    }
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_file_appears_when_it_is_complete() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        fs::write(&path, "before").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("set");
        let mut file = NewFile::create(&path).expect("created");
        file.write_all(b"after").expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"before");
        drop(file);
        assert_eq!(names(folder.path()), ["out"], "a dropped file is removed");

        write(&path, b"after").expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"after");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o640);
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn only_abandoned_temporary_files_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::write(path(".rollpacker-killed.partial"), "half").expect("written");
        fs::write(path(".rollpacker-notes"), "kept").expect("written");
        let mut file = NewFile::create(&path("out")).expect("created");
        file.write_all(b"whole").expect("written");
        remove_abandoned(folder.path()).expect("removed");
        file.finish().expect("finished");
        assert!(!path(".rollpacker-killed.partial").exists());
        assert_eq!(fs::read(path(".rollpacker-notes")).expect("read"), b"kept");
        assert_eq!(fs::read(path("out")).expect("read"), b"whole");
        remove_abandoned(&path("absent")).expect("nothing to do");
    }

    #[test]
    fn a_new_file_has_the_permissions_of_the_umask() {
        let folder = tempfile::tempdir().expect("a folder");
        let mode = |name| fs::metadata(folder.path().join(name)).expect("there").mode();
        fs::write(folder.path().join("usual"), "").expect("written");
        write(&folder.path().join("ours"), b"").expect("written");
        assert_eq!(mode("ours"), mode("usual"));
    }

    #[test]
    fn only_regular_files_are_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("target"), "kept").expect("written");
        symlink(path("target"), path("link")).expect("linked");
        symlink(path("absent"), path("dangling")).expect("linked");
        fs::create_dir(path("folder")).expect("made");
        let _socket = UnixListener::bind(path("socket")).expect("bound");
        let made = std::process::Command::new("mkfifo").arg(path("pipe")).status();
        assert!(made.expect("mkfifo runs").success());
        let refused = |path: &Path| write(path, b"lost").expect_err("refused").to_string();
        for (name, found) in [
            ("link", "a symbolic link"),
            ("dangling", "a symbolic link"),
            ("folder", "a folder"),
            ("socket", "a socket"),
            ("pipe", "a pipe"),
        ] {
            let error = refused(&path(name));
            assert!(error.contains(name) && error.contains(found), "{error}");
        }
        assert!(refused(Path::new("/dev/null")).contains("a device"));
        assert!(refused(&path("no/folder")).contains("found no folder"));
        assert!(refused(Path::new("/")).contains("a folder"));
        assert_eq!(fs::read(path("target")).expect("read"), b"kept");
        assert!(fs::symlink_metadata(path("link")).expect("there").is_symlink());
    }

    #[test]
    fn the_target_is_checked_again_on_finish() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        let file = NewFile::create(&path).expect("created");
        symlink("elsewhere", &path).expect("linked");
        assert!(matches!(file.finish(), Err(FileError::NotRegular { .. })));
    }

    #[test]
    fn a_hard_link_to_the_replaced_file_keeps_its_content() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, copied) = (folder.path().join("out"), folder.path().join("copy"));
        fs::write(&path, "before").expect("written");
        fs::hard_link(&path, &copied).expect("linked");
        copy(&copied, &path).expect("nothing to do");
        assert_eq!(fs::read(&copied).expect("read"), b"before");
        write(&path, b"after").expect("written");
        assert_eq!(fs::read(&copied).expect("read"), b"before");
        copy(&copied, &path).expect("copied");
        assert_eq!(fs::read(&path).expect("read"), b"before");
    }
}
