//! Shows the progress of a run: a table of steps and a live line on a terminal, one line per step elsewhere, or JSON lines. Without the
//! feature `cli` there is neither a table nor a live line.

#[cfg_attr(feature = "cli", path = "progress/bar.rs")]
#[cfg_attr(not(feature = "cli"), path = "progress/no_bar.rs")]
mod bar;
mod table;

use rollpacker_operators::report::StepProgress;
use rollpacker_stages::train::Metrics;
use serde_json::{Map, Value, json};

use self::bar::{Bar, terminal_width};
use self::table::StepTable;
use crate::terminal;

/// The metrics in the line or the JSON line of a step, in this order. Metrics that a step does not have are skipped.
const METRICS: [&str; 14] = [
    "critic/score/mean",
    "response_length/mean",
    "response_length/max",
    "actor/pg_loss",
    "actor/grad_norm",
    "schedule/queue_length",
    "schedule/queue_age",
    "rollout/aborted_responses",
    "rollout/discarded_tokens",
    "rollout/bubble_ratio",
    "trainer/waiting_ratio",
    "rollout/tokens_per_s",
    "timing_s/step",
    "val/score",
];

/// The metrics of a validation that does not belong to a training step.
const VALIDATION_METRICS: [&str; 3] = ["val/score", "val/greedy_score", "val/response_length/mean"];

/// Shows the progress of a run.
pub struct Console {
    bar: Option<Bar>,
    table: StepTable,
    wanted: usize,
    score: f64,
    queue: (f64, f64),
}

impl Console {
    /// Creates the display of a run of about `steps` steps that train on `wanted` responses each.
    #[must_use]
    pub fn new(steps: u64, wanted: usize) -> Self {
        let bar = if terminal::is_json() { None } else { Bar::of_steps(steps) };
        let table = StepTable::default();
        Self { bar, table, wanted, score: f64::NAN, queue: (0.0, 0.0) }
    }

    /// Shows the progress within a step on the live line. Does nothing if there is no live line.
    pub fn progress(&mut self, progress: &StepProgress) {
        if let Some(bar) = &self.bar {
            let rate = progress.tokens as f64 / progress.elapsed.as_secs_f64().max(1e-3);
            bar.set_message(&format!(
                "{} round | {} of {} responses trained, {} finished, {rate:.0} tokens/s | last: score {:.3}, queue {} (age {})",
                progress.round,
                progress.trained,
                self.wanted,
                progress.finished,
                self.score,
                self.queue.0,
                self.queue.1,
            ));
        }
    }

    /// Prints a finished step. `step` counts from 1, and `round` is the kind of its round.
    pub fn step(&mut self, step: u64, round: &str, metrics: &Metrics) {
        let metric = |name: &str| metrics.get(name).copied();
        self.score = metric("critic/score/mean").unwrap_or(f64::NAN);
        self.queue = (
            metric("schedule/queue_length").unwrap_or(0.0),
            metric("schedule/queue_age").unwrap_or(0.0),
        );
        if terminal::is_json() {
            return self.print("step", json_fields(&METRICS, step, round, metrics));
        }
        let row = terminal_width().map(|width| self.table.row(width, step, round, metrics));
        self.print_line(&row.unwrap_or_else(|| line(step, round, metrics)));
        if let Some(bar) = &self.bar {
            bar.set_position(step);
        }
    }

    /// Prints a validation that does not belong to a training step. `step` is the number of steps that were trained before it.
    pub fn report_validation(&mut self, step: u64, metrics: &Metrics) {
        let metric = |name: &str| metrics.get(name).copied().unwrap_or(f64::NAN);
        if terminal::is_json() {
            return self
                .print("validation", json_fields(&VALIDATION_METRICS, step, "val", metrics));
        }
        let row = terminal_width().map(|width| self.table.row(width, step, "val", metrics));
        self.print_line(&row.unwrap_or_else(|| {
            format!(
                "step:{step} - val/score:{:.4} - val/greedy_score:{:.4} - val/response_length/mean:{:.1}",
                metric("val/score"),
                metric("val/greedy_score"),
                metric("val/response_length/mean")
            )
        }));
    }

