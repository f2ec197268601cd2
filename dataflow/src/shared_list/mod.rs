//! Columns of lists whose items are shared, not copied, when rows move from one batch to another.
//!
//! Token ids, log-probabilities and advantages are most of the data of a step. Between the engine and the trainer, operators gather rows of
//! many batches into new batches several times. An Arrow `List` column holds the items of all its rows in one buffer, so gathering rows
//! copies their items. A `BinaryView` column has a view of 16 bytes per row, which refers to one of any number of buffers, so gathering
//! rows copies only the views.
//!
//! A shared list is a row of a `BinaryView` column: the bytes of its items, in the byte order of the machine. The metadata of the field
//! names the type of the items. Items have four bytes: Arrow stores rows of up to twelve bytes in the view itself, at an offset of four
//! bytes, which would not align larger items.
//!
//! [`Batch::lists`](crate::batch::Batch::lists) reads shared lists as it reads `List` columns. [`unshared`] copies them into `List`
//! columns, the format of files, and [`shared`] copies them back. Small lists are copied into common buffers, so that a batch refers to few
//! buffers. A small list that is kept therefore keeps the memory of its neighbors alive.

mod builder;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float32Type, Int32Type, UInt32Type};
use arrow_array::{
    Array, ArrayRef, BinaryViewArray, ListArray, PrimitiveArray, RecordBatch, RecordBatchOptions,
    StringArray, StringViewArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};

pub use self::builder::{SharedListBuilder, repeated_lists, shared_texts};

/// The size of an item in bytes.
const ITEM: usize = 4;

/// The size of a view in bytes.
const VIEW: usize = 16;
/// The maximum size in bytes of a row that is stored in the view itself.
const INLINE: usize = 12;

/// The key of the metadata that names the type of the items.
const ITEMS: &str = "rollpacker.items";

/// Returns the field of a column of shared lists without nulls.
///
/// # Panics
/// If `item` is not `Int32`, `UInt32` or `Float32`.
#[must_use]
pub fn shared_list(name: &str, item: &DataType) -> Field {
    let item = item_name(item).expect("shared lists have items of four bytes");
    let metadata = HashMap::from([(ITEMS.to_owned(), item.to_owned())]);
    Field::new(name, DataType::BinaryView, false).with_metadata(metadata)
}

/// Returns the items of a row of shared lists.
pub(crate) fn items<T: ArrowPrimitiveType>(lists: &BinaryViewArray, row: usize) -> &[T::Native] {
    let views = lists.views();
    let [length, _, buffer, offset] = parts(views[row]);
    let items = length / ITEM;
    if length <= INLINE {
        // The items follow the length, which has four bytes. Views are aligned to 16 bytes.
        let words = views.inner().typed_data::<T::Native>();
        return &words[row * (VIEW / ITEM) + 1..][..items];
    }
    // A buffer starts at a multiple of four bytes in all cases. It may be a vector of items, or a buffer that `gc` allocated, which
    // allocators align to eight bytes. It may also be part of a received message, whose buffers Arrow aligns to eight bytes.
    let words = lists.data_buffers()[buffer].typed_data::<T::Native>();
    &words[offset / ITEM..][..items]
}

/// Returns the four numbers of a view: the length in bytes, the first four bytes, the index of the buffer, and the offset in that buffer.
/// In a view whose length is at most [`INLINE`], the last two numbers are part of the content.
fn parts(view: u128) -> [usize; 4] {
    [0, 32, 64, 96].map(|shift| ((view >> shift) & u128::from(u32::MAX)) as usize)
}

/// Returns the type of the items if `field` is a column of shared lists.
pub(crate) fn item_type(field: &Field) -> Option<DataType> {
    let name = field.metadata().get(ITEMS)?;
    let items = [DataType::Int32, DataType::UInt32, DataType::Float32];
    items.into_iter().find(|item| item_name(item) == Some(name))
}

fn item_name(item: &DataType) -> Option<&'static str> {
    match item {
        DataType::Int32 => Some("Int32"),
        DataType::UInt32 => Some("UInt32"),
        DataType::Float32 => Some("Float32"),
        _ => None,
    }
}

