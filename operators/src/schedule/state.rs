//! The schedule's part of a snapshot: its own state, and the prompts that it may still launch.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, BooleanArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::snapshot::{Part, RestoredSnapshot};
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Decision, Schedule};
use crate::resume::part::{read_bytes, read_rows, rows};
use crate::resume::{Keeper, Resumable, ResumeError};
use crate::rows::{Row, gather_first};

/// The name of the part with the schedule's own state.
const SCHEDULE: &str = "schedule";
/// The number of snapshots being written at which no further round opens: each holds a copy of the data that it writes.
const SNAPSHOTS_AHEAD: usize = 2;
/// The name of the part with its prompts.
const PROMPTS: &str = "prompts";

const LAUNCHED: &str = "launched";
const LAST: &str = "last_prompt";
const DECIDED: &str = "decided";
const WIDENED: &str = "widened";

/// The schema of offered prompts, with a column that says if each was launched.
static HELD: LazyLock<SchemaRef> = LazyLock::new(|| {
    let launched = Arc::new(Field::new(LAUNCHED, DataType::Boolean, false));
    let fields = schema::PROMPTS.fields().iter().cloned().chain([launched]);
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
});

/// The last prompt that a schedule was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastPrompt {
    /// The id of the prompt; later prompts have greater ids.
    pub prompt: PromptId,
    /// The epoch in which it was read.
    pub epoch: u32,
    /// Its row of the dataset.
    pub row: u64,
}

/// A prompt that was offered and is neither admitted nor rejected.
pub(crate) struct Held {
    pub(crate) row: Row,
    pub(crate) launched: bool,
}

/// The prompts of a schedule.
#[derive(Default)]
pub(crate) struct Stocked {
    pub(crate) held: BTreeMap<PromptId, Held>,
    pub(crate) last: Option<LastPrompt>,
    /// The number of prompts that the reader was allowed beyond its budget.
    pub(crate) widened: usize,
    /// Decisions taken between two rounds, which are sent with the next round.
    pub(crate) decided: Vec<Decision>,
}

/// The state that the driver of a schedule saves in a snapshot.
#[derive(Clone, Copy)]
pub(crate) struct State<'a> {
    pub(crate) schedule: &'a dyn Schedule,
    pub(crate) prompts: &'a Stocked,
    /// Decisions that were not sent yet.
    pub(crate) decided: &'a [Decision],
}

impl State<'_> {
    /// Returns the schedule's own state; empty if the schedule cannot be saved.
    fn schedule_part(&self) -> Part {
        self.schedule.save().map_or_else(Part::nothing, |state| Part::bytes("json", state))
    }

    fn prompts_part(&self) -> Part {
        let Stocked { held, last, widened, .. } = self.prompts;
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
            .fact(WIDENED, *widened as u64)
    }
}

/// Writes the snapshot parts of the schedule and of its prompts.
pub(crate) struct SavedParts {
    schedule: Keeper,
    prompts: Keeper,
}

impl SavedParts {
    pub(crate) fn register<'scope>(
        resumable: &Resumable<'scope>,
        operator: &mut Operator<'scope>,
    ) -> Self {
        let schedule = resumable.keep_first(SCHEDULE, operator);
        Self { schedule, prompts: resumable.keep_first(PROMPTS, operator) }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.schedule.is_on()
    }

    /// Returns `true` if the next round must wait for snapshots to be written.
    pub(crate) fn are_behind(&self) -> bool {
        self.schedule.is_behind(SNAPSHOTS_AHEAD)
    }

    pub(crate) fn start(&mut self, capabilities: &[Capability<Step>]) {
        self.schedule.start(capabilities);
        self.prompts.start(capabilities);
    }

    pub(crate) fn before(&mut self, step: Step, state: &State<'_>) {
        self.schedule.before(step, |_| state.schedule_part());
        self.prompts.before(step, |_| state.prompts_part());
    }

    pub(crate) fn closed(&mut self, frontier: Option<Step>, state: &State<'_>) {
        self.schedule.closed(frontier, |_| state.schedule_part());
        self.prompts.closed(frontier, |_| state.prompts_part());
    }
}

/// The state of a schedule as read from a snapshot.
#[derive(Default)]
pub(crate) struct SavedSchedule {
    policy: Option<Vec<u8>>,
    held: Option<Batch>,
    pub(crate) last: Option<LastPrompt>,
    pub(crate) widened: usize,
    decided: Vec<Decision>,
}

/// Returns a fact stored beside the rows of the prompts part, or the default if it is absent.
fn fact<T: DeserializeOwned + Default>(
    restored: &RestoredSnapshot,
    key: &'static str,
) -> Result<T, ResumeError> {
    let said = restored.records(PROMPTS).find_map(|record| record.facts.get(key));
    let Some(said) = said else { return Ok(T::default()) };
    serde_json::from_value(said.clone()).map_err(|error| ResumeError::Layout {
        step: restored.step(),
        part: PROMPTS,
        expected: format!("the fact `{key}` as this version writes it"),
        found: error.to_string(),
    })
}

impl SavedSchedule {
    pub(crate) fn read(restored: &RestoredSnapshot) -> Result<Self, ResumeError> {
        Ok(Self {
            policy: read_bytes(restored, SCHEDULE)?,
            held: read_rows(restored, PROMPTS, &HELD)?,
            last: fact(restored, LAST)?,
            decided: fact(restored, DECIDED)?,
            widened: fact(restored, WIDENED)?,
        })
    }

    /// Returns the number of prompts that were offered and not launched.
    pub(crate) fn unlaunched(&self) -> usize {
        let batch = self.held.as_ref().filter(|batch| batch.num_rows() > 0);
        batch.map_or(0, |batch| batch.booleans(LAUNCHED).false_count())
    }

    /// Returns the prompts in the form in which the driver holds them.
    pub(crate) fn stocked(&self) -> Stocked {
        let mut stocked = Stocked {
            held: BTreeMap::new(),
            last: self.last,
            widened: self.widened,
            decided: self.decided.clone(),
        };
        if let Some(batch) = self.held.as_ref().filter(|batch| batch.num_rows() > 0) {
            let ids = batch.values::<arrow::datatypes::UInt64Type>(column::PROMPT_ID).values();
            let launched = batch.booleans(LAUNCHED);
            stocked.held.extend(Row::all(batch).map(|row| {
                let launched = launched.value(row.index);
                (PromptId(ids[row.index]), Held { row, launched })
            }));
        }
        stocked
    }

    pub(crate) fn restore(
        &self,
        step: Step,
        schedule: &mut dyn Schedule,
    ) -> Result<(), ResumeError> {
        let Some(policy) = &self.policy else { return Ok(()) };
        let refused = |reason| ResumeError::Refused { step, part: SCHEDULE, reason };
        schedule.restore(policy).map_err(refused)
    }
}
