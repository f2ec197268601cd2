//! Metrics that are computed from the rows and the times of a step. A metric that verl has as well has verl's name.

use std::collections::{BTreeMap, HashSet};

use arrow_array::types::{Float32Type, Float64Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;
use rollpacker_stages::rollout::FinishReason;
use rollpacker_stages::train::{Metrics, named_metrics};

use super::StepReport;
use super::lag::lag;
use super::occupancy::{Occupancy, slot_uses};
use super::stages::{StageInstants, StageTimes};
use super::statistics::{ratio, spread};
use super::values::values;
use crate::schedule::Reason;
use crate::wire::decision::{ADMIT, CLOSE, DEFER, PAUSE_DECISION, REJECT};
use crate::wire::rows::ids;

/// The lengths of responses, in tokens, and counts of responses and tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// Lengths of the responses that ended by themselves, with an end-of-sequence token or at the maximum length.
    pub finished: Vec<usize>,
    /// Lengths of the aborted responses.
    pub aborted: Vec<usize>,
    /// Lengths so far of the paused responses.
    pub paused: Vec<usize>,
    /// The number of tokens sampled in the step. Tokens that continued responses had before are not counted.
    pub sampled: usize,
    /// The number of responses that ended at the maximum length.
    pub clipped: usize,
    /// The number of times an engine preempted a response for lack of KV cache.
    pub preemptions: u64,
}

impl Lengths {
    /// Returns the lengths of the responses in `batches`, which have the columns of [`RESPONSES`](rollpacker_dataflow::schema::RESPONSES).
    /// A response with an unknown finish reason counts as aborted.
    #[must_use]
    pub fn of(batches: &[Batch]) -> Self {
        let mut lengths = Self::default();
        for batch in batches {
            let tokens = batch.values::<UInt32Type>(column::RESPONSE_LENGTH);
            let resumed = batch.values::<UInt32Type>(column::RESUMED_LENGTH);
            let preemptions = batch.values::<UInt32Type>(column::PREEMPTIONS).values();
            lengths.preemptions += preemptions.iter().copied().map(u64::from).sum::<u64>();
            for (row, reason) in batch.text(column::FINISH_REASON).iter().enumerate() {
                let kind = match reason.and_then(|reason| reason.parse().ok()) {
                    Some(FinishReason::Stop | FinishReason::Length) => &mut lengths.finished,
                    Some(FinishReason::Pause) => &mut lengths.paused,
                    Some(FinishReason::Abort) | None => &mut lengths.aborted,
                };
                kind.push(tokens.value(row) as usize);
                lengths.sampled += tokens.value(row).saturating_sub(resumed.value(row)) as usize;
                lengths.clipped += usize::from(reason == Some(FinishReason::Length.as_str()));
            }
        }
        lengths
    }

    /// Returns the number of tokens of all responses that ended by themselves or were aborted.
    #[must_use]
    pub fn total(&self) -> usize {
        self.finished.iter().chain(&self.aborted).sum()
    }
}

/// Returns all metrics of a step: the metrics that operators measured, and the metrics that are computed from the rows of the step. The
/// metrics `.../mean`, `.../max` and `.../min` of values in the rows are left out if there are no such values.
#[must_use]
pub fn measure(report: &StepReport) -> Metrics {
    let mut metrics = report.metrics.clone();
    let launched = Lengths::of(&report.responses);
    let trained = Lengths::of(&report.groups);
    let instants = StageInstants::of(report);
    // With staleness, consecutive steps overlap. Rates use only the time that a step did not share with the previous one.
    let non_overlapping_seconds = instants.non_overlapping_seconds();
    lengths(&mut metrics, &trained, &launched);
    scores(&mut metrics, &report.groups);
    lag(&mut metrics, report.step, &report.groups);
    schedule(&mut metrics, &report.decisions);
    let trained_tokens = trained.total() + prompt_tokens(&mut metrics, &report.groups);
    let rollout = Occupancy::of(slot_uses(&report.responses));
    metrics.extend(stages(&StageTimes::of(&instants)));
    rewards(&mut metrics, &report.groups);
    metrics.extend(named_metrics([
        ("training/global_step", report.step.0 as f64 + 1.0),
        ("timing_s/step", instants.seconds()),
        ("timing_s/gen", rollout.seconds),
        ("rollout/bubble_ratio", rollout.bubble_ratio),
        ("rollout/idle_ratio", rollout.idle_ratio),
        ("rollout/launched_responses", (launched.finished.len() + launched.aborted.len()) as f64),
        ("rollout/aborted_responses", launched.aborted.len() as f64),
        ("rollout/paused_responses", launched.paused.len() as f64),
        ("rollout/preemptions", launched.preemptions as f64),
        ("rollout/launched_tokens", launched.sampled as f64),
        ("rollout/discarded_tokens", discarded(report) as f64),
        ("rollout/tokens_per_s", ratio(launched.sampled as f64, rollout.seconds)),
        ("perf/total_num_tokens", trained_tokens as f64),
        ("perf/time_per_step", non_overlapping_seconds),
        ("perf/throughput", ratio(trained_tokens as f64, non_overlapping_seconds)),
    ]));
    let busy: f64 = ["timing_s/inference", "timing_s/gradient", "timing_s/update"]
        .iter()
        .filter_map(|name| metrics.get(*name))
        .sum();
    metrics.insert(
        "trainer/waiting_ratio".to_owned(),
        1.0 - ratio(busy, non_overlapping_seconds).min(1.0),
    );
    metrics
}

