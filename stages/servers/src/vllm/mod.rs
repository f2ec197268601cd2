//! vLLM's HTTP protocol.

pub mod protocol;
