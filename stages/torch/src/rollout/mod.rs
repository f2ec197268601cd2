//! The rollout engine on libtorch.

mod backlog;
mod blocks;
mod counters;
mod dispatch;
mod engine;
pub(crate) mod generator;
mod grouping;
pub mod guests;
mod instance;
pub mod invariance;
mod iterations;
mod kv_cache;
pub mod live;
mod options;
pub(crate) mod owner;
pub(crate) mod passes;
pub mod profile;
mod race;
mod refusal;
mod replay;
mod sampler;
mod scheduler;
pub(crate) mod sequence;

use rollpacker_stages::rollout::{
    Completion, FinishReason, Partial, Placement, Policy, Request, RolloutEngine, RolloutError,
    RolloutEvent, TokenVersions, Waker, Work, lengths, lockstep, sampling, statistics,
};

pub use engine::TorchEngine;
pub use live::Live;
pub use options::{Detokenize, TorchEngineConfig, TorchEngineError};
