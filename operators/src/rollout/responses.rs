//! Responses as batches.

use std::mem::take;
use std::sync::Arc;

use arrow_array::types::{Float32Type, Int32Type, UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, StringArray, UInt32Array, UInt64Array};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::shared_list::shared_texts;
use rollpacker_dataflow::step::{PolicyVersion, PromptId};
use rollpacker_stages::rollout::Completion;
use rustc_hash::FxHashMap;

use super::kept_responses::EndedResponse;
use crate::wire::columns::{lists, owned_lists};
use crate::wire::rows::{Row, gather};

/// A prompt whose responses were requested from the engine.
pub(super) struct LaunchedPrompt {
    /// The row of the launch request.
    pub(super) row: Row,
    /// The policy version with which the responses were requested.
    pub(super) version: PolicyVersion,
}

/// Returns ended responses as a batch of [`schema::RESPONSES`]. `prompts` must have the prompts of all responses. The batch takes over the
/// memory of tokens and texts.
pub(super) fn response_batch(
    mut ended: Vec<EndedResponse>,
    prompts: &FxHashMap<PromptId, LaunchedPrompt>,
) -> Batch {
    let ids = owned_lists::<Int32Type>(
        ended.iter_mut().map(|ended| take(&mut ended.completion.response_ids)),
    );
    let logprobs = owned_lists::<Float32Type>(
        ended.iter_mut().map(|ended| take(&mut ended.completion.logprobs)),
    );
    let texts = shared_texts(ended.iter_mut().map(|ended| take(&mut ended.completion.text)));
    let completions = || ended.iter().map(|ended| &ended.completion);
    let rows: Vec<Row> =
        completions().map(|completion| prompts[&completion.id.prompt].row.clone()).collect();
    let runs = || completions().map(|completion| completion.token_versions.runs());
    let versions: Vec<Vec<u64>> =
        runs().map(|runs| runs.iter().map(|(version, _)| version.0).collect()).collect();
    let version_tokens: Vec<Vec<u32>> =
        runs().map(|runs| runs.iter().map(|&(_, tokens)| tokens).collect()).collect();
    let narrow = |of: fn(&Completion) -> u32| -> ArrayRef {
        Arc::new(UInt32Array::from_iter_values(completions().map(of)))
    };
    let wide = |of: fn(&Completion) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(completions().map(of)))
    };
    let mut columns: Vec<ArrayRef> = vec![
        wide(|completion| completion.id.prompt.0),
        narrow(|completion| completion.id.sample),
        // An engine that only counts tokens reports no version per token.
        Arc::new(UInt64Array::from_iter_values(
            ended
                .iter()
                .map(|ended| ended.completion.token_versions.first().unwrap_or(ended.version).0),
        )),
    ];
    columns.extend(gather(&rows, [column::PROMPT_IDS, column::PROMPT_LENGTH]));
    columns.extend([
        narrow(|completion| completion.response_length),
        Arc::new(UInt32Array::from_iter_values(ended.iter().map(|ended| ended.resumed))),
        ids,
        logprobs,
        lists::<UInt64Type>(versions.iter().map(Vec::as_slice)),
        lists::<UInt32Type>(version_tokens.iter().map(Vec::as_slice)),
        Arc::new(StringArray::from_iter_values(
            completions().map(|completion| completion.finish_reason.as_str()),
        )),
        texts,
        wide(|completion| completion.started.0),
        wide(|completion| completion.finished.0),
        narrow(|completion| completion.preemptions),
        narrow(|completion| completion.instance),
    ]);
    columns.extend(gather(&rows, [column::DATA_SOURCE, column::ROW]));
    Batch::from_columns(&schema::RESPONSES, columns)
}