/// Returns the number of tokens of responses that ended or were dropped in the step, and that are neither trained on nor kept for a later
/// step.
fn discarded(report: &StepReport) -> usize {
    let mut used: HashSet<(u64, u32)> = report.groups.iter().flat_map(ids).collect();
    for batch in &report.decisions {
        let prompts = batch.values::<UInt64Type>(column::PROMPT_ID);
        let samples = batch.lists::<UInt32Type>(column::ADMITTED);
        let decisions = batch.text(column::DECISION).iter().enumerate();
        for (row, _) in decisions.filter(|(_, decision)| *decision == Some(PAUSE_DECISION)) {
            used.extend(samples.get(row).iter().map(|&sample| (prompts.value(row), sample)));
        }
    }
    let mut discarded = 0;
    for batch in &report.responses {
        let tokens = batch.values::<UInt32Type>(column::RESPONSE_LENGTH).values();
        discarded += ids(batch)
            .zip(tokens)
            .filter(|(id, _)| !used.contains(id))
            .map(|(_, &tokens)| tokens as usize)
            .sum::<usize>();
    }
    discarded
}

fn lengths(metrics: &mut Metrics, trained: &Lengths, launched: &Lengths) {
    spread(metrics, "response_length", trained.finished.iter().map(|&length| length as f64));
    let share = ratio(trained.clipped as f64, trained.finished.len() as f64);
    metrics.insert("response_length/clip_ratio".to_owned(), share);
    let aborted = launched.aborted.len() as f64;
    let all = aborted + launched.finished.len() as f64;
    metrics.insert("response/aborted_ratio".to_owned(), ratio(aborted, all));
}

fn scores(metrics: &mut Metrics, groups: &[Batch]) {
    let scores =
        || groups.iter().flat_map(|batch| batch.values::<Float64Type>(column::SCORE).values());
    spread(metrics, "critic/score", scores().copied());
    // With a KL penalty, rewards differ from scores, and the advantage operator has reported this metric.
    if !metrics.contains_key("critic/rewards/mean") {
        spread(metrics, "critic/rewards", scores().copied());
    }
    values(metrics, groups);
    let advantages = groups.iter().flat_map(|batch| {
        let advantages = batch.lists::<Float32Type>(column::ADVANTAGES);
        (0..batch.num_rows()).flat_map(move |row| advantages.get(row))
    });
    spread(metrics, "critic/advantages", advantages.map(|&advantage| f64::from(advantage)));
    let spreads: Vec<bool> = groups.iter().flat_map(zero_spreads).collect();
    let without = spreads.iter().filter(|zero| **zero).count();
    metrics.insert("reward/frac_zero_std".to_owned(), ratio(without as f64, spreads.len() as f64));
    components(metrics, groups);
    sources(metrics, groups);
}

/// Returns, for each group, `true` if all its scores are equal.
fn zero_spreads(batch: &Batch) -> Vec<bool> {
    let mut scores = batch.values::<Float64Type>(column::SCORE).values().iter();
    let prompts = batch.values::<UInt64Type>(column::PROMPT_ID).values();
    prompts
        .chunk_by(|one, next| one == next)
        .map(|group| {
            let group: Vec<f64> = scores.by_ref().take(group.len()).copied().collect();
            group.windows(2).all(|pair| pair[0].total_cmp(&pair[1]).is_eq())
        })
        .collect()
}

/// Adds the mean of each component of the scores, over the responses that have the component.
fn components(metrics: &mut Metrics, groups: &[Batch]) {
    let written = groups.iter().flat_map(|batch| batch.text(column::COMPONENTS).iter().flatten());
    let parts = written
        .filter(|text| *text != "{}")
        .flat_map(|text| serde_json::from_str::<Metrics>(text).unwrap_or_default());
    metrics.extend(means(parts.map(|(name, value)| (format!("reward/{name}"), value))));
}

/// Adds the mean score of each data source.
fn sources(metrics: &mut Metrics, groups: &[Batch]) {
    let scores = groups.iter().flat_map(|batch| {
        let scores = batch.values::<Float64Type>(column::SCORE).values();
        batch.text(column::DATA_SOURCE).iter().flatten().zip(scores)
    });
    metrics.extend(means(scores.map(|(source, score)| (format!("reward/score/{source}"), *score))));
}

