//! The table of metrics: name, unit, description, how the values of several workers are merged, and whether a value depends on time.
//!
//! [`SECTIONS`] has a row for each metric of this project, whatever emits it. The table is in this crate because all crates that emit,
//! merge, compare or export metrics depend on it. `docs/metrics.md` is generated from the table ([`markdown`]), and OpenTelemetry
//! instruments have its units and descriptions.
//!
//! # Names
//! Metrics have verl's names where verl has the metric. `<part>` in the name of a row stands for any text, such as the name of a data
//! source, and `{a,b}` for one of several texts. If several rows match a name, the row with the most fixed characters applies.
//!
//! # Metrics of custom trainers and rewards
//! A metric without a row is recorded like any other. It has neither unit nor description in exports. The values of several workers are
//! merged to their mean, and the metric is taken to be independent of time, except by prefix: `timing_s/` depends on time and is merged to
//! the maximum; `perf/` depends on time.

mod pattern;
mod table;

use std::fmt::Write;

pub use self::table::SECTIONS;

/// A row of the table: a metric, or a family of metrics with one meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name, with the placeholders that the [module documentation](self#names) describes.
    pub name: &'static str,
    /// The unit in UCUM notation, as OpenTelemetry requires: `s`, `By`, `1` for ratios and numbers without unit, `{token}` for counts.
    pub unit: &'static str,
    /// The meaning, as one or a few sentences.
    pub description: &'static str,
    /// The rule by which the values of several workers are merged.
    pub merge: Merge,
    /// `true` if the value depends on the speed of the machines, so that it differs between two runs that are otherwise bit-identical.
    pub depends_on_time: bool,
}

/// Rows about one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// The heading of the section in `docs/metrics.md`.
    pub title: &'static str,
    /// The rows, in the order of the page.
    pub metrics: &'static [Metric],
}

/// The rule by which the values that several workers report for a metric of a step become one. A value that only one worker reports is
/// kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// The sum, for counts of a worker's own work.
    Sum,
    /// The maximum, for durations, levels and maxima of a worker's own values.
    Max,
    /// The minimum, for minima of a worker's own values.
    Min,
    /// The mean. Equal values are kept to the bit, such as those that replicas of the trainer report about their common update.
    Mean,
}

impl Metric {
    /// Returns a row whose values are merged to their mean and do not depend on time.
    const fn new(name: &'static str, unit: &'static str, description: &'static str) -> Self {
        Self { name, unit, description, merge: Merge::Mean, depends_on_time: false }
    }

    /// Returns the row with a value that depends on time.
    const fn timed(self) -> Self {
        Self { depends_on_time: true, ..self }
    }

    /// Returns the row with the merge rule [`Merge::Sum`].
    const fn sum(self) -> Self {
        Self { merge: Merge::Sum, ..self }
    }

    /// Returns the row with the merge rule [`Merge::Max`].
    const fn max(self) -> Self {
        Self { merge: Merge::Max, ..self }
    }

    /// Returns the row with the merge rule [`Merge::Min`].
    const fn min(self) -> Self {
        Self { merge: Merge::Min, ..self }
    }

    /// Returns the row of the metric `name`: of the rows that match, the one with the most fixed characters. Returns `None` if no row
    /// matches, as for metrics of custom trainers and rewards.
    ///
    /// ```
    /// use rollpacker_stages::metrics::{Merge, Metric};
    ///
    /// let errors = Metric::find("reward/errors/timeout/judge").expect("it has a row");
    /// assert_eq!(errors.name, "reward/errors/<kind>/<reward>");
    /// assert_eq!(errors.merge, Merge::Sum);
    /// assert!(Metric::find("actor/my_own_loss").is_none());
    /// ```
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        let rows = SECTIONS.iter().flat_map(|section| section.metrics);
        rows.filter(|row| pattern::matches(row.name, name))
            .max_by_key(|row| pattern::fixed_characters(row.name))
    }
}

impl Merge {
    /// Returns the rule for the metric `name`. Without a row, it is [`Max`](Self::Max) for names that begin with `timing_s/`, and
    /// [`Mean`](Self::Mean) for others.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let by_prefix = || if name.starts_with("timing_s/") { Self::Max } else { Self::Mean };
        Metric::find(name).map_or_else(by_prefix, |row| row.merge)
    }

    /// Merges values. The result is bit-identical for every order of the values. The maximum and the minimum
    /// ignore NaN beside other values. Without values, the sum is 0, and all others are NaN.
    #[must_use]
    pub fn apply(self, mut values: Vec<f64>) -> f64 {
        values.sort_unstable_by(f64::total_cmp);
        match self {
            Self::Sum => values.iter().sum(),
            Self::Max => values.into_iter().fold(f64::NAN, f64::max),
            Self::Min => values.into_iter().fold(f64::NAN, f64::min),
            // Equal values are kept as they are; a sum could change their last bit.
            Self::Mean if values.windows(2).all(|pair| pair[0].to_bits() == pair[1].to_bits()) => {
                values.first().copied().unwrap_or(f64::NAN)
            }
            Self::Mean => values.iter().sum::<f64>() / values.len() as f64,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Max => "max",
            Self::Min => "min",
            Self::Mean => "mean",
        }
    }
}

/// Returns `true` if the metric `name` depends on the speed of the machines, so that it differs between two runs that are otherwise
/// bit-identical. Metrics without a row depend on it if their names begin with `timing_s/` or `perf/`.
#[must_use]
pub fn depends_on_time(name: &str) -> bool {
    let by_prefix = || ["timing_s/", "perf/"].iter().any(|prefix| name.starts_with(prefix));
    Metric::find(name).map_or_else(by_prefix, |row| row.depends_on_time)
}

/// Returns the table as Markdown, a heading and a table for each section.
#[must_use]
pub fn markdown() -> String {
    SECTIONS.iter().map(Section::markdown).collect::<Vec<_>>().join("\n")
}

impl Section {
    fn markdown(&self) -> String {
        let mut text = format!(
            "## {}\n\n| metric | unit | workers | time | meaning |\n|---|---|---|---|---|\n",
            self.title
        );
        for Metric { name, unit, description, merge, depends_on_time } in self.metrics {
            let (merge, time) = (merge.as_str(), if *depends_on_time { "yes" } else { "" });
            // Writing to a string does not fail.
            let _ = writeln!(text, "| `{name}` | `{unit}` | {merge} | {time} | {description} |");
        }
        text
    }
}

#[cfg(test)]
mod tests;