    /// Prints a line of text, as the message of a JSON line if JSON lines are on.
    pub fn print_line(&self, line: &str) {
        self.print(line, Map::new());
    }

    /// Prints a message. Its fields are printed in JSON lines only.
    pub fn print(&self, message: &str, fields: Map<String, Value>) {
        let json;
        let line = if terminal::is_json() {
            json = terminal::json_line(message, fields);
            &json
        } else {
            message
        };
        // The run continues if its output cannot be written. The run folder contains the same information.
        let print = || drop(terminal::print_line(line));
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Removes the live line at the end of the run.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.clear();
        }
    }
}

/// Shows the number of scored rows of a file. Shows nothing if standard error is not a terminal, and without the feature `cli`.
pub struct RowProgress(Option<Bar>);

impl RowProgress {
    /// Creates the display before the first row.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it draws on the terminal")]
    pub fn new() -> Self {
        Self(Bar::of_rows())
    }

    /// Shows that `rows` rows are done. `of` is the total number of rows, if it is known.
    pub fn done(&self, rows: u64, of: Option<u64>) {
        if let Some(bar) = &self.0 {
            of.into_iter().for_each(|of| bar.set_length(of));
            bar.set_position(rows);
        }
    }

    /// Removes the live line after the last row.
    pub fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.clear();
        }
    }
}

/// Returns the fields of a JSON line: the step, the kind of its round, and its metrics that `names` contains.
fn json_fields(names: &[&str], step: u64, round: &str, metrics: &Metrics) -> Map<String, Value> {
    let shown =
        names.iter().filter_map(|name| Some(((*name).to_owned(), json!(metrics.get(*name)?))));
    let metrics: Map<_, _> = shown.collect();
    let fields = [("step", json!(step)), ("round", json!(round)), ("metrics", metrics.into())];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn line(step: u64, round: &str, metrics: &Metrics) -> String {
    let shown = METRICS
        .iter()
        .filter_map(|name| metrics.get(*name).map(|value| format!(" - {name}:{}", short(*value))));
    format!("step:{step} - round:{round}{}", shown.collect::<String>())
}

/// Formats a value. Its absolute value determines the form:
/// - 0, and from 1000 to 1e9: an integer
/// - from 0.001 to 1000: up to four decimals
/// - below 0.001, and from 1e9: four significant digits and an exponent
/// - not finite: `NaN`, `inf` or `-inf`
fn short(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude == 0.0 || (1000.0..1e9).contains(&magnitude) => {
            format!("{value:.0}")
        }
        magnitude if (0.001..1000.0).contains(&magnitude) => {
            let text = format!("{value:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ => format!("{value:.3e}"),
    }
}

#[cfg(test)]
mod tests {
    use rollpacker_stages::train::named_metrics;

    use super::*;

    #[test]
    fn a_json_line_of_a_step_has_the_shown_metrics() {
        let metrics = named_metrics([("critic/score/mean", 0.25), ("hidden", 1.0)]);
        let fields = Value::Object(json_fields(&METRICS, 3, "short", &metrics));
        let expected = json!({"step": 3, "round": "short", "metrics": {"critic/score/mean": 0.25}});
        assert_eq!(fields, expected);
    }

    #[test]
    fn a_step_is_one_line_in_the_form_of_verl() {
        let metrics = named_metrics([
            ("critic/score/mean", 0.25),
            ("timing_s/step", 1.234_56),
            ("actor/grad_norm", 1e-7),
            ("hidden", 1.0),
        ]);
        let expected = "step:3 - round:short - critic/score/mean:0.25 - actor/grad_norm:1.000e-7 - timing_s/step:1.2346";
        assert_eq!(line(3, "short", &metrics), expected);
    }
}
