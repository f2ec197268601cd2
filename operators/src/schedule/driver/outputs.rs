//! The outputs of a driver.

use std::collections::BTreeSet;

use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::step::PromptId;

use crate::schedule::{Decision, encode};
use crate::wire::rows::Row;

/// An output of the operator that is derived from decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::schedule) enum SchedulePort {
    /// Batches of [`schema::TEXTS`](rollpacker_dataflow::schema::TEXTS).
    Texts,
    /// Batches of [`schema::REQUESTS`](rollpacker_dataflow::schema::REQUESTS).
    Requests,
    /// Batches of [`schema::DECISIONS`](rollpacker_dataflow::schema::DECISIONS).
    Decisions,
}

/// Returns the texts of the launched prompts, except prompts that are in `sent` with the same worker, and adds the returned prompts to
/// `sent`. `sent` holds the pairs of prompt and worker of the open round, so that a second launch in a round does not send the text again.
/// `workers` has the worker of each decision in `decided`, and `row_of` returns the row of a launched prompt.
pub(in crate::schedule) fn unsent_texts(
    decided: &[Decision],
    workers: &[Option<u32>],
    sent: &mut BTreeSet<(PromptId, u32)>,
    row_of: &impl Fn(PromptId) -> Row,
) -> Batch {
    let launched = decided.iter().zip(workers).filter_map(|(decision, worker)| match decision {
        Decision::Launch { prompt, .. } => Some((*prompt, worker.unwrap_or(0))),
        _ => None,
    });
    let unsent: Vec<(PromptId, u32)> = launched.filter(|launch| sent.insert(*launch)).collect();
    let rows: Vec<Row> = unsent.iter().map(|(prompt, _)| row_of(*prompt)).collect();
    encode::texts(&rows, unsent.into_iter().map(|(_, worker)| worker).collect())
}
