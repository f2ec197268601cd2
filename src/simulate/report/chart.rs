//! Common parts of all charts: size, colours, and drawing into a string.

use plotters::coord::Shift;
use plotters::prelude::*;

/// A drawing area that is written as SVG text.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The colours of Okabe and Ito, which colour-blind people can distinguish. Black is left out because it shows the policy, and yellow
/// because it is too faint on white.
const COLOURS: [RGBColor; 6] = [BLUE, ORANGE, GREEN, SKY, VERMILLION, PURPLE];

/// The colour of the subject of a chart.
pub(super) const BLUE: RGBColor = RGBColor(0, 114, 178);
/// The colour of the trainer.
pub(super) const ORANGE: RGBColor = RGBColor(230, 159, 0);
const GREEN: RGBColor = RGBColor(0, 158, 115);
const SKY: RGBColor = RGBColor(86, 180, 233);
const VERMILLION: RGBColor = RGBColor(213, 94, 0);
const PURPLE: RGBColor = RGBColor(204, 121, 167);
/// The colour of the reference with which the subject of a chart is compared.
pub(super) const GREY: RGBColor = RGBColor(150, 150, 150);

/// The colours of the stages of a step: sync, rollout, reward, training.
pub(super) const STAGES: [RGBColor; 4] = [PURPLE, BLUE, GREEN, ORANGE];

/// The width of a chart that is placed next to others, in pixels; it fits on a phone.
pub(super) const WIDTH: u32 = 340;

/// The size of the text on axes, in pixels.
pub(super) const TEXT: u32 = 12;

/// The outline of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Circle,
    Square,
    Triangle,
    Diamond,
    Inverted,
    Hexagon,
}

const SHAPES: [Shape; 6] = [
    Shape::Circle,
    Shape::Square,
    Shape::Triangle,
    Shape::Diamond,
    Shape::Inverted,
    Shape::Hexagon,
];

/// The mark of a configuration. No two configurations have the same colour, outline and size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mark {
    pub(super) colour: RGBColor,
    shape: Shape,
    /// The distance from the centre to the corners in pixels, before the outline is scaled.
    radius: f64,
}

impl Mark {
    /// Returns the mark of configuration `index`: the first ones differ in colour, further ones in outline, and then in size.
    pub(super) fn of(index: usize) -> Self {
        let outline = index / COLOURS.len();
        Self {
            colour: COLOURS[index % COLOURS.len()],
            shape: SHAPES[outline % SHAPES.len()],
            radius: 6.0 + 2.0 * (outline / SHAPES.len()) as f64,
        }
    }

    /// Returns the corners, in pixels from the centre.
    fn corners(self) -> Vec<(f64, f64)> {
        // Outlines with few corners look smaller, so they are scaled up.
        let (corners, turn, scale) = match self.shape {
            Shape::Circle => (24, 0.0, 1.0),
            Shape::Square => (4, 0.125, 1.25),
            Shape::Triangle => (3, -0.25, 1.35),
            Shape::Diamond => (4, 0.0, 1.3),
            Shape::Inverted => (3, 0.25, 1.35),
            Shape::Hexagon => (6, 0.0, 1.15),
        };
        let radius = self.radius * scale;
        let corner = |corner: u32| {
            let angle = std::f64::consts::TAU * (turn + f64::from(corner) / f64::from(corners));
            (radius * angle.cos(), radius * angle.sin())
        };
        (0..corners).map(corner).collect()
    }

    /// Returns the corners of the mark with its centre at (`x`, `y`), in pixels.
    pub(super) fn corners_at(self, x: i32, y: i32) -> Vec<(i32, i32)> {
        let near = |(dx, dy): (f64, f64)| (x + dx.round() as i32, y + dy.round() as i32);
        self.corners().into_iter().map(near).collect()
    }

    /// Returns the mark as SVG for use within a line of text.
    pub(super) fn svg(self) -> String {
        let points: Vec<String> =
            self.corners().iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        format!(
            "<svg class=\"mark\" viewBox=\"-9 -9 18 18\" aria-hidden=\"true\"><polygon points=\"{}\" fill=\"{}\"/></svg>",
            points.join(" "),
            css(self.colour, 1.0),
        )
    }
}

/// Returns a colour with the given opacity over white, as CSS.
pub(super) fn css(colour: RGBColor, opacity: f64) -> String {
    let over = |part: u8| (255.0 - (255.0 - f64::from(part)) * opacity).round() as u8;
    format!("#{:02x}{:02x}{:02x}", over(colour.0), over(colour.1), over(colour.2))
}

/// Calls `paint` with a white area of the given size and returns the SVG.
///
/// # Errors
/// If `paint` fails or the area cannot be drawn.
pub(super) fn draw(
    (width, height): (u32, u32),
    paint: impl FnOnce(&Area<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        area.fill(&WHITE)?;
        paint(&area)?;
        area.present()?;
    }
    Ok(svg)
}

/// Formats a number on an axis of seconds that ends at `max`.
pub(super) fn seconds(value: &f64, max: f64) -> String {
    match max {
        max if max >= 10.0 => format!("{value:.0}"),
        max if max >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.0e}"),
    }
}

/// Returns the end of an axis: 5 % above `max`, or 1 if `max` is not positive.
pub(super) fn axis_end(max: f64) -> f64 {
    if max > 0.0 { max * 1.05 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_marks_are_unique() {
        let marks: Vec<Mark> = (0..200).map(Mark::of).collect();
        for (index, mark) in marks.iter().enumerate() {
            assert!(!marks[..index].contains(mark), "{index}: {mark:?}");
        }
        let colours: Vec<RGBColor> =
            marks[..COLOURS.len()].iter().map(|mark| mark.colour).collect();
        assert_eq!(colours, COLOURS);
    }

    #[test]
    fn a_colour_that_is_half_opaque_is_half_white() {
        assert_eq!(css(BLUE, 1.0), "#0072b2");
        assert_eq!(css(RGBColor(0, 0, 0), 0.5), "#808080");
    }
}
