//! Simulation of jobs: the pipeline runs in virtual time, and sweeps compare configurations.
//!
//! A [`Job`] is read from TOML like a recipe. A [`RunOutcome`] is one run of it with one seed. A [`Summary`] aggregates the runs of one
//! configuration and compares them with the `sync` baseline of the same job. The schedules, operators and policies are the same as in a
//! live run; only stages and clock are simulated.

pub mod advice;
pub mod axis;
mod baseline;
mod bias;
mod bounds;
mod calibration_bounds;
pub mod configuration;
pub mod correlation_ends;
mod cost;
pub mod gantt;
pub mod interval;
pub mod job;
mod layout;
pub mod outcome;
mod overrides;
pub mod paper;
pub mod parquet;
pub mod perfetto;
pub mod placement;
mod population;
pub mod profile;
pub mod raw;
#[cfg(feature = "report")]
pub mod report;
mod resolve;
pub mod run;
mod schedule_defaults;
mod sections;
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
mod unused_settings;
pub mod variant;

pub use job::Job;
pub use outcome::{Recorder, RunOutcome, StepOutcome};
pub use summary::Summary;
