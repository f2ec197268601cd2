//! Tests of runs with faults: each ends in bounded time, reports the cause, and leaves no partial file that a later run would read.
#![cfg(feature = "torch")]
#![allow(clippy::print_stdout, reason = "a skipped test prints a message")]

mod damage;
mod disk;
mod ends;
mod fencing;
mod panics;
mod stalls;
#[path = "../workspace/mod.rs"]
mod workspace;
