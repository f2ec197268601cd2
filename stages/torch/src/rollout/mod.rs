//! The rollout engine on libtorch.

mod backlog;
mod blocks;
pub mod colocated;
mod counters;
mod dispatch;
mod engine;
pub(crate) mod generator;
mod grouping;
mod instance;
pub(crate) mod instance_handle;
pub mod invariance;
mod iterations;
mod kv_cache;
pub mod live;
mod options;
pub(crate) mod passes;
pub mod profile;
mod race;
mod replay;
mod sampler;
mod scheduler;
pub(crate) mod sequence;
mod validation;

use rollpacker_stages::rollout::{
    Completion, FinishReason, Partial, Placement, Policy, Request, RolloutEngine, RolloutError,
    RolloutEvent, TokenVersions, Waker, Work, lengths, lockstep, sampling, statistics,
};

use crate::model::vectorized::Instructions;

pub use engine::TorchEngine;
pub use live::LiveIterations;
pub use options::{Detokenize, TorchEngineConfig, TorchEngineError};

/// Returns `true` if engines on a CPU of this machine pack the weights of a policy. The packed weights take memory in addition to the
/// published weights: a copy of the layers' matrices and of the output head. If they are rounded to bfloat16, the matrices of the layers
/// take half as much. Packing needs a processor with AVX2 and FMA, and a crate compiled with an `opt-level` of at least 2.
#[must_use]
pub fn packs_weights() -> bool {
    Instructions::detect().is_some()
}
