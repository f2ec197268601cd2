//! Batches for tests, in which most columns are blank.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BinaryViewArray, Float32Array, Float64Array, StringArray, StringViewArray,
    UInt32Array, UInt64Array, new_empty_array,
};
use arrow_schema::{DataType, Schema};
use rollpacker_dataflow::batch::Batch;

/// Returns a batch of `schema` with `rows` rows, in which all but the columns `named` are blank.
pub(crate) fn batch(schema: &Arc<Schema>, rows: usize, named: &[(&str, ArrayRef)]) -> Batch {
    let columns = schema.fields().iter().map(|field| {
        let given = named.iter().find(|(name, _)| *name == field.name());
        given.map_or_else(|| blank(field.data_type(), rows), |(_, column)| Arc::clone(column))
    });
    Batch::from_columns(schema, columns.collect())
}

/// Returns a column of zeros, empty texts or empty lists. `Float32` columns contain 1, the default weight.
fn blank(data_type: &DataType, rows: usize) -> ArrayRef {
    match data_type {
        DataType::Utf8 => Arc::new(StringArray::from(vec![""; rows])),
        DataType::Utf8View => Arc::new(StringViewArray::from(vec![""; rows])),
        DataType::BinaryView => Arc::new(BinaryViewArray::from(vec![&b""[..]; rows])),
        DataType::UInt64 => Arc::new(UInt64Array::from(vec![0; rows])),
        DataType::UInt32 => Arc::new(UInt32Array::from(vec![0; rows])),
        DataType::Float64 => Arc::new(Float64Array::from(vec![0.0; rows])),
        DataType::Float32 => Arc::new(Float32Array::from(vec![1.0; rows])),
        list => {
            let DataType::List(item) = list else { panic!("no such column: {list}") };
            let offsets = arrow_buffer::OffsetBuffer::from_lengths(vec![0; rows]);
            Arc::new(arrow_array::ListArray::new(
                item.clone(),
                offsets,
                new_empty_array(item.data_type()),
                None,
            ))
        }
    }
}
