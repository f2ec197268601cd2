//! The files that a program reads.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::FileError;

/// The regular files that a program reads, identified by device and inode: a file is recognized under every path, hard link and symbolic
/// link.
#[derive(Clone, Debug, Default)]
pub struct Inputs(Vec<(FileId, PathBuf)>);

/// The identity of a file: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    fn of(metadata: &Metadata) -> Option<Self> {
        metadata.is_file().then(|| Self(metadata.dev(), metadata.ino()))
    }

    fn at(path: &Path) -> Option<Self> {
        Self::of(&fs::metadata(path).ok()?)
    }
}

impl Inputs {
    /// Creates the set of inputs at these paths; [`add`](Self::add) adds each of them.
    pub fn of<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Self {
        let mut inputs = Self::default();
        paths.into_iter().for_each(|path| inputs.add(path.as_ref()));
        inputs
    }

    /// Adds a file, or the files directly in a folder. A path that leads to no regular file adds nothing: the code that reads a missing
    /// path reports it.
    pub fn add(&mut self, path: &Path) {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path()).chain([path.to_owned()]);
        self.0.extend(paths.filter_map(|path| Some((FileId::at(&path)?, path))));
    }

    /// Returns the path under which the file at `path` is read, if it is one of the inputs.
    #[must_use]
    pub fn find(&self, path: &Path) -> Option<&Path> {
        self.named(FileId::at(path)?)
    }

    /// Rejects an output at `path` if the file there is one of the inputs.
    ///
    /// # Errors
    ///
    /// [`FileError::IsInput`] if the file is one of the inputs.
    pub fn check_output(&self, path: &Path) -> Result<(), FileError> {
        self.find(path).map_or(Ok(()), |input| Err(is_input(path, input)))
    }

    /// Rejects a folder that is about to be emptied if one of the inputs lies in it. A folder that does not exist, or whose path cannot be
    /// resolved, is accepted.
    ///
    /// # Errors
    ///
    /// [`FileError::IsInput`] if an input lies in the folder.
    pub fn check_folder(&self, folder: &Path) -> Result<(), FileError> {
        let Ok(resolved) = folder.canonicalize() else { return Ok(()) };
        let lies_in =
            |input: &&PathBuf| input.canonicalize().is_ok_and(|input| input.starts_with(&resolved));
        let found = self.0.iter().map(|(_, path)| path).find(lies_in);
        found.map_or(Ok(()), |input| Err(is_input(folder, input)))
    }

    /// Rejects an open file, such as a redirected standard output, if it is one of the inputs. `name` is its name in the error.
    ///
    /// # Errors
    ///
    /// [`FileError::IsInput`] if the file is one of the inputs, [`FileError::Io`] if the file cannot be examined.
    pub fn check_open(&self, name: &str, file: &File) -> Result<(), FileError> {
        let name = Path::new(name);
        let metadata = file.metadata().map_err(FileError::io(name, "examine"))?;
        let input = FileId::of(&metadata).and_then(|identity| self.named(identity));
        input.map_or(Ok(()), |input| Err(is_input(name, input)))
    }

    fn named(&self, identity: FileId) -> Option<&Path> {
        let found = self.0.iter().find(|(input, _)| *input == identity);
        found.map(|(_, path)| path.as_path())
    }
}

fn is_input(path: &Path, input: &Path) -> FileError {
    FileError::IsInput { path: path.to_owned(), input: input.to_owned() }
}

/// Returns `true` if two paths lead to the same place: to one file, or to one name in one folder where there is no regular file.
#[must_use]
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    match (FileId::at(one), FileId::at(other)) {
        (Some(one), Some(other)) => one == other,
        (None, None) => {
            with_resolved_folder(one).is_some_and(|one| with_resolved_folder(other) == Some(one))
        }
        _ => false,
    }
}

/// Returns the path with its folder resolved; `None` if the folder does not exist, or the path does not end in a name.
fn with_resolved_folder(path: &Path) -> Option<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
    Some(folder.join(path.file_name()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn an_input_is_recognised_under_every_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("data")).expect("made");
        fs::write(path("data/in"), "rows").expect("written");
        fs::write(path("other"), "rows").expect("written");
        fs::hard_link(path("data/in"), path("hard")).expect("linked");
        symlink(path("data/in"), path("soft")).expect("linked");
        for inputs in [Inputs::of([path("data/in")]), Inputs::of([path("data")])] {
            for place in ["data/in", "data/../data/in", "hard", "soft"] {
                let error = inputs.check_output(&path(place)).expect_err("an input").to_string();
                assert!(error.contains("data/in"), "{place}: {error}");
            }
            inputs.check_output(&path("other")).expect("another file");
            inputs.check_output(&path("new")).expect("no file");
            let open = File::options().append(true).open(path("hard")).expect("opened");
            assert!(inputs.check_open("standard output", &open).is_err());
        }
    }

    #[test]
    fn a_folder_with_an_input_is_not_emptied() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("run/rollouts")).expect("made");
        fs::write(path("run/rollouts/in"), "rows").expect("written");
        symlink(path("run"), path("soft")).expect("linked");
        let inputs = Inputs::of([path("soft/rollouts/in")]);
        assert!(inputs.check_folder(&path("run/rollouts")).is_err());
        inputs.check_folder(&path("absent")).expect("no folder");
        fs::create_dir(path("run/roll")).expect("made");
        inputs.check_folder(&path("run/roll")).expect("another folder");
    }

    #[test]
    fn only_regular_files_are_inputs() {
        let inputs = Inputs::of(["/dev/null", "/no/such/file"]);
        assert!(inputs.find(Path::new("/dev/null")).is_none());
    }

    #[test]
    fn paths_without_a_file_are_compared() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        assert!(is_same_file(&path("a"), &path("./a")));
        assert!(!is_same_file(&path("a"), &path("b")));
        fs::write(path("a"), "").expect("written");
        assert!(!is_same_file(&path("a"), &path("b")));
        fs::hard_link(path("a"), path("b")).expect("linked");
        assert!(is_same_file(&path("a"), &path("b")));
    }
}
