//! The RL step as dataflow operators.
//!
//! Each operator is an extension trait on the output of the operator before it, with a thin driver. An operator that makes decisions keeps
//! them in a pure policy next to the driver. Together the operators read as the diagram of a step:
//!
//! ```text
//! prompts.schedule(policy).rollout(engine, &policies).reward(router).group().advantage(Grpo::default()).gradient(trainer).update()
//! ```
//!
//! The examples of the operators share the code in `doc/step.rs`. Its engine returns responses of 1 and 2 tokens, its trainer counts
//! responses, and its steps have two prompts with two responses each. Its function `run` runs a graph and returns the batches of one
//! stream. `numbers` and `lists` return a column of these batches, and `metric` returns the values of a metric.
//!
//! Architecture invariant: no libtorch, no HTTP and no wall clock in this crate.

pub mod advantage;
pub mod curriculum;
pub mod gradient;
pub mod group;
mod group_queue;
mod group_reward;
mod in_flight;
pub mod inference;
mod kl_controller;
pub mod ledger;
mod length_buckets;
pub mod merge;
mod needed_outputs;
mod option_error;
pub mod overlap;
pub mod placement;
pub mod policy;
pub mod prompt_texts;
pub mod prompts;
pub mod reduce;
pub mod report;
pub mod resume;
pub mod reward;
pub mod rollout;
pub mod schedule;
mod schedule_feed;
pub mod streams;
pub mod survival;
mod time_limit;
pub mod trainer;
pub mod update;
pub mod validate;
mod wire;

pub use advantage::AdvantageExt;
pub use gradient::GradientExt;
pub use group::GroupExt;
pub use inference::InferenceExt;
pub use option_error::OptionError;
pub use reduce::ReduceExt;
pub use reward::RewardExt;
pub use rollout::RolloutExt;
pub use schedule::operator::ScheduleExt;
pub use update::UpdateExt;
