//! Routing of batches between workers.
//!
//! [`by_key`], [`to_first`] and [`to_worker`] are pacts for the inputs of operators. [`exchange`], [`gather_at_first`], [`broadcast`] and
//! [`by_worker_or_all`] add operators of their own. On a single worker they return the stream unchanged, so callers need not check the
//! number of workers.

use std::marker::PhantomData;
use std::sync::Arc;

use arrow_array::types::{ArrowPrimitiveType, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use arrow_select::take::take_record_batch;
use timely::communication::Push;
use timely::dataflow::channels::Message;
use timely::dataflow::channels::pact::{DistributorPact, ParallelizationContract, Pipeline};
use timely::dataflow::channels::pushers::exchange::Distributor;

use crate::batch::{Batch, BatchStream};
use crate::operator::Operator;
use crate::step::Step;

/// Sends each row to worker `key mod workers`, where the key is the row's value in `column`, a `UInt64` column.
///
/// Each worker that receives rows of a batch gets them as one gathered batch; rows are not routed one by one. Rows with equal keys keep
/// their order.
pub fn by_key(column: &'static str) -> impl ParallelizationContract<Step, Batch, Puller: 'static> {
    by_column::<UInt64Type>(column)
}

/// Sends every row to worker 0.
pub fn to_first() -> impl ParallelizationContract<Step, Batch, Puller: 'static> {
    DistributorPact(|_peers| ToFirst)
}

/// Sends each row to the worker whose index is in `column`, a `UInt32` column, modulo the number of workers.
pub fn to_worker(
    column: &'static str,
) -> impl ParallelizationContract<Step, Batch, Puller: 'static> {
    by_column::<UInt32Type>(column)
}

fn by_column<T: ArrowPrimitiveType<Native: Into<u64>>>(
    column: &'static str,
) -> impl ParallelizationContract<Step, Batch, Puller: 'static> {
    DistributorPact(move |_peers| ByColumn::<T> { column, values: PhantomData })
}

/// Moves rows to the workers that `pact` selects: [`by_key`], [`to_first`] or [`to_worker`]. `name` is the name of the operator. On a
/// single worker, returns the stream unchanged.
#[must_use]
pub fn exchange<'scope>(
    name: &'static str,
    stream: BatchStream<'scope>,
    pact: impl ParallelizationContract<Step, Batch, Puller: 'static>,
    schema: &SchemaRef,
) -> BatchStream<'scope> {
    if stream.scope().peers() == 1 {
        stream
    } else {
        exchange_as(name, stream, pact, schema, schema)
    }
}

/// Moves all rows to worker 0. `name` is the name of the operator. On a single worker, returns the stream unchanged.
#[must_use]
pub fn gather_at_first<'scope>(
    name: &'static str,
    stream: BatchStream<'scope>,
    schema: &SchemaRef,
) -> BatchStream<'scope> {
    exchange(name, stream, to_first(), schema)
}

/// Copies every row to every worker. `name` is the name of the operator. On a single worker, returns the stream unchanged.
#[must_use]
pub fn broadcast<'scope>(
    name: &'static str,
    stream: BatchStream<'scope>,
    schema: &SchemaRef,
) -> BatchStream<'scope> {
    exchange_copies(name, stream, schema, |peers, batch, addressed| {
        (0..peers).map(|worker| copy_to(worker, batch, addressed)).collect()
    })
}

/// Moves each row to the worker whose index is in `column`, a nullable `UInt32` column. Rows with null go to every worker. With several
/// workers, a row whose index is not the index of a worker is dropped. The order of rows is kept.
#[must_use]
pub fn by_worker_or_all<'scope>(
    name: &'static str,
    stream: BatchStream<'scope>,
    schema: &SchemaRef,
    column: &'static str,
) -> BatchStream<'scope> {
    exchange_copies(name, stream, schema, move |peers, batch, addressed| {
        let workers = batch.values::<UInt32Type>(column);
        let concerns =
            |worker: u32, row: usize| workers.is_null(row) || workers.value(row) == worker;
        let rows_of = |worker| {
            (0_u32..).zip(0..batch.num_rows()).filter(move |&(_, row)| concerns(worker, row))
        };
        let part = |worker| gather(batch, rows_of(worker).map(|(at, _)| at).collect());
        (0..peers).map(|worker| copy_to(worker, &part(worker), addressed)).collect()
    })
}

/// Calls `copies` with each batch and moves the returned batches to the workers in their column [`RECEIVER`]. The returned batches have the
/// [`addressed`] schema.
fn exchange_copies<'scope>(
    name: &'static str,
    stream: BatchStream<'scope>,
    schema: &SchemaRef,
    copies: impl Fn(u32, &Batch, &SchemaRef) -> Vec<Batch> + 'static,
) -> BatchStream<'scope> {
    let peers = stream.scope().peers();
    if peers == 1 {
        return stream;
    }
    let peers = u32::try_from(peers).expect("invariant: there are fewer than 2^32 workers");
    // A pact must not change the number of rows, so an operator makes the copies and adds the receiver of each.
    let addressed = addressed(schema);
    let mut operator = Operator::new(name, stream.scope());
    let mut input = operator.input(stream, Pipeline, schema);
    let (mut output, stream) = operator.output(&addressed, &[0]);
    let of = addressed.clone();
    operator.build(move |_capabilities| {
        move |_frontiers| {
            input.for_each(|capability, batch| {
                let capability = capability.retain(output.index());
                for copy in copies(peers, &batch, &of) {
                    output.give(&capability, copy);
                }
            });
        }
    });
    exchange_as(name, stream, to_worker(RECEIVER), &addressed, schema)
}

