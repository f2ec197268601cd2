//! Rows of [`schema::PARTS`]: the reports of operators about their parts.

use std::sync::Arc;

use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, StringArray, UInt32Array, UInt64Array};

use super::manifest::PartRecord;
use crate::batch::Batch;
use crate::schema::{self, column};
use crate::step::Step;

/// The report of one operator on one worker about its part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Descriptor {
    pub(crate) operator: String,
    pub(crate) worker: u32,
    /// The last step that is included in the operator's state; `None` if there is none.
    pub(crate) reached: Option<Step>,
    /// `Ok` with the file, or with `None` if the worker has no file; `Err` with the reason why the file could not be written.
    pub(crate) outcome: Result<Option<PartRecord>, String>,
}

impl Descriptor {
    /// Encodes the descriptor as a batch of one row.
    pub(crate) fn batch(&self) -> Batch {
        let record = self.outcome.as_ref().ok().and_then(Option::as_ref);
        let facts = record
            .map(|record| serde_json::Value::Object(record.facts.clone()).to_string())
            .unwrap_or_default();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from(vec![self.operator.as_str()])),
            Arc::new(UInt32Array::from(vec![self.worker])),
            Arc::new(UInt64Array::from(vec![self.reached.map(|step| step.0)])),
            Arc::new(StringArray::from(vec![record.map(|record| record.path.as_str())])),
            Arc::new(UInt64Array::from(vec![record.map_or(0, |record| record.length)])),
            Arc::new(StringArray::from(vec![record.map_or("", |record| record.sha256.as_str())])),
            Arc::new(UInt32Array::from(vec![record.map_or(0, |record| record.version)])),
            Arc::new(StringArray::from(vec![facts])),
            Arc::new(StringArray::from(vec![self.outcome.as_ref().err().map(String::as_str)])),
        ];
        Batch::from_columns(&schema::PARTS, columns)
    }

    pub(crate) fn all(batch: &Batch) -> impl Iterator<Item = Self> {
        let text = |name, row: usize| {
            let column = batch.text(name);
            column.is_valid(row).then(|| column.value(row).to_owned())
        };
        let (workers, versions) = (
            batch.values::<UInt32Type>(column::WORKER),
            batch.values::<UInt32Type>(column::SCHEMA_VERSION),
        );
        let (reached, lengths) = (
            batch.values::<UInt64Type>(column::REACHED),
            batch.values::<UInt64Type>(column::LENGTH),
        );
        (0..batch.num_rows()).map(move |row| {
            let operator = text(column::OPERATOR, row).unwrap_or_default();
            let record = text(column::PATH, row).map(|path| PartRecord {
                operator: operator.clone(),
                worker: workers.value(row),
                path,
                length: lengths.value(row),
                sha256: text(column::SHA256, row).unwrap_or_default(),
                version: versions.value(row),
                facts: text(column::FACTS, row)
                    .and_then(|facts| serde_json::from_str(&facts).ok())
                    .unwrap_or_default(),
            });
            Self {
                operator,
                worker: workers.value(row),
                reached: reached.is_valid(row).then(|| Step(reached.value(row))),
                outcome: text(column::MESSAGE, row).map_or(Ok(record), Err),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_survives_its_row() {
        let record = PartRecord {
            operator: "schedule".to_owned(),
            worker: 3,
            path: "step-00000001/0001/schedule-3.arrow".to_owned(),
            length: 12,
            sha256: "ab".to_owned(),
            version: 2,
            facts: [("cursor".to_owned(), 7.into())].into_iter().collect(),
        };
        let outcomes = [Ok(Some(record)), Ok(None), Err("the disk is full".to_owned())];
        for (outcome, reached) in outcomes.into_iter().zip([Some(Step(1)), None, None]) {
            let sent = Descriptor { operator: "schedule".to_owned(), worker: 3, reached, outcome };
            assert_eq!(Descriptor::all(&sent.batch()).collect::<Vec<_>>(), [sent]);
        }
    }
}
