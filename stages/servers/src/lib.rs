//! Inference servers as rollout engines: vLLM and SGLang over HTTP.
//!
//! [`ServersEngine`](engine::ServersEngine) is a [`RolloutEngine`](rollpacker_stages::rollout::RolloutEngine) over several servers. It
//! sends prompts and receives tokens, [delivers weights](weights), proves by a [canary] that they arrived, and moves responses away from
//! servers that fail. [`vllm::protocol`] has the wire types, which a server can share; without the feature `client` the crate has only them.
//!
//! Architecture invariant: no libtorch and no scheduling decisions in this crate. The forward pass of the canary and the tensors of the
//! weights come from the program, as [`PublishedWeights`](weights::PublishedWeights).

#[cfg(feature = "client")]
pub mod canary;
#[cfg(feature = "client")]
pub mod engine;
#[cfg(feature = "client")]
pub mod http;
#[cfg(feature = "client")]
pub mod sampling;
#[cfg(feature = "client")]
pub mod server;
#[cfg(feature = "client")]
pub mod sglang;
pub mod vllm;
#[cfg(feature = "client")]
pub mod weights;
