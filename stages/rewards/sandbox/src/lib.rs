//! The sandbox: runs code of a model against the tests of a dataset. Neither is trusted.
//!
//! A [`Sandbox`] is a pool of slots. Each slot is a container around one warm Python interpreter, the *zygote*, which forks all processes
//! of a job instead of starting new interpreters. For each job it forks a *checker*, which reads the job and runs the tests, and a *run* of
//! the solution, which the checker controls. A run that crashes, hangs or is not the last one is replaced by a new one. Each of these
//! processes is the first process of its own namespaces. They share no memory and exchange only plain values, so a solution can neither
//! read the tests nor change the code that checks it. The runs of a language other than Python share the namespaces of a *host*, because
//! one run compiles what the next runs execute.
//!
//! Some tests need what a copy of a value cannot provide: the identity of an object, a patched module, a captured stream. The checker runs
//! those once more within a run of the solution, and trusts the report only if the same tests with a changed expectation fail. See
//! `python/recheck.py`.
//!
//! A job consists of two forks, which make up most of its cost: of the processor time of a child, nearly half is spent on copying the pages
//! that it touches, and a fifth on releasing them. The memory of the zygote is therefore kept small. The additional cost of isolation is
//! not measurable.
//!
//! The layers of protection:
//!
//! | layer | implementation | restricts |
//! |---|---|---|
//! | container | `hakoniwa` | mount, pid, net, ipc and uts namespaces; a read-only view of the interpreter and the system's libraries |
//! | side | `clone` in the zygote | user, pid and mount namespaces of the checker or run; a private tmpfs as /tmp; no /proc |
//! | run | `setrlimit`, `seccompiler` | memory, processes, files, processor time; the system calls |
//! | slot | control groups, where permitted | total memory, processes and processor time |
//!
//! Architecture invariant: neither the zygote nor a host ever reads a byte of a job. It would remain in the memory of all processes forked
//! later.

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
