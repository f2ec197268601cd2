//! The responses of a prompt in a step, side by side.

use std::path::Path;

use arrow_array::types::{Float32Type, Float64Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::schema::column;
use serde::Serialize;
use serde_json::Value;

use crate::run_reader::{ReadError, Rollouts, dialogue, number, text};

/// The columns that are shown of a response and of its prompt, except the columns in `PROMPT_COLUMNS` and the values per token. Of the
/// values per token, only the advantages are read, for their mean.
pub(super) const COLUMNS: [&str; 19] = [
    column::PROMPT_ID,
    column::SAMPLE,
    "admitted",
    column::POLICY_VERSION,
    column::PROMPT_LENGTH,
    column::RESPONSE_LENGTH,
    column::RESUMED_LENGTH,
    column::FINISH_REASON,
    column::RESPONSE_TEXT,
    column::PREEMPTIONS,
    column::INSTANCE,
    column::SCORE,
    column::COMPONENTS,
    column::LABELS,
    column::REWARD_ERROR,
    column::WEIGHT,
    column::ADVANTAGES,
    column::DATA_SOURCE,
    column::ROW,
];

/// The columns with the texts of the prompt, which are the same for all of its responses.
const PROMPT_COLUMNS: [&str; 3] = [column::MESSAGES, column::GROUND_TRUTH, column::EXTRA_INFO];

/// A prompt with its responses.
#[derive(Debug, Serialize)]
pub(super) struct Group {
    step: u64,
    prompt: u64,
    /// The messages, each with its role.
    text: Option<String>,
    ground_truth: Option<String>,
    extra_info: Option<String>,
    data_source: Option<String>,
    /// The row of the prompt in the dataset.
    row: u64,
    tokens: u32,
    responses: Vec<GroupResponse>,
    /// The ids of the prompts of the step, in the order of the rollouts, for paging.
    prompts: Vec<u64>,
}

/// A response with its reward.
#[derive(Debug, Serialize)]
pub(super) struct GroupResponse {
    sample: u32,
    trained: bool,
    text: String,
    tokens: u32,
    /// The number of tokens that earlier steps sampled.
    resumed: u32,
    finish: String,
    /// The version of the policy that sampled the first token.
    policy: u64,
    instance: u32,
    preemptions: u32,
    score: Option<f64>,
    weight: Option<f32>,
    /// The mean advantage of the tokens; `None` if the response has no advantages.
    advantage: Option<f64>,
    components: Option<Value>,
    labels: Option<Value>,
    /// The reason why the score, or a part of it, could not be computed; `None` if there was no error or the response was not trained on.
    error: Option<String>,
}

impl GroupResponse {
    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

impl Group {
    /// Reads the responses of a prompt; `None` if the step has no response to the prompt.
    ///
    /// # Errors
    /// If the rollouts cannot be read.
    pub(super) fn read(folder: &Path, step: u64, prompt: u64) -> Result<Option<Self>, ReadError> {
        let columns: Vec<&str> = COLUMNS.iter().chain(&PROMPT_COLUMNS).copied().collect();
        let rows = Rollouts::of_prompt(folder, step, &columns, prompt)?;
        if rows.len() == 0 {
            return Ok(None);
        }
        let responses = (0..rows.len()).map(|row| response(&rows, row));
        let mut responses = responses.collect::<Result<Vec<_>, _>>()?;
        responses.sort_by_key(|response| response.sample);
        let own = |name: &str| Ok::<_, ReadError>(text(rows.texts(name)?, 0).map(str::to_owned));
        Ok(Some(Self {
            step,
            prompt,
            text: own(column::MESSAGES)?.map(|messages| dialogue(&messages)),
            ground_truth: own(column::GROUND_TRUTH)?,
            extra_info: own(column::EXTRA_INFO)?,
            data_source: own(column::DATA_SOURCE)?,
            row: rows.numbers::<UInt64Type>(column::ROW)?.value(0),
            tokens: rows.numbers::<UInt32Type>(column::PROMPT_LENGTH)?.value(0),
            responses,
            prompts: prompts(folder, step)?,
        }))
    }
}

/// Returns the ids of the prompts of a step, each once, in the order of the rollouts.
fn prompts(folder: &Path, step: u64) -> Result<Vec<u64>, ReadError> {
    let rows = Rollouts::read(folder, step, &[column::PROMPT_ID])?;
    let ids = rows.numbers::<UInt64Type>(column::PROMPT_ID)?.values();
    let mut seen = std::collections::BTreeSet::new();
    Ok(ids.iter().copied().filter(|id| seen.insert(*id)).collect())
}

/// Returns the index of the row with the response `sample`, or `None` if there is no such response.
pub(super) fn row_of(rows: &Rollouts, sample: u32) -> Result<Option<usize>, ReadError> {
    let samples = rows.numbers::<UInt32Type>(column::SAMPLE)?.values();
    Ok(samples.iter().position(|own| *own == sample))
}

/// Returns the response in a row.
pub(super) fn response(rows: &Rollouts, row: usize) -> Result<GroupResponse, ReadError> {
    let short = |name: &str| Ok::<_, ReadError>(rows.numbers::<UInt32Type>(name)?.value(row));
    let own = |name: &str| Ok::<_, ReadError>(text(rows.texts(name)?, row));
    let json = |name: &str| {
        let parsed = own(name)?.and_then(|json| serde_json::from_str::<Value>(json).ok());
        Ok::<_, ReadError>(
            parsed.filter(|value| value.as_object().is_some_and(|all| !all.is_empty())),
        )
    };
    let advantages = rows.list::<Float32Type>(column::ADVANTAGES, row)?.unwrap_or_default();
    let sum: f64 = advantages.iter().copied().map(f64::from).sum();
    Ok(GroupResponse {
        sample: short(column::SAMPLE)?,
        trained: rows.flags("admitted")?.value(row),
        text: own(column::RESPONSE_TEXT)?.unwrap_or_default().to_owned(),
        tokens: short(column::RESPONSE_LENGTH)?,
        resumed: short(column::RESUMED_LENGTH)?,
        finish: own(column::FINISH_REASON)?.unwrap_or_default().to_owned(),
        policy: rows.numbers::<UInt64Type>(column::POLICY_VERSION)?.value(row),
        instance: short(column::INSTANCE)?,
        preemptions: short(column::PREEMPTIONS)?,
        score: number(rows.numbers::<Float64Type>(column::SCORE)?, row),
        weight: number(rows.numbers::<Float32Type>(column::WEIGHT)?, row),
        advantage: (!advantages.is_empty()).then(|| sum / advantages.len() as f64),
        components: json(column::COMPONENTS)?,
        labels: json(column::LABELS)?,
        error: own(column::REWARD_ERROR)?.map(str::to_owned),
    })
}
