//! The chart of speed against bias.

use plotters::prelude::*;

use super::super::summary::Summary;
use super::chart::{Mark, TEXT, axis_end, draw};

/// Width and height in pixels; the text remains readable when scaled to the width of a phone.
const SIZE: (u32, u32) = (520, 420);

/// The bias and speed-up of a configuration at one end of the within-prompt correlation.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ChartPosition {
    bias: f64,
    speedup: f64,
}

/// A configuration in the chart.
struct ChartPoint {
    mark: Mark,
    at: ChartPosition,
    /// The figures at the upper end of the correlation, if a trace does not determine it.
    upper: Option<ChartPosition>,
    /// The interval of the speed-up.
    interval: (f64, f64),
}

/// Returns an SVG chart of speed-up against bias, with one point per configuration whose bias and speed-up are known. The index of a
/// configuration selects its mark. Returns `None` for fewer than two points.
///
/// # Errors
/// If the chart cannot be drawn.
pub(super) fn chart(summaries: &[Summary]) -> anyhow::Result<Option<String>> {
    let points: Vec<ChartPoint> = summaries.iter().enumerate().filter_map(point).collect();
    if points.len() < 2 {
        return Ok(None);
    }
    let spots = || points.iter().flat_map(|point| std::iter::once(point.at).chain(point.upper));
    let min = spots().map(|spot| spot.bias).fold(1.0, f64::min);
    let max = spots().map(|spot| spot.bias).fold(1.0, f64::max);
    let margin = 0.1 * (max - min).max(0.1);
    let fastest = points.iter().map(|point| point.interval.1).fold(1.0, f64::max);
    let fastest = spots().map(|spot| spot.speedup).fold(fastest, f64::max);
    draw(SIZE, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(52)
            .build_cartesian_2d(min - margin..max + margin, 0.0..axis_end(fastest))?;
        chart
            .configure_mesh()
            .x_labels(6)
            .y_labels(6)
            .x_desc("mean trained length / mean length of the policy")
            .y_desc("speed-up of a step over sync")
            .x_label_formatter(&|ratio| format!("{ratio:.2}"))
            .y_label_formatter(&|speedup| format!("{speedup:.1}"))
            .label_style(("sans-serif", TEXT + 3))
            .light_line_style(WHITE)
            .draw()?;
        let unbiased = [(1.0, 0.0), (1.0, axis_end(fastest))];
        chart.draw_series([PathElement::new(unbiased, BLACK.mix(0.5).stroke_width(1))])?;
        // Lines are drawn first, so that they cover no mark.
        for ChartPoint { mark, at, upper, interval } in &points {
            let spread = [(at.bias, interval.0), (at.bias, interval.1)];
            chart.draw_series([PathElement::new(spread, mark.colour.mix(0.5).stroke_width(1))])?;
            let ends = upper.map(|upper| [(at.bias, at.speedup), (upper.bias, upper.speedup)]);
            let joined = ends.map(|ends| PathElement::new(ends, mark.colour.stroke_width(2)));
            chart.draw_series(joined)?;
        }
        let plane = chart.plotting_area();
        for ChartPoint { mark, at, upper, .. } in &points {
            let corners = |spot: &ChartPosition| {
                let (x, y) = plane.map_coordinate(&(spot.bias, spot.speedup));
                mark.corners_at(x, y)
            };
            if let Some(upper) = upper {
                let mut outline = corners(upper);
                outline.extend(outline.first().copied());
                area.draw(&Polygon::new(outline.clone(), WHITE.filled()))?;
                area.draw(&PathElement::new(outline, mark.colour.stroke_width(2)))?;
            }
            let filled = corners(at);
            area.draw(&Polygon::new(filled.clone(), mark.colour.filled()))?;
            // A white edge separates marks that overlap.
            let edge = filled.iter().chain(filled.first()).copied().collect::<Vec<_>>();
            area.draw(&PathElement::new(edge, WHITE.stroke_width(1)))?;
        }
        Ok(())
    })
    .map(Some)
}

fn point((index, summary): (usize, &Summary)) -> Option<ChartPoint> {
    let (ratio, speedup) = (summary.bias.mean_ratio?, summary.speedup_over_sync?);
    let interval = summary.over_sync_interval?;
    let upper = summary.ends.and_then(|ends| {
        Some(ChartPosition { bias: ends.mean_ratio?.high, speedup: ends.speedup_over_sync?.high })
    });
    Some(ChartPoint {
        mark: Mark::of(index),
        at: ChartPosition { bias: ratio.mean, speedup: speedup.mean },
        upper,
        interval: (interval.low, interval.high),
    })
}
