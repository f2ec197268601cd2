//! An Arrow record batch as a timely container.
//!
//! Within a process a [`Batch`] is shared: cloning it increments one reference count, and sending it to another thread moves it without
//! copying its rows. Between processes it travels as an Arrow IPC stream and is decoded without copying: the columns of a received batch
//! point into the slab that the network filled. The slab lives as long as any of its columns, so copy small values out of batches that you
//! keep.
//!
//! Other systems on timely route rows. Rows of Arrow arrays are views, so routing row by row would build a batch per row. [`crate::route`]
//! therefore gathers the rows of each receiver into one batch. It does not copy [shared lists](crate::shared_list).
//!
//! A batch without rows carries no information: timely drops containers whose record count is 0. The frontier, never a marker, signals that
//! no more rows follow at a step.

use std::cell::Cell;
use std::io::Write;
use std::sync::{Arc, OnceLock};

use arrow_array::cast::AsArray;
use arrow_array::types::ArrowPrimitiveType;
use arrow_array::{
    Array, BinaryViewArray, BooleanArray, ListArray, PrimitiveArray, RecordBatch,
    RecordBatchOptions, StringArray, StringViewArray,
};
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Schema, SchemaRef};
use timely::Accountable;
use timely::dataflow::Stream;
use timely::dataflow::channels::ContainerBytes;

use crate::shared_list::{compacted, item_type, items};
use crate::step::Step;

/// A stream of batches with steps as timestamps.
pub type BatchStream<'scope> = Stream<'scope, Step, Batch>;

/// Rows of one stream at one step. The default batch has no rows and no schema.
#[derive(Clone, Default)]
pub struct Batch {
    /// `None` in the default batch, which timely leaves behind when it takes a container. The whole record batch is shared, because cloning
    /// a `RecordBatch` increments one reference count per column.
    shared: Option<Arc<SharedBatch>>,
}

struct SharedBatch {
    rows: RecordBatch,
    /// The IPC encoding, cached because timely asks for its length and for its bytes in two calls.
    encoded: OnceLock<Vec<u8>>,
}

impl Batch {
    /// Wraps a record batch.
    #[must_use]
    pub fn new(rows: RecordBatch) -> Self {
        Self { shared: Some(Arc::new(SharedBatch { rows, encoded: OnceLock::new() })) }
    }

    /// Creates a batch of `schema` from its columns.
    ///
    /// # Panics
    /// If the columns do not match the schema, which is a bug in the operator that built them.
    #[must_use]
    pub fn from_columns(schema: &SchemaRef, columns: Vec<arrow_array::ArrayRef>) -> Self {
        let options =
            RecordBatchOptions::new().with_row_count(columns.first().map(|column| column.len()));
        Self::new(
            RecordBatch::try_new_with_options(schema.clone(), columns, &options)
                .expect("invariant: an operator builds the columns of its output schema"),
        )
    }

    /// Returns the number of rows; 0 for the default batch.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.rows().map_or(0, RecordBatch::num_rows)
    }

    /// Returns the record batch, or `None` for the default batch.
    #[must_use]
    pub fn rows(&self) -> Option<&RecordBatch> {
        self.shared.as_deref().map(|shared| &shared.rows)
    }

    /// Returns the record batch without copying its columns, or `None` for the default batch.
    #[must_use]
    pub fn into_rows(self) -> Option<RecordBatch> {
        self.shared.map(|shared| match Arc::try_unwrap(shared) {
            Ok(alone) => alone.rows,
            Err(shared) => shared.rows.clone(),
        })
    }

    /// Returns `true` if both batches are clones of the same batch; `false` if either is the default batch.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.shared, &other.shared) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Takes the batch and leaves the default batch behind.
    #[must_use]
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Returns a numeric column.
    ///
    /// # Panics
    /// If there is no such column of this type. Operators check schemas at their inputs, so this is a bug.
    #[must_use]
    pub fn values<T: ArrowPrimitiveType>(&self, column: &str) -> &PrimitiveArray<T> {
        self.column(column).as_primitive_opt().unwrap_or_else(|| self.mistyped(column))
    }

    /// Returns a text column.
    ///
    /// # Panics
    /// If there is no such text column.
    #[must_use]
    pub fn text(&self, column: &str) -> &StringArray {
        self.column(column).as_string_opt().unwrap_or_else(|| self.mistyped(column))
    }

    /// Returns a column of [shared texts](crate::shared_list::shared_texts).
    ///
    /// # Panics
    /// If there is no such column of shared texts.
    #[must_use]
    pub fn shared_text(&self, column: &str) -> &StringViewArray {
        self.column(column).as_string_view_opt().unwrap_or_else(|| self.mistyped(column))
    }

    /// Returns a boolean column.
    ///
    /// # Panics
    /// If there is no such boolean column.
    #[must_use]
    pub fn booleans(&self, column: &str) -> &BooleanArray {
        self.column(column).as_boolean_opt().unwrap_or_else(|| self.mistyped(column))
    }

    /// Returns a column of lists or of [shared lists](crate::shared_list).
    ///
    /// # Panics
    /// If there is no list column of this name whose items have the type `T`.
    #[must_use]
    pub fn lists<T: ArrowPrimitiveType>(&self, column: &str) -> Lists<'_, T> {
        let array = self.column(column);
        if let Some(shared) = array.as_binary_view_opt() {
            if !self.has_items(column, &T::DATA_TYPE) {
                self.mistyped(column);
            }
            return Lists(ListColumn::Shared(shared));
        }
        let lists: &ListArray = array.as_list_opt().unwrap_or_else(|| self.mistyped(column));
        let values = lists.values().as_primitive_opt().unwrap_or_else(|| self.mistyped(column));
        Lists(ListColumn::Plain { lists, values })
    }

    fn has_items(&self, column: &str, item: &DataType) -> bool {
        let field =
            self.rows().and_then(|rows| rows.schema_ref().fields().get(index_of(rows, column)?));
        field.and_then(|field| item_type(field)).as_ref() == Some(item)
    }

    fn column(&self, name: &str) -> &dyn Array {
        self.rows()
            .and_then(|rows| Some(rows.column(index_of(rows, name)?)))
            .unwrap_or_else(|| self.mistyped(name))
            .as_ref()
    }

    fn mistyped(&self, name: &str) -> ! {
        let schema = self.rows().map(RecordBatch::schema);
        panic!(
            "invariant: a checked batch has the column `{name}` of the type that is read; it has {schema:?}"
        )
    }

    fn encode(&self) -> &[u8] {
        let Some(SharedBatch { rows, encoded }) = self.shared.as_deref() else { return &[] };
        encoded.get_or_init(|| {
            let mut writer = StreamWriter::try_new(Vec::new(), &rows.schema())
                .expect("invariant: the schemas of our streams are encodable");
            writer.write(&compacted(rows)).expect("invariant: writing to memory does not fail");
            writer.finish().expect("invariant: writing to memory does not fail");
            let mut bytes = writer.into_inner().expect("invariant: the stream was finished");
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes
        })
    }
}

