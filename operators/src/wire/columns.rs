//! Builds columns of the stream schemas from plain values.

use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::types::ArrowPrimitiveType;
use arrow_array::{ArrayRef, ListArray, PrimitiveArray};
use arrow_buffer::OffsetBuffer;
use rollpacker_dataflow::schema::list_item;
use rollpacker_dataflow::shared_list::SharedListBuilder;

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

/// Returns a column of shared lists, with a copy of each list of `lists`.
pub(crate) fn shared_lists<'a, T: ArrowPrimitiveType>(
    lists: impl ExactSizeIterator<Item = &'a [T::Native]>,
) -> ArrayRef {
    let mut column = SharedListBuilder::<T>::with_capacity(lists.len());
    lists.for_each(|list| column.push_copy(list));
    column.finish()
}

/// Returns a column of shared lists, which takes over the memory of long lists.
pub(crate) fn owned_lists<T: ArrowPrimitiveType>(
    lists: impl ExactSizeIterator<Item = Vec<T::Native>>,
) -> ArrayRef {
    let mut column = SharedListBuilder::<T>::with_capacity(lists.len());
    lists.for_each(|list| column.push(list));
    column.finish()
}

/// Returns a column of shared lists with an empty list in each of `rows` rows.
pub(crate) fn empty_lists<T: ArrowPrimitiveType>(rows: usize) -> ArrayRef {
    shared_lists::<T>((0..rows).map(|_| [].as_slice()))
}

/// Returns a text column, in which `None` is null. The builder is sized explicitly because collecting into a `StringArray` reserves a
/// kilobyte for any number of rows.
pub(crate) fn texts<'a>(texts: impl ExactSizeIterator<Item = Option<&'a str>>) -> ArrayRef {
    let mut column = StringBuilder::with_capacity(texts.len(), 0);
    column.extend(texts);
    Arc::new(column.finish())
}
