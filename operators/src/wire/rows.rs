//! Rows from several batches, gathered into one batch.

use std::ops::Range;

use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow_select::interleave::interleave;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;

/// One row of a shared batch. It keeps the whole batch alive.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) batch: Batch,
    pub(crate) index: usize,
}

impl Row {
    pub(crate) fn all(batch: &Batch) -> impl Iterator<Item = Self> {
        (0..batch.num_rows()).map(|index| Self { batch: batch.clone(), index })
    }

    /// Returns the number of tokens of the prompt.
    pub(crate) fn prompt_length(&self) -> u32 {
        self.batch.values::<UInt32Type>(column::PROMPT_LENGTH).value(self.index)
    }

    /// Returns the index of the dataset row that the prompt was read from.
    pub(crate) fn dataset_row(&self) -> u64 {
        self.batch.values::<UInt64Type>(column::ROW).value(self.index)
    }

    /// Returns the text of a column; `None` if it is null.
    pub(crate) fn text(&self, column: &str) -> Option<&str> {
        let texts: &StringArray = self.batch.text(column);
        texts.is_valid(self.index).then(|| texts.value(self.index))
    }
}

/// Returns the id of each row of `batch`: its prompt and its sample.
pub fn ids(batch: &Batch) -> impl Iterator<Item = (u64, u32)> {
    let prompts = batch.values::<UInt64Type>(column::PROMPT_ID).values().iter().copied();
    prompts.zip(batch.values::<UInt32Type>(column::SAMPLE).values().iter().copied())
}

/// Returns the rows of `batches` for which `keep` returns `true`, given their [id](ids). The rows are sorted by id.
pub(crate) fn sorted_by_id(batches: &[Batch], keep: impl Fn((u64, u32)) -> bool) -> Vec<Row> {
    let rows = batches.iter().flat_map(|batch| ids(batch).zip(Row::all(batch)));
    let mut rows: Vec<((u64, u32), Row)> = rows.filter(|(id, _)| keep(*id)).collect();
    rows.sort_by_key(|(id, _)| *id);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Returns the named columns of `rows`, in the order given. If the rows are consecutive rows of one batch, the columns are slices of that
/// batch; otherwise the values are copied. All batches must have the same schema.
///
/// # Panics
/// Panics if `rows` is empty or a column does not exist.
pub(crate) fn gather<'a>(
    rows: &[Row],
    columns: impl IntoIterator<Item = &'a str>,
) -> impl Iterator<Item = ArrayRef> {
    let gathering = RowGather::of(rows);
    columns.into_iter().map(move |name| gathering.column(|rows| column(rows, name)))
}

/// Returns the first `columns` columns of `rows` as [`gather`] does, without a search by name.
pub(crate) fn gather_first(rows: &[Row], columns: usize) -> Vec<ArrayRef> {
    let gathering = RowGather::of(rows);
    (0..columns).map(|at| gathering.column(|rows| rows.column(at))).collect()
}

fn column<'a>(rows: &'a RecordBatch, name: &str) -> &'a ArrayRef {
    rows.column_by_name(name).expect("invariant: a checked batch has the columns of its schema")
}

/// Rows, indexed by the batches that they come from.
struct RowGather<'a> {
    /// The batches of the rows: one entry for each run of rows from the same batch, because neighboring rows mostly share a batch.
    batches: Vec<&'a RecordBatch>,
    /// The batch of each row, and the index of the row in it.
    indices: Vec<(usize, usize)>,
    /// The range of rows in the first batch, if all rows are consecutive rows of it.
    run: Option<Range<usize>>,
}

impl<'a> RowGather<'a> {
    fn of(rows: &'a [Row]) -> Self {
        let (mut batches, mut indices) = (Vec::new(), Vec::with_capacity(rows.len()));
        let mut last: Option<&Batch> = None;
        for Row { batch, index } in rows {
            if !last.is_some_and(|last| last.is_same(batch)) {
                batches.push(batch.rows().expect("invariant: a row lies in a batch that has rows"));
                last = Some(batch);
            }
            indices.push((batches.len() - 1, *index));
        }
        let run = run(&indices);
        Self { batches, indices, run }
    }

    fn column(&self, of: impl Fn(&'a RecordBatch) -> &'a ArrayRef) -> ArrayRef {
        match &self.run {
            Some(run) => shared(of(self.batches[0]), run),
            None => self.copied(of),
        }
    }

    fn copied(&self, of: impl Fn(&'a RecordBatch) -> &'a ArrayRef) -> ArrayRef {
        let arrays: Vec<&dyn Array> = self.batches.iter().map(|rows| of(rows).as_ref()).collect();
        let copied = interleave(&arrays, &self.indices);
        copied.expect("invariant: the indices are rows of batches of one schema")
    }
}

/// Returns the range of rows in the first batch, if `indices` refer to that batch only and are consecutive.
fn run(indices: &[(usize, usize)]) -> Option<Range<usize>> {
    let &(_, first) = indices.first()?;
    let in_order = indices.iter().zip(first..).all(|(index, row)| *index == (0, row));
    in_order.then(|| first..first + indices.len())
}

fn shared(array: &ArrayRef, rows: &Range<usize>) -> ArrayRef {
    if rows.len() == array.len() { array.clone() } else { array.slice(rows.start, rows.len()) }
}
