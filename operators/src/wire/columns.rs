//! Builds columns of the stream schemas from plain values.

use std::sync::Arc;

use arrow::array::{ArrayRef, ListArray, PrimitiveArray, StringBuilder};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::ArrowPrimitiveType;
use rollpacker_dataflow::schema::list_item;

/// Returns a list column without nulls, with one list for each item of `lists`.
pub(crate) fn lists<'a, T: ArrowPrimitiveType>(
    lists: impl Iterator<Item = &'a [T::Native]>,
) -> ArrayRef {
    let mut values = Vec::new();
    let lengths = lists.map(|list| {
        values.extend_from_slice(list);
        list.len()
    });
    let offsets = OffsetBuffer::from_lengths(lengths);
    let values = PrimitiveArray::<T>::new(values.into(), None);
    Arc::new(ListArray::new(list_item(T::DATA_TYPE), offsets, Arc::new(values), None))
}

/// Returns a text column with nulls. The builder is sized explicitly because collecting into a `StringArray` reserves a kilobyte for any
/// number of rows.
pub(crate) fn texts<'a>(texts: impl ExactSizeIterator<Item = Option<&'a str>>) -> ArrayRef {
    let mut column = StringBuilder::with_capacity(texts.len(), 0);
    column.extend(texts);
    Arc::new(column.finish())
}
