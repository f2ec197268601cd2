//! Reinforcement learning of language models on verifiable rewards, as a streaming dataflow graph.
//!
//! One RL step is one timestamp of a graph of operators on [timely](https://docs.rs/timely) streams of Arrow batches. The same operators
//! and schedules run live and in virtual time. The book (`docs/` of the repository) describes the command line, recipes and metrics. These
//! pages are for programs that extend the command line or use parts of it:
//!
//! | purpose | entry point |
//! |---|---|
//! | the command line, with rewards, schedules, engines and algorithms of one's own | [`App`] |
//! | a training run by a recipe, with stages of one's own | `session::Session`, with the feature `torch` |
//! | a training run of stages that are passed by value | [`pipeline::Pipeline`] |
//! | the graph of a step, assembled from operators | [`operators`] |
//! | scoring the rows of a file | [`score`] |
//! | simulating runs on a described cluster | [`simulate`] |
//!
//! [`prelude`] has the names that such programs usually need. The traits to implement are [`Reward`](prelude::Reward),
//! [`Schedule`](prelude::Schedule), [`RolloutEngine`](prelude::RolloutEngine), [`Trainer`](prelude::Trainer),
//! [`Advantage`](prelude::Advantage) and [`PlacementPolicy`](prelude::PlacementPolicy). [`stages::testkit`] and
//! [`operators::schedule::testkit`] check an implementation against its contract.
//!
//! # Features
//! - `tools` (default): everything that needs no libtorch, such as the command line, the simulator and the page over run folders.
//! - `torch` (default): the model, the rollout engine and the trainer on libtorch, and the session that runs a recipe with them.
//! - `servers` (default): vLLM and SGLang servers as rollout engines, and the commands `serve` and `probe`. Enables `torch`.
//! - `cuda`: runs models that exceed the memory of a CUDA device by streaming their weights to the device. Enables `torch`.

