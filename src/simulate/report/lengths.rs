//! The charts of lengths: the policy's against those trained on.

use std::collections::{BTreeMap, BTreeSet};

use plotters::prelude::*;
use rollpacker_operators::survival::Survival;

use super::super::outcome::Outcome;
use super::super::sweep::Configured;
use super::chart::{caption, colour, draw, legend};

/// Points of a curve.
const POINTS: u32 = 200;

/// One chart: the policy's curve once, and what each configuration trained on.
///
/// # Errors
/// If it cannot be drawn.
pub(super) fn charts(runs: &[Configured]) -> anyhow::Result<Vec<String>> {
    let policy = policy(runs);
    let trained: Vec<(&str, BTreeMap<u32, f64>)> =
        runs.iter().map(|run| (run.label.as_str(), trained(&run.outcomes))).collect();
    let longest = trained.iter().filter_map(|(_, lengths)| lengths.keys().last()).max().copied();
    let (Some(longest), true) = (longest, policy.count() > 0) else { return Ok(Vec::new()) };
    let shortest = trained.iter().filter_map(|(_, lengths)| lengths.keys().next()).min().copied();
    let (from, to) = (f64::from(shortest.unwrap_or(1).max(1)), f64::from(longest.max(2)));
    let at = |point: u32| from * (to / from).powf(f64::from(point) / f64::from(POINTS));
    let curve = policy.curve();
    let policy: Vec<(f64, f64)> = (0..=POINTS)
        .map(|point| (at(point), 1.0 - curve.survival(at(point).round() as u32)))
        .collect();
    let svg = draw(460, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .caption("Lengths of responses: trained on, and the policy's", caption())
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d((from..to).log_scale(), 0.0..1.02)?;
        chart
            .configure_mesh()
            .x_desc("tokens of a response (logarithmic)")
            .y_desc("share of responses not longer")
            .label_style(("sans-serif", 13))
            .light_line_style(WHITE)
            .x_label_formatter(&|tokens| format!("{tokens:.0}"))
            .draw()?;
        for (index, (label, lengths)) in trained.iter().enumerate() {
            let points = cumulated(lengths, (0..=POINTS).map(at));
            chart
                .draw_series(LineSeries::new(points, colour(index).stroke_width(2)))?
                .label(format!("trained: {label}"))
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], colour(index).stroke_width(2))
                });
        }
        chart
            .draw_series(DashedLineSeries::new(policy, 6, 4, BLACK.stroke_width(2)))?
            .label("the policy's")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], BLACK.stroke_width(2)));
        legend(&mut chart, SeriesLabelPosition::LowerRight)
    })?;
    Ok(vec![svg])
}

/// The lengths of the baselines, which drop nothing: of a response that a schedule drops the rest is not known, and that it was dropped
/// says something of it.
fn policy(runs: &[Configured]) -> Survival {
    let mut policy = Survival::default();
    let baselines: BTreeSet<usize> = runs.iter().map(|run| run.baseline).collect();
    for run in baselines.into_iter().flat_map(|baseline| &runs[baseline].outcomes) {
        policy.merge(&run.launched);
    }
    policy
}

fn trained(outcomes: &[Outcome]) -> BTreeMap<u32, f64> {
    let mut lengths = BTreeMap::new();
    for (&length, weight) in outcomes.iter().flat_map(|outcome| &outcome.trained) {
        *lengths.entry(length).or_default() += weight;
    }
    lengths
}

/// The share of the weights that lies at or under each of some lengths, which ascend.
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
