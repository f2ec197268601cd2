//! Prompts: the rows of a dataset.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::chunk::Chunk;
use crate::message::{Message, MessageRef};

/// An owned prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromptRow {
    /// The row of the dataset, counted over its files in order, from 0.
    pub row: u64,
    /// The epoch in which the prompt was read, from 0.
    pub epoch: u32,
    /// The source of the prompt, by which rewards are routed; [`default_data_source`](crate::DatasetConfig::default_data_source) if the row
    /// names none.
    pub data_source: String,
    /// The kind of task, to which the quotas of a schedule apply; the data source if the row names none.
    pub domain: String,
    /// The chat messages; at least one, not all blank.
    pub messages: Vec<Message>,
    /// The reference answer, if there is one: text as it is, other values as JSON. NaN and infinite numbers count as no answer.
    pub ground_truth: Option<String>,
    /// The `extra_info` of the row and the configured extra columns. A field of `extra_info` replaces a column of the same name.
    pub extra_info: Map<String, Value>,
}

/// A prompt as read: a handle to the decoded columns, cheap to clone and to send.
///
/// The handle keeps the whole batch of rows with which the prompt was decoded in memory: at most about 4 MiB, or one row if that is larger.
/// Convert it to a [`PromptRow`] to keep a prompt for long.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub(crate) chunk: Arc<Chunk>,
    pub(crate) index: u32,
    pub(crate) epoch: u32,
}

impl Prompt {
    /// Returns the row of the dataset, counted over its files in order, from 0.
    #[must_use]
    pub fn row(&self) -> u64 {
        self.chunk.first_row + self.file_row()
    }

    /// Returns the epoch in which the prompt was read, from 0.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the file of the prompt.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.chunk.file
    }

    /// Returns the row of the file, from 0.
    #[must_use]
    pub fn file_row(&self) -> u64 {
        self.chunk.rows[self.at()]
    }

    /// Returns the source of the prompt, by which rewards are routed. If the row names none, returns
    /// [`default_data_source`](crate::DatasetConfig::default_data_source).
    #[must_use]
    #[inline]
    pub fn data_source(&self) -> &str {
        self.chunk.data_source(self.at())
    }

    /// Returns the kind of task, to which the quotas of a schedule apply. If the row names none, returns the data source.
    #[must_use]
    #[inline]
    pub fn domain(&self) -> &str {
        self.chunk.domain(self.at())
    }

    /// Returns the chat messages; at least one, not all blank.
    #[inline]
    pub fn messages(&self) -> impl ExactSizeIterator<Item = MessageRef<'_>> + Clone {
        self.chunk.messages.row(self.at())
    }

    /// Returns the messages as a JSON array of `{role, content}`.
    #[must_use]
    pub fn messages_json(&self) -> String {
        crate::json::messages_text(self.messages())
    }

    /// Returns the reference answer, if there is one: text as it is, other values as JSON. NaN and infinite numbers count as no answer.
    #[must_use]
    #[inline]
    pub fn ground_truth(&self) -> Option<Cow<'_, str>> {
        self.chunk.ground_truth.as_ref()?.plain(self.at())
    }

    /// Returns `extra_info` and the configured extra columns as a JSON object. A name that both have may occur twice; the field of
    /// `extra_info` is then the last one.
    #[must_use]
    pub fn extra_info_json(&self) -> String {
        self.chunk.extra.text(self.at())
    }

    /// Returns `extra_info` and the configured extra columns as a map.
    #[must_use]
    pub fn extra_info(&self) -> Map<String, Value> {
        self.chunk.extra.map(self.at())
    }

    /// Returns the total length of the contents of all messages, in Unicode characters.
    #[must_use]
    pub fn chars(&self) -> usize {
        self.messages().map(|message| message.content.chars().count()).sum()
    }

    /// Converts to an owned prompt.
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
