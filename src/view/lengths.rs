//! Histograms of scores and lengths over some steps, by data source.

use std::collections::BTreeMap;
use std::path::Path;

use arrow_array::types::{Float64Type, UInt32Type};
use rollpacker_dataflow::schema::column;
use serde::Serialize;

use crate::run_reader::{ReadError, Rollouts, number, text};

/// The maximum number of steps that one request reads.
pub(super) const MAX_STEPS: usize = 64;
/// The number of bins of a histogram.
const BINS: usize = 40;

const COLUMNS: [&str; 5] = [
    column::DATA_SOURCE,
    column::SCORE,
    column::RESPONSE_LENGTH,
    column::FINISH_REASON,
    "admitted",
];

#[derive(Debug, Default, Serialize)]
pub(super) struct Distributions {
    /// The steps that were read.
    steps: Vec<u64>,
    /// The bins of scores, which all sources share.
    scores: Bins,
    /// The bins of lengths in tokens, which all sources share.
    lengths: Bins,
    sources: Vec<SourceHistograms>,
    /// The errors of files that cannot be read, whose steps are left out.
    unreadable: Vec<String>,
}

/// Bins of equal width between two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Bins {
    low: f64,
    high: f64,
    count: usize,
}

/// The histograms of a data source, as counts by bin.
#[derive(Debug, Serialize)]
struct SourceHistograms {
    source: String,
    /// The scores of the trained responses.
    scores: Vec<u32>,
    /// The lengths of the trained responses.
    trained: Vec<u32>,
    /// The lengths of responses that ended by themselves and are not trained on.
    untrained: Vec<u32>,
    /// The lengths at which responses were aborted or paused (censored): the policy would have generated longer responses.
    cut: Vec<u32>,
}

/// The scores and the lengths in tokens of the responses of a data source, split as in [`SourceHistograms`].
#[derive(Debug, Default)]
struct SourceValues {
    scores: Vec<f64>,
    trained: Vec<f64>,
    untrained: Vec<f64>,
    cut: Vec<f64>,
}

impl Default for Bins {
    fn default() -> Self {
        Self { low: 0.0, high: 1.0, count: BINS }
    }
}

impl Bins {
    /// Returns bins that cover 0 and `values`.
    fn covering(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values
            .fold((0.0, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
        Self { low, high: if high > low { high } else { low + 1.0 }, count: BINS }
    }

    fn counts(&self, values: &[f64]) -> Vec<u32> {
        let mut counts = vec![0; self.count];
        for value in values {
            let share = (value - self.low) / (self.high - self.low);
            let bin = ((share * self.count as f64) as usize).min(self.count - 1);
            counts[bin] += 1;
        }
        counts
    }
}

impl Distributions {
    /// Reads the responses of steps. A step whose file cannot be read is left out.
    pub(super) fn read(folder: &Path, steps: &[u64]) -> Self {
        let mut sources = BTreeMap::new();
        let read = |step| collect(&Rollouts::read(folder, step, &COLUMNS)?, &mut sources);
        let (steps, unreadable) = read_steps(steps, read);
        let scores = sources.values().flat_map(|source| source.scores.iter().copied());
        let lengths = sources.values().flat_map(|source| {
            source.trained.iter().chain(&source.untrained).chain(&source.cut).copied()
        });
        let (scores, lengths) = (Bins::covering(scores), Bins::covering(lengths));
        let histograms = |(name, source): (&String, &SourceValues)| SourceHistograms {
            source: name.clone(),
            scores: scores.counts(&source.scores),
            trained: lengths.counts(&source.trained),
            untrained: lengths.counts(&source.untrained),
            cut: lengths.counts(&source.cut),
        };
        let sources = sources.iter().map(histograms).collect();
        Self { steps, scores, lengths, sources, unreadable }
    }
}

/// Calls `read` with each step. Returns the steps that were read, and the errors of all other steps.
pub(super) fn read_steps(
    steps: &[u64],
    mut read: impl FnMut(u64) -> Result<(), ReadError>,
) -> (Vec<u64>, Vec<String>) {
    let (mut readable_steps, mut errors) = (Vec::new(), Vec::new());
    for &step in steps {
        match read(step) {
            Ok(()) => readable_steps.push(step),
            Err(error) => errors.push(error.to_string()),
        }
    }
    (readable_steps, errors)
}

fn collect(rows: &Rollouts, sources: &mut BTreeMap<String, SourceValues>) -> Result<(), ReadError> {
    let (names, finish) = (rows.texts(column::DATA_SOURCE)?, rows.texts(column::FINISH_REASON)?);
    let scores = rows.numbers::<Float64Type>(column::SCORE)?;
    let lengths = rows.numbers::<UInt32Type>(column::RESPONSE_LENGTH)?;
    let admitted = rows.flags("admitted")?;
    for row in 0..rows.len() {
        let source = sources.entry(text(names, row).unwrap_or("").to_owned()).or_default();
        let length = f64::from(lengths.value(row));
        if admitted.value(row) {
            source.trained.push(length);
            source.scores.extend(number(scores, row).filter(|score| score.is_finite()));
        } else if matches!(finish.value(row), "abort" | "pause") {
            source.cut.push(length);
        } else {
            source.untrained.push(length);
        }
    }
    Ok(())
}

/// Returns at most [`MAX_STEPS`] of the steps between two bounds, evenly spread, including the last step.
pub(super) fn sample_steps(steps: &[u64], from: u64, to: u64) -> Vec<u64> {
    let begin = steps.partition_point(|step| *step < from);
    let end = steps.partition_point(|step| *step <= to).max(begin);
    let steps = &steps[begin..end];
    let stride = steps.len().div_ceil(MAX_STEPS).max(1);
    let mut sampled_steps: Vec<u64> = steps.iter().rev().step_by(stride).copied().collect();
    sampled_steps.reverse();
    sampled_steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_spread_and_end_with_the_last() {
        let steps: Vec<u64> = (1..=5000).collect();
        let chosen = sample_steps(&steps, 1, 5000);
        assert!(chosen.len() <= MAX_STEPS && chosen.len() > MAX_STEPS / 2);
        assert_eq!(chosen.last(), Some(&5000));
        assert_eq!(sample_steps(&steps, 7, 9), [7, 8, 9]);
        assert!(sample_steps(&steps, 9, 7).is_empty() && sample_steps(&[], 0, 9).is_empty());
    }

    #[test]
    fn every_value_is_in_a_bin() {
        let bins = Bins::covering([10.0, 400.0].into_iter());
        let counts = bins.counts(&[0.0, 10.0, 399.9, 400.0]);
        assert_eq!(counts.iter().sum::<u32>(), 4);
        assert_eq!((counts[0], counts[1], counts[BINS - 1]), (1, 1, 2));
        assert_eq!(Bins::covering(std::iter::empty()), Bins::default());
        assert_eq!(Bins::covering([-1.0].into_iter()).low, -1.0);
    }
}
