//! The parts of a snapshot that the schedule saves: its own state, the prompts that it holds, the decisions that are not sent yet, and the
//! state of the curriculum.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use arrow_array::{ArrayRef, BooleanArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::snapshot::{Part, RestoredSnapshot};
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Decision, Schedule};
use crate::curriculum::{self, CurriculumState};
use crate::resume::part::{json, read_bytes, read_rows, rows};
use crate::resume::{OperatorParts, Resumable, ResumeError, SavedState};
use crate::wire::rows::{Row, gather_first};

/// The name of the part with the schedule's own state.
const SCHEDULE: &str = "schedule";
/// The number of unfinished snapshots at which no further round opens. Each snapshot holds a copy of its data until it is written.
const MAX_PENDING_SNAPSHOTS: usize = 2;
/// The name of the part with the schedule's prompts.
const PROMPTS: &str = "prompts";

/// The column that is `true` if the prompt was launched.
const LAUNCHED: &str = "launched";
/// The fact with the last prompt that was offered to the schedule or skipped by its curriculum.
const LAST: &str = "last_prompt";
/// The fact with the decisions that were not sent.
const DECIDED: &str = "decided";
/// The fact with the number of prompts that the reader was allowed beyond its budget.
const EXTRA_BUDGET: &str = "widened";

/// The schema of offered prompts, with a column that is `true` if the prompt was launched.
static HELD: LazyLock<SchemaRef> = LazyLock::new(|| {
    let launched = Arc::new(Field::new(LAUNCHED, DataType::Boolean, false));
    let fields = schema::PROMPTS.fields().iter().cloned().chain([launched]);
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
});

/// The last prompt that was offered to a schedule or skipped by its curriculum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastPrompt {
    /// The id of the prompt; later prompts have greater ids.
    pub prompt: PromptId,
    /// The epoch in which the prompt was read.
    pub epoch: u32,
    /// The prompt's row of the dataset.
    pub row: u64,
}

/// A prompt that was offered and is neither admitted nor rejected.
pub(crate) struct HeldPrompt {
    pub(crate) row: Row,
    pub(crate) launched: bool,
}

/// The prompts that a schedule holds, and the state of reading and deciding that a resumed run continues.
#[derive(Default)]
pub(crate) struct HeldPrompts {
    /// The prompts that were offered and are neither admitted nor rejected.
    pub(crate) held: BTreeMap<PromptId, HeldPrompt>,
    /// The last prompt that was offered to the schedule or skipped by its curriculum; `None` before the first.
    pub(crate) last: Option<LastPrompt>,
    /// The number of prompts that the reader was allowed beyond its budget.
    pub(crate) extra_budget: usize,
    /// Decisions that were taken between two rounds and are sent with the next round.
    pub(crate) decided: Vec<Decision>,
}

/// The state that the driver of a schedule saves in a snapshot.
#[derive(Clone, Copy)]
pub(crate) struct ScheduleSnapshot<'a> {
    pub(crate) schedule: &'a dyn Schedule,
    pub(crate) prompts: &'a HeldPrompts,
    /// Decisions that were not sent yet.
    pub(crate) decided: &'a [Decision],
    /// The state of the curriculum, if there is one.
    pub(crate) curriculum: Option<&'a CurriculumState>,
}

impl ScheduleSnapshot<'_> {
    /// Returns the schedule's own state; empty if the schedule cannot be saved.
    fn schedule_part(&self) -> Part {
        self.schedule.save().map_or_else(Part::nothing, |state| Part::bytes("json", state))
    }

    fn curriculum_part(&self) -> Part {
        self.curriculum.map_or_else(Part::nothing, json)
    }

    fn prompts_part(&self) -> Part {
        let HeldPrompts { held, last, extra_budget, .. } = self.prompts;
        let prompts: Vec<Row> = held.values().map(|held| held.row.clone()).collect();
        let launched = held.values().map(|held| Some(held.launched));
        let launched: ArrayRef = Arc::new(launched.collect::<BooleanArray>());
        let columns = match prompts.as_slice() {
            [] => Vec::new(),
            prompts => {
                let columns = gather_first(prompts, schema::PROMPTS.fields().len());
                columns.into_iter().chain([launched]).collect()
            }
        };
        let encoded = "invariant: ids and decisions are plain data";
        rows(&HELD, columns)
            .fact(LAST, serde_json::to_value(last).expect(encoded))
            .fact(DECIDED, serde_json::to_value(self.decided).expect(encoded))
            .fact(EXTRA_BUDGET, *extra_budget as u64)
    }
}

/// The snapshot parts of the schedule, of its prompts and of its curriculum.
pub(crate) struct SavedParts {
    schedule: OperatorParts,
    prompts: OperatorParts,
    /// `None` without a curriculum: the snapshot then has no such part.
    curriculum: Option<OperatorParts>,
}

