//! The runs below a folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::ViewError;
use super::run::{Run, RunLine};
use super::vocabulary::Vocabulary;
use crate::run_files::METRICS;

/// The maximum depth of a run folder below the given folder.
const MAX_DEPTH: usize = 3;

type SharedRun = Arc<Mutex<Run>>;

/// The run in a folder, or all runs below it.
pub(crate) struct Runs {
    root: PathBuf,
    /// The runs that were read, by name.
    open: Mutex<BTreeMap<String, SharedRun>>,
    /// The folder with the tokenizer of the runs; `None` selects the tokenizer in each run folder.
    tokenizer: Option<PathBuf>,
    vocabularies: Mutex<BTreeMap<PathBuf, Arc<Vocabulary>>>,
}

impl Runs {
    /// Returns the run in a folder, or the runs below it. `tokenizer` is the folder of their tokenizer; `None` for the tokenizers in the
    /// run folders.
    ///
    /// # Errors
    /// If the folder is not a run folder and contains no run folder at most `MAX_DEPTH` folders deep.
    pub(crate) fn open(root: &Path, tokenizer: Option<PathBuf>) -> anyhow::Result<Self> {
        anyhow::ensure!(
            !find_runs(root).is_empty(),
            "{}: expected the folder of a run, with `{METRICS}`, or a folder of runs at most {MAX_DEPTH} folders deep; {}",
            root.display(),
            if root.is_dir() { "it has none" } else { "it is no folder" }
        );
        Ok(Self {
            root: root.to_owned(),
            open: Mutex::default(),
            tokenizer,
            vocabularies: Mutex::default(),
        })
    }

    /// Returns the folder that was passed to [`open`](Self::open).
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the names of the runs, sorted. They include runs that began after the server started.
    pub(crate) fn names(&self) -> Vec<String> {
        find_runs(&self.root).into_keys().collect()
    }

    /// Reads all runs, so that the first request does not have to wait for this.
    pub(crate) fn preload(&self) {
        drop(self.run_lines());
    }

    /// Returns a line for each run that can be read. A run that was removed is left out.
    pub(super) fn run_lines(&self) -> Vec<RunLine> {
        let line = |(name, folder): (String, PathBuf)| {
            let run = self.open_run(&name, folder);
            let mut run = lock(&run);
            run.refresh().ok().map(|()| run.line(&name))
        };
        find_runs(&self.root).into_iter().filter_map(line).collect()
    }

    /// Reads what a run has written since the last call, and then calls `read` with the run.
    ///
    /// The name is looked up among the names of the runs that were found below the folder, so that no name can select a path elsewhere.
    ///
    /// # Errors
    /// If there is no such run, the run cannot be read, or `read` returns an error.
    pub(super) fn with_run<T>(
        &self,
        name: &str,
        read: impl FnOnce(&Run) -> Result<T, ViewError>,
    ) -> Result<T, ViewError> {
        let run = self.find(name)?;
        let mut run = lock(&run);
        run.refresh()?;
        read(&run)
    }

    /// Returns the vocabulary of a run's model, from the folder that the user named, or from the folder `model` in the run folder if the
    /// user named none.
    pub(super) fn vocabulary(&self, folder: &Path) -> Arc<Vocabulary> {
        let tokenizer = self.tokenizer.clone().unwrap_or_else(|| folder.join("model"));
        let mut known = lock(&self.vocabularies);
        match known.get(&tokenizer) {
            Some(vocabulary) => vocabulary.clone(),
            None => {
                let vocabulary = Arc::new(Vocabulary::read(&tokenizer));
                // A run writes its model at its end, so it may come later.
                if vocabulary.is_known() {
                    known.insert(tokenizer, vocabulary.clone());
                }
                vocabulary
            }
        }
    }

    fn find(&self, name: &str) -> Result<SharedRun, ViewError> {
        let known = lock(&self.open).get(name).cloned();
        let found = || find_runs(&self.root).remove(name).map(|folder| self.open_run(name, folder));
        known.or_else(found).ok_or_else(|| {
            ViewError::not_found(format!(
                "expected the name of a run below {}, found `{name}`",
                self.root.display()
            ))
        })
    }

    fn open_run(&self, name: &str, folder: PathBuf) -> SharedRun {
        let mut open = lock(&self.open);
        let run = open.entry(name.to_owned());
        run.or_insert_with(|| Arc::new(Mutex::new(Run::of(folder)))).clone()
    }
}

/// Locks a value, even if a request panicked while it held the lock. The value then has the lines that were read before the panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the run folders by name. If `root` is a run folder, it is the only entry. Otherwise the name of a run is the path of its folder
/// below `root`.
fn find_runs(root: &Path) -> BTreeMap<String, PathBuf> {
    let mut runs = BTreeMap::new();
    if is_run(root) {
        let full = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        let name = full.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy());
        runs.insert(name.into_owned(), root.to_owned());
    } else {
        collect_runs(root, root, MAX_DEPTH, &mut runs);
    }
    runs
}

fn collect_runs(root: &Path, folder: &Path, depth: usize, runs: &mut BTreeMap<String, PathBuf>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()).filter(|path| path.is_dir()) {
        if is_run(&path) {
            let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            runs.insert(name, path);
        } else if depth > 1 {
            collect_runs(root, &path, depth - 1, runs);
        }
    }
}

fn is_run(folder: &Path) -> bool {
    folder.join(METRICS).is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(root: &Path, name: &str) {
        fs::create_dir_all(root.join(name)).expect("made");
        fs::write(root.join(name).join(METRICS), "").expect("written");
    }

    #[test]
    fn runs_are_found_by_their_paths_from_the_folder() {
        let directory = tempfile::tempdir().expect("a folder");
        for name in ["a", "sweep/lr/b", "sweep/c", "1/2/3/too_deep", "a/inside"] {
            run(directory.path(), name);
        }
        let runs = Runs::open(directory.path(), None).expect("runs");
        assert_eq!(runs.names(), ["a", "sweep/c", "sweep/lr/b"]);
        run(directory.path(), "later");
        assert_eq!(runs.names().len(), 4);
        let one = Runs::open(&directory.path().join("sweep/c"), None).expect("a run");
        assert_eq!(one.names(), ["c"]);
    }

    #[test]
    fn only_names_of_runs_are_accepted() {
        let directory = tempfile::tempdir().expect("a folder");
        for name in ["runs/a", "outside"] {
            run(directory.path(), name);
        }
        let runs = Runs::open(&directory.path().join("runs"), None).expect("runs");
        let read = |name: &str| runs.with_run(name, |_| Ok(()));
        assert!(read("a").is_ok());
        for name in ["../outside", "a/../../outside", "/etc", "", ".", "a/", "b"] {
            assert!(read(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_folder_without_runs_is_refused() {
        let directory = tempfile::tempdir().expect("a folder");
        let refused = |path: &Path| Runs::open(path, None).err().expect("refused").to_string();
        assert!(refused(directory.path()).contains("it has none"));
        assert!(refused(&directory.path().join("absent")).contains("it is no folder"));
    }
}
