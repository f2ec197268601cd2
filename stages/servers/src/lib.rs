//! Inference servers as rollout engines: vLLM and SGLang over HTTP.
//!
//! [`ServersEngine`](engine::ServersEngine) is a [`RolloutEngine`](rollpacker_stages::rollout::RolloutEngine) over one or several servers.
//! It sends prompts and receives tokens, [delivers weights](weights), verifies with a [canary] that they arrived, and moves responses away
//! from servers that fail. A [`Fleet`](launch::Fleet) starts servers on this machine and watches them. [`probe`] checks what a server can
//! do. [`vllm::protocol`] has the wire types, which clients and servers share.
//!
//! The feature `client` (default) enables the clients and the rollout engine. The feature `serve` enables [`serve`], a server of vLLM's
//! protocol over any engine. Without both, the crate has only the wire types.
//!
//! Architecture invariant: no libtorch and no scheduling decisions in this crate. The forward pass of the canary and the tensors of the
//! weights come from the program, as [`PublishedWeights`](weights::PublishedWeights).

#[cfg(feature = "client")]
mod breaker;
#[cfg(feature = "client")]
pub mod canary;
#[cfg(feature = "client")]
pub mod engine;
#[cfg(feature = "client")]
pub mod http;
#[cfg(feature = "client")]
pub mod launch;
#[cfg(feature = "client")]
pub mod probe;
#[cfg(feature = "client")]
pub mod sampling;
#[cfg(feature = "serve")]
pub mod serve;
#[cfg(feature = "client")]
pub mod server;
#[cfg(feature = "client")]
pub mod sglang;
pub mod vllm;
#[cfg(feature = "client")]
pub mod weights;
