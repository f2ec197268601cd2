//! The sums of the facts of all steps so far, for snapshots of the ledger.
//!
//! The arrangements hold the same facts, indexed by step, but they only count the deferred prompts and do not identify them. These sums are
//! kept in addition, and only if snapshots are taken. They have one record for each distinct length, pair length, dataset row and deferred
//! prompt.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use arrow_array::types::{Int64Type, UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, Int64Array, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::snapshot::{Part, RestoredSnapshot};
use rollpacker_dataflow::step::{PromptId, Step};

use super::bias::WeightSums;
use super::facts::{DeferredPrompt, DeferredPrompts, Facts, Launches, Length};
use super::pair_totals::{self, PAIR_ROWS, PAIRS};
use super::pairs::{Pair, Products};
use crate::resume::part::{read_rows, rows};
use crate::resume::{ResumeError, SavedState};

/// The name of the snapshot part with the facts about lengths.
pub(super) const LENGTHS: &str = "ledger_lengths";
/// The name of the snapshot part with the histories of dataset rows.
pub(super) const ROWS: &str = "ledger_rows";
/// The name of the snapshot part with the deferred prompts.
pub(super) const WAITS: &str = "ledger_waits";

const KIND: &str = "kind";
const TOKENS: &str = "tokens";
const COUNT: &str = "responses";
const WEIGHT: &str = "weight";
const SQUARE: &str = "squared_weight";
const LAUNCHED: &str = "launched";
const WHOLE: [&str; 3] = ["whole", "whole_tokens", "whole_squared_tokens"];
const SCORED: [&str; 2] = ["trained", "score"];
const SINCE: &str = "since_step";
const LONGEST: &str = "longest_tokens";

