//! Encodes partial gradients as batches of [`schema::GRADIENTS`] and [`schema::TOTALS`].

use std::sync::Arc;

use arrow_array::types::{ArrowPrimitiveType, Float64Type, Int64Type, UInt32Type, UInt64Type};
use arrow_array::{
    ArrayRef, Float64Array, Int64Array, ListArray, PrimitiveArray, StringArray, UInt32Array,
    UInt64Array,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::Field;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::PromptId;
use rollpacker_stages::train::{Numbers, Total};

/// The number of values of each chunk but the last. A full chunk has 512 KiB.
const CHUNK: usize = 1 << 16;

/// A range of consecutive values of a gradient.
pub(super) struct Chunk {
    /// The index of the chunk in the gradient, from 0.
    pub(super) index: u32,
    /// The index of the worker that sent the chunk.
    pub(super) source: u32,
    pub(super) numbers: Numbers,
}

/// Splits a gradient of worker `source` into chunks without copying. Returns a batch for each chunk, with the index of the worker that owns
/// the chunk. Worker `i % workers` owns chunk `i`.
pub(super) fn chunks(numbers: Numbers, source: u32, workers: u32) -> Vec<(u32, Batch)> {
    let length = numbers.len();
    let chunk = |values: &Values, at: usize| {
        let index =
            u32::try_from(at / CHUNK).expect("invariant: a gradient has fewer than 2^48 numbers");
        let owner = index % workers;
        (owner, values.batch(at, CHUNK.min(length - at), [owner, source, index]))
    };
    let values = Values::of(numbers);
    (0..length).step_by(CHUNK).map(|at| chunk(&values, at)).collect()
}

/// Returns one chunk as a batch, addressed to the worker that sends it.
pub(super) fn chunk(Chunk { index, source, numbers }: Chunk) -> Batch {
    let length = numbers.len();
    Values::of(numbers).batch(0, length, [source, source, index])
}

pub(super) fn read_chunks(batch: &Batch) -> impl Iterator<Item = Chunk> {
    let [sources, indices] =
        [column::SOURCE, column::CHUNK].map(|name| batch.values::<UInt32Type>(name));
    let (fixed, floats) =
        (batch.lists::<Int64Type>(column::FIXED), batch.lists::<Float64Type>(column::FLOATS));
    (0..batch.num_rows()).map(move |row| Chunk {
        index: indices.value(row),
        source: sources.value(row),
        numbers: match fixed.get(row) {
            [] => Numbers::Float(floats.get(row).to_vec()),
            fixed => Numbers::Fixed(fixed.to_vec()),
        },
    })
}

enum Values {
    Fixed(Int64Array),
    Floats(Float64Array),
}

impl Values {
    fn of(numbers: Numbers) -> Self {
        match numbers {
            Numbers::Fixed(numbers) => Self::Fixed(numbers.into()),
            Numbers::Float(numbers) => Self::Floats(numbers.into()),
        }
    }

    fn batch(&self, at: usize, length: usize, [owner, source, index]: [u32; 3]) -> Batch {
        let (fixed, floats) = match self {
            Self::Fixed(values) => {
                (one_list(&values.slice(at, length)), one_list(&empty_array::<Float64Type>()))
            }
            Self::Floats(values) => {
                (one_list(&empty_array::<Int64Type>()), one_list(&values.slice(at, length)))
            }
        };
        let number = |number: u32| -> ArrayRef { Arc::new(UInt32Array::from(vec![number])) };
        let columns = vec![number(owner), number(source), number(index), fixed, floats];
        Batch::from_columns(&schema::GRADIENTS, columns)
    }
}

fn empty_array<T: ArrowPrimitiveType>() -> PrimitiveArray<T> {
    PrimitiveArray::from_iter_values([])
}

fn one_list<T: ArrowPrimitiveType>(values: &PrimitiveArray<T>) -> ArrayRef {
    let offsets = OffsetBuffer::from_lengths([values.len()]);
    let item = Arc::new(Field::new_list_field(T::DATA_TYPE, false));
    Arc::new(ListArray::new(item, offsets, Arc::new(values.clone()), None))
}

/// Returns the totals of a worker as a batch, in their order.
pub(super) fn totals(totals: &[Total], source: u32) -> Batch {
    Batch::from_columns(
        &schema::TOTALS,
        vec![
            Arc::new(UInt32Array::from(vec![source; totals.len()])),
            Arc::new(UInt64Array::from_iter_values(totals.iter().map(|total| total.prompt.0))),
            Arc::new(UInt32Array::from_iter_values(totals.iter().map(|total| total.sample))),
            Arc::new(StringArray::from_iter_values(totals.iter().map(|total| &total.name))),
            Arc::new(Float64Array::from_iter_values(totals.iter().map(|total| total.value))),
        ],
    )
}

/// Reads the totals of a batch. Returns each total with the worker that sent it.
pub(super) fn read_totals(batch: &Batch) -> impl Iterator<Item = (u32, Total)> {
    let [sources, samples] =
        [column::SOURCE, column::SAMPLE].map(|name| batch.values::<UInt32Type>(name));
    let prompts = batch.values::<UInt64Type>(column::PROMPT_ID);
    let (names, values) = (batch.text(column::NAME), batch.values::<Float64Type>(column::VALUE));
    (0..batch.num_rows()).map(move |row| {
        let total = Total {
            prompt: PromptId(prompts.value(row)),
            sample: samples.value(row),
            name: names.value(row).to_owned(),
            value: values.value(row),
        };
        (sources.value(row), total)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(numbers: Numbers) {
        let chunks = chunks(numbers.clone(), 7, 3);
        let mut read: Option<Numbers> = None;
        for (at, (owner, batch)) in (0..).zip(&chunks) {
            let chunk = read_chunks(batch).next().expect("one row");
            assert_eq!((chunk.index, chunk.source, *owner), (at, 7, at % 3));
            match &mut read {
                Some(read) => read.append(chunk.numbers).expect("of one kind"),
                None => read = Some(chunk.numbers),
            }
        }
        assert_eq!(read, Some(numbers));
    }

    #[test]
    fn chunks_make_up_the_gradient() {
        let length = 2 * CHUNK + 5;
        check(Numbers::Fixed((0..).take(length).collect()));
        check(Numbers::Float((0..length).map(|at| at as f64 / 3.0).collect()));
        check(Numbers::Fixed(vec![i64::MIN]));
        assert!(chunks(Numbers::default(), 0, 2).is_empty());
    }

    #[test]
    fn totals_keep_their_order() {
        let total = |prompt, name: &str| Total {
            prompt: PromptId(prompt),
            sample: 2,
            name: name.to_owned(),
            value: 0.1,
        };
        let sent = [total(9, "b"), total(1, "a"), total(9, "a")];
        let read: Vec<_> = read_totals(&totals(&sent, 4)).collect();
        assert_eq!(read, sent.map(|total| (4, total)));
    }
}
