//! Gantt charts of a step: the instances of the rollout, and the trainer.

use plotters::prelude::*;

use super::super::gantt::Gantt;
use super::super::sweep::Configured;
use super::chart::{caption, colour, draw};

/// Instances that are shown at most; of more, evenly spaced ones.
const LANES: usize = 40;
/// Shades of how many responses run.
const SHADES: f32 = 8.0;

/// One chart for each configuration that has one.
///
/// # Errors
/// If one cannot be drawn.
pub(super) fn charts(runs: &[Configured]) -> anyhow::Result<Vec<String>> {
    let charted = runs.iter().filter_map(|run| {
        let gantt = run.outcomes.first()?.gantt.as_ref()?;
        Some((run.label.as_str(), gantt))
    });
    charted.map(|(label, gantt)| chart(label, gantt)).collect()
}

fn chart(label: &str, gantt: &Gantt) -> anyhow::Result<String> {
    let shown = shown(gantt.running.len());
    let lanes = shown.len() + 1;
    let height = (14 * lanes as u32).max(60);
    draw(90 + height, |area| {
        let title = format!("{label}, step {}: {:.0} s", gantt.step, gantt.seconds);
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .caption(title, caption())
            .x_label_area_size(40)
            .y_label_area_size(110)
            .build_cartesian_2d(0.0..gantt.seconds, (0..lanes).into_segmented())?;
        let name = |lane: &SegmentValue<usize>| match lane {
            SegmentValue::CenterOf(0) => "trainer".to_owned(),
            SegmentValue::CenterOf(lane) if *lane < lanes => {
                format!("instance {}", shown[lanes - 1 - lane])
            }
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .disable_mesh()
            .x_desc("seconds of the step")
            .y_labels(lanes)
            .y_label_formatter(&name)
            .label_style(("sans-serif", 12))
            .draw()?;
        let lane = |lane: usize, from: f64, to: f64, style: ShapeStyle| {
            let corners = [(from, SegmentValue::Exact(lane)), (to, SegmentValue::Exact(lane + 1))];
            let mut bar = Rectangle::new(corners, style);
            bar.set_margin(1, 1, 0, 0);
            bar
        };
        let most = gantt.running.iter().flatten().copied().fold(f32::MIN_POSITIVE, f32::max);
        for (place, &instance) in shown.iter().enumerate() {
            let bars =
                shades(&gantt.running[instance], most).into_iter().map(|(from, to, shade)| {
                    let at = |bin: usize| {
                        gantt.seconds * bin as f64 / gantt.running[instance].len() as f64
                    };
                    let style = colour(0).mix(0.15 + 0.85 * f64::from(shade / SHADES)).filled();
                    lane(lanes - 1 - place, at(from), at(to), style)
                });
            chart.draw_series(bars)?;
        }
        let training = gantt.training.iter();
        chart.draw_series(training.map(|&(from, to)| lane(0, from, to, colour(1).filled())))?;
        Ok(())
    })
}

/// Which instances are shown.
fn shown(instances: usize) -> Vec<usize> {
    let count = instances.min(LANES);
    (0..count).map(|lane| lane * instances / count).collect()
}

/// Neighbouring parts of one shade, those without a response left out.
fn shades(running: &[f32], most: f32) -> Vec<(usize, usize, f32)> {
    let mut bars: Vec<(usize, usize, f32)> = Vec::new();
    for (bin, &running) in running.iter().enumerate() {
        let shade = (SHADES * running / most).ceil();
        match bars.last_mut() {
            Some((_, to, last)) if *to == bin && *last == shade => *to = bin + 1,
            _ if shade > 0.0 => bars.push((bin, bin + 1, shade)),
            _ => {}
        }
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_one_shade_are_one_bar() {
        let bars = shades(&[8.0, 8.0, 1.0, 0.0, 1.0], 8.0);
        assert_eq!(bars, [(0, 2, 8.0), (2, 3, 1.0), (4, 5, 1.0)]);
        assert_eq!(shown(3), [0, 1, 2]);
        assert_eq!(shown(80).len(), LANES);
    }
}
