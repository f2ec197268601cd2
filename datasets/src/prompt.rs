//! A prompt: one row of a dataset.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::chunk::Chunk;
use crate::message::{Message, MessageRef};

/// A prompt, owned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromptRow {
    /// Row of the dataset, counted over its files in order, from 0.
    pub row: u64,
    /// The epoch in which it was read, from 0.
    pub epoch: u32,
    /// Where the prompt comes from; routes rewards.
    pub data_source: String,
    /// What kind of task it is; quotas of a schedule go by it.
    pub domain: String,
    /// The prompt; at least one message, not all blank.
    pub messages: Vec<Message>,
    /// The reference answer: text as it is, everything else as JSON.
    pub ground_truth: Option<String>,
    /// Everything else that the dataset says of the prompt.
    pub extra_info: Map<String, Value>,
}

/// A prompt as read: a handle on the decoded columns, cheap to clone and to send.
///
/// It keeps the batch of rows that it was decoded with, at most about 4 MiB or one row; make a [`PromptRow`] to keep a prompt for long.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub(crate) chunk: Arc<Chunk>,
    pub(crate) index: u32,
    pub(crate) epoch: u32,
}

impl Prompt {
    /// Row of the dataset, counted over its files in order, from 0.
    #[must_use]
    pub fn row(&self) -> u64 {
        self.chunk.first_row + self.file_row()
    }

    /// The epoch in which it was read, from 0.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The file it comes from.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.chunk.file
    }

    /// Row of the file, from 0.
    #[must_use]
    pub fn file_row(&self) -> u64 {
        self.chunk.rows[self.at()]
    }

    /// Where the prompt comes from; routes rewards.
    #[must_use]
    #[inline]
    pub fn data_source(&self) -> &str {
        self.chunk.data_source(self.at())
    }

    /// What kind of task it is; quotas of a schedule go by it.
    #[must_use]
    #[inline]
    pub fn domain(&self) -> &str {
        self.chunk.domain(self.at())
    }

    /// The prompt as chat messages; at least one, not all blank.
    #[inline]
    pub fn messages(&self) -> impl ExactSizeIterator<Item = MessageRef<'_>> + Clone {
        self.chunk.messages.row(self.at())
    }

    /// The messages as JSON, an array of `{role, content}`.
    #[must_use]
    pub fn messages_json(&self) -> String {
        crate::json::messages_text(self.messages())
    }

    /// The reference answer: text as it is, everything else as JSON.
    #[must_use]
    #[inline]
    pub fn ground_truth(&self) -> Option<Cow<'_, str>> {
        self.chunk.ground_truth.as_ref()?.plain(self.at())
    }

    /// Everything else that the dataset says of the prompt: `extra_info` and the configured extra columns, as a JSON object.
    #[must_use]
    pub fn extra_info_json(&self) -> String {
        self.chunk.extra.text(self.at())
    }

    /// The same as a map.
    #[must_use]
    pub fn extra_info(&self) -> Map<String, Value> {
        self.chunk.extra.map(self.at())
    }

    /// Length of the prompt in characters, over its messages.
    #[must_use]
    pub fn chars(&self) -> usize {
        self.messages().map(|message| message.content.chars().count()).sum()
    }

    /// The prompt, owned.
    #[must_use]
    pub fn to_row(&self) -> PromptRow {
        PromptRow {
            row: self.row(),
            epoch: self.epoch,
            data_source: self.data_source().to_owned(),
            domain: self.domain().to_owned(),
            messages: self.messages().map(MessageRef::to_owned).collect(),
            ground_truth: self.ground_truth().map(Cow::into_owned),
            extra_info: self.extra_info(),
        }
    }

    #[inline]
    fn at(&self) -> usize {
        self.index as usize
    }
}
