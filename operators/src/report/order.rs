//! Sorts rows by id, so that sums over them and files written from them do not depend on the order of arrival.

use arrow_array::RecordBatch;
use arrow_array::types::UInt64Type;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;

use super::recorded::recorded;
use crate::wire::rows::sorted_by_id;

/// The maximum number of rows of a batch that [`rows_by_id`] returns.
const ROWS: usize = 256;

/// Returns each group in `batches` ([`GROUPS`](rollpacker_dataflow::schema::GROUPS)) as a batch of its own, sorted by prompt. No data is
/// copied.
pub(super) fn groups(batches: &[Batch]) -> Vec<Batch> {
    let mut groups: Vec<(u64, Batch)> = batches.iter().flat_map(groups_of).collect();
    groups.sort_by_key(|(prompt, _)| *prompt);
    groups.into_iter().map(|(_, batch)| batch).collect()
}

fn groups_of(batch: &Batch) -> Vec<(u64, Batch)> {
    let Some(rows) = batch.rows() else { return Vec::new() };
    let prompts = batch.values::<UInt64Type>(column::PROMPT_ID).values();
    let mut first = 0;
    let groups = prompts.chunk_by(|one, next| one == next).map(|group| {
        let slice = rows.slice(first, group.len());
        first += group.len();
        (group[0], Batch::new(slice))
    });
    groups.collect()
}

/// Returns the rows of `batches` for which `keep` returns `true`, given their prompt and sample. The rows are sorted by prompt and sample,
/// in batches of at most 256 rows with the columns of [`recorded_fields`](super::recorded_fields).
///
/// The batches are built lazily, one at a time, because rows may hold many tokens.
pub fn rows_by_id(
    batches: &[Batch],
    keep: impl Fn(u64, u32) -> bool,
) -> impl Iterator<Item = RecordBatch> {
    let rows = sorted_by_id(batches, |(prompt, sample)| keep(prompt, sample));
    let pieces = rows.len().div_ceil(ROWS);
    (0..pieces).filter_map(move |piece| {
        let end = rows.len().min((piece + 1) * ROWS);
        recorded(&rows[piece * ROWS..end])
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{UInt32Array, UInt64Array};
    use arrow_schema::{DataType, Field, Schema};

    use super::*;
    use crate::wire::rows::ids;

    fn batch(ids: &[(u64, u32)]) -> Batch {
        let field = |name, data_type| Field::new(name, data_type, false);
        let schema = Schema::new(vec![
            field(column::PROMPT_ID, DataType::UInt64),
            field(column::SAMPLE, DataType::UInt32),
        ]);
        let prompts = UInt64Array::from_iter_values(ids.iter().map(|id| id.0));
        let samples = UInt32Array::from_iter_values(ids.iter().map(|id| id.1));
        Batch::from_columns(&Arc::new(schema), vec![Arc::new(prompts), Arc::new(samples)])
    }

    #[test]
    fn groups_are_ordered_by_prompt_across_batches() {
        let (three, one, two) = ([(3, 0), (3, 4)], [(1, 0), (1, 1)], [(2, 5)]);
        let together = groups(&[batch(&[three, one].concat()), Batch::default(), batch(&two)]);
        let found: Vec<_> = together.iter().map(|batch| ids(batch).collect::<Vec<_>>()).collect();
        assert_eq!(found, [one.to_vec(), two.to_vec(), three.to_vec()]);
    }

    #[test]
    fn rows_are_ordered_by_id_in_chunks_that_do_not_depend_on_batches() {
        let all: Vec<(u64, u32)> = (0..300).map(|id| (id / 2, id as u32 % 2)).collect();
        let (mut odd, even): (Vec<_>, Vec<_>) = all.iter().partition(|id| id.0 % 2 == 1);
        odd.reverse();
        let keep = |prompt, _| prompt != 7;
        let pieces = |batches: &[Batch]| -> Vec<Vec<(u64, u32)>> {
            rows_by_id(batches, keep).map(|rows| ids(&Batch::new(rows)).collect()).collect()
        };
        let found = pieces(&[batch(&odd), batch(&even)]);
        assert_eq!(found, pieces(&[batch(&all)]));
        let kept: Vec<_> = all.into_iter().filter(|id| id.0 != 7).collect();
        assert_eq!((found[0].len(), found.concat()), (ROWS, kept));
    }
}