fn schema(fields: impl IntoIterator<Item = (&'static str, DataType)>) -> SchemaRef {
    let fields = fields.into_iter().map(|(name, of)| Field::new(name, of, false));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

static LENGTH_ROWS: LazyLock<SchemaRef> = LazyLock::new(|| {
    let sums = [COUNT, WEIGHT, SQUARE].map(|name| (name, DataType::Int64));
    schema([(KIND, DataType::Utf8), (TOKENS, DataType::UInt32)].into_iter().chain(sums))
});

static HISTORY_ROWS: LazyLock<SchemaRef> = LazyLock::new(|| {
    let sums = [LAUNCHED].into_iter().chain(WHOLE).chain(SCORED);
    schema([(column::ROW, DataType::UInt64)].into_iter().chain(sums.map(|s| (s, DataType::Int64))))
});

static WAIT_ROWS: LazyLock<SchemaRef> = LazyLock::new(|| {
    let wide = [column::PROMPT_ID, SINCE].map(|name| (name, DataType::UInt64));
    schema(wide.into_iter().chain([(LONGEST, DataType::UInt32)]))
});

/// The facts of all steps so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FactTotals {
    lengths: BTreeMap<Length, WeightSums>,
    pairs: BTreeMap<Pair, Products>,
    rows: BTreeMap<u64, Launches>,
    waits: DeferredPrompts,
}

impl SavedState for FactTotals {
    fn read(restored: &RestoredSnapshot) -> Result<Option<Self>, ResumeError> {
        let lengths = read_rows(restored, LENGTHS, &LENGTH_ROWS)?;
        let pairs = read_rows(restored, PAIRS, &PAIR_ROWS)?;
        let rows = read_rows(restored, ROWS, &HISTORY_ROWS)?;
        let waits = read_rows(restored, WAITS, &WAIT_ROWS)?;
        Ok(Some(Self {
            lengths: lengths.as_ref().map(read_lengths).unwrap_or_default(),
            pairs: pairs.as_ref().map(pair_totals::read).unwrap_or_default(),
            rows: rows.as_ref().map(read_histories).unwrap_or_default(),
            waits: DeferredPrompts(waits.as_ref().map(read_waits).unwrap_or_default()),
        }))
    }
}

impl FactTotals {
    pub(super) fn waits(&self) -> DeferredPrompts {
        self.waits.clone()
    }

    /// Returns all facts as if they came from one step.
    pub(super) fn facts(&self) -> Facts {
        let waiting = self.waits.0.values().map(|waiting| (waiting.since, 1));
        Facts {
            lengths: self.lengths.clone(),
            pairs: self.pairs.clone(),
            rows: self.rows.iter().map(|(row, launches)| (*row, *launches)).collect(),
            waiting: waiting.collect(),
        }
    }

    /// Adds the facts of a step. `waits` are the deferred prompts after the step.
    pub(super) fn add(&mut self, facts: &Facts, waits: &DeferredPrompts) {
        for (length, weighed) in &facts.lengths {
            self.lengths.entry(*length).or_default().add(*weighed);
        }
        for (pair, products) in &facts.pairs {
            self.pairs.entry(*pair).or_default().add(products);
        }
        for (row, launches) in &facts.rows {
            self.rows.entry(*row).or_default().add(launches);
        }
        self.waits.clone_from(waits);
    }

    pub(super) fn lengths_part(&self) -> Part {
        let sums = |of: fn(&WeightSums) -> i64| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(self.lengths.values().map(of)))
        };
        let kinds = self.lengths.keys().map(|length| length.parts().0);
        let tokens = self.lengths.keys().map(|length| length.parts().1);
        let columns = vec![
            Arc::new(StringArray::from_iter_values(kinds)) as ArrayRef,
            Arc::new(UInt32Array::from_iter_values(tokens)),
            sums(|weighed| weighed.count),
            sums(|weighed| weighed.weight),
            sums(|weighed| weighed.square),
        ];
        rows(&LENGTH_ROWS, columns)
    }

    pub(super) fn pairs_part(&self) -> Part {
        pair_totals::part(&self.pairs)
    }

    pub(super) fn rows_part(&self) -> Part {
        let ids: ArrayRef = Arc::new(UInt64Array::from_iter_values(self.rows.keys().copied()));
        let sums = (0..6).map(|at| -> ArrayRef {
            let sums = self.rows.values().map(|launches| launches.sums()[at]);
            Arc::new(Int64Array::from_iter_values(sums))
        });
        rows(&HISTORY_ROWS, std::iter::once(ids).chain(sums).collect())
    }

    pub(super) fn waits_part(&self) -> Part {
        let DeferredPrompts(waits) = &self.waits;
        let since = waits.values().map(|waiting| waiting.since.0);
        let longest = waits.values().map(|waiting| waiting.longest);
        let columns = vec![
            Arc::new(UInt64Array::from_iter_values(waits.keys().map(|prompt| prompt.0)))
                as ArrayRef,
            Arc::new(UInt64Array::from_iter_values(since)),
            Arc::new(UInt32Array::from_iter_values(longest)),
        ];
        rows(&WAIT_ROWS, columns)
    }
}

fn read_lengths(batch: &Batch) -> BTreeMap<Length, WeightSums> {
    let sum = |name, row| batch.values::<Int64Type>(name).value(row);
    let tokens = batch.values::<UInt32Type>(TOKENS);
    let kinds = batch.text(KIND);
    (0..batch.num_rows())
        .filter_map(|row| {
            let length = Length::of(kinds.value(row), tokens.value(row))?;
            let (count, weight, square) = (sum(COUNT, row), sum(WEIGHT, row), sum(SQUARE, row));
            Some((length, WeightSums { count, weight, square }))
        })
        .collect()
}

fn read_histories(batch: &Batch) -> BTreeMap<u64, Launches> {
    let sum = |name, row| batch.values::<Int64Type>(name).value(row);
    let ids = batch.values::<UInt64Type>(column::ROW);
    let launches = |row| Launches {
        launched: sum(LAUNCHED, row),
        whole: WHOLE.map(|name| sum(name, row)),
        scored: SCORED.map(|name| sum(name, row)),
    };
    (0..batch.num_rows()).map(|row| (ids.value(row), launches(row))).collect()
}

fn read_waits(batch: &Batch) -> BTreeMap<PromptId, DeferredPrompt> {
    let prompts = batch.values::<UInt64Type>(column::PROMPT_ID);
    let since = batch.values::<UInt64Type>(SINCE);
    let longest = batch.values::<UInt32Type>(LONGEST);
    let waiting =
        |row| DeferredPrompt { since: Step(since.value(row)), longest: longest.value(row) };
    (0..batch.num_rows()).map(|row| (PromptId(prompts.value(row)), waiting(row))).collect()
}
