//! A language model that says how good a response is.

mod chat;

pub use chat::{Chat, JudgeSampling, SharedChat};
