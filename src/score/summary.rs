//! What rows scored, one by one and together.

use std::collections::BTreeMap;
use std::fmt::Write;

use rollpacker_stages::reward::Score;
use serde::Serialize;
use serde_json::json;

use super::RowError;
use crate::terminal::escape_line;

/// A row and its score.
pub(super) struct Scored {
    /// Where the row comes from; `None` for one that cannot be read.
    pub(super) data_source: Option<String>,
    pub(super) score: Result<Score, RowError>,
}

/// What rows scored together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Rows read.
    pub rows: u64,
    /// Rows with a score.
    pub scored: u64,
    /// Mean of the scores; `None` without any.
    pub mean: Option<f64>,
    /// The same by data source.
    pub by_data_source: BTreeMap<String, SourceSummary>,
    /// Means of the parts of the scores, over the rows that have them.
    pub components: BTreeMap<String, f64>,
    /// Rows by outcome: the label `outcome` of their scores, or `scored`.
    pub outcomes: BTreeMap<String, u64>,
    /// Groups that were scored as a whole.
    pub groups: u64,
    /// Rows without a score, by kind of error.
    pub errors: BTreeMap<String, u64>,
    /// The first error of each kind: its row, and what happened.
    pub first_errors: BTreeMap<String, (u64, String)>,
    /// How long it took.
    pub seconds: f64,
    #[serde(skip)]
    counts: BTreeMap<String, u64>,
}

/// The rows of one data source.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SourceSummary {
    /// Rows read.
    pub rows: u64,
    /// Rows with a score.
    pub scored: u64,
    /// Mean of the scores; `None` without any.
    pub mean: Option<f64>,
}

impl Scored {
    /// The row's line of the output.
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

impl Summary {
    /// Rows without a score.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.rows - self.scored
    }

    pub(super) fn add(&mut self, row: &Scored) {
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

    /// The summary as a person reads it.
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
    // The difference of two large values could overflow.
    mean - mean / count as f64 + value / count as f64
}

fn mean(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"))
}
