//! The chart of speed against bias.

use plotters::prelude::*;

use super::super::summary::Summary;
use super::chart::{beyond, caption, colour, draw};

/// A point for each configuration whose bias is known; nothing for fewer than two.
///
/// # Errors
/// If it cannot be drawn.
pub(super) fn chart(summaries: &[Summary]) -> anyhow::Result<Vec<String>> {
    let points: Vec<(&str, f64, f64, f64)> = summaries
        .iter()
        .filter_map(|summary| {
            let (ratio, speedup) = (summary.bias.mean_ratio?, summary.speedup?);
            Some((summary.label.as_str(), ratio.mean, speedup.mean, speedup.sd))
        })
        .collect();
    if points.len() < 2 {
        return Ok(Vec::new());
    }
    let ends = |of: fn(&(&str, f64, f64, f64)) -> f64, start: (f64, f64)| {
        points
            .iter()
            .map(of)
            .fold(start, |(least, most), value| (least.min(value), most.max(value)))
    };
    let (least, most) = ends(|point| point.1, (1.0, 1.0));
    let margin = 0.1 * (most - least).max(0.1);
    let fastest = ends(|point| point.2 + point.3, (1.0, 1.0)).1;
    let svg = draw(460, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .caption("Speed-up over sync against length bias", caption())
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(least - margin..most + 4.0 * margin, 0.0..beyond(fastest))?;
        chart
            .configure_mesh()
            .x_desc("mean trained length / mean length of the policy")
            .y_desc("steps in the time of one of sync")
            .label_style(("sans-serif", 13))
            .light_line_style(WHITE)
            .draw()?;
        let unbiased = [(1.0, 0.0), (1.0, beyond(fastest))];
        chart.draw_series([PathElement::new(unbiased, BLACK.mix(0.5).stroke_width(1))])?;
        for (index, &(label, ratio, speedup, sd)) in points.iter().enumerate() {
            let colour = colour(index);
            let spread = [(ratio, speedup - sd), (ratio, speedup + sd)];
            chart.draw_series([PathElement::new(spread, colour.stroke_width(1))])?;
            chart.draw_series([Circle::new((ratio, speedup), 5, colour.filled())])?;
            let beside = EmptyElement::at((ratio, speedup))
                + Text::new(label.to_owned(), (8, -14), ("sans-serif", 13));
            chart.draw_series([beside])?;
        }
        Ok(())
    })?;
    Ok(vec![svg])
}
