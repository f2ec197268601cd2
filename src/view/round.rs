//! The round of a step: its responses in time, and its prompts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use arrow_array::types::{Float64Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::schema::column;
use serde::Serialize;
use serde_json::Value;

use super::columns::Columns;
use super::stages::{StageSpan, stages};
use crate::run_files::{PLACEMENTS_FOLDER, step_file};
use crate::run_reader::{ReadError, Rollouts, number, text};

const COLUMNS: [&str; 18] = [
    column::PROMPT_ID,
    column::SAMPLE,
    "admitted",
    column::POLICY_VERSION,
    column::PROMPT_LENGTH,
    column::RESPONSE_LENGTH,
    column::RESUMED_LENGTH,
    column::FINISH_REASON,
    column::STARTED,
    column::FINISHED,
    column::PREEMPTIONS,
    column::INSTANCE,
    column::DATA_SOURCE,
    column::ROW,
    column::SCORE,
    column::REWARD_ERROR,
    column::REWARD_TIME,
    column::SCORED_AT,
];

#[derive(Debug, Serialize)]
pub(super) struct Round {
    pub(super) step: u64,
    /// The kind of the round; empty if the step has no metrics yet, or its line names no kind.
    kind: String,
    metrics: BTreeMap<String, f64>,
    /// The stages of the step; `None` if the step has no rollouts, or if its records do not determine their times.
    stages: Option<Vec<StageSpan>>,
    responses: Vec<RoundResponse>,
    prompts: Vec<RoundPrompt>,
    /// The placements of the step, as the run wrote them, with times on the run's clock; `None` if the step has no rollouts, or if the run
    /// wrote no placements or they cannot be read.
    placement: Option<Value>,
    /// The time on the run's clock from which all seconds count, in nanoseconds; 0 if the step has no rollouts.
    origin_ns: u64,
}

/// A response in time. Times are seconds from the origin of the round.
#[derive(Debug, Serialize)]
struct RoundResponse {
    prompt: u64,
    sample: u32,
    outcome: ResponseOutcome,
    started: f64,
    finished: f64,
    /// The time at which the score was known; `None` for a response that was not trained on.
    scored: Option<f64>,
    /// The duration of scoring, in seconds; `None` for a response that was not trained on.
    reward_s: Option<f64>,
    instance: u32,
    tokens: u32,
    /// The number of tokens that earlier steps sampled.
    resumed: u32,
    preemptions: u32,
    score: Option<f64>,
    /// The version of the policy that sampled the first token.
    policy: u64,
    finish: String,
    /// `true` if the response was trained on although its score, or a part of it, could not be computed.
    failed: bool,
}

/// The use of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum ResponseOutcome {
    /// The response is trained on.
    Trained,
    /// The response was aborted, and other responses of its group are trained on.
    Aborted,
    /// The response continues in a later step.
    Paused,
    /// The response ended by itself and is not trained on, although other responses of its group are trained on.
    Surplus,
    /// No response to its prompt is trained on in this step.
    Untrained,
    /// The response ended in an earlier step, so it was not generated in this step. It may be trained on.
    Kept,
}

#[derive(Debug, Serialize)]
struct RoundPrompt {
    id: u64,
    row: u64,
    data_source: Option<String>,
    tokens: u32,
    /// `trained`, `deferred`, `rejected`, or `not trained` if the records do not determine whether the prompt was deferred or rejected.
    outcome: &'static str,
}

/// The metrics of a step and the kind of its round, as the run recorded them.
pub(super) struct StepRecord {
    kind: String,
    metrics: BTreeMap<String, f64>,
}

impl StepRecord {
    pub(super) fn of(columns: &Columns, step: u64) -> Self {
        let metrics = columns.of_step(step).into_iter();
        Self {
            kind: columns.round(step).to_owned(),
            metrics: metrics.map(|(name, value)| (name.to_owned(), value)).collect(),
        }
    }

    /// Returns `true` if the run has no metrics of the step.
    pub(super) fn is_empty(&self) -> bool {
        self.metrics.is_empty()
    }

    fn count(&self, name: &str) -> Option<usize> {
        self.metrics.get(name).map(|count| *count as usize)
    }

