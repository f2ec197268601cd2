//! Which interpreter a name stands for, and what of the file system it needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::error::SandboxError;

/// Asked of the interpreter itself: a name on the path may be a shim that a container could not start.
const QUESTION: &str = "import json, sys\n\
    print(json.dumps({'version': sys.version_info[:2], 'executable': sys.executable,\n\
    'prefixes': [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix],\n\
    'packages': [path for path in sys.path if path.endswith(('site-packages', 'dist-packages'))]}))";

/// The oldest interpreter on which the zygote runs.
const OLDEST: (u32, u32) = (3, 8);

/// An interpreter as it describes itself.
#[derive(Debug, Deserialize)]
pub(super) struct Interpreter {
    version: (u32, u32),
    /// The program itself.
    pub(super) executable: PathBuf,
    prefixes: Vec<PathBuf>,
    packages: Vec<PathBuf>,
}

impl Interpreter {
    /// Asks the interpreter `python`.
    pub(super) fn find(python: &Path) -> Result<Self, SandboxError> {
        let failed = |reason: String| SandboxError::Start {
            reason: format!("{}: {reason}", python.display()),
        };
        let output = Command::new(python)
            .args(["-I", "-c", QUESTION])
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().into()));
        }
        let found: Self =
            serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))?;
        if found.version < OLDEST {
            return Err(failed(format!(
                "expected python {}.{} or newer, found {}.{}",
                OLDEST.0, OLDEST.1, found.version.0, found.version.1
            )));
        }
        Ok(found)
    }

    /// What must be in view for it to run.
    pub(super) fn folders(&self) -> impl Iterator<Item = &Path> {
        self.prefixes.iter().chain(&self.packages).map(PathBuf::as_path)
    }

    /// Where packages are that are not the interpreter's own.
    pub(super) fn packages(&self) -> &[PathBuf] {
        &self.packages
    }
}