/// A `UInt32` column: the worker that receives the row.
const RECEIVER: &str = "receiver";

/// Returns `schema` with the column [`RECEIVER`] added.
fn addressed(schema: &SchemaRef) -> SchemaRef {
    let receiver = Arc::new(Field::new(RECEIVER, DataType::UInt32, false));
    let fields = schema.fields().iter().cloned().chain([receiver]);
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Returns the batch with the column [`RECEIVER`] added, which holds `worker`. The other columns are shared, not copied.
fn copy_to(worker: u32, batch: &Batch, addressed: &SchemaRef) -> Batch {
    let columns = batch.rows().map(|rows| rows.columns().to_vec()).unwrap_or_default();
    let receiver: ArrayRef = Arc::new(UInt32Array::from(vec![worker; batch.num_rows()]));
    Batch::from_columns(addressed, columns.into_iter().chain([receiver]).collect())
}

/// Moves rows of schema `from` by `pact` and keeps only the first columns, as many as `to` has.
fn exchange_as<'scope>(
    name: &'static str,
    stream: BatchStream<'scope>,
    pact: impl ParallelizationContract<Step, Batch, Puller: 'static>,
    from: &SchemaRef,
    to: &SchemaRef,
) -> BatchStream<'scope> {
    let mut operator = Operator::new(name, stream.scope());
    let mut input = operator.input(stream, pact, from);
    let (mut output, stream) = operator.output(to, &[0]);
    let to = to.clone();
    operator.build(move |_capabilities| {
        move |_frontiers| {
            input.for_each(|capability, batch| {
                output.give(&capability.retain(output.index()), drop_extra_columns(batch, &to));
            });
        }
    });
    stream
}

fn drop_extra_columns(batch: Batch, to: &SchemaRef) -> Batch {
    match batch.rows().map(RecordBatch::columns) {
        Some(columns) if columns.len() > to.fields().len() => {
            Batch::from_columns(to, columns[..to.fields().len()].to_vec())
        }
        _ => batch,
    }
}

/// Sends each row to the worker `value mod workers`, where the value is that of the row in the column.
struct ByColumn<T> {
    column: &'static str,
    values: PhantomData<T>,
}

impl<V: ArrowPrimitiveType<Native: Into<u64>>> Distributor<Batch> for ByColumn<V> {
    fn partition<T: Clone, P: Push<Message<T, Batch>>>(
        &mut self,
        batch: &mut Batch,
        time: &T,
        pushers: &mut [P],
    ) {
        let batch = batch.take();
        let values = batch.values::<V>(self.column).values().iter();
        distribute(&batch, values.map(|&value| value.into()), time, pushers);
    }

    fn flush<T: Clone, P: Push<Message<T, Batch>>>(&mut self, _time: &T, _pushers: &mut [P]) {}
}

fn distribute<T: Clone, P: Push<Message<T, Batch>>>(
    batch: &Batch,
    keys: impl Iterator<Item = u64>,
    time: &T,
    pushers: &mut [P],
) {
    let mut rows_of = vec![Vec::new(); pushers.len()];
    for (row, key) in (0_u32..).zip(keys) {
        let peer = usize::try_from(key % pushers.len() as u64)
            .expect("invariant: less than the number of workers");
        rows_of[peer].push(row);
    }
    for (rows, pusher) in rows_of.into_iter().zip(pushers) {
        if !rows.is_empty() {
            Message::push_at(&mut gather(batch, rows), time.clone(), pusher);
        }
    }
}

/// Sends every row to worker 0.
struct ToFirst;

impl Distributor<Batch> for ToFirst {
    fn partition<T: Clone, P: Push<Message<T, Batch>>>(
        &mut self,
        batch: &mut Batch,
        time: &T,
        pushers: &mut [P],
    ) {
        Message::push_at(batch, time.clone(), &mut pushers[0]);
    }

    fn flush<T: Clone, P: Push<Message<T, Batch>>>(&mut self, _time: &T, _pushers: &mut [P]) {}
}

fn gather(batch: &Batch, rows: Vec<u32>) -> Batch {
    if rows.len() == batch.num_rows() {
        return batch.clone();
    }
    let record_batch =
        batch.rows().expect("invariant: a batch with rows to gather is not the default");
    let gathered = take_record_batch(record_batch, &UInt32Array::from(rows));
    Batch::new(gathered.expect("invariant: the indices lie inside the batch"))
}
