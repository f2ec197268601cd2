//! Routes the ends and scores of all workers to the schedule, without the tokens and texts that it never reads.

use std::iter::repeat_n;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BinaryViewArray, ListArray, StringArray, StringViewArray, new_empty_array,
    new_null_array,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, SchemaRef};
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::route;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;

/// Routes the responses of all workers to the first worker, without tokens and texts. On a single worker, the stream is returned unchanged.
pub(crate) fn ends(responses: BatchStream<'_>) -> BatchStream<'_> {
    thin_at_first(["thin_ends", "ends_to_first"], responses, &schema::RESPONSES)
}

/// Routes the scored responses of all workers to the first worker, like [`ends`].
pub(crate) fn scores(scored: BatchStream<'_>) -> BatchStream<'_> {
    thin_at_first(["thin_scores", "scores_to_first"], scored, &schema::SCORED)
}

fn thin_at_first<'scope>(
    [thinning, moving]: [&'static str; 2],
    stream: BatchStream<'scope>,
    schema: &SchemaRef,
) -> BatchStream<'scope> {
    if stream.scope().peers() == 1 {
        return stream;
    }
    let mut operator = Operator::new(thinning, stream.scope());
    let mut input = operator.input(stream, Pipeline, schema);
    let (mut output, given) = operator.output(schema, &[0]);
    operator.build(move |_capabilities| {
        move |_frontiers| {
            input.for_each(|capability, batch| {
                output.give(&capability.retain(output.index()), thin(&batch));
            });
        }
    });
    route::gather_at_first(moving, given, schema)
}

/// Returns the same rows with empty lists and texts. Only the text of the finish reason is kept.
fn thin(batch: &Batch) -> Batch {
    let Some(rows) = batch.rows() else { return Batch::default() };
    let schema = rows.schema();
    let count = rows.num_rows();
    let columns = schema.fields().iter().zip(rows.columns());
    let columns = columns.map(|(field, column)| match field.data_type() {
        DataType::List(item) => empty_lists(item, count),
        DataType::BinaryView => Arc::new(BinaryViewArray::from_iter_values(repeat_n([], count))),
        DataType::Utf8View => Arc::new(StringViewArray::from_iter_values(repeat_n("", count))),
        DataType::Utf8 if field.name() == column::FINISH_REASON => column.clone(),
        DataType::Utf8 if field.is_nullable() => new_null_array(&DataType::Utf8, count),
        DataType::Utf8 => Arc::new(StringArray::from_iter_values(repeat_n("", count))),
        kept if kept.is_numeric() => column.clone(),
        other => unreachable!("invariant: responses have no column of {other}"),
    });
    Batch::from_columns(&schema, columns.collect())
}

fn empty_lists(item: &Arc<Field>, rows: usize) -> ArrayRef {
    let offsets = OffsetBuffer::from_repeated_length(0, rows);
    let values = new_empty_array(item.data_type());
    Arc::new(ListArray::new(item.clone(), offsets, values, None))
}

#[cfg(test)]
mod tests {
    use arrow_array::Array;
    use arrow_array::types::{Float32Type, Int32Type, UInt32Type};
    use rollpacker_dataflow::shared_list::shared_texts;
    use rollpacker_dataflow::timely::dataflow::channels::ContainerBytes;

    use super::*;
    use crate::wire::blank;
    use crate::wire::columns::taken_lists;

    #[test]
    fn tokens_and_texts_do_not_reach_the_schedule() {
        let rows = 3;
        let list = || (0..rows).map(|_| vec![7; 10_000]);
        let floats = || taken_lists::<Float32Type>((0..rows).map(|_| vec![0.5; 10_000]));
        let lengths: ArrayRef = Arc::new(arrow_array::UInt32Array::from(vec![10_000; rows]));
        let given = [
            (column::PROMPT_IDS, taken_lists::<Int32Type>(list())),
            (column::RESPONSE_IDS, taken_lists::<Int32Type>(list())),
            (column::LOGPROBS, floats()),
            (column::TOKEN_SCORES, floats()),
            (column::RESPONSE_TEXT, shared_texts((0..rows).map(|_| "x".repeat(10_000)))),
            (column::RESPONSE_LENGTH, lengths),
            (column::FINISH_REASON, Arc::new(StringArray::from(vec!["stop"; rows]))),
        ];
        let thinned = thin(&blank::batch(&schema::SCORED, rows, &given));
        assert!(thinned.length_in_bytes() < 8192, "{} bytes", thinned.length_in_bytes());
        let lengths = thinned.values::<UInt32Type>(column::RESPONSE_LENGTH);
        assert_eq!(lengths.values(), &[10_000; 3]);
        assert_eq!(thinned.text(column::FINISH_REASON).value(2), "stop");
        assert_eq!(thinned.shared_text(column::RESPONSE_TEXT).len(), rows);
    }
}
