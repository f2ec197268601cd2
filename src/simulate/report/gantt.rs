//! Gantt charts of a step: the instances of the rollout, and the trainer.

use plotters::prelude::*;

use super::super::gantt::Gantt;
use super::chart::{BLUE, ORANGE, TEXT, WIDTH, css, draw, seconds};
use super::html::swatch;

/// Maximum number of instances in a chart. If a step has more instances, the chart shows evenly spaced ones.
const MAX_LANES: usize = 32;
/// Number of shades for the number of running responses.
const SHADES: u32 = 8;
/// Interval between labelled instances, in lanes.
const LABEL_INTERVAL: usize = 4;

/// Returns the chart of a step as SVG.
///
/// # Errors
/// If the chart cannot be drawn.
pub(super) fn chart(gantt: &Gantt) -> anyhow::Result<String> {
    let shown = shown_instances(gantt.running.len());
    let lanes = shown.len() + 1;
    // A step without duration still needs an axis.
    let end = if gantt.seconds > 0.0 { gantt.seconds } else { 1.0 };
    let max = max_running(gantt);
    draw((WIDTH, 40 + (7 * lanes as u32).max(60)), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(14)
            .x_label_area_size(22)
            .y_label_area_size(42)
            .build_cartesian_2d(0.0..end, (0..lanes - 1).into_segmented())?;
        let name = |lane: &SegmentValue<usize>| match lane {
            SegmentValue::CenterOf(0) => "trainer".to_owned(),
            SegmentValue::CenterOf(lane) if *lane < lanes => {
                let position = lanes - 1 - lane;
                if position.is_multiple_of(LABEL_INTERVAL) {
                    shown[position].to_string()
                } else {
                    String::new()
                }
            }
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .disable_mesh()
            .x_labels(6)
            .x_label_formatter(&|value| seconds(value, end))
            .y_labels(lanes)
            .y_label_formatter(&name)
            .label_style(("sans-serif", TEXT - 1))
            .draw()?;
        let lane = |lane: usize, from: f64, to: f64, style: ShapeStyle| {
            let corners = [(from, SegmentValue::Exact(lane)), (to, SegmentValue::Exact(lane + 1))];
            let mut bar = Rectangle::new(corners, style);
            bar.set_margin(1, 0, 0, 0);
            bar
        };
        for (position, &instance) in shown.iter().enumerate() {
            let running = &gantt.running[instance];
            let at = |bin: usize| end * bin as f64 / running.len() as f64;
            let bars = shades(running, max).into_iter().map(|(from, to, shade)| {
                lane(lanes - 1 - position, at(from), at(to), BLUE.mix(opacity(shade)).filled())
            });
            chart.draw_series(bars)?;
        }
        let training = gantt.training.iter();
        chart.draw_series(training.map(|&(from, to)| lane(0, from, to, ORANGE.filled())))?;
        Ok(())
    })
}

/// Returns the legend of the shades.
pub(super) fn legend(gantt: &Gantt) -> String {
    let max = max_running(gantt);
    let upper = |shade: u32| max * f64::from(shade) / f64::from(SHADES);
    let shades: String = (1..=SHADES)
        .map(|shade| {
            let text = format!("up to {}", count(upper(shade)));
            let colour = css(BLUE, opacity(shade));
            format!("<i style=\"background:{colour}\" title=\"{text}\"></i>")
        })
        .collect();
    format!("<span>0&#8202;<b class=\"shades\">{shades}</b>&#8202;{} responses</span>", count(max))
}

/// Returns the legend of the trainer's colour.
pub(super) fn trainer() -> String {
    swatch(&css(ORANGE, 1.0), "the trainer computes")
}

/// Formats a mean number of responses.
fn count(responses: f64) -> String {
    if responses >= 10.0 { format!("{responses:.0}") } else { format!("{responses:.1}") }
}

fn opacity(shade: u32) -> f64 {
    0.15 + 0.85 * f64::from(shade) / f64::from(SHADES)
}

/// Returns the maximum of the mean numbers of running responses, over all instances and parts of the step. It is above 0 even if no
/// response ran.
fn max_running(gantt: &Gantt) -> f64 {
    gantt.running.iter().flatten().copied().fold(f32::MIN_POSITIVE, f32::max).into()
}

/// Returns the numbers of the instances that are shown: all, or `MAX_LANES` evenly spaced ones.
fn shown_instances(instances: usize) -> Vec<usize> {
    let count = instances.min(MAX_LANES);
    (0..count).map(|lane| lane * instances / count).collect()
}

/// Merges neighbouring bins of the same shade into bars. Returns each bar as its first bin, the bin after its last bin, and its shade. Bins
/// without a response are left out.
fn shades(running: &[f32], max: f64) -> Vec<(usize, usize, u32)> {
    let mut bars: Vec<(usize, usize, u32)> = Vec::new();
    for (bin, &running) in running.iter().enumerate() {
        let shade = (f64::from(SHADES) * f64::from(running) / max).ceil() as u32;
        match bars.last_mut() {
            Some((_, to, last)) if *to == bin && *last == shade => *to = bin + 1,
            _ if shade > 0 => bars.push((bin, bin + 1, shade)),
            _ => {}
        }
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_parts_of_one_shade_are_one_bar() {
        let bars = shades(&[8.0, 8.0, 1.0, 0.0, 1.0], 8.0);
        assert_eq!(bars, [(0, 2, 8), (2, 3, 1), (4, 5, 1)]);
        assert_eq!(shown_instances(3), [0, 1, 2]);
        assert_eq!(shown_instances(80).len(), MAX_LANES);
    }

    #[test]
    fn the_legend_shows_the_ends_of_the_shades() {
        let gantt = Gantt { seconds: 2.0, running: vec![vec![12.0, 3.0]], ..Gantt::default() };
        let legend = legend(&gantt);
        assert_eq!(legend.matches("title=\"up to ").count(), SHADES as usize);
        assert!(legend.contains("title=\"up to 12\"") && legend.contains("title=\"up to 1.5\""));
    }

    #[test]
    fn a_step_that_takes_no_time_is_drawn() {
        let gantt = Gantt { running: vec![vec![0.0; 4]; 100], ..Gantt::default() };
        assert!(chart(&gantt).expect("drawn").contains("trainer"));
    }
}
