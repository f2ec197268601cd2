//! Builders of columns of shared lists and texts.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::builder::GenericByteViewBuilder;
use arrow_array::types::{ArrowPrimitiveType, BinaryViewType, ByteViewType, StringViewType};
use arrow_array::{ArrayRef, GenericByteViewArray};
use arrow_buffer::{ArrowNativeType, Buffer};

use super::ITEM;

/// The size in bytes from which a list or text keeps its own buffer. Shorter lists and texts are copied into a common buffer, which costs
/// less than tracking their buffers.
const MIN_OWN_BUFFER: usize = 1 << 10;

/// A builder of a column of shared lists.
#[derive(Debug)]
pub struct SharedListBuilder<T: ArrowPrimitiveType> {
    buffers: RowBuffers<T::Native>,
}

impl<T: ArrowPrimitiveType> SharedListBuilder<T> {
    /// Creates a builder with room for `rows` lists.
    #[must_use]
    pub fn with_capacity(rows: usize) -> Self {
        const { assert!(size_of::<T::Native>() == ITEM, "items have four bytes") };
        Self { buffers: RowBuffers::with_capacity(rows) }
    }

    /// Appends a list. The column takes over the memory of lists of 1 KiB or more and copies shorter ones.
    ///
    /// # Panics
    /// If the list has 2^30 items or more, or if the copied lists have 2^30 items or more in total.
    pub fn push(&mut self, list: Vec<T::Native>) {
        let length = list.len() * ITEM;
        let start = self.buffers.store(list);
        self.buffers.push(start, length);
    }

    /// Appends a copy of a list.
    ///
    /// # Panics
    /// If the copied lists have 2^30 items or more in total.
    pub fn push_copy(&mut self, list: &[T::Native]) {
        let start = self.buffers.store_copy(list);
        self.buffers.push(start, list.len() * ITEM);
    }

    /// Returns the column of the appended lists, in order.
    #[must_use]
    pub fn finish(self) -> ArrayRef {
        Arc::new(self.buffers.column::<BinaryViewType>())
    }
}

/// Returns a column of shared lists, each of which repeats one number. An entry of `rows` holds the number and the length of the list.
/// Lists of the same number share memory, so the column takes no more than the longest list of each number.
///
/// # Panics
/// If a list has 2^30 items or more.
///
/// ```
/// use std::sync::Arc;
///
/// use arrow_array::RecordBatch;
/// use arrow_array::types::Float32Type;
/// use arrow_schema::{DataType, Schema};
/// use rollpacker_dataflow::batch::Batch;
/// use rollpacker_dataflow::shared_list::{repeated_lists, shared_list};
///
/// let schema = Schema::new(vec![shared_list("advantages", &DataType::Float32)]);
/// let column = repeated_lists(&[(0.5, 2), (-1.0, 1), (0.5, 3)]);
/// let batch = Batch::new(RecordBatch::try_new(Arc::new(schema), vec![column])?);
/// let lists = batch.lists::<Float32Type>("advantages");
/// assert_eq!([lists.get(0), lists.get(2)], [&[0.5; 2][..], &[0.5; 3]]);
/// # Ok::<(), arrow_schema::ArrowError>(())
/// ```
#[must_use]
pub fn repeated_lists(rows: &[(f32, usize)]) -> ArrayRef {
    let mut longest = BTreeMap::<u32, usize>::new();
    for (number, length) in rows {
        let longest = longest.entry(number.to_bits()).or_default();
        *longest = (*longest).max(*length);
    }
    let mut buffers = RowBuffers::<f32>::with_capacity(rows.len());
    let starts: BTreeMap<u32, Start> = longest
        .into_iter()
        .map(|(bits, length)| (bits, buffers.store(vec![f32::from_bits(bits); length])))
        .collect();
    for (number, length) in rows {
        buffers.push(starts[&number.to_bits()], length * ITEM);
    }
    Arc::new(buffers.column::<BinaryViewType>())
}

/// Returns a column of texts that are shared when rows move. The column takes over the memory of texts of 1 KiB or more and copies shorter
/// texts.
///
/// # Panics
/// If a text has 4 GiB or more, or if the copied texts have 4 GiB or more in total.
#[must_use]
pub fn shared_texts(texts: impl ExactSizeIterator<Item = String>) -> ArrayRef {
    let mut buffers = RowBuffers::<u8>::with_capacity(texts.len());
    for text in texts {
        let length = text.len();
        let start = buffers.store(text.into_bytes());
        buffers.push(start, length);
    }
    Arc::new(buffers.column::<StringViewType>())
}

/// Returns `list` with spare capacity of at most an eighth of its length. Engines append to lists, which can leave almost half of their
/// memory unused.
fn shrink_excess_capacity<T>(mut list: Vec<T>) -> Vec<T> {
    if list.capacity() > list.len() + list.len() / 8 {
        list.shrink_to_fit();
    }
    list
}

/// The memory of the rows of a column: long rows have buffers of their own, and short rows share one buffer. The builder of arrow would
/// allocate up to 2 MiB for a short row that follows a long row.
#[derive(Debug)]
struct RowBuffers<N> {
    short: Vec<N>,
    long: Vec<Buffer>,
    /// The start and the length in bytes of each row.
    rows: Vec<(Start, u32)>,
}

/// The location of a row's first byte: the index of the buffer and the offset in it, in bytes.
#[derive(Clone, Copy, Debug)]
struct Start {
    buffer: u32,
    offset: u32,
}

const SHORT_BUFFER: u32 = 0;

impl<N: ArrowNativeType> RowBuffers<N> {
    fn with_capacity(rows: usize) -> Self {
        Self { short: Vec::new(), long: Vec::new(), rows: Vec::with_capacity(rows) }
    }

    /// Stores the items of a row without adding the row, which [`push`](Self::push) does. Takes over the memory of long rows.
    fn store(&mut self, items: Vec<N>) -> Start {
        if size_of_val(items.as_slice()) < MIN_OWN_BUFFER {
            return self.store_copy(&items);
        }
        self.long.push(Buffer::from_vec(shrink_excess_capacity(items)));
        Start { buffer: number(self.long.len()), offset: 0 }
    }

    fn store_copy(&mut self, items: &[N]) -> Start {
        let start =
            Start { buffer: SHORT_BUFFER, offset: number(size_of_val(self.short.as_slice())) };
        self.short.extend_from_slice(items);
        start
    }

    /// Adds a row of `length` bytes.
    fn push(&mut self, start: Start, length: usize) {
        self.rows.push((start, number(length)));
    }

    fn column<V: ByteViewType>(self) -> GenericByteViewArray<V> {
        let mut column = GenericByteViewBuilder::<V>::with_capacity(self.rows.len());
        let short = Buffer::from_vec(shrink_excess_capacity(self.short));
        for buffer in std::iter::once(short).chain(self.long) {
            column.append_block(buffer);
        }
        for (Start { buffer, offset }, length) in self.rows {
            column
                .try_append_view(buffer, offset, length)
                .expect("invariant: a row lies in its buffer, and texts are UTF-8");
        }
        column.finish()
    }
}

fn number(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("the responses of a batch have less than 4 GiB")
}
