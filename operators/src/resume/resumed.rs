//! What a run goes on from.

use std::path::PathBuf;

use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::snapshot::Restored;
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
    /// Reads what operators wrote; what none has written is as it is at the beginning.
    ///
    /// # Errors
    /// If the snapshot cannot be read, or a part is of another layout.
    pub fn read(restored: &Restored) -> Result<Self, ResumeError> {
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

    /// The last step that is over: the run goes on with the next.
    #[must_use]
    pub fn step(&self) -> Step {
        self.step
    }

    /// The last prompt that the schedule was offered: whoever reads prompts may go on behind it. One that begins anew gives the same
    /// prompts by the same ids, and those that the schedule has had are left out.
    #[must_use]
    pub fn last_prompt(&self) -> Option<LastPrompt> {
        self.schedule.last
    }

    /// The file of the trainer's state.
    ///
    /// # Errors
    /// If there is none.
    pub fn trainer_file(&self) -> Result<PathBuf, ResumeError> {
        self.trainer.clone().ok_or_else(|| ResumeError::Refused {
            step: self.step,
            part: trainer::PART,
            reason: "there is none".to_owned(),
        })
    }

    /// Lets a schedule at its start go on from its state.
    ///
    /// # Errors
    /// If it is none of its states.
    pub fn restore(&self, schedule: &mut dyn Schedule) -> Result<(), ResumeError> {
        self.schedule.restore(self.step, schedule)
    }

    /// Lets a policy of placement at its start go on from what it had learned, if anything was.
    ///
    /// # Errors
    /// If it is none of its states.
    pub fn restore_placement(&self, policy: &mut dyn Place) -> Result<(), ResumeError> {
        let (step, part) = (self.step, placement::operator::PART);
        let refused = |reason| ResumeError::Refused { step, part, reason };
        let Some(learned) = &self.placement else { return Ok(()) };
        policy.restore(learned).map_err(refused)
    }

    /// Takes the prompts that the schedule has and did not launch yet out of a budget at its start, and adds what had been added.
    pub fn reserve(&self, budget: &Budget) {
        budget.release(self.schedule.widened);
        budget.try_acquire(self.schedule.unlaunched());
    }
}