impl SavedParts {
    pub(crate) fn register<'scope>(
        resumable: &Resumable<'scope>,
        operator: &mut Operator<'scope>,
        has_curriculum: bool,
    ) -> Self {
        let schedule = resumable.register_first(SCHEDULE, operator);
        let prompts = resumable.register_first(PROMPTS, operator);
        let curriculum =
            has_curriculum.then(|| resumable.register_first(curriculum::PART, operator));
        Self { schedule, prompts, curriculum }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.schedule.is_enabled()
    }

    /// Returns `true` if the next round must wait for snapshots to be written.
    pub(crate) fn writes_pending(&self) -> bool {
        self.schedule.writes_pending(MAX_PENDING_SNAPSHOTS)
    }

    pub(crate) fn start(&mut self, capabilities: &[Capability<Step>]) {
        self.schedule.start(capabilities);
        self.prompts.start(capabilities);
        self.curriculum.iter_mut().for_each(|part| part.start(capabilities));
    }

    pub(crate) fn begin_step(&mut self, step: Step, state: &ScheduleSnapshot<'_>) {
        self.schedule.begin_step(step, |_| state.schedule_part());
        self.prompts.begin_step(step, |_| state.prompts_part());
        let curriculum = self.curriculum.iter_mut();
        curriculum.for_each(|part| part.begin_step(step, |_| state.curriculum_part()));
    }

    pub(crate) fn advance_to(&mut self, frontier: Option<Step>, state: &ScheduleSnapshot<'_>) {
        self.schedule.advance_to(frontier, |_| state.schedule_part());
        self.prompts.advance_to(frontier, |_| state.prompts_part());
        let curriculum = self.curriculum.iter_mut();
        curriculum.for_each(|part| part.advance_to(frontier, |_| state.curriculum_part()));
    }
}

/// Restores the state of a newly created schedule. Does nothing if the snapshot has no state of a schedule.
///
/// # Errors
/// If the snapshot cannot be read, or the schedule rejects the state.
pub fn restore(
    restored: &RestoredSnapshot,
    schedule: &mut dyn Schedule,
) -> Result<(), ResumeError> {
    let Some(state) = read_bytes(restored, SCHEDULE)? else { return Ok(()) };
    let refused = |reason| ResumeError::Refused { step: restored.step(), part: SCHEDULE, reason };
    schedule.restore(&state).map_err(refused)
}

/// Returns the last prompt that was offered to the schedule or skipped by its curriculum; `None` if there was none.
///
/// A prompt reader may continue after this prompt. A reader that starts from the beginning must produce the same prompts with the same ids;
/// the prompts that the schedule has received already are skipped.
///
/// # Errors
/// If the snapshot has a different layout.
pub fn last_prompt(restored: &RestoredSnapshot) -> Result<Option<LastPrompt>, ResumeError> {
    fact(restored, LAST)
}

/// Adds to `budget` the units by which the run of the snapshot widened its budget. Then acquires a unit for each prompt that the schedule
/// holds and has not launched. If fewer units are free, acquires all of them.
///
/// # Errors
/// If the snapshot cannot be read, or has a different layout.
pub fn reserve(restored: &RestoredSnapshot, budget: &Budget) -> Result<(), ResumeError> {
    let unlaunched = held_rows(restored)?.map_or(0, |batch| batch.booleans(LAUNCHED).false_count());
    budget.release(fact(restored, EXTRA_BUDGET)?);
    budget.try_acquire(unlaunched);
    Ok(())
}

/// Returns the rows of the prompts that the schedule holds; `None` if it holds none.
fn held_rows(restored: &RestoredSnapshot) -> Result<Option<Batch>, ResumeError> {
    let rows = read_rows(restored, PROMPTS, &HELD)?;
    Ok(rows.filter(|batch| batch.num_rows() > 0))
}

/// Returns a fact stored with the rows of the prompts part, or the default if it is absent.
fn fact<T: DeserializeOwned + Default>(
    restored: &RestoredSnapshot,
    key: &'static str,
) -> Result<T, ResumeError> {
    let value = restored.records(PROMPTS).find_map(|record| record.facts.get(key));
    let Some(value) = value else { return Ok(T::default()) };
    serde_json::from_value(value.clone()).map_err(|error| ResumeError::Layout {
        step: restored.step(),
        part: PROMPTS,
        expected: format!("the fact `{key}` as this version writes it"),
        found: error.to_string(),
    })
}

impl SavedState for HeldPrompts {
    fn read(restored: &RestoredSnapshot) -> Result<Option<Self>, ResumeError> {
        let mut stocked = Self {
            held: BTreeMap::new(),
            last: fact(restored, LAST)?,
            extra_budget: fact(restored, EXTRA_BUDGET)?,
            decided: fact(restored, DECIDED)?,
        };
        if let Some(batch) = held_rows(restored)? {
            let ids = batch.values::<arrow_array::types::UInt64Type>(column::PROMPT_ID).values();
            let launched = batch.booleans(LAUNCHED);
            stocked.held.extend(Row::all(&batch).map(|row| {
                let launched = launched.value(row.index);
                (PromptId(ids[row.index]), HeldPrompt { row, launched })
            }));
        }
        Ok(Some(stocked))
    }
}
