//! A schedule that is saved and restored between its rounds.

use rollpacker_dataflow::clock::Nanos;
use rollpacker_stages::testkit::Nonconformance;

use super::SAVES;
use crate::schedule::{Decision, Event, Schedule};

/// A schedule that is replaced by a new one with its saved state whenever a run may take a snapshot. This is the case while no round is
/// open, no response is in flight, and no policy waits for its round.
pub(super) struct Restoring<'a, S> {
    schedule: S,
    start: &'a mut dyn FnMut() -> S,
    is_open: bool,
    /// The number of responses in flight.
    running: usize,
    /// The number of policies whose rounds have not opened.
    waiting: usize,
    has_all_prompts: bool,
    is_finished: bool,
    /// The error of the first state that could not be restored.
    pub(super) error: Option<Nonconformance>,
}

impl<'a, S: Schedule> Restoring<'a, S> {
    pub(super) fn new(start: &'a mut dyn FnMut() -> S) -> Self {
        Self {
            schedule: start(),
            start,
            is_open: false,
            running: 0,
            waiting: 0,
            has_all_prompts: false,
            is_finished: false,
            error: None,
        }
    }

    fn save_and_restore(&mut self, now: Nanos) {
        let is_between_rounds = !self.is_open && self.running == 0 && self.waiting == 0;
        let Some(saved) = self.schedule.save().filter(|_| is_between_rounds && !self.is_finished)
        else {
            return;
        };
        let mut restored = (self.start)();
        if let Err(reason) = restored.restore(&saved) {
            self.error.get_or_insert(Nonconformance::new(SAVES, reason.to_string()));
            return;
        }
        // The saved state does not include the end of the prompts, so the event is repeated.
        if self.has_all_prompts {
            restored.on(now, Event::EndOfPrompts);
        }
        self.schedule = restored;
    }
}

impl<S: Schedule> Schedule for &mut Restoring<'_, S> {
    fn on(&mut self, now: Nanos, event: Event) {
        self.save_and_restore(now);
        match &event {
            Event::Policy { .. } => self.waiting += 1,
            Event::Response { .. } => self.running -= 1,
            Event::EndOfPrompts => self.has_all_prompts = true,
            Event::Prompt(_) | Event::Scored { .. } => {}
        }
        self.schedule.on(now, event);
    }

    fn poll(&mut self) -> Option<Decision> {
        let decision = self.schedule.poll()?;
        match &decision {
            Decision::Open { .. } => (self.is_open, self.waiting) = (true, self.waiting - 1),
            Decision::Launch { samples, .. } => self.running += samples.len(),
            Decision::Close { .. } => self.is_open = false,
            Decision::Finish => self.is_finished = true,
            _ => {}
        }
        Some(decision)
    }

    fn wants_prompts(&self) -> bool {
        self.schedule.wants_prompts()
    }

    fn wants_scores(&self) -> bool {
        self.schedule.wants_scores()
    }

    fn pauses(&self) -> bool {
        self.schedule.pauses()
    }
}
