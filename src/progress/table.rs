//! The steps of a run as a table on a terminal.

use rollpacker_stages::train::Metrics;

use crate::number_format::format_number;

/// The title and the metric of each column after the step and the round. A narrow terminal shows only the first columns.
const COLUMNS: [(&str, &str); 9] = [
    ("score", "critic/score/mean"),
    ("val", "val/score"),
    ("length", "response_length/mean"),
    ("seconds", "timing_s/step"),
    ("clipped", "response_length/clip_ratio"),
    ("equal", "reward/frac_zero_std"),
    ("grad", "actor/grad_norm"),
    ("queue", "schedule/queue_length"),
    ("tokens/s", "rollout/tokens_per_s"),
];
/// The width of the column of the step in characters.
const STEP_WIDTH: usize = 6;
/// The width of each further column in characters, with the space before it.
const WIDTH: usize = 9;
/// The number of rows after which the header is repeated.
const ROWS: usize = 20;

/// The state of a table that is being printed.
#[derive(Debug, Default)]
pub(super) struct StepTable {
    /// The number of rows since the last header.
    rows: usize,
    /// The number of columns in the last header, without the step.
    columns: usize,
}

impl StepTable {
    /// Returns the row of a step for a terminal of `width` characters. The header of the table precedes the first row. It is repeated after
    /// [`ROWS`] rows, and when the number of shown columns changes.
    pub(super) fn row(
        &mut self,
        width: usize,
        step: u64,
        round: &str,
        metrics: &Metrics,
    ) -> String {
        let columns = (width.saturating_sub(STEP_WIDTH) / WIDTH).min(1 + COLUMNS.len());
        let is_new = self.rows.is_multiple_of(ROWS) || columns != self.columns;
        self.rows = if is_new { 1 } else { self.rows + 1 };
        self.columns = columns;
        let titles = COLUMNS.iter().map(|(title, _)| (*title).to_owned());
        let figures = COLUMNS.iter().map(|(_, name)| {
            metrics.get(*name).map_or_else(String::new, |value| format_number(*value))
        });
        let row = line(columns, &step.to_string(), round, figures);
        if is_new { format!("{}\n{row}", line(columns, "step", "round", titles)) } else { row }
    }
}

/// Returns a line with the step and the first `columns` further columns: the round, and then `cells`. The name of the round is cut to the
/// width of its column.
fn line(columns: usize, step: &str, round: &str, cells: impl Iterator<Item = String>) -> String {
    let round: String = round.chars().take(WIDTH - 1).collect();
    let cells = std::iter::once(round).chain(cells).take(columns);
    let mut text = format!("{step:>STEP_WIDTH$}");
    cells.for_each(|cell| text += &format!("{cell:>WIDTH$}"));
    text
}

#[cfg(test)]
mod tests {
    use rollpacker_stages::train::named_metrics;

    use super::*;

    fn metrics() -> Metrics {
        named_metrics([
            ("critic/score/mean", -0.25),
            ("response_length/mean", 812.4),
            ("timing_s/step", 61.5),
            ("rollout/tokens_per_s", 123_456.7),
            ("actor/grad_norm", f64::NAN),
        ])
    }

    #[test]
    fn a_table_has_a_head_and_a_row_per_step() {
        let mut table = StepTable::default();
        let expected = "  step    round    score      val   length  seconds  clipped    equal     grad\n     \
                        7    short   -0.250               812   61.500                        NaN";
        assert_eq!(table.row(80, 7, "short", &metrics()), expected);
        let second = table.row(80, 8, "a_long_name", &Metrics::new());
        assert_eq!(second.trim_end(), "     8 a_long_n");
    }

    #[test]
    fn lines_fit_the_terminal_and_heads_follow_its_width() {
        for width in 6..200 {
            let text = StepTable::default().row(width, 999_999, "a_long_name", &metrics());
            assert!(text.lines().all(|line| line.len() <= width), "{width}: {text}");
        }
        let mut table = StepTable::default();
        let mut head = |width| table.row(width, 1, "short", &metrics()).contains("step");
        let heads: Vec<_> = (0..41).map(|_| head(80)).collect();
        let with_head = |(row, is_head): (usize, &bool)| is_head.then_some(row);
        assert_eq!(heads.iter().enumerate().filter_map(with_head).collect::<Vec<_>>(), [0, 20, 40]);
        assert!(!head(81) && head(120) && !head(120) && head(60));
    }
}
