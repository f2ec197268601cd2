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
        let mut labels = Vec::new();
        for (index, &(label, ratio, speedup, sd)) in points.iter().enumerate() {
            let colour = colour(index);
            let spread = [(ratio, speedup - sd), (ratio, speedup + sd)];
            chart.draw_series([PathElement::new(spread, colour.stroke_width(1))])?;
            chart.draw_series([Circle::new((ratio, speedup), 5, colour.filled())])?;
            let (x, y) = chart.backend_coord(&(ratio, speedup));
            let below = free(&mut labels, x, y);
            let beside = EmptyElement::at((ratio, speedup))
                + Text::new(label.to_owned(), (8, below), ("sans-serif", 13));
            chart.draw_series([beside])?;
        }
        Ok(())
    })?;
    Ok(vec![svg])
}

/// Where a label goes, in pixels below its point, so that it lies on none of the earlier ones, which it joins.
fn free(labels: &mut Vec<(i32, i32)>, x: i32, y: i32) -> i32 {
    const PLACES: [i32; 5] = [-14, 1, -28, 15, -42];
    let covers =
        |at: i32, (left, top): &(i32, i32)| (x - left).abs() < 150 && (at - top).abs() < 13;
    let place =
        PLACES.into_iter().find(|place| !labels.iter().any(|label| covers(y + place, label)));
    let place = place.unwrap_or(PLACES[0]);
    labels.push((x, y + place));
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_near_points_lie_beside_each_other() {
        let mut labels = Vec::new();
        assert_eq!(free(&mut labels, 100, 50), -14);
        assert_eq!(free(&mut labels, 104, 52), 1);
        assert_eq!(free(&mut labels, 400, 50), -14);
    }
}
