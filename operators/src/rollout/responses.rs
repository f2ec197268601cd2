//! Responses as batches.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray, UInt32Array, UInt64Array};
use arrow::datatypes::{Float32Type, Int32Type, UInt64Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::{PolicyVersion, PromptId};
use rollpacker_stages::rollout::Completion;

use super::kept_responses::EndedResponse;
use crate::wire::columns::lists;
use crate::wire::rows::{Row, gather};

/// A prompt whose responses were requested from the engine.
pub(super) struct LaunchedPrompt {
    pub(super) row: Row,
    pub(super) version: PolicyVersion,
}

/// Returns ended responses as a batch of [`schema::RESPONSES`].
pub(super) fn response_batch(
    ended: &[EndedResponse],
    prompts: &BTreeMap<PromptId, LaunchedPrompt>,
) -> Batch {
    let launched = |completion: &Completion| &prompts[&completion.id.prompt];
    let completions: Vec<&Completion> = ended.iter().map(|ended| &ended.completion).collect();
    let rows: Vec<Row> =
        completions.iter().map(|completion| launched(completion).row.clone()).collect();
    let versions: Vec<Vec<u64>> = completions
        .iter()
        .map(|completion| completion.token_versions.iter().map(|version| version.0).collect())
        .collect();
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from_iter_values(
            completions.iter().map(|completion| completion.id.prompt.0),
        )),
        Arc::new(UInt32Array::from_iter_values(
            completions.iter().map(|completion| completion.id.sample),
        )),
        // An engine that only counts tokens reports no version per token.
        Arc::new(UInt64Array::from_iter_values(ended.iter().map(|ended| {
            ended.completion.token_versions.first().copied().unwrap_or(ended.version).0
        }))),
    ];
    columns.extend(gather(&rows, [column::PROMPT_IDS, column::PROMPT_LENGTH]));
    columns.push(Arc::new(UInt32Array::from_iter_values(
        completions.iter().map(|completion| completion.response_length),
    )));
    columns.push(Arc::new(UInt32Array::from_iter_values(ended.iter().map(|ended| ended.resumed))));
    columns.extend([
        lists::<Int32Type>(completions.iter().map(|completion| completion.response_ids.as_slice())),
        lists::<Float32Type>(completions.iter().map(|completion| completion.logprobs.as_slice())),
        lists::<UInt64Type>(versions.iter().map(Vec::as_slice)),
        Arc::new(StringArray::from_iter_values(
            completions.iter().map(|completion| completion.finish_reason.as_str()),
        )),
        Arc::new(StringArray::from_iter_values(
            completions.iter().map(|completion| &completion.text),
        )),
        Arc::new(UInt64Array::from_iter_values(
            completions.iter().map(|completion| completion.started.0),
        )),
        Arc::new(UInt64Array::from_iter_values(
            completions.iter().map(|completion| completion.finished.0),
        )),
        Arc::new(UInt32Array::from_iter_values(
            completions.iter().map(|completion| completion.preemptions),
        )),
        Arc::new(UInt32Array::from_iter_values(
            completions.iter().map(|completion| completion.instance),
        )),
    ]);
    columns.extend(gather(&rows, [column::DATA_SOURCE, column::ROW]));
    Batch::from_columns(&schema::RESPONSES, columns)
}