    /// Returns `deferred` or `rejected` for the prompts of the step that are not trained on, of which there are `prompts`. The rollouts do
    /// not contain this decision. Returns `not trained` if the counts of the step do not determine it.
    fn untrained(&self, prompts: usize) -> &'static str {
        let count = |name: &str| self.count(name);
        let dropped = count("reward/dropped_groups").unwrap_or(0);
        match (count("schedule/deferred_prompts"), count("schedule/rejected_prompts")) {
            (Some(deferred), Some(0)) if dropped == 0 && deferred >= prompts => "deferred",
            (Some(0), Some(rejected)) if dropped == 0 && rejected >= prompts => "rejected",
            _ => "not trained",
        }
    }
}

impl Round {
    /// Returns the round of a step without rollouts.
    pub(super) fn without_rollouts(step: u64, record: StepRecord) -> Self {
        let StepRecord { kind, metrics } = record;
        let (responses, prompts) = (Vec::new(), Vec::new());
        Self {
            step,
            kind,
            metrics,
            stages: None,
            responses,
            prompts,
            placement: None,
            origin_ns: 0,
        }
    }

    /// Reads the round of a step.
    ///
    /// # Errors
    /// If the rollouts cannot be read.
    pub(super) fn read(folder: &Path, step: u64, record: StepRecord) -> Result<Self, ReadError> {
        let rows = Rollouts::read(folder, step, &COLUMNS)?;
        let Some(origin) = origin(&rows)? else { return Ok(Self::without_rollouts(step, record)) };
        let mut prompts = prompts(&rows)?;
        let untrained = prompts.values().filter(|prompt| prompt.outcome != TRAINED).count();
        let outcome = record.untrained(untrained);
        prompts
            .values_mut()
            .filter(|prompt| prompt.outcome != TRAINED)
            .for_each(|prompt| prompt.outcome = outcome);
        let responses = (0..rows.len())
            .map(|row| response(&rows, row, origin, &prompts))
            .collect::<Result<Vec<_>, _>>()?;
        let latest = |time: fn(&RoundResponse) -> Option<f64>| {
            responses.iter().filter_map(time).reduce(f64::max)
        };
        let ended = latest(|one| (one.outcome != ResponseOutcome::Kept).then_some(one.finished));
        let scored = latest(|one| one.scored);
        Ok(Self {
            step,
            stages: ended.and_then(|ended| stages(&record.metrics, ended, scored)),
            placement: placement(folder, step),
            kind: record.kind,
            metrics: record.metrics,
            responses,
            prompts: prompts.into_values().collect(),
            origin_ns: origin,
        })
    }
}

const TRAINED: &str = "trained";

/// Returns the time in nanoseconds at which the first response of the step started. Responses that an earlier step kept only count if there
/// are no others. Returns `None` without responses.
fn origin(rows: &Rollouts) -> Result<Option<u64>, ReadError> {
    let started = rows.numbers::<UInt64Type>(column::STARTED)?;
    let all = (0..rows.len()).map(|row| Ok((ended_earlier(rows, row)?, started.value(row))));
    let all = all.collect::<Result<Vec<_>, ReadError>>()?;
    // `false` is less than `true`, so that the kept responses come last.
    Ok(all.into_iter().min().map(|(_, started)| started))
}

/// Returns `true` for a response that ended in an earlier round.
fn ended_earlier(rows: &Rollouts, row: usize) -> Result<bool, ReadError> {
    let length = |name: &str| Ok::<_, ReadError>(rows.numbers::<UInt32Type>(name)?.value(row));
    let (tokens, resumed) = (length(column::RESPONSE_LENGTH)?, length(column::RESUMED_LENGTH)?);
    Ok(resumed > 0 && tokens <= resumed)
}

