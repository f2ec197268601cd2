//! Adds up the chunks that this worker owns.

use std::collections::BTreeMap;

use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::fault::{Fault, give_fault};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema;
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_stages::train::{Numbers, PartialError};

use super::costs::{Costs, NAME};
use super::wire::{self, Chunk};

/// The output streams of [`sum`].
pub(super) struct Summed<'scope> {
    /// Batches of [`schema::GRADIENTS`] for all workers.
    pub(super) sums: BatchStream<'scope>,
    pub(super) errors: BatchStream<'scope>,
}

struct Capabilities {
    sums: Capability<Step>,
    errors: Capability<Step>,
}

/// Builds the operator that adds up chunks. The sums of a step are sent once all workers have sent all of their chunks.
pub(super) fn sum(chunks: BatchStream<'_>, costs: Costs) -> Summed<'_> {
    let scope = chunks.scope();
    let (worker, others) = (scope.index(), scope.peers() as u64 - 1);
    let worker = u32::try_from(worker).expect("invariant: there are fewer than 2^32 workers");
    let mut operator = Operator::new("reduce_sum", scope);
    let mut chunks = operator.input(chunks, Pipeline, &schema::GRADIENTS);
    let (mut sums, sum_stream) = operator.output(&schema::GRADIENTS, &[0]);
    let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[0]);
    operator.build(move |_capabilities| {
        let mut open: BTreeMap<Step, (Capabilities, ChunkSums)> = BTreeMap::new();
        let mut failed = Vec::new();
        move |frontiers| {
            chunks.for_each(|capability, batch| {
                let held = || {
                    let capabilities = Capabilities {
                        sums: capability.retain(sums.index()),
                        errors: capability.retain(errors.index()),
                    };
                    (capabilities, ChunkSums::default())
                };
                open.entry(*capability.time()).or_insert_with(held).1.take(&batch);
            });
            let passed = |step: &Step| !frontiers[0].less_equal(step);
            for (step, (capabilities, of_step)) in open.extract_if(.., |step, _| passed(step)) {
                match of_step.finish() {
                    Ok(all) => {
                        for (index, numbers) in all {
                            let bytes = 8 * numbers.len() as u64 * others;
                            costs.change(step, |cost| cost.bytes += bytes);
                            let chunk = Chunk { index, source: worker, numbers };
                            sums.give(&capabilities.sums, wire::chunk(chunk));
                        }
                    }
                    Err(error) => {
                        give_fault(&mut errors, &capabilities.errors, Fault::of(NAME, &error));
                        // Keep the capabilities: the step must not complete.
                        failed.push(capabilities);
                    }
                }
            }
        }
    });
    Summed { sums: sum_stream, errors: error_stream }
}

/// The sums of a step by chunk and worker. Fixed-point chunks are all added under worker 0, because the order of their addition has no
/// effect.
#[derive(Default)]
struct ChunkSums {
    chunks: BTreeMap<(u32, u32), Numbers>,
    failed: Option<PartialError>,
}

impl ChunkSums {
    fn take(&mut self, batch: &Batch) {
        for Chunk { index, source, numbers } in wire::read_chunks(batch) {
            let source = if matches!(numbers, Numbers::Fixed(_)) { 0 } else { source };
            self.add((index, source), numbers);
        }
    }

    fn add(&mut self, key: (u32, u32), numbers: Numbers) {
        let added = self.chunks.entry(key).or_default().add(numbers);
        self.failed = self.failed.take().or(added.err());
    }

    fn finish(self) -> Result<BTreeMap<u32, Numbers>, PartialError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let mut sums: BTreeMap<u32, Numbers> = BTreeMap::new();
        for ((index, _), numbers) in self.chunks {
            sums.entry(index).or_default().add(numbers)?;
        }
        Ok(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(parts: &[(u32, u32, Numbers)]) -> Result<BTreeMap<u32, Numbers>, PartialError> {
        let mut sums = ChunkSums::default();
        for (index, source, numbers) in parts {
            let (index, source, numbers) = (*index, *source, numbers.clone());
            sums.take(&wire::chunk(Chunk { index, source, numbers }));
        }
        sums.finish()
    }

    #[test]
    fn floats_are_added_in_the_order_of_workers() {
        let part = |source, value| (3, source, Numbers::Float(vec![value]));
        let parts = [part(0, 1e16), part(1, 1.0), part(2, -1e16)];
        let [first, second, third] = parts.clone();
        let expected = BTreeMap::from([(3, Numbers::Float(vec![(1e16 + 1.0) - 1e16]))]);
        assert_eq!(sums(&parts), Ok(expected.clone()));
        assert_eq!(sums(&[third, first, second]), Ok(expected));
    }

    #[test]
    fn parts_of_one_worker_and_of_several_add_up() {
        let part = |index, source, value| (index, source, Numbers::Fixed(vec![value, 1]));
        let found = sums(&[part(0, 0, 5), part(1, 0, 1), part(0, 1, 7), part(0, 0, 2)]);
        let expected = [(0, Numbers::Fixed(vec![14, 3])), (1, Numbers::Fixed(vec![1, 1]))];
        assert_eq!(found, Ok(expected.into()));
    }

    #[test]
    fn a_sum_that_leaves_its_range_is_an_error() {
        let part = |source| (0, source, Numbers::Fixed(vec![i64::MAX]));
        assert_eq!(sums(&[part(0), part(1)]), Err(PartialError::OutOfRange));
    }
}