thread_local! {
    /// The columns that this thread read last: the addresses of a schema and of a name, and the index of the column.
    static COLUMN_INDICES: [Cell<(usize, usize, usize)>; 256] =
        const { [const { Cell::new((0, 0, 0)) }; 256] };
}

/// Returns the index of a column, or `None` if there is no such column. Each thread caches indices, because operators read the same columns
/// of thousands of small batches, where a search by name shows in profiles. A cached index is used only if the column there still has the
/// name: a schema may be freed and another allocated at its address.
fn index_of(rows: &RecordBatch, name: &str) -> Option<usize> {
    let schema = rows.schema_ref();
    let (schema_at, name_at) = (Arc::as_ptr(schema).addr(), name.as_ptr().addr());
    let slot = (schema_at / size_of::<Schema>()) ^ name_at.wrapping_mul(31) ^ (name_at >> 6);
    COLUMN_INDICES.with(|indices| {
        let known = &indices[slot % indices.len()];
        let (schema_of, name_of, index) = known.get();
        let is_known = (schema_of, name_of) == (schema_at, name_at)
            && schema.fields().get(index).is_some_and(|field| field.name() == name);
        if is_known {
            return Some(index);
        }
        let (index, _) = schema.fields().find(name)?;
        known.set((schema_at, name_at, index));
        Some(index)
    })
}

/// Compares rows; the encoding is ignored.
impl PartialEq for Batch {
    fn eq(&self, other: &Self) -> bool {
        self.rows() == other.rows()
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.rows().fmt(f)
    }
}

/// A list column with one slice per row.
#[derive(Clone, Copy)]
pub struct Lists<'a, T: ArrowPrimitiveType>(ListColumn<'a, T>);

#[derive(Clone, Copy)]
enum ListColumn<'a, T: ArrowPrimitiveType> {
    Plain { lists: &'a ListArray, values: &'a PrimitiveArray<T> },
    Shared(&'a BinaryViewArray),
}

impl<'a, T: ArrowPrimitiveType> Lists<'a, T> {
    /// Returns the list of row `row`.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn get(&self, row: usize) -> &'a [T::Native] {
        match self.0 {
            ListColumn::Shared(lists) => items::<T>(lists, row),
            ListColumn::Plain { lists, values } => {
                let offsets = lists.value_offsets();
                &values.values()[usize_of(offsets[row])..usize_of(offsets[row + 1])]
            }
        }
    }
}

fn usize_of(offset: i32) -> usize {
    usize::try_from(offset).expect("invariant: Arrow offsets are not negative")
}

impl Accountable for Batch {
    fn record_count(&self) -> i64 {
        i64::try_from(self.num_rows()).expect("invariant: a batch has fewer than 2^63 rows")
    }
}

/// A batch is encoded as the length of its Arrow IPC stream (a little-endian `u64`), followed by the stream, which is padded to a multiple
/// of 8 bytes. The length includes the padding. The default batch is encoded as the length 0.
impl ContainerBytes for Batch {
    fn from_bytes(mut bytes: timely::bytes::arc::Bytes) -> Self {
        let header = bytes.extract_to(8);
        let length = u64::from_le_bytes(
            header[..].try_into().expect("invariant: eight bytes were extracted"),
        );
        if length == 0 {
            return Self::default();
        }
        let body = bytes.extract_to(
            usize::try_from(length).expect("invariant: a batch fits the address space"),
        );
        Self::new(decode(Buffer::from(bytes::Bytes::from_owner(Slab(body)))))
    }

    fn length_in_bytes(&self) -> usize {
        8 + self.encode().len()
    }

    fn into_bytes<W: Write>(&self, writer: &mut W) {
        let encoded = self.encode();
        let failed = "invariant: timely returns a slab of the length that it requested";
        writer.write_all(&(encoded.len() as u64).to_le_bytes()).expect(failed);
        writer.write_all(encoded).expect(failed);
    }
}

fn decode(mut buffer: Buffer) -> RecordBatch {
    let mut decoder = StreamDecoder::new();
    decoder
        .decode(&mut buffer)
        .expect("invariant: a peer runs the same program and sends what `encode` wrote")
        .expect("invariant: an encoded batch holds one record batch")
}

/// A received slab, as the owner of Arrow buffers.
struct Slab(timely::bytes::arc::Bytes);

impl AsRef<[u8]> for Slab {
    fn as_ref(&self) -> &[u8] {
        &self.0[..]
    }
}
