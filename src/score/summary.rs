//! The scores of rows, individually and summarized.

use std::collections::BTreeMap;
use std::fmt::Write;

use rollpacker_stages::reward::Score;
use serde::Serialize;
use serde_json::json;

use super::row::RowError;
use crate::terminal::escape_line;

/// The data source of a row, and its score or error.
pub(super) struct ScoredRow {
    /// The data source of the row; `None` if the row cannot be read.
    pub(super) data_source: Option<String>,
    pub(super) score: Result<Score, RowError>,
}

/// A summary of the scores of all rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScoreSummary {
    /// The number of rows read.
    pub rows: u64,
    /// The number of rows with a score.
    pub scored: u64,
    /// The mean score; `None` without any scores.
    pub mean: Option<f64>,
    /// The rows and the mean score of each data source. Rows whose data source is unknown are left out.
    pub by_data_source: BTreeMap<String, SourceSummary>,
    /// The means of the score components, each over the rows that have the component.
    pub components: BTreeMap<String, f64>,
    /// The number of rows with a score by outcome: the label `outcome` of the score, or `scored`.
    pub outcomes: BTreeMap<String, u64>,
    /// The number of groups whose data source has a group reward, including groups without a score because of an error.
    pub groups: u64,
    /// The number of rows without a score, by kind of error.
    pub errors: BTreeMap<String, u64>,
    /// The first error of each kind: the number of the row, from 0, and the message.
    pub first_errors: BTreeMap<String, (u64, String)>,
    /// The duration of the scoring in seconds.
    pub seconds: f64,
    /// The number of rows that have a component, by component.
    #[serde(skip)]
    counts: BTreeMap<String, u64>,
}

/// The scores of one data source.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SourceSummary {
    /// The number of rows read.
    pub rows: u64,
    /// The number of rows with a score.
    pub scored: u64,
    /// The mean score; `None` without any scores.
    pub mean: Option<f64>,
}

impl ScoredRow {
    /// Returns the output line of the row, as JSON. `index` is the number of the row in the file, from 0.
    pub(super) fn line(&self, index: u64) -> String {
        let line = match &self.score {
            Ok(score) => {
                let mut labels = score.labels.clone();
                let outcome = labels.remove("outcome");
                json!({
                    "index": index,
                    "score": score.total(),
                    "components": score.components,
                    "outcome": outcome.as_deref().unwrap_or("scored"),
                    "labels": labels,
                    "error": null,
                })
            }
            Err(error) => json!({
                "index": index,
                "score": null,
                "components": {},
                "outcome": "error",
                "labels": {},
                "error": error.reason,
            }),
        };
        line.to_string()
    }
}

impl ScoreSummary {
    /// Returns the number of rows without a score.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.rows - self.scored
    }

    pub(super) fn add(&mut self, row: &ScoredRow) {
        let index = self.rows;
        self.rows += 1;
        if let Some(data_source) = &row.data_source {
            let source = self.by_data_source.entry(data_source.clone()).or_default();
            source.rows += 1;
            if let Ok(score) = &row.score {
                source.scored += 1;
                source.mean = Some(running(source.mean, source.scored, score.total()));
            }
        }
        match &row.score {
            Ok(score) => self.add_score(score),
            Err(error) => {
                *self.errors.entry(error.kind.to_owned()).or_default() += 1;
                let first = || (index, error.reason.clone());
                self.first_errors.entry(error.kind.to_owned()).or_insert_with(first);
            }
        }
    }

    fn add_score(&mut self, score: &Score) {
        self.scored += 1;
        self.mean = Some(running(self.mean, self.scored, score.total()));
        let outcome = score.labels.get("outcome").map_or("scored", String::as_str);
        *self.outcomes.entry(outcome.to_owned()).or_default() += 1;
        for (name, value) in &score.components {
            let count = self.counts.entry(name.clone()).or_default();
            *count += 1;
            let mean = self.components.get(name).copied();
            self.components.insert(name.clone(), running(mean, *count, *value));
        }
    }

    /// Returns the summary as text for a person.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "rows           {}, {} scored, {:.1} s ({:.0} rows/s)\nmean           {}\n",
            self.rows,
            self.scored,
            self.seconds,
            self.rows as f64 / self.seconds.max(1e-9),
            mean(self.mean),
        );
        let mut line = |name: &str, value: String| {
            // Writing to a text cannot fail.
            let _ = writeln!(text, "{name:<14} {value}");
        };
        if self.groups > 0 {
            line("groups", self.groups.to_string());
        }
        for (source, of) in &self.by_data_source {
            let rows = format!("{} of {} rows scored", of.scored, of.rows);
            let source = escape_line(source);
            line("  data source", format!("{source}: mean {}, {rows}", mean(of.mean)));
        }
        for (name, value) in &self.components {
            line("  component", format!("{}: mean {}", escape_line(name), mean(Some(*value))));
        }
        for (outcome, rows) in &self.outcomes {
            line("  outcome", format!("{}: {rows}", escape_line(outcome)));
        }
        for (kind, rows) in &self.errors {
            let (row, reason) = &self.first_errors[kind];
            let reason = escape_line(reason);
            line("  error", format!("{kind}: {rows}, the first in row {row}: {reason}"));
        }
        text
    }
}

fn running(mean: Option<f64>, count: u64, value: f64) -> f64 {
    let mean = mean.unwrap_or(0.0);
    // Divide before adding: the difference of two large values could overflow.
    mean - mean / count as f64 + value / count as f64
}

fn mean(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"))
}
