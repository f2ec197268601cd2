//! The assignment of overlapping responses to slots of an instance.

use std::collections::BTreeMap;

use rollpacker_dataflow::clock::Nanos;

use super::Interval;

/// The slots of all instances.
///
/// Responses of one instance run at once, but slices of one track must not overlap. So each response gets the first slot that is free.
#[derive(Debug, Default)]
pub(super) struct Slots(BTreeMap<u32, Vec<Nanos>>);

impl Slots {
    /// Returns the first free slot of `instance` for a response, from 0. Responses that do not come in the order of their starts use more
    /// slots than necessary.
    pub(super) fn take(&mut self, instance: u32, (from, to): Interval) -> usize {
        let free = self.0.entry(instance).or_default();
        let slot = free.iter().position(|end| *end <= from).unwrap_or(free.len());
        match free.get_mut(slot) {
            Some(end) => *end = to,
            None => free.push(to),
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_of_a_slot_do_not_overlap() {
        let mut slots = Slots::default();
        let mut take = |from, to| slots.take(3, (Nanos(from), Nanos(to)));
        assert_eq!(
            [take(0, 10), take(2, 4), take(4, 9), take(9, 20), take(10, 11)],
            [0, 1, 1, 1, 0]
        );
        assert_eq!(slots.take(4, (Nanos(0), Nanos(1))), 0);
    }
}
