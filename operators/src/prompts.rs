//! Prompts as rows of a stream.

use std::sync::Arc;

use arrow::array::{StringArray, UInt32Array, UInt64Array};
use arrow::datatypes::Int32Type;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema;
use rollpacker_dataflow::step::PromptId;

use crate::columns::lists;

/// A prompt, ready to be launched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptRow {
    /// Its position in the order of the run, over all epochs.
    pub prompt: PromptId,
    /// The epoch in which it was read, from 0.
    pub epoch: u32,
    /// Its row of the dataset.
    pub row: u64,
    /// What kind of task it is; quotas of a schedule go by it.
    pub domain: String,
    /// The prompt as token ids, chat template applied; never empty.
    pub prompt_ids: Vec<i32>,
    /// Tokens of the prompt: as many as `prompt_ids`, unless these only name it.
    pub prompt_length: u32,
    /// Where it comes from; routes the reward.
    pub data_source: String,
    /// The prompt as chat messages, JSON.
    pub messages: String,
    /// The reference answer; structured ones as JSON.
    pub ground_truth: Option<String>,
    /// Everything else that the dataset says, a JSON object.
    pub extra_info: Option<String>,
}

/// Prompts as a batch of [`schema::PROMPTS`].
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
            lists::<Int32Type>(rows.iter().map(|row| row.prompt_ids.as_slice())),
            Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| row.prompt_length))),
            text(|row| Some(&row.data_source)),
            text(|row| Some(&row.messages)),
            text(|row| row.ground_truth.as_deref()),
            text(|row| row.extra_info.as_deref()),
        ],
    )
}
