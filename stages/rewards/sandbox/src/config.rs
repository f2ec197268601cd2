//! The configuration of a sandbox.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::SandboxError;

/// The minimum of `memory_bytes`. With less, an interpreter can run almost nothing.
const MIN_MEMORY: u64 = 1 << 20;

/// The maximum of `slots`. Each slot is a thread and several processes.
const MAX_SLOTS: usize = 1024;

/// The minimum of `open_files`: the three standard streams and one more.
const MIN_FILES: u64 = 4;

/// The configuration of a sandbox, as written in a recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxConfig {
    /// The isolation of code from this machine; [`Full`](Isolation::Full) by default.
    pub isolation: Isolation,
    /// Number of concurrent jobs, each in a slot with an interpreter of its own; from 1 to 1024, the number of cores by default.
    pub slots: usize,
    /// The interpreter, by name or path; `python3` by default.
    pub python: PathBuf,
    /// Modules that each slot imports once when it starts, so that jobs can use them without a loading time; none by default. They must
    /// leave no threads running.
    pub preload: Vec<String>,
    /// Files and folders that code may read in addition to the interpreter and the system's libraries; none by default.
    pub binds: Vec<PathBuf>,
    /// Maximum memory of a process in bytes, in addition to the memory of the interpreter itself; at least 1 MiB, 512 MiB by default.
    pub memory_bytes: u64,
    /// Maximum number of processes and threads of a run, at least 1; 32 by default.
    pub processes: u32,
    /// Maximum size of a written file in bytes; 16 MiB by default.
    pub file_bytes: u64,
    /// Maximum number of open files of a process, at least 4; 64 by default.
    pub open_files: u32,
    /// Size of the private /tmp in bytes, rounded up to whole pages, at least one page; 64 MiB by default. Only used with
    /// [`Full`](Isolation::Full) isolation.
    pub tmpfs_bytes: u64,
    /// Maximum size of a run's output that is kept, in bytes; 1 MiB by default.
    pub output_bytes: u64,
    /// Languages in addition to `python`, by name; none by default.
    pub languages: BTreeMap<String, Language>,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self {
            isolation: Isolation::Full,
            slots: std::thread::available_parallelism()
                .map_or(1, |cores| cores.get().min(MAX_SLOTS)),
            python: "python3".into(),
            preload: Vec::new(),
            binds: Vec::new(),
            memory_bytes: 512 << 20,
            processes: 32,
            file_bytes: 16 << 20,
            open_files: 64,
            tmpfs_bytes: 64 << 20,
            output_bytes: 1 << 20,
            languages: BTreeMap::new(),
        }
    }
}

impl SandboxConfig {
    /// Checks the ranges of the settings and the configurations of the languages.
    pub(super) fn check(&self) -> Result<(), SandboxError> {
        let bounds = [
            ("slots", 1..=MAX_SLOTS as u64, self.slots as u64),
            ("memory_bytes", MIN_MEMORY..=u64::MAX, self.memory_bytes),
            ("processes", 1..=u64::MAX, u64::from(self.processes)),
            ("open_files", MIN_FILES..=u64::MAX, u64::from(self.open_files)),
        ];
        let wrong = bounds.into_iter().find(|(_, range, found)| !range.contains(found));
        if let Some((field, range, found)) = wrong {
            let (min, max) = range.into_inner();
            return Err(SandboxError::Bound { field, min, max, found });
        }
        self.languages.iter().try_for_each(|(name, language)| language.check(name))
    }
}

/// The isolation of code from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Namespaces, a read-only file system, seccomp and limits. The sandbox does not start if one of them is unavailable.
    Full,
    /// Only seccomp and limits: code can read and write everything that this process can. For trusted code on machines without namespaces.
    None,
}

/// A language whose solutions are run by a separate program.
///
/// All runs of a job share a private folder, which is their home and working directory. The environment of a run consists of `HOME`, `LANG`
/// and `PATH`. Programs outside of `/bin`, `/sbin`, `/usr` and the library folders such as `/lib` must be listed in
/// [`SandboxConfig::binds`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Language {
    /// Names that fenced blocks use in addition to the name of the language, such as `c++`; none by default. Case is ignored.
    #[serde(default)]
    pub fences: Vec<String>,
    /// The name of the file to which a solution is written, without folders and without a leading period.
    pub file: String,
    /// The command that compiles a solution, once for all test cases; none by default. If it does not exit with code 0, the outcome of
    /// every case is a compile error. If it exceeds the time limit of the first case, the outcome of every case is a timeout.
    #[serde(default)]
    pub compile: Option<Vec<String>>,
    /// The command that runs the program, for each test case.
    pub run: Vec<String>,
}

impl Language {
    pub(super) fn check(&self, name: &str) -> Result<(), SandboxError> {
        let wrong = |field, expected, found: &str| {
            let (name, found) = (name.into(), found.into());
            Err(SandboxError::Language { name, field, expected, found })
        };
        if name == "python" {
            return wrong(
                "languages",
                "a name other than that of the interpreter's language",
                name,
            );
        }
        if self.file.is_empty() || self.file.contains('/') || self.file.starts_with('.') {
            return wrong("file", "a name without folders", &self.file);
        }
        if self.run.is_empty() {
            return wrong("run", "a command", "nothing");
        }
        if self.compile.as_ref().is_some_and(Vec::is_empty) {
            return wrong("compile", "a command", "nothing");
        }
        Ok(())
    }
}
