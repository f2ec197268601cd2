//! The anchors in a snapshot: the summary of all executions so far.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, UInt32Array, UInt64Array};
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::differential_dataflow::difference::{IsZero, Semigroup};
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::snapshot::{Part, RestoredSnapshot};
use serde::{Deserialize, Serialize};

use crate::resume::part::{read_rows, rows};
use crate::resume::{ResumeError, SavedState};
use crate::time_limit::TimeLimit;

/// The name of the snapshot part with the longest correct executions and the results of audits.
pub(super) const PART: &str = "ledger_anchors";

const KILLS: &str = "audited_kills";
const WRONG: &str = "wrong_kills";

/// A test case: the dataset row, and the index of the case in the row.
pub(super) type Case = (u64, u32);

/// A duration in nanoseconds, as a difference type whose sum is the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct Longest(pub(super) u64);

impl IsZero for Longest {
    /// Returns `false`: a case with a correct execution is known, even if the execution took no time.
    fn is_zero(&self) -> bool {
        false
    }
}

impl Semigroup for Longest {
    fn plus_equals(&mut self, other: &Self) {
        self.0 = self.0.max(other.0);
    }
}

/// The longest correct execution of each test case, and the results of audits.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AnchorTotals {
    pub(super) longest: BTreeMap<Case, Longest>,
    /// The number of audited executions that exceeded their time limit, and the number of correct executions among them.
    pub(super) audits: (i64, i64),
}

impl SavedState for AnchorTotals {
    fn read(restored: &RestoredSnapshot) -> Result<Option<Self>, ResumeError> {
        let Some(batch) = read_rows(restored, PART, &schema::ANCHORS)? else {
            return Ok(None);
        };
        let fact = |key: &str| {
            let facts = restored.records(PART).find_map(|record| record.facts.get(key));
            facts.and_then(serde_json::Value::as_i64).unwrap_or(0)
        };
        let ids = batch.values::<UInt64Type>(column::ROW).values();
        let cases = batch.values::<UInt32Type>(column::CASE).values();
        let took = batch.values::<UInt64Type>(column::TOOK).values();
        let longest = ids.iter().zip(cases).zip(took);
        Ok(Some(Self {
            longest: longest.map(|((row, case), took)| ((*row, *case), Longest(*took))).collect(),
            audits: (fact(KILLS), fact(WRONG)),
        }))
    }
}

impl AnchorTotals {
    /// Reports all anchors to a time limit, as a run does when anchors change.
    pub(crate) fn apply_to(&self, limit: &mut impl TimeLimit) {
        for ((row, case), Longest(took)) in &self.longest {
            limit.set_anchor(*row, *case, Nanos(*took));
        }
    }

    /// Adds the results of a step.
    pub(super) fn add(&mut self, longest: &BTreeMap<Case, Longest>, (kills, wrong): (i64, i64)) {
        for (case, took) in longest {
            self.longest.entry(*case).or_insert(*took).plus_equals(took);
        }
        self.audits = (self.audits.0 + kills, self.audits.1 + wrong);
    }

    pub(super) fn part(&self) -> Part {
        let columns = vec![
            Arc::new(UInt64Array::from_iter_values(self.longest.keys().map(|(row, _)| *row)))
                as ArrayRef,
            Arc::new(UInt32Array::from_iter_values(self.longest.keys().map(|(_, case)| *case))),
            Arc::new(UInt64Array::from_iter_values(self.longest.values().map(|took| took.0))),
        ];
        rows(&schema::ANCHORS, columns).fact(KILLS, self.audits.0).fact(WRONG, self.audits.1)
    }
}
