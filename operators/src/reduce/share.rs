//! When a worker gives out what it has accumulated of a step.

/// A worker's share of a step, in groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Admitted here, so far.
    pub(super) admitted: usize,
    /// Accumulated by the trainer.
    pub(super) accumulated: usize,
    /// Given out.
    pub(super) taken: usize,
}

impl Share {
    /// Whether there is something to give.
    pub(super) fn is_pending(self) -> bool {
        self.accumulated > self.taken
    }

    /// Whether to give it although the step is not over: nothing is generated here any more (`idle`), and what was admitted is trained on.
    /// More may be launched later, and then it costs a part more; a worker that runs dry at the end of its rollouts does so once a step.
    pub(super) fn is_due(self, idle: bool) -> bool {
        self.is_pending() && idle && self.accumulated >= self.admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_given_early_once_nothing_is_left_to_do_here() {
        let share = Share { admitted: 4, accumulated: 3, taken: 0 };
        assert!(share.is_pending() && !share.is_due(true), "a group is being trained on");
        let done = Share { accumulated: 4, ..share };
        assert!(!done.is_due(false), "responses are under way");
        assert!(done.is_due(true));
        let given = Share { taken: 4, ..done };
        assert!(!given.is_due(true) && !given.is_pending());
        assert!(!Share::default().is_due(true));
    }
}
