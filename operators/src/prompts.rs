//! Prompts as rows of a stream.

use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{StringArray, UInt32Array, UInt64Array};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema;
use rollpacker_dataflow::step::PromptId;

use crate::wire::columns::shared_lists;

/// A prompt, ready to be launched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptRow {
    /// The position of the prompt in the reading order of the run, from 0 and counted over all epochs. A source of prompts emits ascending
    /// ids.
    pub prompt: PromptId,
    /// The epoch in which the prompt was read, from 0.
    pub epoch: u32,
    /// The index of the dataset row that the prompt was read from.
    pub row: u64,
    /// The kind of task. Quotas of a schedule are per domain.
    pub domain: String,
    /// The prompt as token ids, with the chat template applied. Never empty.
    pub prompt_ids: Vec<i32>,
    /// The number of tokens of the prompt: the length of `prompt_ids`, except in simulations, where `prompt_ids` only identifies the
    /// prompt.
    pub prompt_length: u32,
    /// The data source, which selects the reward.
    pub data_source: String,
    /// The prompt as chat messages, in JSON.
    pub messages: String,
    /// The reference answer. A structured answer is JSON. `None` if the dataset row has no answer.
    pub ground_truth: Option<String>,
    /// The `extra_info` of the dataset row and the configured extra columns, as a JSON object; `None` if there are none to pass on.
    pub extra_info: Option<String>,
}

/// Returns prompts as a batch of [`schema::PROMPTS`].
#[must_use]
pub fn prompt_batch(rows: &[PromptRow]) -> Batch {
    let text =
        |of: fn(&PromptRow) -> Option<&str>| Arc::new(rows.iter().map(of).collect::<StringArray>());
    Batch::from_columns(
        &schema::PROMPTS,
        vec![
            Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.prompt.0))),
            Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| row.epoch))),
            Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.row))),
            text(|row| Some(&row.domain)),
            shared_lists::<Int32Type>(rows.iter().map(|row| row.prompt_ids.as_slice())),
            Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| row.prompt_length))),
            text(|row| Some(&row.data_source)),
            text(|row| Some(&row.messages)),
            text(|row| row.ground_truth.as_deref()),
            text(|row| row.extra_info.as_deref()),
        ],
    )
}
