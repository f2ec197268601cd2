//! What a sandbox is made of and what it allows.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::SandboxError;

/// Below this an interpreter runs next to nothing, bytes.
const LEAST_MEMORY: u64 = 1 << 20;

/// The three standard streams, and one more.
const LEAST_FILES: u64 = 4;

/// A sandbox, as a recipe writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxConfig {
    /// How far code is kept from this machine.
    pub isolation: Isolation,
    /// Jobs at a time, at least 1; as many as there are cores unless said otherwise.
    pub slots: usize,
    /// The interpreter, by name or path.
    pub python: PathBuf,
    /// Modules that are loaded once and then there for each job at no cost.
    pub preload: Vec<String>,
    /// Files and folders that code may read besides the interpreter and the system's libraries.
    pub binds: Vec<PathBuf>,
    /// Memory of a process, in bytes, besides what the interpreter itself takes.
    pub memory_bytes: u64,
    /// Processes and threads of a run.
    pub processes: u32,
    /// Size of a file that is written, in bytes.
    pub file_bytes: u64,
    /// Open files of a process.
    pub open_files: u32,
    /// Size of the private /tmp, in bytes.
    pub tmpfs_bytes: u64,
    /// How much of what a run prints is kept, in bytes.
    pub output_bytes: u64,
    /// Languages besides `python`, by name.
    pub languages: BTreeMap<String, Language>,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self {
            isolation: Isolation::Full,
            slots: std::thread::available_parallelism().map_or(1, usize::from),
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
    /// Refuses what could never run.
    pub(super) fn check(&self) -> Result<(), SandboxError> {
        let bounds = [
            ("slots", 1, self.slots as u64),
            ("memory_bytes", LEAST_MEMORY, self.memory_bytes),
            ("processes", 1, u64::from(self.processes)),
            ("open_files", LEAST_FILES, u64::from(self.open_files)),
        ];
        if let Some((field, least, found)) =
            bounds.into_iter().find(|(_, least, found)| found < least)
        {
            return Err(SandboxError::Bound { field, least, found });
        }
        self.languages.iter().try_for_each(|(name, language)| language.check(name))
    }
}

/// How far code is kept from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Namespaces, a read-only view, seccomp and limits; a sandbox that lacks one of them does not start.
    Full,
    /// Seccomp and limits alone: code reads what this process may read. For machines that allow no namespaces, and code that is trusted.
    None,
}

/// A language whose solutions are run by a program of their own.
///
/// Each run has a private folder, which is its home, and the environment of a sandbox: nothing of the user's. Programs that are not among
/// the system's have to be in [`SandboxConfig::binds`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Language {
    /// How fenced blocks name it besides its name in the table, such as `c++`; upper or lower case.
    #[serde(default)]
    pub fences: Vec<String>,
    /// The file to which a solution is written: a name without folders.
    pub file: String,
    /// The command that compiles it, once for all test cases; a solution at which it fails is a compile error.
    #[serde(default)]
    pub compile: Option<Vec<String>>,
    /// The command that runs it, for each test case.
    pub run: Vec<String>,
}

impl Language {
    /// Refuses what could never run.
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
