//! vLLM's HTTP protocol and a client of it.

#[cfg(feature = "client")]
mod client;
pub mod protocol;
#[cfg(feature = "client")]
mod unstreamed;

#[cfg(feature = "client")]
pub(crate) use self::client::{VllmClient, generate_request};
#[cfg(feature = "client")]
pub(crate) use self::unstreamed::CompleteResponse;
