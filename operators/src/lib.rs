//! The RL step as dataflow operators.
//!
//! Each operator is an extension trait on the output of the operator before it, with a thin driver. An operator that makes decisions keeps
//! them in a pure policy next to the driver. Together the operators read as the diagram of a step:
//!
//! ```text
//! prompts.schedule(policy).rollout(engine, &policies).reward(router).group().advantage(Grpo::default()).gradient(trainer).update()
//! ```
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
pub use reduce::ReduceExt;
pub use reward::RewardExt;
pub use rollout::RolloutExt;
pub use schedule::operator::ScheduleExt;
pub use update::UpdateExt;