/// The fields that [`list_item`] returns for the most frequent item types.
static LIST_ITEMS: LazyLock<[FieldRef; 4]> = LazyLock::new(|| {
    [DataType::Int32, DataType::UInt32, DataType::UInt64, DataType::Float32]
        .map(|item| Arc::new(Field::new_list_field(item, false)))
});

/// Returns the field of the items of a list column. Items are never null. Lists of `Int32`, `UInt32`, `UInt64` or `Float32` share one field
/// per type, so that their batches allocate no field and their types compare by address.
#[must_use]
pub fn list_item(item: DataType) -> FieldRef {
    let shared = LIST_ITEMS.iter().find(|field| *field.data_type() == item).cloned();
    shared.unwrap_or_else(|| Arc::new(Field::new_list_field(item, false)))
}

/// Returns the field that [`unshared`] gives a column: `List` for shared lists, `Utf8` for shared texts, and the field itself otherwise.
#[must_use]
pub fn unshared_field(field: &FieldRef) -> FieldRef {
    let plain = match (item_type(field), field.data_type()) {
        (Some(item), _) => DataType::List(list_item(item)),
        (None, DataType::Utf8View) => DataType::Utf8,
        _ => return Arc::clone(field),
    };
    Arc::new(Field::new(field.name(), plain, field.is_nullable()))
}

/// Copies shared lists into `List` columns and shared texts into `Utf8` columns.
///
/// # Panics
/// If the lists of a column have 2^31 items or more in total, or the texts of a column have 2^31 bytes or more in total.
#[must_use]
pub fn unshared(rows: &RecordBatch) -> RecordBatch {
    let fields = rows.schema_ref().fields();
    let columns = fields.iter().zip(rows.columns()).map(|(field, column)| {
        let views = || column.as_binary_view();
        match (item_type(field), field.data_type()) {
            (Some(DataType::Float32), _) => copied::<Float32Type>(views()),
            (Some(DataType::Int32), _) => copied::<Int32Type>(views()),
            (Some(_), _) => copied::<UInt32Type>(views()),
            (None, DataType::Utf8View) => {
                Arc::new(column.as_string_view().iter().collect::<StringArray>())
            }
            _ => Arc::clone(column),
        }
    });
    let plain = Schema::new(fields.iter().map(unshared_field).collect::<Vec<_>>());
    with_columns(rows, plain, columns.collect())
}

/// Copies the `List` and `Utf8` columns that [`unshared`] made of rows of `schema` back into shared lists and texts.
///
/// # Panics
/// If the columns of `rows` are not those that [`unshared`] makes.
#[must_use]
pub fn shared(rows: &RecordBatch, schema: &SchemaRef) -> RecordBatch {
    let columns = schema.fields().iter().zip(rows.columns()).map(|(field, column)| {
        let lists = || column.as_list();
        match (item_type(field), field.data_type()) {
            (Some(DataType::Float32), _) => shared_copy::<Float32Type>(lists()),
            (Some(DataType::Int32), _) => shared_copy::<Int32Type>(lists()),
            (Some(_), _) => shared_copy::<UInt32Type>(lists()),
            (None, DataType::Utf8View) => {
                Arc::new(column.as_string::<i32>().iter().collect::<StringViewArray>())
            }
            _ => Arc::clone(column),
        }
    });
    with_columns(rows, schema.as_ref().clone(), columns.collect())
}

fn shared_copy<T: ArrowPrimitiveType>(lists: &ListArray) -> ArrayRef {
    let mut column = SharedListBuilder::<T>::with_capacity(lists.len());
    for list in lists.iter() {
        let list = list.expect("invariant: the column has no nulls");
        column.push_copy(list.as_primitive::<T>().values());
    }
    column.finish()
}

fn copied<T: ArrowPrimitiveType>(lists: &BinaryViewArray) -> ArrayRef {
    let mut values = Vec::with_capacity(lists.total_bytes_len() / ITEM);
    let lengths = (0..lists.len()).map(|row| {
        let items = items::<T>(lists, row);
        values.extend_from_slice(items);
        items.len()
    });
    let offsets = OffsetBuffer::from_lengths(lengths);
    let values = Arc::new(PrimitiveArray::<T>::new(values.into(), None));
    Arc::new(ListArray::new(list_item(T::DATA_TYPE), offsets, values, None))
}

