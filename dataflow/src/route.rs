//! Routing of batches between workers by a key column.

use arrow::array::UInt32Array;
use arrow::compute::take_record_batch;
use arrow::datatypes::UInt64Type;
use timely::communication::Push;
use timely::dataflow::channels::Message;
use timely::dataflow::channels::pact::DistributorPact;
use timely::dataflow::channels::pushers::exchange::Distributor;

use crate::batch::Batch;

/// Sends each row to worker `key mod workers`, where `column` is a `UInt64` column.
///
/// One gather per receiver, no per-row routing. Rows of equal key keep their order.
pub fn by_key(column: &'static str) -> DistributorPact<impl FnOnce(usize) -> ByKey> {
    DistributorPact(move |_peers| ByKey { column })
}

/// Sends every row to worker 0.
pub fn to_first() -> DistributorPact<impl FnOnce(usize) -> ToFirst> {
    DistributorPact(|_peers| ToFirst)
}

/// The distributor behind [`by_key`].
#[derive(Debug)]
pub struct ByKey {
    column: &'static str,
}

impl Distributor<Batch> for ByKey {
    fn partition<T: Clone, P: Push<Message<T, Batch>>>(
        &mut self,
        batch: &mut Batch,
        time: &T,
        pushers: &mut [P],
    ) {
        let batch = batch.take();
        let mut rows_of = vec![Vec::new(); pushers.len()];
        for (row, key) in (0_u32..).zip(batch.values::<UInt64Type>(self.column).values()) {
            let peer = usize::try_from(key % pushers.len() as u64)
                .expect("invariant: less than the number of workers");
            rows_of[peer].push(row);
        }
        for (rows, pusher) in rows_of.into_iter().zip(pushers) {
            if !rows.is_empty() {
                Message::push_at(&mut gather(&batch, rows), time.clone(), pusher);
            }
        }
    }

    fn flush<T: Clone, P: Push<Message<T, Batch>>>(&mut self, _time: &T, _pushers: &mut [P]) {}
}

/// The distributor behind [`to_first`].
#[derive(Debug)]
pub struct ToFirst;

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
