//! A sandbox that runs the code of a model against the tests of a dataset. Neither is trusted.
//!
//! A [`Sandbox`] is a pool of slots. Each slot is a container around one warm Python interpreter, the *zygote*, which forks all processes
//! of a job instead of starting new interpreters: a *checker*, which reads the job and runs the tests, and *runs* of the solution, which
//! the checker controls. There is one run at a time. The checker starts the next one after a run has crashed, exceeded its time limit or
//! broken the protocol, and wherever tests must not share state: for each text of tests and for each execution of a program.
//!
//! Each checker and each Python run is the first process of its own namespaces; the code calls such a process a *side*. They share no
//! memory and exchange only plain values, so a solution can neither read the tests nor change the code that checks it. The runs of a
//! language other than Python share the namespaces of a *host* process, because one run compiles what the next runs execute.
//!
//! Some tests need what a copy of a value cannot provide: the identity of an object, a patched module, a captured stream. The checker runs
//! such tests once more within a run of the solution, and trusts the report only if the same tests with a changed expectation fail. See
//! `python/recheck.py`.
//!
//! Most jobs need two forks, one for the checker and one for the run, which make up most of their cost. A forked process spends nearly half
//! of its processor time on copying the pages that it touches, and a fifth on releasing them. The memory of the zygote is therefore kept
//! small. The additional cost of isolation is not measurable.
//!
//! The layers of protection:
//!
//! | layer | implementation | restricts |
//! |---|---|---|
//! | container | `hakoniwa` | mount, pid, net, ipc and uts namespaces; a read-only view of the interpreter and the system's libraries |
//! | checker, run, host | `clone` in the zygote | user, pid and mount namespaces of the process; a private tmpfs as /tmp; no /proc |
//! | checker, run | `setrlimit`, `seccompiler` | memory, processes, files, processor time; the system calls |
//! | slot | control groups, where permitted | total memory, processes and processor time |
//!
//! Architecture invariant: neither the zygote nor a host ever reads a byte of a job, because that byte would remain in the memory of all
//! processes forked later.

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
