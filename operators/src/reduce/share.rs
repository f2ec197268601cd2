//! The rule that determines when a worker sends a part of its gradient.

/// The progress of a worker in a step, in groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GradientProgress {
    /// Groups admitted on this worker so far.
    pub(super) admitted: usize,
    /// Groups that the trainer has accumulated.
    pub(super) accumulated: usize,
    /// Groups whose gradient was requested from the trainer, to be sent.
    pub(super) taken: usize,
}

impl GradientProgress {
    /// Returns `true` if there is a gradient to send.
    pub(super) fn is_pending(self) -> bool {
        self.accumulated > self.taken
    }

    /// Returns `true` if the gradient should be sent although the step is not complete: no response is in flight on this worker (`idle`),
    /// and all admitted groups are accumulated. Responses that are launched later cost one more part. This is rare: a worker usually
    /// becomes idle once per step, at the end of its rollouts.
    pub(super) fn is_due(self, idle: bool) -> bool {
        self.is_pending() && idle && self.accumulated >= self.admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gradient_share_is_due_early_once_the_worker_is_idle() {
        let share = GradientProgress { admitted: 4, accumulated: 3, taken: 0 };
        assert!(share.is_pending() && !share.is_due(true), "a group is being trained on");
        let done = GradientProgress { accumulated: 4, ..share };
        assert!(!done.is_due(false), "responses are under way");
        assert!(done.is_due(true));
        let given = GradientProgress { taken: 4, ..done };
        assert!(!given.is_due(true) && !given.is_pending());
        assert!(!GradientProgress::default().is_due(true));
    }
}
