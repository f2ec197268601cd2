//! The responses of a step on a timeline, from the rollouts of a run folder.

use std::fs::File;
use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{ArrowPrimitiveType, Float64Type, UInt32Type, UInt64Type};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::schema::column;
use rollpacker_operators::rollout::is_returned_whole;
use rollpacker_stages::rollout::FinishReason;

use crate::run_reader::ReadError;
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

/// Reads the responses of a file of rollouts. Times are those of the run's clock.
///
/// # Errors
/// If the file cannot be read, or lacks a column.
pub(super) fn read(path: &Path) -> Result<Vec<TimelineResponse>, ReadError> {
    let failed = ReadError::file(path);
    let file = File::open(path).map_err(|error| failed(&error))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| failed(&error))?;
    let mask = ProjectionMask::columns(builder.parquet_schema(), COLUMNS);
    let reader = builder.with_projection(mask).build().map_err(|error| failed(&error))?;
    let mut responses = Vec::new();
    for batch in reader {
        let batch = batch.map_err(|error| failed(&error))?;
        let rows = (0..batch.num_rows()).map(|row| response(&batch, row));
        let rows = rows.collect::<Option<Vec<_>>>();
        let expected = || format!("expected the columns {}", COLUMNS.join(", "));
        responses.extend(rows.ok_or_else(|| failed(&expected()))?);
    }
    Ok(responses)
}

/// Returns the value of a column in a row; `None` within if it is null. `None` if the column is missing or has another type.
fn number<T: ArrowPrimitiveType>(
    rows: &RecordBatch,
    name: &str,
    row: usize,
) -> Option<Option<T::Native>> {
    let column = rows.column_by_name(name)?.as_primitive_opt::<T>()?;
    Some(column.is_valid(row).then(|| column.value(row)))
}

fn response(rows: &RecordBatch, row: usize) -> Option<TimelineResponse> {
    let narrow = |name| number::<UInt32Type>(rows, name, row);
    let time = |name| Some(number::<UInt64Type>(rows, name, row)?.map(Nanos));
    let ended = time(column::FINISHED)??;
    let started = time(column::STARTED)??.min(ended);
    let tokens = narrow(column::RESPONSE_LENGTH)??;
    let resumed = narrow(column::RESUMED_LENGTH)??;
    let trained = rows.column_by_name(ADMITTED)?.as_boolean_opt()?.value(row);
    let reasons = rows.column_by_name(column::FINISH_REASON)?.as_string_opt::<i32>()?;
    let finish_reason = reasons.value(row).to_owned();
    let reason = finish_reason.parse::<FinishReason>().ok();
    let is_kept = reason.is_some_and(|reason| is_returned_whole(reason, tokens, resumed));
    let scored = time(column::SCORED_AT)?.zip(time(column::REWARD_TIME)?);
    Some(TimelineResponse {
        prompt: number::<UInt64Type>(rows, column::PROMPT_ID, row)??,
        sample: narrow(column::SAMPLE)??,
        instance: narrow(column::INSTANCE)??,
        rollout: (!is_kept).then_some((started, ended)),
        scoring: scored.filter(|_| trained).map(|(at, took)| scoring(ended, at, took)),
        tokens,
        finish_reason,
        trained,
        score: number::<Float64Type>(rows, column::SCORE, row)?,
    })
}
