//! The columns that are added to a response when it is scored.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::types::{Float32Type, Float64Type, UInt64Type};
use arrow_array::{ArrayRef, Float32Array, Float64Array, StringArray, UInt64Array};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_stages::reward::{RewardError, Score};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::wire::columns::{shared_lists, texts};
use crate::wire::rows::{Row, gather_first};

/// The duration of a scoring, and the time at which it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) took: Nanos,
    /// The time of the end, by the clock of the run.
    pub(crate) done: Nanos,
}

/// The columns of [`schema::SCORED`] that are not in [`schema::RESPONSES`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ScoreRow {
    /// NaN if the group of the response must not be trained on.
    pub(crate) score: f64,
    pub(crate) components: BTreeMap<String, f64>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) token_scores: Vec<f32>,
    pub(crate) error: Option<String>,
    pub(crate) timing: Timing,
    pub(crate) weight: f32,
}

impl ScoreRow {
    /// Creates the row of a response without a score.
    pub(crate) fn new() -> Self {
        Self { weight: 1.0, ..Self::default() }
    }

    /// Reads a row of a batch of [`schema::SCORED`].
    pub(crate) fn read(row: &Row) -> Self {
        let (batch, index) = (&row.batch, row.index);
        let number = |column| batch.values::<UInt64Type>(column).value(index);
        Self {
            score: batch.values::<Float64Type>(column::SCORE).value(index),
            components: from_json(row.text(column::COMPONENTS)),
            labels: from_json(row.text(column::LABELS)),
            token_scores: batch.lists::<Float32Type>(column::TOKEN_SCORES).get(index).to_vec(),
            error: row.text(column::REWARD_ERROR).map(str::to_owned),
            timing: Timing {
                took: Nanos(number(column::REWARD_TIME)),
                done: Nanos(number(column::SCORED_AT)),
            },
            weight: batch.values::<Float32Type>(column::WEIGHT).value(index),
        }
    }

    /// Adds a score and its timing. Scores, values of the same token, components of the same name and durations are added up. Labels of the
    /// same name are replaced, and the later end is kept.
    pub(crate) fn with_score(mut self, score: &Score, timing: Timing) -> Self {
        self.score += score.total();
        for (name, value) in &score.components {
            *self.components.entry(name.clone()).or_default() += value;
        }
        self.labels.extend(score.labels.clone());
        let tokens = self.token_scores.len().max(score.token_values.len());
        self.token_scores.resize(tokens, 0.0);
        self.token_scores
            .iter_mut()
            .zip(&score.token_values)
            .for_each(|(sum, value)| *sum += value);
        self.after(timing)
    }

    /// Adds `value` as the score that replaces the score of a failed reward, and appends the message of `error` to earlier messages.
    pub(crate) fn with_error(mut self, error: &RewardError, value: f64, timing: Timing) -> Self {
        self.score += value;
        let earlier = self.error.take().map(|earlier| format!("{earlier}; "));
        self.error = Some(format!("{}{error}", earlier.unwrap_or_default()));
        self.after(timing)
    }

    fn after(mut self, Timing { took, done }: Timing) -> Self {
        self.timing.took.0 += took.0;
        self.timing.done = self.timing.done.max(done);
        self
    }
}

/// Returns responses with their scores as a batch of [`schema::SCORED`]; an empty batch if there are none. `scores` has the score of each
/// of `rows`, in the same order.
pub(crate) fn scored_batch(rows: &[Row], scores: &[ScoreRow]) -> Batch {
    if rows.is_empty() {
        return Batch::default();
    }
    let mut columns = gather_first(rows, schema::RESPONSES.fields().len());
    let number = |of: fn(&ScoreRow) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(scores.iter().map(of)))
    };
    columns.extend([
        Arc::new(Float64Array::from_iter_values(scores.iter().map(|row| row.score))) as ArrayRef,
        json(scores.iter().map(|row| &row.components)),
        json(scores.iter().map(|row| &row.labels)),
        shared_lists::<Float32Type>(scores.iter().map(|row| row.token_scores.as_slice())),
        texts(scores.iter().map(|row| row.error.as_deref())),
        number(|row| row.timing.took.0),
        number(|row| row.timing.done.0),
        Arc::new(Float32Array::from_iter_values(scores.iter().map(|row| row.weight))),
    ]);
    Batch::from_columns(&schema::SCORED, columns)
}

fn json<'a, T: Serialize + 'a>(values: impl Iterator<Item = &'a T>) -> ArrayRef {
    let text =
        |value: &T| serde_json::to_string(value).expect("invariant: a string map is valid JSON");
    Arc::new(StringArray::from_iter_values(values.map(text)))
}

fn from_json<T: DeserializeOwned>(text: Option<&str>) -> T {
    let text = text.expect("invariant: the column has no nulls");
    serde_json::from_str(text).expect("invariant: the reward operator writes maps by names")
}
