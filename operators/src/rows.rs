//! Rows kept from several batches, to be gathered into one.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, StringArray};
use arrow::compute::interleave;
use arrow::datatypes::UInt32Type;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;

/// One row of a shared batch. Keeps the whole batch alive.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) batch: Batch,
    pub(crate) index: usize,
}

impl Row {
    /// The rows of a batch.
    pub(crate) fn all(batch: &Batch) -> impl Iterator<Item = Self> {
        (0..batch.num_rows()).map(|index| Self { batch: batch.clone(), index })
    }

    /// Tokens of its prompt.
    pub(crate) fn prompt_length(&self) -> u32 {
        self.batch.values::<UInt32Type>(column::PROMPT_LENGTH).value(self.index)
    }

    /// The text of a column; `None` where it is null.
    pub(crate) fn text(&self, column: &str) -> Option<&str> {
        let texts: &StringArray = self.batch.text(column);
        texts.is_valid(self.index).then(|| texts.value(self.index))
    }
}

/// Copies columns of rows into new arrays, in the order given.
pub(crate) fn gather<'a>(
    rows: &[Row],
    columns: impl IntoIterator<Item = &'a str>,
) -> impl Iterator<Item = ArrayRef> {
    let (batches, indices) = distinct(rows);
    columns.into_iter().map(move |column| {
        let arrays: Vec<&dyn Array> =
            batches.iter().map(|batch| array(batch, column).as_ref()).collect();
        interleave(&arrays, &indices)
            .expect("invariant: the indices are rows of batches of one schema")
    })
}

/// Neighbours mostly share their batch, so each run of a batch is named once.
fn distinct(rows: &[Row]) -> (Vec<&Batch>, Vec<(usize, usize)>) {
    let mut batches: Vec<&Batch> = Vec::new();
    let indices = rows
        .iter()
        .map(|row| {
            if !batches.last().is_some_and(|last| same(last, &row.batch)) {
                batches.push(&row.batch);
            }
            (batches.len() - 1, row.index)
        })
        .collect();
    (batches, indices)
}

fn same(one: &Batch, other: &Batch) -> bool {
    match (one.rows(), other.rows()) {
        (Some(one), Some(other)) => {
            one.num_rows() == other.num_rows() && Arc::ptr_eq(one.column(0), other.column(0))
        }
        _ => false,
    }
}

fn array<'a>(batch: &'a Batch, column: &str) -> &'a ArrayRef {
    let rows = batch.rows().expect("invariant: a row lies in a batch that has rows");
    rows.column_by_name(column).expect("invariant: a checked batch has the columns of its schema")
}
