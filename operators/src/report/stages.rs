//! Breaks the time of a step down by stage.

use arrow_array::types::UInt64Type;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::schema::column;
use serde::{Deserialize, Serialize};

use super::StepReport;
use super::occupancy::slot_uses;
use crate::wire::metric::LOAD;

/// The times at which a step moved from one stage to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageInstants {
    /// The time at which the previous step closed; for the first step, the time at which the round opened. With staleness, the round may
    /// open before this time. The time from `opened` to `before` overlaps with the previous step and is not counted.
    pub before: Nanos,
    /// The time at which the round opened.
    pub opened: Nanos,
    /// The time at which the engine had the new weights, or the start of the first response if that was earlier. Also the start of the
    /// first response if the engine does not report when it has the weights. Not before `opened`, and equal to `opened` if no response ran
    /// in the step.
    pub synced: Nanos,
    /// The time at which the last response ended, but not before `opened`. Equal to `opened` if no response ran in the step.
    pub generated: Nanos,
    /// The time at which the last score of a trained response was known, but not before `generated`.
    pub scored: Nanos,
    /// The time at which the step closed, minus the duration of the step's validation (the metric `timing_s/testing`).
    pub closed: Nanos,
}

/// The seconds of each stage of a step, without the part that overlaps with the previous step. They add up to
/// [`StageInstants::non_overlapping_seconds`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageTimes {
    /// Time from the opening of the round until the engine had the new weights.
    pub sync: f64,
    /// Time from the end of `sync` until the last response ended: distributing requests, prefill and decoding.
    pub rollout: f64,
    /// Time from the end of the last response until the last reward was computed.
    pub reward: f64,
    /// Time from the last reward until the step closed: training that overlapped with nothing else.
    pub training: f64,
}

impl StageInstants {
    /// Returns the times of a step.
    #[must_use]
    pub fn of(report: &StepReport) -> Self {
        // A validation between two steps holds the frontier back, but is not part of the step.
        let testing = report.metrics.get("timing_s/testing").copied().unwrap_or(0.0);
        let closed = Nanos(report.closed.0.saturating_sub(Nanos::from_secs_f64(testing).0));
        let first = slot_uses(&report.responses).map(|run| run.started).min();
        let last = slot_uses(&report.responses).map(|run| run.finished).max();
        let scored = report.groups.iter().flat_map(|batch| {
            batch.values::<UInt64Type>(column::SCORED_AT).values().iter().copied()
        });
        let since_opened = |at: Option<u64>| report.opened.max(Nanos(at.unwrap_or(0)));
        let first_started = since_opened(first);
        // For an engine that does not report when it has the weights, that time is the start of the first response.
        let load = report.metrics.get(LOAD).map(|seconds| Nanos::from_secs_f64(*seconds));
        let arrived =
            load.map_or(first_started, |load| Nanos(report.opened.0.saturating_add(load.0)));
        let generated = since_opened(last);
        Self {
            before: report.before,
            opened: report.opened,
            synced: arrived.min(first_started),
            generated,
            scored: since_opened(scored.max()).max(generated),
            closed,
        }
    }

    /// Returns the seconds of the step without the part that overlaps with the previous step. They are counted from the end of the previous
    /// step, or from the opening of the round if that was later, until the step closed.
    #[must_use]
    pub fn non_overlapping_seconds(&self) -> f64 {
        self.closed.since(self.opened.max(self.before)).as_secs_f64()
    }

    /// Returns the seconds from the opening of the round until the step closed, including the time shared with the previous step.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.closed.since(self.opened).as_secs_f64()
    }
}

impl StageTimes {
    /// Returns the time of each stage of a step, without the part that overlaps with the previous step.
    #[must_use]
    pub fn of(instants: &StageInstants) -> Self {
        let StageInstants { before, opened, synced, generated, scored, closed } = *instants;
        let own = |from: Nanos, to: Nanos| to.since(from.max(before)).as_secs_f64();
        Self {
            sync: own(opened, synced),
            rollout: own(synced, generated),
            reward: own(generated, scored),
            training: own(scored, closed),
        }
    }

    /// Returns names and seconds of the stages, in the order in which a step passes them.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); 4] {
        [
            ("sync", self.sync),
            ("rollout", self.rollout),
            ("reward", self.reward),
            ("training", self.training),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rounded seconds of each stage of a step. The step before closed at `before` seconds. The step opened at 10 s and had its
    /// weights at 14 s. Its last response ended at 75 s and its last score came at 78 s. It closed at 98 s.
    fn stages(before: u64) -> [u64; 4] {
        let [before, opened, synced, generated, scored, closed] =
            [before, 10, 14, 75, 78, 98].map(|second| Nanos(second * 1_000_000_000));
        let instants = StageInstants { before, opened, synced, generated, scored, closed };
        let stages = StageTimes::of(&instants).named().map(|(_, seconds)| seconds);
        assert!((stages.iter().sum::<f64>() - instants.non_overlapping_seconds()).abs() < 1e-9);
        stages.map(|seconds| seconds.round() as u64)
    }

    #[test]
    fn time_that_overlaps_with_the_previous_step_is_left_out() {
        assert_eq!(stages(0), [4, 61, 3, 20]);
        assert_eq!(stages(10), [4, 61, 3, 20]);
        assert_eq!(stages(28), [0, 47, 3, 20]);
        assert_eq!(stages(77), [0, 0, 1, 20]);
    }
}
