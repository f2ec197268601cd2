//! The Python interpreter: its program and the folders that it needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::error::SandboxError;

/// The program with which an interpreter describes itself. The path of the interpreter is not enough, because a program on the search path
/// may be a shim that cannot be started in a container.
const DESCRIBE_SELF: &str = "import json, sys\n\
    print(json.dumps({'version': sys.version_info[:2], 'executable': sys.executable,\n\
    'prefixes': [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix],\n\
    'packages': [path for path in sys.path if path.endswith(('site-packages', 'dist-packages'))]}))";

/// The oldest Python version that the zygote supports.
const MIN_VERSION: (u32, u32) = (3, 8);

/// An interpreter as it describes itself.
#[derive(Debug, Deserialize)]
pub(super) struct Interpreter {
    version: (u32, u32),
    /// The path of the program itself.
    pub(super) executable: PathBuf,
    prefixes: Vec<PathBuf>,
    /// The folders of installed packages.
    pub(super) packages: Vec<PathBuf>,
}

impl Interpreter {
    /// Runs the interpreter `python` to describe itself. Returns an error if it fails or is older than [`MIN_VERSION`].
    pub(super) fn find(python: &Path) -> Result<Self, SandboxError> {
        let failed = |reason: String| SandboxError::Start {
            reason: format!("{}: {reason}", python.display()),
        };
        let output = Command::new(python)
            .args(["-I", "-c", DESCRIBE_SELF])
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().into()));
        }
        let found: Self =
            serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))?;
        if found.version < MIN_VERSION {
            return Err(failed(format!(
                "expected python {}.{} or newer, found {}.{}",
                MIN_VERSION.0, MIN_VERSION.1, found.version.0, found.version.1
            )));
        }
        Ok(found)
    }

    /// Returns the folders that must be visible for the interpreter to run.
    pub(super) fn folders(&self) -> impl Iterator<Item = &Path> {
        self.prefixes.iter().chain(&self.packages).map(PathBuf::as_path)
    }
}