/// Copies shared lists and texts into buffers that hold nothing else, before a batch is encoded for another process.
pub(crate) fn compacted(rows: &RecordBatch) -> RecordBatch {
    let columns = rows.columns().iter().map(|column| -> ArrayRef {
        match column.data_type() {
            DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
            DataType::Utf8View => Arc::new(column.as_string_view().gc()),
            _ => Arc::clone(column),
        }
    });
    with_columns(rows, rows.schema_ref().as_ref().clone(), columns.collect())
}

fn with_columns(rows: &RecordBatch, schema: Schema, columns: Vec<ArrayRef>) -> RecordBatch {
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(schema), columns, &options)
        .expect("invariant: the columns were made for the fields")
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Float32Type;
    use arrow_array::{StringArray, UInt64Array};
    use arrow_buffer::Buffer;
    use arrow_select::interleave::interleave;
    use arrow_select::take::take_record_batch;
    use proptest::prelude::*;

    use super::*;
    use crate::batch::Batch;

    const IDS: &str = "ids";
    const TEXT: &str = "text";

    fn rows(lists: &[Vec<i32>], texts: &[String]) -> RecordBatch {
        let mut ids = SharedListBuilder::<Int32Type>::with_capacity(lists.len());
        lists.iter().for_each(|list| ids.push(list.clone()));
        let text = Field::new(TEXT, DataType::Utf8View, true);
        let schema = Schema::new(vec![
            shared_list(IDS, &DataType::Int32),
            text,
            Field::new("number", DataType::UInt64, false),
        ]);
        let numbers = UInt64Array::from_iter_values(0..lists.len() as u64);
        let columns =
            vec![ids.finish(), shared_texts(texts.iter().cloned()), Arc::new(numbers) as ArrayRef];
        Batch::from_columns(&Arc::new(schema), columns).into_rows().unwrap()
    }

    fn read(rows: &RecordBatch) -> Vec<(Vec<i32>, String)> {
        let batch = Batch::new(rows.clone());
        let (lists, texts) = (batch.lists::<Int32Type>(IDS), batch.shared_text(TEXT));
        (0..rows.num_rows()).map(|row| (lists.get(row).to_vec(), texts.value(row).into())).collect()
    }

    /// Generates lengths around the limits of views (3 items) and of sharing (256 items).
    fn length() -> impl Strategy<Value = usize> {
        prop_oneof![0_usize..6, 250_usize..260, 1000_usize..1010]
    }

    fn entries() -> impl Strategy<Value = Vec<(Vec<i32>, String)>> {
        let entry = (length(), length(), any::<i32>()).prop_map(|(items, letters, first)| {
            let list = (0..items as i32).map(|item| first.wrapping_add(item)).collect();
            (list, "ä".repeat(letters))
        });
        prop::collection::vec(entry, 1..6)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn lists_and_texts_round_trip(
            one in entries(),
            other in entries(),
            skipped in 0_usize..3,
        ) {
            let batch_of = |entries: &[(Vec<i32>, String)]| {
                let (lists, texts): (Vec<_>, Vec<_>) = entries.iter().cloned().unzip();
                rows(&lists, &texts)
            };
            let batch = batch_of(&one);
            prop_assert_eq!(read(&batch), one.clone());

            let skipped = skipped.min(one.len() - 1);
            let slice = batch.slice(skipped, one.len() - skipped);
            prop_assert_eq!(read(&slice), &one[skipped..]);
            prop_assert_eq!(read(&compacted(&slice)), &one[skipped..]);

            let last = arrow_array::UInt32Array::from(vec![one.len() as u32 - 1, 0]);
            let taken = take_record_batch(&batch, &last).unwrap();
            prop_assert_eq!(read(&taken), [one[one.len() - 1].clone(), one[0].clone()]);

            let second = batch_of(&other);
            let columns = (0..2).map(|column| {
                let arrays = [slice.column(column).as_ref(), second.column(column).as_ref()];
                interleave(&arrays, &[(1, other.len() - 1), (0, 0)]).unwrap()
            });
            let fields = batch.schema().fields()[..2].to_vec();
            let mixed = Batch::from_columns(&Arc::new(Schema::new(fields)), columns.collect());
            let expected = [other[other.len() - 1].clone(), one[skipped].clone()];
            prop_assert_eq!(read(&mixed.into_rows().unwrap()), expected);
        }

        #[test]
        fn plain_columns_have_the_same_lists_and_texts(entries in entries()) {
            let (lists, texts): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
            let written = rows(&lists, &texts);
            let plain = unshared(&written);
            prop_assert_eq!(&shared(&plain, &written.schema()), &written);
            let types: Vec<_> = plain.schema().fields().iter().map(|f| f.data_type().clone()).collect();
            let list = DataType::List(list_item(DataType::Int32));
            prop_assert_eq!(types, [list, DataType::Utf8, DataType::UInt64]);
            let batch = Batch::new(plain);
            let found = batch.lists::<Int32Type>(IDS);
            for (row, list) in lists.iter().enumerate() {
                prop_assert_eq!(found.get(row), list.as_slice());
            }
            prop_assert_eq!(batch.text(TEXT), &StringArray::from_iter_values(texts));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn repeated_lists_take_the_memory_of_the_longest_of_each_number(
            rows in prop::collection::vec((0_u8..3, length()), 1..8),
        ) {
            let rows: Vec<(f32, usize)> =
                rows.into_iter().map(|(number, length)| (f32::from(number), length)).collect();
            let column = repeated_lists(&rows);
            let lists = column.as_binary_view();
            for (row, (number, length)) in rows.iter().enumerate() {
                prop_assert_eq!(items::<Float32Type>(lists, row), vec![*number; *length]);
            }
            let longest = |number: f32| {
                rows.iter().filter(|row| row.0 == number).map(|row| row.1).max().unwrap_or(0)
            };
            let expected: usize = [0.0, 1.0, 2.0].map(longest).iter().sum();
            let memory: usize = lists.data_buffers().iter().map(Buffer::len).sum();
            prop_assert_eq!(memory, expected * ITEM);
        }
    }

    #[test]
    fn a_long_list_is_not_copied() {
        let list = vec![7; 1000];
        let place = list.as_ptr();
        let mut column = SharedListBuilder::<Int32Type>::with_capacity(1);
        column.push(list);
        let column = column.finish();
        let gathered = interleave(&[column.as_ref()], &[(0, 0)]).unwrap();
        assert_eq!(items::<Int32Type>(gathered.as_binary_view(), 0).as_ptr(), place);
    }

    #[test]
    fn a_column_has_little_more_memory_than_its_rows() {
        let mut column = SharedListBuilder::<Int32Type>::with_capacity(64);
        let mut bytes = 0;
        for row in 0..64 {
            let items = if row % 2 == 0 { 200 } else { 300 };
            let mut list = Vec::with_capacity(2 * items);
            list.resize(items, row);
            column.push(list);
            bytes += items * ITEM;
        }
        let column = column.finish();
        let memory =
            column.as_binary_view().data_buffers().iter().map(Buffer::capacity).sum::<usize>();
        assert!(memory <= bytes + bytes / 8, "{memory} bytes for {bytes}");
        let texts =
            shared_texts((0..64).map(|row| "x".repeat(if row % 2 == 0 { 900 } else { 1100 })));
        let memory =
            texts.as_string_view().data_buffers().iter().map(Buffer::capacity).sum::<usize>();
        assert!(memory <= 72_000, "{memory} bytes for 64,000");
    }

    #[test]
    fn another_process_receives_only_the_rows_sent() {
        let lists: Vec<Vec<i32>> = (0..8).map(|list| vec![list; 1000]).collect();
        let texts = vec![String::new(); 8];
        let one = compacted(&rows(&lists, &texts).slice(3, 1));
        let buffers = one.column(0).as_binary_view().data_buffers();
        assert_eq!(buffers.iter().map(Buffer::len).collect::<Vec<_>>(), [4000]);
        assert_eq!(read(&one), [(vec![3; 1000], String::new())]);
    }

    #[test]
    #[should_panic(expected = "the column `ids` of the type")]
    fn lists_are_read_as_the_type_that_they_have() {
        let batch = Batch::new(rows(&[vec![1]], &[String::new()]));
        let _ = batch.lists::<Float32Type>(IDS);
    }
}
