//! Batches of [`NOTICES`](schema::NOTICES): the progress of a rollout, which the schedule needs to decide a race by tokens.

use std::sync::Arc;

use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, StringArray, UInt32Array, UInt64Array};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::{PromptId, SampleId, Step, Tick};
use rollpacker_stages::rollout::lockstep::End;

use super::finish_reason::finish_reason;

/// The progress of one worker's rollout in a race that is decided by tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) worker: usize,
    /// The number of request rows that the worker has processed since the start of the run.
    pub(crate) received: u64,
    /// A lower bound for the responses that are still running on the worker: each of them ends later than this tick.
    pub(crate) floor: Tick,
    /// The responses that ended, were aborted or paused, or were returned again since the last notice, in any order.
    pub(crate) ends: Vec<End>,
}

/// Returns a notice as a batch of [`schema::NOTICES`]. The arguments are the fields of [`Notice`].
pub(crate) fn write(worker: u32, received: u64, floor: Tick, ends: &[End]) -> Batch {
    // The first row carries the worker's progress and no end.
    let each = || std::iter::once(None).chain(ends.iter().map(Some));
    let rows = ends.len() + 1;
    let long = |of: fn(&End) -> u64| -> ArrayRef {
        Arc::new(each().map(|end| end.map(of)).collect::<UInt64Array>())
    };
    let short = |of: fn(&End) -> u32| -> ArrayRef {
        Arc::new(each().map(|end| end.map(of)).collect::<UInt32Array>())
    };
    let reasons = each().map(|end| end.map(|end| end.finish_reason.as_str()));
    Batch::from_columns(
        &schema::NOTICES,
        vec![
            Arc::new(UInt32Array::from(vec![worker; rows])),
            Arc::new(UInt64Array::from(vec![received; rows])),
            Arc::new(UInt64Array::from(vec![floor.0; rows])),
            long(|end| end.id.step.0),
            long(|end| end.id.prompt.0),
            short(|end| end.id.sample),
            long(|end| end.tick.0),
            short(|end| end.tokens),
            Arc::new(reasons.collect::<StringArray>()),
        ],
    )
}

/// Reads a notice from a batch of [`schema::NOTICES`].
pub(crate) fn read(batch: &Batch) -> Notice {
    let long = |name| batch.values::<UInt64Type>(name);
    let short = |name| batch.values::<UInt32Type>(name);
    let (steps, prompts, ticks) = (long(column::STEP), long(column::PROMPT_ID), long(column::TICK));
    let (samples, tokens) = (short(column::SAMPLE), short(column::RESPONSE_LENGTH));
    let reasons = batch.text(column::FINISH_REASON);
    let end = |row| End {
        tick: Tick(ticks.value(row)),
        id: SampleId {
            step: Step(steps.value(row)),
            prompt: PromptId(prompts.value(row)),
            sample: samples.value(row),
        },
        tokens: tokens.value(row),
        finish_reason: finish_reason(reasons.value(row)),
    };
    Notice {
        worker: short(column::WORKER).value(0) as usize,
        received: long(column::RECEIVED_ROWS).value(0),
        floor: Tick(long(column::FLOOR).value(0)),
        ends: (1..batch.num_rows()).map(end).collect(),
    }
}
