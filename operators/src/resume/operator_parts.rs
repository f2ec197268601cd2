//! The snapshot parts of one operator.

use rollpacker_dataflow::snapshot::{Draft, Part, Parts};
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::operators::Capability;

/// The snapshot parts of one operator. Does nothing if no snapshots are taken. [`Parts`] documents when each method must be called.
pub(crate) struct OperatorParts {
    parts: Option<Parts>,
    /// `true` if only the first worker has a state; the parts of the other workers are empty.
    first_only: bool,
}

impl OperatorParts {
    pub(super) fn new(parts: Option<Parts>, first_only: bool) -> Self {
        Self { parts, first_only }
    }

    /// Returns `true` if snapshots are taken.
    pub(crate) fn is_enabled(&self) -> bool {
        self.parts.is_some()
    }

    /// See [`Parts::start`].
    pub(crate) fn start(&mut self, capabilities: &[Capability<Step>]) {
        if let Some(parts) = &mut self.parts {
            parts.start(capabilities);
        }
    }

    /// See [`Parts::writes_pending`]. Returns `false` if no snapshots are taken.
    pub(crate) fn writes_pending(&self, limit: usize) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.writes_pending(limit))
    }

    /// See [`Parts::save_held`]. Returns `true` if no snapshots are taken.
    pub(crate) fn save_held(&self, step: Step) -> bool {
        self.parts.as_ref().is_none_or(|parts| parts.save_held(step))
    }

    /// See [`Parts::begin_step`].
    pub(crate) fn begin_step(&mut self, step: Step, state: impl Fn(&Draft<'_>) -> Part) {
        let first_only = self.first_only;
        if let Some(parts) = &mut self.parts {
            parts.begin_step(step, |draft| part(first_only, draft, &state));
        }
    }

    /// See [`Parts::advance_to`].
    pub(crate) fn advance_to(
        &mut self,
        frontier: Option<Step>,
        state: impl Fn(&Draft<'_>) -> Part,
    ) {
        let first_only = self.first_only;
        if let Some(parts) = &mut self.parts {
            parts.advance_to(frontier, |draft| part(first_only, draft, &state));
        }
    }
}

fn part(first_only: bool, draft: &Draft<'_>, state: &impl Fn(&Draft<'_>) -> Part) -> Part {
    if first_only && draft.worker() > 0 { Part::nothing() } else { state(draft) }
}
