//! The anchors in a snapshot: the summary of all executions so far.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, UInt32Array, UInt64Array};
use arrow::datatypes::{UInt32Type, UInt64Type};
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::differential_dataflow::difference::Semigroup;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::snapshot::{Part, RestoredSnapshot};

use super::anchors::{Case, Longest};
use crate::resume::ResumeError;
use crate::resume::part::{read_rows, rows};
use crate::reward::Limit;

/// The name of the part.
pub(super) const PART: &str = "ledger_anchors";

const KILLS: &str = "audited_kills";
const WRONG: &str = "wrong_kills";

/// The longest correct execution of each test case, and the results of audits.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KnownAnchors {
    pub(super) longest: BTreeMap<Case, Longest>,
    /// The number of audited executions that exceeded their limit, and the number of those that were correct.
    pub(super) audits: (i64, i64),
}

impl KnownAnchors {
    pub(crate) fn read(restored: &RestoredSnapshot) -> Result<Self, ResumeError> {
        let Some(batch) = read_rows(restored, PART, &schema::ANCHORS)? else {
            return Ok(Self::default());
        };
        let fact = |key: &str| {
            let facts = restored.records(PART).find_map(|record| record.facts.get(key));
            facts.and_then(serde_json::Value::as_i64).unwrap_or(0)
        };
        let ids = batch.values::<UInt64Type>(column::ROW).values();
        let cases = batch.values::<UInt32Type>(column::CASE).values();
        let took = batch.values::<UInt64Type>(column::TOOK).values();
        let longest = ids.iter().zip(cases).zip(took);
        Ok(Self {
            longest: longest.map(|((row, case), took)| ((*row, *case), Longest(*took))).collect(),
            audits: (fact(KILLS), fact(WRONG)),
        })
    }

    /// Reports the anchors to a limit, as the ledger does when they change.
    pub(crate) fn tell(&self, limit: &mut impl Limit) {
        for ((row, case), Longest(took)) in &self.longest {
            limit.anchored(*row, *case, Nanos(*took));
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
