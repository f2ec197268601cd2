//! What all charts share: size, colours, and drawing into a string.

use plotters::coord::Shift;
use plotters::prelude::*;

/// A drawing area that ends as SVG text.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Colours of stages and configurations, told apart by people who see red and green alike.
const COLOURS: [RGBColor; 9] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 94, 60),
    RGBColor(100, 100, 100),
    RGBColor(170, 150, 20),
];

/// Of configuration or stage `index`.
pub(super) fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// Width of a chart.
pub(super) const WIDTH: u32 = 1000;

/// Lets `paint` draw on a white area of that height.
///
/// # Errors
/// If it cannot be drawn.
pub(super) fn draw(
    height: u32,
    paint: impl FnOnce(&Area<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE)?;
        paint(&area)?;
        area.present()?;
    }
    Ok(svg)
}

/// A caption's font.
pub(super) fn caption() -> TextStyle<'static> {
    ("sans-serif", 16).into_text_style(&(WIDTH, 20))
}

/// A number on an axis of seconds.
pub(super) fn whole(seconds: &f64) -> String {
    format!("{seconds:.0}")
}

/// The end of an axis: a little more than `most`.
pub(super) fn beyond(most: f64) -> f64 {
    if most > 0.0 { most * 1.05 } else { 1.0 }
}

/// Draws the names of the series of a chart.
///
/// # Errors
/// If they cannot be drawn.
pub(super) fn legend<'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, C>,
    position: SeriesLabelPosition,
) -> anyhow::Result<()> {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.2))
        .label_font(("sans-serif", 13))
        .draw()?;
    Ok(())
}
