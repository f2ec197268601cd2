//! Charts of step times: by stage, and one after another.

use plotters::prelude::*;

use super::super::summary::Summary;
use super::super::sweep::Configured;
use super::chart::{beyond, caption, colour, draw, legend, whole};

/// Stacked bars of the stages, one bar a configuration.
///
/// # Errors
/// If it cannot be drawn.
pub(super) fn breakdown(summaries: &[Summary]) -> anyhow::Result<Vec<String>> {
    let bars = summaries.len();
    if bars == 0 {
        return Ok(Vec::new());
    }
    let most = summaries.iter().map(|summary| summary.step_s.mean).fold(0.0, f64::max);
    let svg = draw(110 + 30 * bars as u32, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .caption("Seconds of a step by stage", caption())
            .x_label_area_size(40)
            .y_label_area_size(250)
            .build_cartesian_2d(0.0..beyond(most) * 1.12, (0..bars - 1).into_segmented())?;
        let name = |index: &SegmentValue<usize>| match index {
            // The first configuration is the uppermost.
            SegmentValue::CenterOf(bar) if *bar < bars => summaries[bars - 1 - bar].label.clone(),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .disable_y_mesh()
            .x_desc("seconds of a step")
            .x_label_formatter(&whole)
            .light_line_style(WHITE)
            .y_labels(bars)
            .y_label_formatter(&name)
            .label_style(("sans-serif", 13))
            .draw()?;
        for (stage, name) in ["sync", "rollout", "reward", "training"].into_iter().enumerate() {
            let bar = |(index, summary): (usize, &Summary)| {
                let stages = summary.stages.named().map(|(_, seconds)| seconds);
                let from: f64 = stages[..stage].iter().sum();
                let row = bars - 1 - index;
                let corners = [
                    (from, SegmentValue::Exact(row)),
                    (from + stages[stage], SegmentValue::Exact(row + 1)),
                ];
                let mut bar = Rectangle::new(corners, colour(stage).filled());
                bar.set_margin(4, 4, 0, 0);
                bar
            };
            chart.draw_series(summaries.iter().enumerate().map(bar))?.label(name).legend(
                move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour(stage).filled()),
            );
        }
        legend(&mut chart, SeriesLabelPosition::LowerRight)
    })?;
    Ok(vec![svg])
}

/// A line of step times for each configuration, of its first seed.
///
/// # Errors
/// If it cannot be drawn.
pub(super) fn series(runs: &[Configured]) -> anyhow::Result<Vec<String>> {
    let lines: Vec<(&str, Vec<(f64, f64)>)> = runs
        .iter()
        .filter_map(|run| {
            let steps = run.outcomes.first()?.steps.iter();
            Some((run.label.as_str(), steps.map(|step| (step.step as f64, step.seconds)).collect()))
        })
        .filter(|(_, points): &(_, Vec<_>)| points.len() > 1)
        .collect();
    let points = || lines.iter().flat_map(|(_, points)| points);
    let (Some(first), Some(last)) = (
        points().map(|point| point.0).min_by(f64::total_cmp),
        points().map(|point| point.0).max_by(f64::total_cmp),
    ) else {
        return Ok(Vec::new());
    };
    let most = points().map(|point| point.1).fold(0.0, f64::max);
    let svg = draw(420, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .caption("Seconds of each step", caption())
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(first..last + (last - first) * 0.3, 0.0..beyond(most))?;
        chart
            .configure_mesh()
            .x_desc("step")
            .y_desc("seconds")
            .y_label_formatter(&whole)
            .label_style(("sans-serif", 13))
            .light_line_style(WHITE)
            .x_label_formatter(&|step| {
                if *step <= last { format!("{step:.0}") } else { String::new() }
            })
            .draw()?;
        for (index, (label, points)) in lines.iter().enumerate() {
            chart
                .draw_series(LineSeries::new(
                    points.iter().copied(),
                    colour(index).stroke_width(2),
                ))?
                .label(*label)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], colour(index).stroke_width(2))
                });
        }
        legend(&mut chart, SeriesLabelPosition::UpperRight)
    })?;
    Ok(vec![svg])
}
