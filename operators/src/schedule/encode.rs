//! Encodes decisions as batches: requests for the rollout, and decisions for the operators that form groups.

use std::sync::Arc;

use arrow_array::types::{Float32Type, Int32Type, UInt32Type};
use arrow_array::{ArrayRef, StringArray, UInt8Array, UInt32Array, UInt64Array, new_null_array};
use arrow_schema::DataType;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::{PolicyVersion, PromptId, Tick};

use super::{Decision, Queue, RoundKind};
use crate::wire::action::{ABORT, ADVANCE, LAUNCH, PAUSE};
use crate::wire::columns::{empty_lists, lists};
use crate::wire::decision::{ADMIT, CLOSE, DEFER, OPEN, PAUSE_DECISION, REJECT};
use crate::wire::rows::{Row, gather};

/// A request to launch responses to a prompt, or to abort or pause one response.
#[derive(Clone, Copy)]
struct Request {
    /// The worker that generates the responses to the prompt.
    worker: u32,
    /// The value of the column `action`; see `wire::action`.
    action: u8,
    prompt: PromptId,
    /// The first sample.
    first: u32,
    /// The number of samples.
    samples: u32,
}

/// Encodes launches, aborts and pauses in their order, each with its worker. Returns one batch for each run of equal actions. `workers` has
/// the worker of each decision in `decided`, `version` is the policy version of the open step, and `row_of` returns the row of a launched
/// prompt.
pub(super) fn requests(
    decided: &[Decision],
    workers: &[Option<u32>],
    version: PolicyVersion,
    row_of: &impl Fn(PromptId) -> Row,
) -> Vec<Batch> {
    let decided = decided.iter().zip(workers);
    let requests: Vec<Request> =
        decided.filter_map(|(decision, worker)| request(decision, worker.unwrap_or(0))).collect();
    requests
        .chunk_by(|one, next| one.action == next.action)
        .map(|run| request_batch(run, version, row_of))
        .collect()
}

fn request(decision: &Decision, worker: u32) -> Option<Request> {
    match decision {
        Decision::Launch { prompt, samples, .. } => Some(Request {
            worker,
            action: LAUNCH,
            prompt: *prompt,
            first: samples.start,
            samples: samples.end - samples.start,
        }),
        Decision::Abort { id, .. } => {
            Some(Request { worker, action: ABORT, prompt: id.prompt, first: id.sample, samples: 1 })
        }
        Decision::Pause { id, .. } => {
            Some(Request { worker, action: PAUSE, prompt: id.prompt, first: id.sample, samples: 1 })
        }
        _ => None,
    }
}

fn request_batch(
    run: &[Request],
    version: PolicyVersion,
    row_of: &impl Fn(PromptId) -> Row,
) -> Batch {
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(UInt8Array::from_iter_values(run.iter().map(|request| request.action))),
        Arc::new(UInt64Array::from_iter_values(run.iter().map(|request| request.prompt.0))),
        Arc::new(UInt32Array::from_iter_values(run.iter().map(|request| request.first))),
        Arc::new(UInt32Array::from_iter_values(run.iter().map(|request| request.samples))),
        Arc::new(UInt64Array::from_iter_values(run.iter().map(|_| version.0))),
    ];
    if run.first().is_some_and(|request| request.action == LAUNCH) {
        let rows: Vec<Row> = run.iter().map(|request| row_of(request.prompt)).collect();
        let carried = [column::PROMPT_IDS, column::PROMPT_LENGTH, column::DATA_SOURCE, column::ROW];
        columns.extend(gather(&rows, carried));
    } else {
        columns.extend(empty_prompts(run.len()));
    }
    columns.push(Arc::new(UInt32Array::from_iter_values(run.iter().map(|request| request.worker))));
    columns.push(new_null_array(&DataType::UInt64, run.len()));
    Batch::from_columns(&schema::REQUESTS, columns)
}

/// Returns empty values for the columns that carry the prompt of a launch.
fn empty_prompts(rows: usize) -> impl Iterator<Item = ArrayRef> {
    let prompts = empty_lists::<Int32Type>(rows);
    let lengths: ArrayRef = Arc::new(UInt32Array::from(vec![0; rows]));
    let sources = new_null_array(&DataType::Utf8, rows);
    let dataset_rows = new_null_array(&DataType::UInt64, rows);
    [prompts, lengths, sources, dataset_rows].into_iter()
}

