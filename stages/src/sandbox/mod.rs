//! The sandbox: runs code that a model wrote against the tests of a dataset, and trusts neither.
//!
//! A [`Sandbox`] is a pool of slots. Each slot is a container around one warm Python interpreter, the zygote, that forks what a job needs
//! and starts nothing anew. For each job it forks two sides into namespaces of their own: the *solution side* knows the solution and runs
//! it; the *checker side* knows the tests and says the verdict. They share no memory, and only plain values cross between them, so a
//! solution can neither read the tests nor change what checks it.
//!
//! What is kept out by what:
//!
//! | layer | from | holds |
//! |---|---|---|
//! | container | `hakoniwa` | mount, pid, net, ipc and uts namespaces; a read-only view of the interpreter and the system's libraries |
//! | side | `unshare` in the zygote | user, pid, mount and ipc namespaces of the job's own; a private tmpfs as /tmp; no /proc |
//! | run | `setrlimit`, `seccompiler` | memory, processes, files, processor time; the system calls |
//! | slot | control groups, where permitted | memory and processes of all together |
//!
//! Architecture invariant: the zygote and the solution side never hold a byte of the tests, nor the zygote one of a solution. They would
//! be in the memory of whatever is forked next.

mod cgroup;
mod check;
mod config;
mod container;
mod dispatch;
mod error;
mod filter;
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
