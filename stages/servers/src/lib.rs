//! Inference servers as rollout engines.

#[cfg(feature = "serve")]
pub mod serve;
pub mod vllm;
