//! Routes the ends and scores of all workers to the schedule, without the tokens and texts that it never reads.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ListArray, StringArray, new_empty_array, new_null_array};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, SchemaRef};
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
    let columns = schema.fields().iter().zip(rows.columns());
    let columns = columns.map(|(field, column)| match field.data_type() {
        DataType::List(item) => empty_lists(item, rows.num_rows()),
        DataType::Utf8 if field.name() == column::FINISH_REASON => column.clone(),
        DataType::Utf8 if field.is_nullable() => new_null_array(&DataType::Utf8, rows.num_rows()),
        DataType::Utf8 => Arc::new(StringArray::from_iter_values((0..column.len()).map(|_| ""))),
        _ => column.clone(),
    });
    Batch::from_columns(&schema, columns.collect())
}

fn empty_lists(item: &Arc<Field>, rows: usize) -> ArrayRef {
    let offsets = OffsetBuffer::from_repeated_length(0, rows);
    let values = new_empty_array(item.data_type());
    Arc::new(ListArray::new(item.clone(), offsets, values, None))
}
