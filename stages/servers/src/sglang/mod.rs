//! SGLang's HTTP protocol and a client of it.
//!
//! The shapes are those of SGLang 0.5. This client was tested against recorded shapes and not against a live server.

mod client;
pub mod protocol;

pub(crate) use self::client::SglangClient;
