//! Converts the reports of a run to steps of a timeline.

use std::collections::BTreeMap;

use arrow_array::types::{Float64Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::schema::column;
use rollpacker_operators::report::{StepReport, ids};
use rollpacker_operators::rollout::is_returned_whole;
use rollpacker_stages::rollout::FinishReason;
use rollpacker_stages::train::Metrics;

use super::{Interval, TimelineResponse, TimelineStep, scoring};

/// The scores of responses by prompt and sample: the time at which a score was known, the duration of scoring, and the score.
type Scores = BTreeMap<(u64, u32), (Nanos, Nanos, f64)>;

impl TimelineStep {
    /// Returns the timeline of a step from its report, the kind of its round, its metrics, and the intervals in which the trainer computed.
    /// Times are on the run's clock.
    #[must_use]
    pub fn of(
        report: &StepReport,
        round: String,
        metrics: &Metrics,
        training: &[Interval],
    ) -> Self {
        let scores: Scores = report.groups.iter().flat_map(scores).collect();
        let responses = report.responses.iter().flat_map(|batch| responses(batch, &scores));
        let step = Self {
            step: report.step.0 + 1,
            round,
            training: training.to_vec(),
            responses: responses.collect(),
            ..Self::default()
        };
        step.with_stages(report.closed, |name| metrics.get(name).copied())
    }
}

fn scores(batch: &Batch) -> impl Iterator<Item = ((u64, u32), (Nanos, Nanos, f64))> {
    let scored = batch.values::<UInt64Type>(column::SCORED_AT).values();
    let took = batch.values::<UInt64Type>(column::REWARD_TIME).values();
    let scores = batch.values::<Float64Type>(column::SCORE).values();
    let values = scored.iter().zip(took).zip(scores);
    ids(batch).zip(values.map(|((&at, &took), &score)| (Nanos(at), Nanos(took), score)))
}

fn responses(batch: &Batch, scores: &Scores) -> impl Iterator<Item = TimelineResponse> {
    let narrow = |name| batch.values::<UInt32Type>(name).values();
    let time = |name, row: usize| Nanos(batch.values::<UInt64Type>(name).values()[row]);
    let (instances, tokens) = (narrow(column::INSTANCE), narrow(column::RESPONSE_LENGTH));
    let (resumed, reasons) = (narrow(column::RESUMED_LENGTH), batch.text(column::FINISH_REASON));
    ids(batch).enumerate().map(move |(row, (prompt, sample))| {
        let ended = time(column::FINISHED, row);
        let score = scores.get(&(prompt, sample));
        let finish_reason = reasons.value(row).to_owned();
        let reason = finish_reason.parse::<FinishReason>().ok();
        let is_kept =
            reason.is_some_and(|reason| is_returned_whole(reason, tokens[row], resumed[row]));
        let started = time(column::STARTED, row).min(ended);
        TimelineResponse {
            prompt,
            sample,
            instance: instances[row],
            rollout: (!is_kept).then_some((started, ended)),
            scoring: score.map(|&(at, took, _)| scoring(ended, at, took)),
            tokens: tokens[row],
            resumed: resumed[row],
            finish_reason,
            trained: score.is_some(),
            score: score.map(|&(_, _, score)| score),
        }
    })
}
