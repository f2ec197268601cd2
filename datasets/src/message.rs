//! Chat messages.

use serde::{Deserialize, Serialize};

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    /// The role, such as `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text of the message.
    pub content: String,
}

/// One message of a chat, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct MessageRef<'a> {
    /// The role, such as `system`, `user`, `assistant` or `tool`.
    pub role: &'a str,
    /// The text of the message.
    pub content: &'a str,
}

impl MessageRef<'_> {
    /// Converts to an owned message.
    #[must_use]
    pub fn to_owned(self) -> Message {
        Message { role: self.role.to_owned(), content: self.content.to_owned() }
    }
}
