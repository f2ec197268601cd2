//! The setup of a zygote.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hakoniwa::Container;
use serde::Serialize;

use super::config::{Isolation, SandboxConfig};
use super::error::SandboxError;
use super::interpreter::Interpreter;
use super::{cgroup, container, filter};

/// The modules of the zygote's program, in an order in which each follows those that it imports.
const MODULES: &[(&str, &str)] = &[
    ("clock", include_str!("python/clock.py")),
    ("isolation", include_str!("python/isolation.py")),
    ("proxy", include_str!("python/proxy.py")),
    ("codec", include_str!("python/codec.py")),
    ("wire", include_str!("python/wire.py")),
    ("fixtures", include_str!("python/fixtures.py")),
    ("pytest_shim", include_str!("python/pytest_shim.py")),
    ("scopes", include_str!("python/scopes.py")),
    ("unittest_cases", include_str!("python/unittest_cases.py")),
    ("suite", include_str!("python/suite.py")),
    ("binding", include_str!("python/binding.py")),
    ("decoys", include_str!("python/decoys.py")),
    ("in_process", include_str!("python/in_process.py")),
    ("streams", include_str!("python/streams.py")),
    ("solution", include_str!("python/solution.py")),
    ("session", include_str!("python/session.py")),
    ("case_runner", include_str!("python/case_runner.py")),
    ("equality", include_str!("python/equality.py")),
    ("reasons", include_str!("python/reasons.py")),
    ("probes", include_str!("python/probes.py")),
    ("recheck", include_str!("python/recheck.py")),
    ("module_tests", include_str!("python/module_tests.py")),
    ("checker", include_str!("python/checker.py")),
    ("zygote", include_str!("python/zygote.py")),
];

/// The arguments of the interpreter: its flags, and the program that loads the zygote. `-I` and `-S` keep it from loading anything of the
/// user, the environment or site-packages, because each fork would have to copy what is loaded.
pub(super) const ARGUMENTS: [&str; 7] =
    ["-I", "-S", "-B", "-X", "utf8", "-c", include_str!("python/loader.py")];

/// The environment of a zygote, which its checkers and Python runs inherit. The thread settings keep libraries from starting threads on
/// import, which would prevent preloading them. `LD_BIND_NOW` resolves symbols at the start, which each fork would otherwise repeat.
pub(super) const ENVIRONMENT: &[(&str, &str)] = &[
    ("HOME", "/tmp"),
    ("LANG", "C.UTF-8"),
    ("LD_BIND_NOW", "1"),
    ("MKL_NUM_THREADS", "1"),
    ("OMP_NUM_THREADS", "1"),
    ("OPENBLAS_NUM_THREADS", "1"),
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
];

/// The id of the user and group nobody, to which the zygote changes in a container if this process runs as root.
const NOBODY: u32 = 65534;

/// The setup that all slots share.
pub(super) struct Setup {
    pub(super) config: SandboxConfig,
    interpreter: Interpreter,
    /// The seccomp programs in hexadecimal digits: `run` for checkers and Python runs, and `execute` for runs that may execute programs.
    filters: BTreeMap<&'static str, Vec<String>>,
    /// `true` if this process runs as root.
    privileged: bool,
}

/// The first frame that the zygote reads.
#[derive(Serialize)]
pub(super) struct Boot<'a> {
    /// The modules by name, each after those that it imports.
    modules: &'static [(&'static str, &'static str)],
    /// The seccomp programs, as in [`Setup`].
    filters: &'a BTreeMap<&'static str, Vec<String>>,
    limits: ProcessLimits,
    packages: &'a [PathBuf],
    preload: &'a [String],
    isolated: bool,
    /// The id of the user and the group to which the zygote changes; `None` if it keeps its own.
    nobody: Option<u32>,
}

#[derive(Serialize)]
struct ProcessLimits {
    memory_bytes: u64,
    processes: u32,
    file_bytes: u64,
    open_files: u32,
    tmpfs_bytes: u64,
}

impl Setup {
    /// Checks the configuration, finds the interpreter, compiles the filters, and removes the control groups that sandboxes of dead
    /// processes left.
    pub(super) fn new(config: SandboxConfig) -> Result<Self, SandboxError> {
        config.check()?;
        cgroup::sweep();
        let interpreter = Interpreter::find(&config.python)?;
        let hex = |program: Vec<u8>| program.iter().map(|byte| format!("{byte:02x}")).collect();
        let programs = |execute| {
            Ok::<_, SandboxError>(filter::programs(execute)?.into_iter().map(hex).collect())
        };
        let filters = BTreeMap::from([("run", programs(false)?), ("execute", programs(true)?)]);
        let privileged = rustix::process::geteuid().is_root();
        Ok(Self { config, interpreter, filters, privileged })
    }

    /// Returns `true` if slots run in containers.
    pub(super) fn isolated(&self) -> bool {
        self.config.isolation == Isolation::Full
    }

    pub(super) fn boot(&self) -> Boot<'_> {
        let SandboxConfig { memory_bytes, processes, file_bytes, open_files, tmpfs_bytes, .. } =
            self.config;
        Boot {
            modules: MODULES,
            filters: &self.filters,
            limits: ProcessLimits { memory_bytes, processes, file_bytes, open_files, tmpfs_bytes },
            packages: &self.interpreter.packages,
            preload: &self.config.preload,
            isolated: self.isolated(),
            nobody: (self.privileged && self.isolated()).then_some(NOBODY),
        }
    }

    pub(super) fn executable(&self) -> &Path {
        &self.interpreter.executable
    }

    pub(super) fn container(&self, root: &Path) -> Container {
        container::container(&self.config, &self.interpreter, root, self.privileged)
    }
}
