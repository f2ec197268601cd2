//! Inference servers as rollout engines.

pub mod vllm;
