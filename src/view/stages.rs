//! The stages of a step on the run's clock, from the times of its responses and its metrics.

use std::collections::BTreeMap;

use serde::Serialize;

/// A stage of a step, in seconds from the origin of the round.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct StageSpan {
    name: &'static str,
    from: f64,
    to: f64,
}

/// Returns the stages of a step. `generated` is the time at which its last response ended, and `scored` the time at which its last score
/// arrived, both in seconds from the origin of the round. `scored` is `None` if no response was scored.
///
/// A run records the durations of the stages, but not their start times. Each stage follows the previous stage, and the rollout ends with
/// the last response, whose time is recorded. Stages without a duration are left out. Returns `None` if the recorded duration of the
/// rollout is missing or 0. It is 0 if the rollout ended before the previous step closed; the durations then leave out a part of the step.
pub(super) fn stages(
    metrics: &BTreeMap<String, f64>,
    generated: f64,
    scored: Option<f64>,
) -> Option<Vec<StageSpan>> {
    let seconds = |name: &str| metrics.get(name).copied().filter(|seconds| *seconds >= 0.0);
    let rollout = seconds("timing_s/rollout").filter(|seconds| *seconds > 0.0)?;
    let scored = scored.unwrap_or(generated).max(generated);
    let synced = generated - rollout;
    let begun = synced - seconds("timing_s/weight_sync").unwrap_or(0.0);
    let trained = scored + seconds("timing_s/training_exposed").unwrap_or(0.0);
    let validated = trained + seconds("timing_s/testing").unwrap_or(0.0);
    let ends = [
        ("weight sync", begun, synced),
        ("rollout", synced, generated),
        ("waiting for rewards", generated, scored),
        ("training alone", scored, trained),
        ("validation", trained, validated),
    ];
    let spans = ends.into_iter().map(|(name, from, to)| StageSpan { name, from, to });
    Some(spans.filter(|span| span.to > span.from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(values: &[(&str, f64)]) -> BTreeMap<String, f64> {
        values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn stages_follow_each_other_around_the_last_response() {
        let metrics = metrics(&[
            ("timing_s/weight_sync", 1.0),
            ("timing_s/rollout", 10.0),
            ("timing_s/training_exposed", 4.0),
        ]);
        let spans = stages(&metrics, 9.5, Some(11.0)).expect("stages");
        let spans: Vec<_> = spans.iter().map(|span| (span.name, span.from, span.to)).collect();
        let expected = [
            ("weight sync", -1.5, -0.5),
            ("rollout", -0.5, 9.5),
            ("waiting for rewards", 9.5, 11.0),
            ("training alone", 11.0, 15.0),
        ];
        assert_eq!(spans, expected);
    }

    #[test]
    fn a_rollout_without_own_time_has_no_stages() {
        assert_eq!(stages(&metrics(&[("timing_s/rollout", 0.0)]), 1.0, None), None);
        assert_eq!(stages(&metrics(&[]), 1.0, None), None);
    }
}
