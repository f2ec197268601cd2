//! Queries of the frontiers of several inputs.

use timely::progress::frontier::MutableAntichain;

use crate::step::Step;

/// Returns the earliest step at which data may still arrive on an input with one of `frontiers`; `None` if all inputs have ended.
#[must_use]
pub fn earliest(frontiers: &[MutableAntichain<Step>]) -> Option<Step> {
    frontiers.iter().filter_map(|frontier| frontier.frontier().first().copied()).min()
}

/// Returns `true` if data of `step` may still arrive on an input with one of `frontiers`.
#[must_use]
pub fn may_arrive(frontiers: &[MutableAntichain<Step>], step: &Step) -> bool {
    frontiers.iter().any(|frontier| frontier.less_equal(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_may_arrive_from_the_earliest_frontier_on() {
        let at = |step| MutableAntichain::from_elem(Step(step));
        let frontiers = [at(3), MutableAntichain::new(), at(2)];
        assert_eq!(earliest(&frontiers), Some(Step(2)));
        assert_eq!([1, 2, 3].map(|step| may_arrive(&frontiers, &Step(step))), [false, true, true]);
        let ended = [MutableAntichain::new()];
        assert_eq!((earliest(&ended), may_arrive(&ended, &Step(u64::MAX))), (None, false));
    }
}
