//! Tests of `rollpacker train` with the engines `vllm` and `sglang`. The servers are `rollpacker serve` processes, behind a proxy that
//! injects faults.
//!
//! The engine alone is tested in `stages/servers`, against a small server of the test.
#![cfg(all(feature = "servers", feature = "torch"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod kill;
mod outcome;
mod proxy;
mod recipes;
mod schedules;
mod server_pair;
#[path = "../workspace/mod.rs"]
mod workspace;
mod wrong_weights;
