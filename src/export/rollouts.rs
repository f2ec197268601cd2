//! The responses of a step on a timeline, from the rollouts of a run folder.

use std::path::Path;

use arrow_array::types::{ArrowPrimitiveType, Float64Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::schema::column;
use rollpacker_operators::rollout::is_returned_whole;
use rollpacker_stages::rollout::FinishReason;

use crate::run_reader::{ReadError, Rollouts, number};
use crate::timeline::{TimelineResponse, scoring};

const COLUMNS: [&str; 12] = [
    ADMITTED,
    column::PROMPT_ID,
    column::SAMPLE,
    column::INSTANCE,
    column::STARTED,
    column::FINISHED,
    column::RESPONSE_LENGTH,
    column::RESUMED_LENGTH,
    column::FINISH_REASON,
    column::SCORE,
    column::SCORED_AT,
    column::REWARD_TIME,
];
/// `Boolean`: `true` if the response was trained on.
const ADMITTED: &str = "admitted";

/// Reads the responses of the step with the number `step`, from 1. Times are on the run's clock.
///
/// # Errors
/// If the file cannot be read, lacks a column, or has a null where a run writes none.
pub(super) fn read(folder: &Path, step: u64) -> Result<Vec<TimelineResponse>, ReadError> {
    let rollouts = Rollouts::read(folder, step, &COLUMNS)?;
    (0..rollouts.len()).map(|row| response(&rollouts, row)).collect()
}

/// Returns the value of a column in a row, which must not be null.
fn value<T: ArrowPrimitiveType>(
    rollouts: &Rollouts,
    name: &str,
    row: usize,
) -> Result<T::Native, ReadError> {
    number(rollouts.numbers::<T>(name)?, row).ok_or_else(|| rollouts.column_error(name))
}

fn response(rollouts: &Rollouts, row: usize) -> Result<TimelineResponse, ReadError> {
    let narrow = |name| value::<UInt32Type>(rollouts, name, row);
    let ended = Nanos(value::<UInt64Type>(rollouts, column::FINISHED, row)?);
    let started = Nanos(value::<UInt64Type>(rollouts, column::STARTED, row)?).min(ended);
    let tokens = narrow(column::RESPONSE_LENGTH)?;
    let resumed = narrow(column::RESUMED_LENGTH)?;
    let trained = rollouts.flags(ADMITTED)?.value(row);
    let finish_reason = rollouts.texts(column::FINISH_REASON)?.value(row).to_owned();
    let reason = finish_reason.parse::<FinishReason>().ok();
    let is_kept = reason.is_some_and(|reason| is_returned_whole(reason, tokens, resumed));
    let time =
        |name| Ok::<_, ReadError>(number(rollouts.numbers::<UInt64Type>(name)?, row).map(Nanos));
    let scored = time(column::SCORED_AT)?.zip(time(column::REWARD_TIME)?);
    Ok(TimelineResponse {
        prompt: value::<UInt64Type>(rollouts, column::PROMPT_ID, row)?,
        sample: narrow(column::SAMPLE)?,
        instance: narrow(column::INSTANCE)?,
        rollout: (!is_kept).then_some((started, ended)),
        scoring: scored.filter(|_| trained).map(|(at, took)| scoring(ended, at, took)),
        tokens,
        resumed,
        finish_reason,
        trained,
        score: number(rollouts.numbers::<Float64Type>(column::SCORE)?, row),
    })
}
