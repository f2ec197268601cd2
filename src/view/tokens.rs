//! A response token by token.

use std::path::Path;

use arrow_array::types::{ArrowPrimitiveType, Float32Type, Int32Type, UInt64Type};
use rollpacker_dataflow::schema::column;
use serde::Serialize;

use super::group::{self, GroupResponse};
use super::vocabulary::Vocabulary;
use crate::run_reader::{ReadError, Rollouts};

/// The columns with a value per token.
const COLUMNS: [&str; 7] = [
    column::RESPONSE_IDS,
    column::LOGPROBS,
    column::TOKEN_VERSIONS,
    column::ADVANTAGES,
    column::TOKEN_SCORES,
    column::REF_LOGPROBS,
    column::VALUES,
];

/// A response with the values of its tokens. A list is empty if the response has no such values.
#[derive(Debug, Serialize)]
pub(super) struct TokenView {
    response: GroupResponse,
    ids: Vec<i32>,
    /// The texts of the tokens; `None` if they cannot be determined.
    pieces: Option<Vec<String>>,
    /// The reason why there are no texts; `None` if there are.
    without_pieces: Option<String>,
    logprobs: Vec<f32>,
    /// The version of the policy that sampled each token.
    versions: Vec<u64>,
    advantages: Vec<f32>,
    token_scores: Vec<f32>,
    ref_logprobs: Vec<f32>,
    /// The predictions of the critic.
    values: Vec<f32>,
}

impl TokenView {
    /// Reads a response; `None` if the step has no such response.
    ///
    /// # Errors
    /// If the rollouts cannot be read.
    pub(super) fn read(
        folder: &Path,
        step: u64,
        (prompt, sample): (u64, u32),
        vocabulary: &Vocabulary,
    ) -> Result<Option<Self>, ReadError> {
        let columns: Vec<&str> = group::COLUMNS.iter().chain(&COLUMNS).copied().collect();
        let rows = Rollouts::of_prompt(folder, step, &columns, prompt)?;
        let Some(row) = group::row_of(&rows, sample)? else { return Ok(None) };
        let response = group::response(&rows, row)?;
        let ids = list::<Int32Type>(&rows, column::RESPONSE_IDS, row)?;
        let (pieces, without_pieces) = vocabulary.pieces(&ids, response.text());
        let floats = |name: &str| list::<Float32Type>(&rows, name, row);
        Ok(Some(Self {
            response,
            ids,
            pieces,
            without_pieces,
            logprobs: floats(column::LOGPROBS)?,
            versions: list::<UInt64Type>(&rows, column::TOKEN_VERSIONS, row)?,
            advantages: floats(column::ADVANTAGES)?,
            token_scores: floats(column::TOKEN_SCORES)?,
            ref_logprobs: floats(column::REF_LOGPROBS)?,
            values: floats(column::VALUES)?,
        }))
    }
}

fn list<T: ArrowPrimitiveType>(
    rows: &Rollouts,
    name: &str,
    row: usize,
) -> Result<Vec<T::Native>, ReadError> {
    Ok(rows.list::<T>(name, row)?.unwrap_or_default())
}
