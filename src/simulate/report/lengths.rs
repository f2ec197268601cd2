//! Charts of the lengths that the policy samples and of the lengths that are trained on.

use std::collections::BTreeMap;

use plotters::prelude::*;
use rollpacker_operators::survival::Survival;

use super::super::configuration::ConfigurationRuns;
use super::super::outcome::RunOutcome;
use super::chart::{BLUE, TEXT, WIDTH, draw};

/// Number of intervals between the points of a curve.
const POINTS: u32 = 120;

/// Returns an SVG chart of two cumulative distributions of lengths: of the responses that a configuration trained on, and of all responses
/// of its baseline. The axis covers the trained lengths only, so the curve of the baseline may end below 1. Returns `None` if one of them
/// is empty.
///
/// # Errors
/// If the chart cannot be drawn.
pub(super) fn chart(
    run: &ConfigurationRuns,
    runs: &[ConfigurationRuns],
) -> anyhow::Result<Option<String>> {
    let (policy, trained) = (policy(&runs[run.baseline].outcomes), trained(&run.outcomes));
    let (Some((&shortest, _)), Some((&longest, _)), true) =
        (trained.first_key_value(), trained.last_key_value(), policy.count() > 0)
    else {
        return Ok(None);
    };
    let from = f64::from(shortest.max(1));
    let to = f64::from(longest).max(2.0 * from);
    let at = |point: u32| from * (to / from).powf(f64::from(point) / f64::from(POINTS));
    let curve = policy.curve();
    let policy: Vec<(f64, f64)> = (0..=POINTS)
        .map(|point| (at(point), 1.0 - curve.survival(at(point).round() as u32)))
        .collect();
    draw((WIDTH, 170), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(22)
            .x_label_area_size(22)
            .y_label_area_size(42)
            .build_cartesian_2d((from..to).log_scale(), 0.0..1.02)?;
        chart
            .configure_mesh()
            .x_labels(5)
            .y_labels(5)
            .label_style(("sans-serif", TEXT))
            .light_line_style(WHITE)
            .x_label_formatter(&|tokens| format!("{tokens:.0}"))
            .y_label_formatter(&|share| format!("{share:.1}"))
            .draw()?;
        let points = cumulated(&trained, (0..=POINTS).map(at));
        chart.draw_series(LineSeries::new(points, BLUE.stroke_width(3)))?;
        chart.draw_series(DashedLineSeries::new(policy, 5, 4, BLACK.stroke_width(1)))?;
        Ok(())
    })
    .map(Some)
}

/// Returns the lengths of the baseline. The lengths of the configuration itself would be biased, because the length of a response decides
/// whether the response is dropped, and dropped responses are censored.
fn policy(outcomes: &[RunOutcome]) -> Survival {
    let mut policy = Survival::default();
    outcomes.iter().for_each(|outcome| policy.merge(&outcome.launched));
    policy
}

fn trained(outcomes: &[RunOutcome]) -> BTreeMap<u32, f64> {
    let mut lengths = BTreeMap::new();
    for (&length, weight) in outcomes.iter().flat_map(|outcome| &outcome.trained) {
        *lengths.entry(length).or_default() += weight;
    }
    lengths
}

/// Returns, for each of the ascending lengths `at`, the share of the weights at or below it.
fn cumulated(lengths: &BTreeMap<u32, f64>, at: impl Iterator<Item = f64>) -> Vec<(f64, f64)> {
    let total: f64 = lengths.values().sum();
    let (mut sum, mut rest) = (0.0, lengths.iter().peekable());
    at.map(|length| {
        while let Some((_, weight)) = rest.next_if(|(next, _)| f64::from(**next) <= length + 0.5) {
            sum += weight;
        }
        (length, if total > 0.0 { sum / total } else { 0.0 })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_cumulated() {
        let lengths = BTreeMap::from([(2, 1.0), (3, 2.0), (9, 1.0)]);
        let points = cumulated(&lengths, [1.0, 2.0, 4.0, 9.0].into_iter());
        assert_eq!(points, [(1.0, 0.0), (2.0, 0.25), (4.0, 0.75), (9.0, 1.0)]);
    }
}
