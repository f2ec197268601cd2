//! SGLang's HTTP protocol and a client of it.
//!
//! The messages have the format of SGLang 0.5. The client was tested against recorded formats, not against a live server.

mod client;
pub mod protocol;

pub(crate) use self::client::SglangClient;
