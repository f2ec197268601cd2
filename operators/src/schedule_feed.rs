//! Routes ended and scored responses of all workers to the schedule, without the tokens and texts, which the schedule never reads.

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

/// Routes the ended responses of all workers to the first worker, without tokens and texts. On a single worker, the stream is returned
/// unchanged.
pub(crate) fn gather_ends(responses: BatchStream<'_>) -> BatchStream<'_> {
    gather_without_payload(["thin_ends", "ends_to_first"], responses, &schema::RESPONSES)
}

/// Routes the scored responses of all workers to the first worker, like [`gather_ends`].
pub(crate) fn gather_scores(scored: BatchStream<'_>) -> BatchStream<'_> {
    gather_without_payload(["thin_scores", "scores_to_first"], scored, &schema::SCORED)
}

fn gather_without_payload<'scope>(
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
                output.give(&capability.retain(output.index()), without_payload(&batch));
            });
        }
    });
    route::gather_at_first(moving, given, schema)
}

/// Returns the same rows with empty lists and empty or null texts. Numbers and the finish reason are kept.
fn without_payload(batch: &Batch) -> Batch {
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
    use crate::wire::columns::owned_lists;

    #[test]
    fn tokens_and_texts_do_not_reach_the_schedule() {
        let rows = 3;
        let list = || (0..rows).map(|_| vec![7; 10_000]);
        let floats = || owned_lists::<Float32Type>((0..rows).map(|_| vec![0.5; 10_000]));
        let lengths: ArrayRef = Arc::new(arrow_array::UInt32Array::from(vec![10_000; rows]));
        let given = [
            (column::PROMPT_IDS, owned_lists::<Int32Type>(list())),
            (column::RESPONSE_IDS, owned_lists::<Int32Type>(list())),
            (column::LOGPROBS, floats()),
            (column::TOKEN_SCORES, floats()),
            (column::RESPONSE_TEXT, shared_texts((0..rows).map(|_| "x".repeat(10_000)))),
            (column::RESPONSE_LENGTH, lengths),
            (column::FINISH_REASON, Arc::new(StringArray::from(vec!["stop"; rows]))),
        ];
        let thinned = without_payload(&blank::batch(&schema::SCORED, rows, &given));
        assert!(thinned.length_in_bytes() < 8192, "{} bytes", thinned.length_in_bytes());
        let lengths = thinned.values::<UInt32Type>(column::RESPONSE_LENGTH);
        assert_eq!(lengths.values(), &[10_000; 3]);
        assert_eq!(thinned.text(column::FINISH_REASON).value(2), "stop");
        assert_eq!(thinned.shared_text(column::RESPONSE_TEXT).len(), rows);
    }
}
