//! The comparison of a number of a paper with the simulated number, and the table of such comparisons.

use serde::Serialize;

use super::super::table::aligned;

/// A number of a paper and its simulated counterpart.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PaperCell {
    /// The paper that the number is from.
    pub source: &'static str,
    /// The name of the table or figure, or a description of another group of numbers.
    pub item: &'static str,
    /// The experiment as the paper describes it, with the section, and how the simulated experiment differs.
    pub setting: &'static str,
    /// The name of the number within the item, with the unit unless it is a ratio.
    pub cell: String,
    /// The paper's value.
    pub paper: f64,
    /// The simulated value, averaged over the seeds.
    pub ours: f64,
    /// The error of the simulated value; see [`ErrorMeasure`].
    pub error: f64,
    /// `true` if a constant of the model was fitted to the number, or chosen with knowledge of the number.
    pub fitted: bool,
    /// The measure of `error`.
    #[serde(skip)]
    pub measure: ErrorMeasure,
}

/// The way in which an error is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorMeasure {
    /// `ours / paper - 1`, for times, speed-ups, throughputs and lengths.
    Relative,
    /// `ours - paper`, where 0.01 is one point, for shares of a whole, times relative to a variant and correlations.
    Points,
}

/// The maximum error of a cell that counts as near: relative, and in points.
const MAX_NEAR_ERROR: [f64; 2] = [0.15, 0.05];

impl ErrorMeasure {
    /// Returns the error of `ours` relative to `paper`, in this measure.
    #[must_use]
    pub fn error(self, paper: f64, ours: f64) -> f64 {
        match self {
            Self::Relative => ours / paper - 1.0,
            Self::Points => ours - paper,
        }
    }

    fn text(self, error: f64) -> String {
        match self {
            Self::Relative => format!("{:+.0} %", 100.0 * error),
            Self::Points => format!("{:+.1} pt", 100.0 * error),
        }
    }
}

impl PaperCell {
    /// Returns `true` if the error is at most 15 % for a relative measure, and at most 5 points otherwise.
    #[must_use]
    pub fn is_near(&self) -> bool {
        self.error.abs() <= MAX_NEAR_ERROR[usize::from(self.measure == ErrorMeasure::Points)]
    }

    fn row(&self) -> Vec<String> {
        let fitted = if self.fitted { "fitted" } else { "" };
        let far = if self.is_near() { "" } else { "*" };
        vec![
            format!("  {}", self.cell),
            number(self.paper),
            number(self.ours),
            self.measure.text(self.error),
            far.to_owned(),
            fitted.to_owned(),
        ]
    }
}

/// Renders the cells grouped by item, followed by the number of near cells.
#[must_use]
pub fn render(cells: &[PaperCell]) -> String {
    let head = ["", "paper", "ours", "error", "", ""];
    let titles =
        cells.chunk_by(|a, b| (a.source, a.item) == (b.source, b.item)).flat_map(|cells| {
            let mut title = vec![String::new(); head.len()];
            title[0] = format!("{}, {}", cells[0].source, cells[0].item);
            std::iter::once(title).chain(cells.iter().map(PaperCell::row))
        });
    format!("{}\n{}", aligned(&head, titles), count(cells))
}

fn count(cells: &[PaperCell]) -> String {
    let of = |fitted: bool| {
        let of_kind = || cells.iter().filter(move |cell| cell.fitted == fitted);
        format!("{} of {}", of_kind().filter(|cell| cell.is_near()).count(), of_kind().count())
    };
    format!(
        "Within 15 %, or 5 points (pt) where shares and ratios are compared: {} cells that the model was fitted to, {} that it was not. \
         The others are marked *.\n",
        of(true),
        of(false)
    )
}

fn number(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn larger_numbers_have_fewer_decimals() {
        assert_eq!([12345.6, 123.4, 12.34, 1.2345].map(number), ["12346", "123", "12.3", "1.234"]);
    }

    #[test]
    fn cells_are_grouped_and_counted() {
        let cell = |item, cell: &str, paper, ours, measure: ErrorMeasure, fitted| PaperCell {
            source: "Paper",
            item,
            setting: "section 6",
            cell: cell.to_owned(),
            paper,
            ours,
            error: measure.error(paper, ours),
            fitted,
            measure,
        };
        let cells = [
            cell("Table 1", "a step, s", 120.0, 138.0, ErrorMeasure::Relative, true),
            cell("Table 1", "share", 0.5, 0.56, ErrorMeasure::Points, true),
            cell("Fig. 2", "order", 1.0, 0.96, ErrorMeasure::Points, false),
        ];
        expect![[r#"
                            paper   ours    error
            Paper, Table 1
              a step, s       120    138    +15 %     fitted
              share         0.500  0.560  +6.0 pt  *  fitted
            Paper, Fig. 2
              order         1.000  0.960  -4.0 pt

            Within 15 %, or 5 points (pt) where shares and ratios are compared: 1 of 2 cells that the model was fitted to, 1 of 1 that it was not. The others are marked *.
        "#]]
        .assert_eq(&render(&cells));
    }
}