fn prompts(rows: &Rollouts) -> Result<BTreeMap<u64, RoundPrompt>, ReadError> {
    let ids = rows.numbers::<UInt64Type>(column::PROMPT_ID)?;
    let dataset = rows.numbers::<UInt64Type>(column::ROW)?;
    let sources = rows.texts(column::DATA_SOURCE)?;
    let tokens = rows.numbers::<UInt32Type>(column::PROMPT_LENGTH)?;
    let admitted = rows.flags("admitted")?;
    let mut prompts = BTreeMap::new();
    for row in 0..rows.len() {
        let prompt = prompts.entry(ids.value(row)).or_insert_with(|| RoundPrompt {
            id: ids.value(row),
            row: dataset.value(row),
            data_source: text(sources, row).map(str::to_owned),
            tokens: tokens.value(row),
            outcome: "not trained",
        });
        if admitted.value(row) {
            prompt.outcome = TRAINED;
        }
    }
    Ok(prompts)
}

fn response(
    rows: &Rollouts,
    row: usize,
    origin: u64,
    prompts: &BTreeMap<u64, RoundPrompt>,
) -> Result<RoundResponse, ReadError> {
    let long = |name: &str| rows.numbers::<UInt64Type>(name);
    let short = |name: &str| Ok::<_, ReadError>(rows.numbers::<UInt32Type>(name)?.value(row));
    let seconds = |at: u64| (at as f64 - origin as f64) / 1e9;
    let prompt = long(column::PROMPT_ID)?.value(row);
    let finish = text(rows.texts(column::FINISH_REASON)?, row).unwrap_or_default();
    let is_trained = prompts.get(&prompt).is_some_and(|prompt| prompt.outcome == TRAINED);
    let outcome = match (rows.flags("admitted")?.value(row), finish) {
        _ if ended_earlier(rows, row)? => ResponseOutcome::Kept,
        (true, _) => ResponseOutcome::Trained,
        (false, "pause") => ResponseOutcome::Paused,
        (false, _) if !is_trained => ResponseOutcome::Untrained,
        (false, "abort") => ResponseOutcome::Aborted,
        (false, _) => ResponseOutcome::Surplus,
    };
    Ok(RoundResponse {
        prompt,
        sample: short(column::SAMPLE)?,
        outcome,
        started: seconds(long(column::STARTED)?.value(row)),
        finished: seconds(long(column::FINISHED)?.value(row)),
        scored: number(long(column::SCORED_AT)?, row).map(seconds),
        reward_s: number(long(column::REWARD_TIME)?, row).map(|nanos| nanos as f64 / 1e9),
        instance: short(column::INSTANCE)?,
        tokens: short(column::RESPONSE_LENGTH)?,
        resumed: short(column::RESUMED_LENGTH)?,
        preemptions: short(column::PREEMPTIONS)?,
        score: number(rows.numbers::<Float64Type>(column::SCORE)?, row),
        policy: long(column::POLICY_VERSION)?.value(row),
        finish: finish.to_owned(),
        failed: text(rows.texts(column::REWARD_ERROR)?, row).is_some(),
    })
}

/// Reads the placements of a step. Returns `None` if the run wrote no file for the step, or if the file cannot be read. Most runs write no
/// such files.
fn placement(folder: &Path, step: u64) -> Option<Value> {
    let path = folder.join(PLACEMENTS_FOLDER).join(step_file(step, "json"));
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::RecordBatch;
    use arrow_schema::{DataType, Field, Schema};
    use parquet::arrow::ArrowWriter;

    use super::*;
    use crate::run_files;

    #[test]
    fn a_step_without_responses_has_no_times() {
        let folder = tempfile::tempdir().expect("a folder");
        let field = |name: &str| Field::new(name, DataType::UInt64, true);
        let schema = Arc::new(Schema::new(COLUMNS.map(field).to_vec()));
        let path = run_files::rollouts(folder.path(), 1);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        let file = fs::File::create(path).expect("a file");
        let mut writer = ArrowWriter::try_new(file, schema.clone(), None).expect("a writer");
        writer.write(&RecordBatch::new_empty(schema)).expect("written");
        writer.close().expect("closed");
        let placements = folder.path().join(PLACEMENTS_FOLDER);
        fs::create_dir(&placements).expect("made");
        fs::write(placements.join("step_00001.json"), "{\"decisions\": []}").expect("written");
        let record = StepRecord { kind: String::new(), metrics: BTreeMap::new() };
        let round = Round::read(folder.path(), 1, record).expect("readable");
        assert_eq!((round.placement, round.origin_ns), (None, 0));
    }
}