/// Compiles and runs the Rust blocks of the README and of the book as tests. They are not pages of this crate, because their links are
/// relative to the repository. `docs/rewards.md` is the documentation of [`rewards`], and is tested there.
#[cfg(all(doctest, feature = "cli", feature = "torch"))]
mod book {
    /// Defines a private item for each page, with the page as its documentation.
    macro_rules! pages {
        ($($name:ident: $path:literal)*) => { $(#[doc = include_str!($path)] struct $name;)* };
    }

    pages! {
        Readme: "../README.md"
        Design: "../docs/design.md"
        Engines: "../docs/engines.md"
        Placement: "../docs/placement.md"
        Schedules: "../docs/schedules.md"
        Trainers: "../docs/trainers.md"
        RewardInRust: "../docs/tutorials/reward-rust.md"
        ScheduleOfYourOwn: "../docs/tutorials/schedule.md"
    }
}

#[cfg(feature = "torch")]
pub mod algorithms;
#[cfg(feature = "cli")]
mod app;
#[cfg(all(feature = "cli", feature = "torch"))]
mod banner;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
mod code_list;
#[cfg(feature = "torch")]
pub mod engine_observer;
#[cfg(feature = "torch")]
pub mod engines;
#[cfg(all(feature = "cli", feature = "torch"))]
mod event_log;
#[cfg(all(feature = "torch", not(feature = "cli")))]
#[path = "no_event_log.rs"]
mod event_log;
#[cfg(feature = "torch")]
mod exit_timer;
#[cfg(feature = "cli")]
mod export;
#[cfg(any(feature = "torch", feature = "cli"))]
mod findings;
#[cfg(test)]
#[path = "../stages/src/generated_page.rs"]
mod generated_page;
pub mod lifetime;
#[cfg(any(feature = "torch", feature = "cli"))]
pub mod memory;
#[cfg(feature = "cli")]
mod new_crate;
mod number_format;
pub mod placements;
pub mod profile;
pub mod profile_monitor;
pub mod progress;
#[cfg(feature = "torch")]
mod prompt_checks;
#[cfg(feature = "tokenizer")]
pub mod prompts;
pub mod recipe;
#[cfg(feature = "cli")]
mod reference;
#[cfg(feature = "torch")]
pub mod reporter;
pub mod rewards;
#[cfg(any(feature = "torch", feature = "cli"))]
mod run_files;
#[cfg(feature = "torch")]
pub mod run_folder;
#[cfg(feature = "cli")]
mod run_reader;
#[cfg(feature = "torch")]
mod run_result;
#[cfg(feature = "torch")]
mod run_writer;
pub mod score;
#[cfg(feature = "torch")]
pub mod session;
#[cfg(feature = "cli")]
mod show;
pub mod simulate;
#[cfg(feature = "torch")]
pub mod snapshots;
pub mod telemetry;
#[doc(hidden)]
pub mod terminal;
pub mod timeline;
#[cfg(feature = "torch")]
pub mod trainers;
#[cfg(feature = "torch")]
mod validation;
#[cfg(feature = "torch")]
mod validation_records;
#[cfg(feature = "view")]
mod view;
#[cfg(feature = "cli")]
mod wrap;

#[cfg(feature = "cli")]
pub use app::App;
pub use rollpacker_dataflow as dataflow;
pub use rollpacker_dataflow::fault::stop_on_panic;
pub use rollpacker_datasets as datasets;
pub use rollpacker_operators as operators;
pub use rollpacker_pipeline as pipeline;

/// The stages of an RL step: the contracts that users implement, and the implementations that this project has.
pub mod stages {
    pub use rollpacker_model as model;
    pub use rollpacker_rewards as rewards;
    #[cfg(feature = "code")]
    pub use rollpacker_sandbox as sandbox;
    #[cfg(feature = "servers")]
    pub use rollpacker_servers as servers;
    pub use rollpacker_simulated as simulated;
    pub use rollpacker_stages::*;
    #[cfg(feature = "torch")]
    pub use rollpacker_torch as torch;
}

/// The names that a program built on the pipeline usually needs.
pub mod prelude {
    pub use rollpacker_dataflow::BoxError;
    pub use rollpacker_dataflow::batch::Batch;
    pub use rollpacker_dataflow::bridge::Executor;
    pub use rollpacker_dataflow::clock::{Clock, Nanos, WallClock};
    pub use rollpacker_dataflow::fault::raise;
    pub use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step};
    pub use rollpacker_dataflow::{feedback, runtime, schema};
    pub use rollpacker_operators::advantage::{
        Advantage, Estimate, Estimator, Grpo, KlController, Rloo, ScoredResponse, TokenAdvantage,
        Trajectory,
    };
    pub use rollpacker_operators::overlap::{GroupDelivery, Scoring};
    pub use rollpacker_operators::placement::{Colocated, PlacementPolicy, Separate};
    pub use rollpacker_operators::report::{Observer, ReportInputs, StepReport, measure, observe};
    pub use rollpacker_operators::resume::Resumable;
    pub use rollpacker_operators::reward::TimeLimit;
    pub use rollpacker_operators::schedule::operator::{Prompts, Stop};
    pub use rollpacker_operators::schedule::{
        Schedule, Synchronous, TailBatching, sync, tail_batching,
    };
    pub use rollpacker_operators::trainer::TrainerThread;
    pub use rollpacker_operators::{
        AdvantageExt, GradientExt, GroupExt, InferenceExt, RewardExt, RolloutExt, ScheduleExt,
        UpdateExt,
    };
    pub use rollpacker_rewards::Registry;
    pub use rollpacker_stages::reward::{
        Context, Limits, Reward, RewardError, Router, Sample, Score,
    };
    pub use rollpacker_stages::rollout::{
        Completion, FinishReason, Placement, Policy, Request, RolloutEngine, RolloutEvent,
        TokenVersions, Waker,
    };
    pub use rollpacker_stages::train::{Inferred, Metrics, Sequence, TrainError, Trainer};

    pub use crate::pipeline::{Pipeline, PipelineBuilder, PromptSource, RunStart, RunTime};
}
