//! What becomes of runs that something happens to: each ends in bounded time, says why, and leaves nothing half-written that is trusted.
#![cfg(feature = "torch")]
#![allow(clippy::print_stdout, reason = "a test that skips says so")]

mod damage;
mod disk;
mod ends;
mod fencing;
mod panics;
mod stalls;
#[path = "../workplace/mod.rs"]
mod workplace;
