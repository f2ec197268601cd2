//! The sandbox: runs code that a model wrote against the tests of a dataset, and trusts neither.
//!
//! A [`Sandbox`] is a pool of slots. Each slot is a container around one warm Python interpreter, the zygote, that forks what a job needs
//! and starts nothing anew. For each job it forks a *checker*, which reads the job and runs the tests, and beside it a *run* of the
//! solution, which the checker tells what to do; a run that dies, hangs or is not the last one gets a successor. Each is the first process
//! of namespaces of its own. They share no memory, and only plain values cross between them, so a solution can neither read the tests nor
//! change what checks it. The runs of a language that is not Python share the namespaces of a *host*, for what one compiles the next runs.
//!
//! Some tests ask for what no copy of a value can show: the identity of an object, a patched module, a captured stream. The checker lets
//! those run once more in a run of the solution, and believes what that reports only if the same tests with a changed expectation fail.
//! `python/recheck.py` says how.
//!
//! A job is two forks, because a fork is what it costs: of the processor time of a child nearly half goes into copying the pages that it
//! touches, and a fifth into giving them back. What a fork has to copy is kept small; isolation costs nothing that can be measured beside it.
//!
//! What is kept out by what:
//!
//! | layer | from | holds |
//! |---|---|---|
//! | container | `hakoniwa` | mount, pid, net, ipc and uts namespaces; a read-only view of the interpreter and the system's libraries |
//! | side | `clone` in the zygote | user, pid and mount namespaces of the checker's or the run's own; a private tmpfs as /tmp; no /proc |
//! | run | `setrlimit`, `seccompiler` | memory, processes, files, processor time; the system calls |
//! | slot | control groups, where permitted | memory, processes and processor time of all together |
//!
//! Architecture invariant: neither the zygote nor a host ever holds a byte of a job. It would be in the memory of whatever is forked next.

mod cgroup;
mod check;
mod config;
mod container;
mod dispatch;
mod error;
mod filter;
mod folder;
mod frame;
mod interpreter;
mod job;
mod pool;
mod probe;
mod process;
mod setup;
mod slot;
mod verdict;
mod zygote;

pub use check::{Call, Check, Json, Stdio};
pub use config::{Isolation, Language, SandboxConfig};
pub use error::SandboxError;
pub use job::Job;
pub use pool::Sandbox;
pub use probe::Probe;
pub use verdict::{Case, Outcome, Verdict};
