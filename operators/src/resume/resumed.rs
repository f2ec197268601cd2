//! The state that a run resumes from.

use std::path::PathBuf;

use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::snapshot::RestoredSnapshot;
use rollpacker_dataflow::step::Step;

use super::ResumeError;
use super::part::read_bytes;
use crate::advantage::KlController;
use crate::ledger::{KnownAnchors, KnownFacts};
use crate::placement::{self, Place};
use crate::rollout::KeptRows;
use crate::schedule::Schedule;
use crate::schedule::state::SavedSchedule;
use crate::trainer;

pub use crate::schedule::state::LastPrompt;

/// The states of operators at the end of a step, read from a snapshot.
pub struct Resumed {
    step: Step,
    pub(crate) schedule: SavedSchedule,
    placement: Option<Vec<u8>>,
    pub(crate) kept: KeptRows,
    pub(crate) controller: Option<KlController>,
    pub(crate) facts: KnownFacts,
    pub(crate) anchors: KnownAnchors,
    trainer: Option<PathBuf>,
}

impl Resumed {
    /// Reads the parts that operators wrote. An operator that wrote no part starts with its initial state.
    ///
    /// # Errors
    /// If the snapshot cannot be read, or a part has a different layout.
    pub fn read(restored: &RestoredSnapshot) -> Result<Self, ResumeError> {
        let trainer = restored.records(trainer::PART).next();
        Ok(Self {
            step: restored.step(),
            schedule: SavedSchedule::read(restored)?,
            placement: read_bytes(restored, placement::operator::PART)?,
            kept: KeptRows::read(restored)?,
            controller: KlController::read(restored)?,
            facts: KnownFacts::read(restored)?,
            anchors: KnownAnchors::read(restored)?,
            trainer: trainer.map(|record| restored.path(record)),
        })
    }

    /// Returns the last completed step. The run continues with the next step.
    #[must_use]
    pub fn step(&self) -> Step {
        self.step
    }

    /// Returns the last prompt that the schedule was offered.
    ///
    /// A prompt reader may continue after it. A reader that starts from the beginning must produce the same prompts with the same ids; the
    /// prompts that the schedule has received already are skipped.
    #[must_use]
    pub fn last_prompt(&self) -> Option<LastPrompt> {
        self.schedule.last
    }

    /// Returns the file of the trainer's state.
    ///
    /// # Errors
    /// If the snapshot contains no trainer state.
    pub fn trainer_file(&self) -> Result<PathBuf, ResumeError> {
        self.trainer.clone().ok_or_else(|| ResumeError::Refused {
            step: self.step,
            part: trainer::PART,
            reason: "the snapshot contains no trainer state".to_owned(),
        })
    }

    /// Restores the state of a newly created schedule.
    ///
    /// # Errors
    /// If the schedule rejects the state.
    pub fn restore(&self, schedule: &mut dyn Schedule) -> Result<(), ResumeError> {
        self.schedule.restore(self.step, schedule)
    }

    /// Restores the state of a newly created placement policy, if the snapshot contains one.
    ///
    /// # Errors
    /// If the policy rejects the state.
    pub fn restore_placement(&self, policy: &mut dyn Place) -> Result<(), ResumeError> {
        let (step, part) = (self.step, placement::operator::PART);
        let refused = |reason| ResumeError::Refused { step, part, reason };
        let Some(learned) = &self.placement else { return Ok(()) };
        policy.restore(learned).map_err(refused)
    }

    /// Acquires units of `budget` for the prompts that the schedule holds and has not launched, and adds the units by which the budget was
    /// widened.
    pub fn reserve(&self, budget: &Budget) {
        budget.release(self.schedule.widened);
        budget.try_acquire(self.schedule.unlaunched());
    }
}
