//! Charts of step times: by stage, and step by step.

use plotters::prelude::*;

use super::super::configuration::ConfigurationRuns;
use super::super::summary::Summary;
use super::super::table::number;
use super::chart::{BLUE, GREY, STAGES, TEXT, WIDTH, axis_end, css, draw, seconds};
use super::html::{ConfigurationName, swatch};

/// The names of the stages, in the order of their colours.
const NAMES: [&str; 4] = ["sync", "rollout", "reward", "training"];

/// Renders a bar of the stages for each configuration, with a legend above.
pub(super) fn breakdown(summaries: &[Summary]) -> String {
    let max = summaries.iter().map(|summary| summary.step_s.mean).fold(0.0, f64::max);
    let legend: String =
        NAMES.iter().zip(STAGES).map(|(name, colour)| swatch(&css(colour, 1.0), name)).collect();
    let bars: String =
        summaries.iter().enumerate().map(|(index, summary)| bar(index, summary, max)).collect();
    format!("<p class=\"legend\">{legend}</p><div class=\"bars\">{bars}</div>")
}

fn bar(index: usize, summary: &Summary, max: f64) -> String {
    let parts: String = summary
        .stages
        .named()
        .into_iter()
        .zip(STAGES)
        .map(|((stage, seconds), colour)| part(stage, seconds, max, &css(colour, 1.0)))
        .collect();
    let name = ConfigurationName::of(index, summary).html();
    let total = number(summary.step_s.mean);
    format!("<div>{name}<div class=\"bar\">{parts}<span>{total} s</span></div></div>\n")
}

fn part(stage: &str, seconds: f64, max: f64, colour: &str) -> String {
    // The rest of the width is left for the total, which follows the bar.
    let share = if max > 0.0 { 85.0 * seconds / max } else { 0.0 };
    let seconds = number(seconds);
    format!(
        "<i style=\"width:{share:.2}%;background:{colour}\" title=\"{stage}: {seconds} s\"></i>"
    )
}

/// Returns an SVG chart of the step times of a configuration and of its baseline, both with their first seed. Returns `None` for fewer than
/// two steps.
///
/// # Errors
/// If the chart cannot be drawn.
pub(super) fn series(
    run: &ConfigurationRuns,
    runs: &[ConfigurationRuns],
) -> anyhow::Result<Option<String>> {
    let (own, sync) = (steps(run), steps(&runs[run.baseline]));
    let ([first, .., last], max) = (&own[..], longest(runs)) else { return Ok(None) };
    let (first, last) = (first.0, last.0);
    draw((WIDTH, 170), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(14)
            .x_label_area_size(22)
            .y_label_area_size(42)
            .build_cartesian_2d(first..last, 0.0..axis_end(max))?;
        chart
            .configure_mesh()
            .x_labels(6)
            .y_labels(5)
            .x_label_formatter(&|step| format!("{step:.0}"))
            .y_label_formatter(&|value| seconds(value, max))
            .label_style(("sans-serif", TEXT))
            .light_line_style(WHITE)
            .draw()?;
        let sync_steps = sync.into_iter().filter(|(step, _)| (first..=last).contains(step));
        chart.draw_series(LineSeries::new(sync_steps, GREY.stroke_width(1)))?;
        chart.draw_series(LineSeries::new(own.iter().copied(), BLUE.stroke_width(2)))?;
        Ok(())
    })
    .map(Some)
}

/// Returns the maximum step time of all configurations with their first seed, in seconds; their charts share this scale.
fn longest(runs: &[ConfigurationRuns]) -> f64 {
    runs.iter().flat_map(steps).map(|(_, seconds)| seconds).fold(0.0, f64::max)
}

fn steps(run: &ConfigurationRuns) -> Vec<(f64, f64)> {
    let steps = run.outcomes.iter().take(1).flat_map(|outcome| &outcome.steps);
    steps.map(|step| (step.step as f64, step.seconds)).collect()
}