/// Encodes the texts of prompts, each with its worker; an empty batch if there are none.
pub(super) fn texts(prompts: &[Row], workers: Vec<u32>) -> Batch {
    if prompts.is_empty() {
        return Batch::default();
    }
    let carried = [column::PROMPT_ID, column::MESSAGES, column::GROUND_TRUTH, column::EXTRA_INFO];
    let workers: ArrayRef = Arc::new(UInt32Array::from(workers));
    Batch::from_columns(&schema::TEXTS, gather(prompts, carried).chain([workers]).collect())
}

/// Encodes the announcement that `tick` has passed, to each of `workers` workers.
pub(super) fn advance(tick: Tick, workers: u32) -> Batch {
    let rows = workers as usize;
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(UInt8Array::from(vec![ADVANCE; rows])),
        Arc::new(UInt64Array::from(vec![0; rows])),
        Arc::new(UInt32Array::from(vec![0; rows])),
        Arc::new(UInt32Array::from(vec![0; rows])),
        Arc::new(UInt64Array::from(vec![0; rows])),
    ];
    columns.extend(empty_prompts(rows));
    columns.push(Arc::new(UInt32Array::from_iter_values(0..workers)));
    columns.push(Arc::new(UInt64Array::from(vec![tick.0; rows])));
    Batch::from_columns(&schema::REQUESTS, columns)
}

/// Encodes the decisions about rounds, groups and pauses. Each decision is one row with its worker. Launches, aborts, [`Decision::Finish`]
/// and [`Decision::Fail`] are left out. `workers` has the worker of each decision in `decided`; a decision without a worker is for all
/// workers. `round` is the kind of the open round.
pub(crate) fn decisions(decided: &[Decision], workers: &[Option<u32>], round: RoundKind) -> Batch {
    let all = decided.iter().zip(workers);
    let rows = all.filter_map(|(decision, worker)| Some((row(decision)?, *worker)));
    let (rows, workers): (Vec<DecisionRow<'_>>, Vec<Option<u32>>) = rows.unzip();
    Batch::from_columns(
        &schema::DECISIONS,
        vec![
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.decision))),
            Arc::new(UInt64Array::from_iter(
                rows.iter().map(|row| row.prompt.map(|prompt| prompt.0)),
            )),
            lists::<UInt32Type>(rows.iter().map(|row| row.samples)),
            lists::<Float32Type>(rows.iter().map(|row| row.weights)),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.reason))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|_| round.as_str()))),
            Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.queue.length as u64))),
            Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.queue.age))),
            Arc::new(UInt32Array::from(workers)),
        ],
    )
}

/// A row of [`schema::DECISIONS`].
struct DecisionRow<'a> {
    decision: &'static str,
    prompt: Option<PromptId>,
    samples: &'a [u32],
    weights: &'a [f32],
    reason: &'static str,
    queue: Queue,
}

fn row(decision: &Decision) -> Option<DecisionRow<'_>> {
    let plain = DecisionRow {
        decision: "",
        prompt: None,
        samples: &[],
        weights: &[],
        reason: "",
        queue: Queue::default(),
    };
    match decision {
        Decision::Open { reason, .. } => {
            Some(DecisionRow { decision: OPEN, reason: reason.as_str(), ..plain })
        }
        Decision::Admit { prompt, samples, weights, reason } => Some(DecisionRow {
            decision: ADMIT,
            prompt: Some(*prompt),
            samples,
            weights,
            reason: reason.as_str(),
            ..plain
        }),
        Decision::Defer { prompt, reason } => Some(DecisionRow {
            decision: DEFER,
            prompt: Some(*prompt),
            reason: reason.as_str(),
            ..plain
        }),
        Decision::Reject { prompt, reason } => Some(DecisionRow {
            decision: REJECT,
            prompt: Some(*prompt),
            reason: reason.as_str(),
            ..plain
        }),
        Decision::Close { queue, .. } => {
            Some(DecisionRow { decision: CLOSE, queue: *queue, ..plain })
        }
        Decision::Pause { id, reason } => Some(DecisionRow {
            decision: PAUSE_DECISION,
            prompt: Some(id.prompt),
            samples: std::slice::from_ref(&id.sample),
            reason: reason.as_str(),
            ..plain
        }),
        Decision::Launch { .. }
        | Decision::Abort { .. }
        | Decision::Finish
        | Decision::Fail { .. } => None,
    }
}
