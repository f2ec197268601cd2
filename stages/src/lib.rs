//! The stages of an RL step behind small traits: rollout engines, rewards, trainers and the model.

pub mod catalog;
pub mod draw;
pub mod fields;
pub mod reward;
pub mod rollout;
pub mod secret;
pub mod train;