/// Returns the mean of the values of each name.
fn means(values: impl Iterator<Item = (String, f64)>) -> Metrics {
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for (name, value) in values {
        let (sum, count) = sums.entry(name).or_default();
        (*sum, *count) = (*sum + value, *count + 1.0);
    }
    sums.into_iter().map(|(name, (sum, count))| (name, sum / count)).collect()
}

fn schedule(metrics: &mut Metrics, decisions: &[Batch]) {
    let count = |decision: &str| {
        let written = decisions.iter().flat_map(|batch| batch.text(column::DECISION).iter());
        written.filter(|found| *found == Some(decision)).count() as f64
    };
    let (admitted, deferred, rejected) = (count(ADMIT), count(DEFER), count(REJECT));
    let reasons = decisions.iter().flat_map(|batch| batch.text(column::REASON).iter().flatten());
    let judged = [Reason::ZeroVariance, Reason::Unscored].map(Reason::as_str);
    let filtered = reasons.filter(|reason| judged.contains(reason)).count() as f64;
    let closed = decisions.iter().flat_map(|batch| {
        let last = batch.text(column::DECISION).iter().position(|decision| decision == Some(CLOSE));
        last.map(|row| {
            [column::QUEUE_LENGTH, column::QUEUE_AGE]
                .map(|name| batch.values::<UInt64Type>(name).value(row) as f64)
        })
    });
    let [length, age] = closed.last().unwrap_or_default();
    metrics.extend(named_metrics([
        ("schedule/admitted_prompts", admitted),
        ("schedule/deferred_prompts", deferred),
        ("schedule/rejected_prompts", rejected),
        ("schedule/launched_prompts", admitted + deferred + filtered),
        ("schedule/queue_length", length),
        ("schedule/queue_age", age),
    ]));
}

fn prompt_tokens(metrics: &mut Metrics, groups: &[Batch]) -> usize {
    let lengths: Vec<usize> = groups
        .iter()
        .flat_map(|batch| {
            let lengths = batch.values::<UInt32Type>(column::PROMPT_LENGTH).values();
            lengths.iter().map(|&length| length as usize)
        })
        .collect();
    spread(metrics, "prompt_length", lengths.iter().map(|&length| length as f64));
    lengths.iter().sum()
}

/// Adds metrics about the duration of scoring, and the number of trained responses with each value of the label `outcome`. Counts, such as
/// errors and cancelled scorings, are metrics of the reward operator.
fn rewards(metrics: &mut Metrics, groups: &[Batch]) {
    let last = |name| {
        let times = groups.iter().flat_map(|batch| batch.values::<UInt64Type>(name).values());
        times.max().copied().unwrap_or(0)
    };
    let tail = last(column::SCORED_AT).saturating_sub(last(column::FINISHED));
    let exposed = metrics.get("timing_s/reward_exposed").copied().unwrap_or(0.0);
    metrics.extend(named_metrics([
        ("reward/mean_time_s", mean_reward_time(groups)),
        ("reward/tail_time_s", tail as f64 / 1e9),
        ("reward/exposed_time_s", exposed),
    ]));
    for labels in groups.iter().flat_map(|batch| batch.text(column::LABELS).iter().flatten()) {
        if let Some(outcome) = outcome(labels) {
            *metrics.entry(format!("reward/outcome/{outcome}")).or_default() += 1.0;
        }
    }
}

/// Returns the value of the label `outcome` in `labels`; `None` if there is no such label, or if `labels` is not a JSON object of texts.
fn outcome(labels: &str) -> Option<String> {
    if labels == "{}" {
        return None;
    }
    let mut labels: BTreeMap<String, String> = serde_json::from_str(labels).ok()?;
    labels.remove("outcome")
}

fn mean_reward_time(groups: &[Batch]) -> f64 {
    let times =
        groups.iter().flat_map(|batch| batch.values::<UInt64Type>(column::REWARD_TIME).values());
    let (sum, count) =
        times.fold((0.0, 0.0), |(sum, count), &time| (sum + time as f64 / 1e9, count + 1.0));
    ratio(sum, count)
}

/// Returns the time of each stage of a step as metrics, without the part that overlaps with the previous step.
fn stages(stages: &StageTimes) -> Metrics {
    named_metrics([
        ("timing_s/weight_sync", stages.sync),
        ("timing_s/rollout", stages.rollout),
        ("timing_s/reward_exposed", stages.reward),
        ("timing_s/training_exposed", stages.training),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_without_rows_has_finite_metrics_and_no_extremes() {
        let metrics = measure(&StepReport::default());
        assert!(metrics.values().all(|value| value.is_finite()), "{metrics:?}");
        let extremes = ["/max", "/min", "/mean"];
        assert!(!metrics.keys().any(|name| extremes.iter().any(|end| name.ends_with(end))));
    }
}
