//! Simulation: a job that runs the pipeline in virtual time, swept over its settings, and what came of it.
//!
//! A [`Job`] is read from TOML like a recipe, an [`Outcome`] is one run of it with one seed, a [`Summary`] what the runs of one
//! configuration say together, beside the `sync` baseline of the same job. The schedules, operators and policies are those of a live run;
//! stages and clock are simulated.

pub mod advice;
pub mod axis;
mod baseline;
mod bias;
mod bounds;
pub mod configured;
mod cost;
pub mod ends;
pub mod gantt;
mod habits;
mod idle;
pub mod interval;
pub mod job;
mod layout;
pub mod outcome;
pub mod paper;
pub mod parquet;
mod placement;
mod population;
pub mod profile;
pub mod raw;
pub mod report;
mod resolve;
pub mod run;
mod scales;
pub mod setup;
pub mod stat;
pub mod study;
pub mod summary;
pub mod sweep;
pub mod table;
mod tasks;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod variant;

pub use job::Job;
pub use outcome::{Outcome, Recorder, StepOutcome};
pub use summary::Summary;
