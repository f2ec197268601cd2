//! Batches survive encoding and decoding: every stream schema with arbitrary rows.

use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int64Array, ListArray, StringArray,
    StringViewArray, UInt8Array, UInt32Array, UInt64Array,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, SchemaRef};
use proptest::collection::vec;
use proptest::prelude::*;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema;
use rollpacker_dataflow::shared_list::SharedListBuilder;
use timely::dataflow::channels::ContainerBytes;

/// Generates a column of `field`, with nulls if the field allows them.
fn column(field: &Field, rows: usize) -> BoxedStrategy<ArrayRef> {
    let nullable = field.is_nullable();
    match field.data_type().clone() {
        DataType::UInt8 => {
            vec(any::<u8>(), rows).prop_map(|v| Arc::new(UInt8Array::from(v)) as ArrayRef).boxed()
        }
        DataType::UInt32 => vec(maybe(any::<u32>(), nullable), rows)
            .prop_map(|v| Arc::new(UInt32Array::from(v)) as ArrayRef)
            .boxed(),
        DataType::UInt64 => vec(maybe(any::<u64>(), nullable), rows)
            .prop_map(|v| Arc::new(UInt64Array::from(v)) as ArrayRef)
            .boxed(),
        DataType::Int64 => {
            vec(any::<i64>(), rows).prop_map(|v| Arc::new(Int64Array::from(v)) as ArrayRef).boxed()
        }
        DataType::Float32 => vec(-1e9_f32..1e9, rows)
            .prop_map(|v| Arc::new(Float32Array::from(v)) as ArrayRef)
            .boxed(),
        DataType::Float64 => vec(-1e9_f64..1e9, rows)
            .prop_map(|v| Arc::new(Float64Array::from(v)) as ArrayRef)
            .boxed(),
        DataType::Boolean => vec(any::<bool>(), rows)
            .prop_map(|v| Arc::new(BooleanArray::from(v)) as ArrayRef)
            .boxed(),
        DataType::Utf8 => vec(maybe(".{0,12}", nullable), rows)
            .prop_map(|v| Arc::new(StringArray::from(v)) as ArrayRef)
            .boxed(),
        DataType::Utf8View => vec(maybe(text(), nullable), rows)
            .prop_map(|v| Arc::new(StringViewArray::from_iter(v)) as ArrayRef)
            .boxed(),
        DataType::BinaryView => shared_lists(rows),
        DataType::List(item) => lists(item, rows),
        other => panic!("the stream schemas have no {other}"),
    }
}

/// Generates texts that fit into a view, that are copied into common memory, and that have memory of their own.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![".{0,12}", ".{20,30}", Just("x".repeat(2000))]
}

fn shared_lists(rows: usize) -> BoxedStrategy<ArrayRef> {
    let list = prop_oneof![vec(any::<i32>(), 0..6), vec(any::<i32>(), 300..310)];
    vec(list, rows)
        .prop_map(|lists| {
            let mut column = SharedListBuilder::<Int32Type>::with_capacity(lists.len());
            lists.into_iter().for_each(|list| column.push(list));
            column.finish()
        })
        .boxed()
}

fn maybe<S: Strategy>(values: S, nullable: bool) -> impl Strategy<Value = Option<S::Value>> {
    (values, 0..10).prop_map(move |(value, die)| (!nullable || die > 2).then_some(value))
}

fn lists(item: Arc<Field>, rows: usize) -> BoxedStrategy<ArrayRef> {
    vec(0_usize..6, rows)
        .prop_flat_map(move |lengths| {
            let item = item.clone();
            let values: BoxedStrategy<ArrayRef> = match item.data_type() {
                DataType::Int32 => vec(any::<i32>(), lengths.iter().sum::<usize>())
                    .prop_map(|v| Arc::new(arrow_array::Int32Array::from(v)) as ArrayRef)
                    .boxed(),
                _ => column(&item, lengths.iter().sum()),
            };
            values.prop_map(move |values| {
                let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
                Arc::new(ListArray::new(item.clone(), offsets, values, None)) as ArrayRef
            })
        })
        .boxed()
}

fn batch(schema: SchemaRef) -> impl Strategy<Value = Batch> {
    (1_usize..9).prop_flat_map(move |rows| {
        let columns: Vec<_> = schema.fields().iter().map(|field| column(field, rows)).collect();
        let schema = schema.clone();
        columns.prop_map(move |columns| Batch::from_columns(&schema, columns))
    })
}

fn encode(batch: &Batch) -> Vec<u8> {
    let mut bytes = Vec::new();
    batch.into_bytes(&mut bytes);
    assert_eq!(bytes.len(), batch.length_in_bytes(), "announced and written length agree");
    assert_eq!(bytes.len() % 8, 0, "messages stay aligned");
    bytes
}

fn receive(bytes: Vec<u8>) -> Batch {
    let mut slab = timely::bytes::arc::BytesMut::from(bytes);
    let length = slab.len();
    Batch::from_bytes(slab.extract_to(length))
}

proptest! {
    #[test]
    fn every_stream_schema_round_trips(
        batches in schema::all().map(|(_, schema)| batch(schema)).into_iter().collect::<Vec<_>>()
    ) {
        for sent in batches {
            prop_assert_eq!(receive(encode(&sent)), sent);
        }
    }

    #[test]
    fn a_slice_round_trips(sent in batch(schema::RESPONSES.clone())) {
        let rows = sent.rows().expect("has rows");
        let slice = Batch::new(rows.slice(rows.num_rows() / 2, rows.num_rows() - rows.num_rows() / 2));
        prop_assert_eq!(receive(encode(&slice)), slice);
    }
}

#[test]
fn the_default_batch_round_trips() {
    assert_eq!(receive(encode(&Batch::default())), Batch::default());
}

#[test]
fn received_columns_reference_the_slab() {
    let ids: ArrayRef = Arc::new(UInt64Array::from_iter_values(0..1000));
    let text: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..1000).map(|i| format!("location {i}"))));
    let sent = Batch::from_columns(&schema::POLICIES, vec![ids.clone(), text, ids]);
    let bytes = encode(&sent);
    // The slab takes over the vector without moving it.
    let slab = bytes.as_ptr_range();
    let received = receive(bytes);
    for column in received.rows().expect("has rows").columns() {
        for buffer in column.to_data().buffers() {
            assert!(slab.contains(&buffer.as_ptr()), "a buffer was copied");
        }
    }
}
