//! The metrics of a run by name, and downsampled curves of them.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::findings::{Finding, StepWindow, findings};
use crate::run_reader::{MetricsSink, ReadError, StepMetrics};

/// The metrics of a run by name, each with its values in the order of the lines.
#[derive(Debug, Default)]
pub(super) struct Columns {
    by_name: BTreeMap<String, Vec<Point>>,
    /// The kinds of the rounds, by step.
    rounds: Vec<(u64, String)>,
    /// The number of lines that were read, including lines that are left out because of an error.
    pub(super) lines: usize,
    /// The number of the last training step; 0 before the first.
    pub(super) steps: u64,
    /// The first and the last training steps, from which findings are made.
    ends: StepWindow<StepMetrics>,
    /// The first error of a line, and the number of lines that could not be read.
    error: Option<(String, usize)>,
    /// The number of times that the metrics file was read from its first line: once, and again each time that the run has replaced the
    /// file.
    pub(super) generation: usize,
}

/// A value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    /// The step, from 1; 0 for the validation before the first step.
    pub(super) step: u64,
    /// The value, which is finite.
    pub(super) value: f64,
}

impl Columns {
    /// Returns the names of the metrics, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Returns the values of a metric, by step; empty for a metric that the run does not have.
    pub(super) fn points(&self, name: &str) -> &[Point] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the last value of a metric, or `None` if the run does not have the metric.
    pub(super) fn last(&self, name: &str) -> Option<f64> {
        self.points(name).last().map(|point| point.value)
    }

    /// Returns the metrics of a step, including the metrics of the validation after it.
    pub(super) fn of_step(&self, step: u64) -> BTreeMap<&str, f64> {
        let value = |points: &[Point]| {
            let after = points.partition_point(|point| point.step <= step);
            points[..after].last().filter(|point| point.step == step).map(|point| point.value)
        };
        let columns = self.by_name.iter();
        columns.filter_map(|(name, points)| Some((name.as_str(), value(points)?))).collect()
    }

    /// Returns the kind of the round of a training step; empty if the step has no line, or its line names no kind.
    pub(super) fn round(&self, step: u64) -> &str {
        let at = self.rounds.partition_point(|(other, _)| *other < step);
        self.rounds.get(at).filter(|(other, _)| *other == step).map_or("", |(_, round)| round)
    }

    /// Returns the findings over the last steps: first the trend of the score, then the problems from the severest.
    pub(super) fn findings(&self) -> Vec<Finding> {
        findings(&self.ends)
    }

    /// Describes the lines that could not be read. Returns `None` if all lines were read.
    pub(super) fn warning(&self) -> Option<String> {
        let (error, count) = self.error.as_ref()?;
        let more = if *count > 1 { format!(" ({count} such lines)") } else { String::new() };
        Some(format!("left out a line: {error}{more}"))
    }
}

impl MetricsSink for Columns {
    fn clear(&mut self) {
        *self = Self { generation: self.generation + 1, ..Self::default() };
    }

    fn line(&mut self, line: Result<StepMetrics, ReadError>) {
        self.lines += 1;
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                let (_, count) = self.error.get_or_insert_with(|| (error.to_string(), 0));
                *count += 1;
                return;
            }
        };
        let step = line.step;
        for (name, value) in &line.data {
            // A value that is not finite is null in JSON.
            let Some(value) = value.as_f64() else { continue };
            match self.by_name.get_mut(name) {
                Some(points) => points.push(Point { step, value }),
                None => drop(self.by_name.insert(name.clone(), vec![Point { step, value }])),
            }
        }
        if line.is_step() {
            self.steps = self.steps.max(step);
            self.rounds.push((step, line.round.clone()));
            self.ends.push(line);
        }
    }
}

/// The part of a metric that a chart shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct CurveOptions {
    pub(super) from: u64,
    /// The last step, included.
    pub(super) to: u64,
    /// The weight of the past in the exponential moving average, from 0 (none) to less than 1.
    pub(super) smoothing: f64,
    /// The maximum number of points, which a curve may exceed by one.
    pub(super) points: usize,
}

/// A downsampled curve: one point per group of neighboring steps.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Curve {
    /// The last step of each group.
    pub(super) x: Vec<u64>,
    /// The mean of the smoothed values of the group.
    pub(super) y: Vec<f64>,
    /// The minimum of the group before smoothing.
    pub(super) min: Vec<f64>,
    /// The maximum of the group before smoothing.
    pub(super) max: Vec<f64>,
}

impl Curve {
    /// Returns the downsampled curve of a metric over the steps from `options.from` to `options.to`. `points` are all values of the metric;
    /// the moving average also covers the values before `options.from`.
    ///
    /// Groups begin at multiples of their width in steps, a power of two. While the run adds steps, earlier groups stay as they are or
    /// merge in pairs.
    pub(super) fn of(points: &[Point], options: CurveOptions) -> Self {
        let smooth = smoothed(points, options.smoothing);
        let begin = points.partition_point(|point| point.step < options.from);
        let end = points.partition_point(|point| point.step <= options.to).max(begin);
        let steps = match &points[begin..end] {
            [first, .., last] => last.step - first.step + 1,
            _ => 1,
        };
        let width = steps.div_ceil(options.points.max(1) as u64).next_power_of_two();
        let mut curve = Self::default();
        let mut at = begin;
        while at < end {
            let group = points[at].step / width;
            let count = points[at..end].partition_point(|point| point.step / width == group);
            curve.push(&points[at..at + count], &smooth[at..at + count]);
            at += count;
        }
        curve
    }

    fn push(&mut self, points: &[Point], smooth: &[f64]) {
        let values = || points.iter().map(|point| point.value);
        self.x.extend(points.last().map(|point| point.step));
        self.y.push(smooth.iter().sum::<f64>() / smooth.len() as f64);
        self.min.push(values().fold(f64::INFINITY, f64::min));
        self.max.push(values().fold(f64::NEG_INFINITY, f64::max));
    }
}

/// Returns the exponential moving average, corrected for its start from 0 (Adam's correction of the bias).
fn smoothed(points: &[Point], weight: f64) -> Vec<f64> {
    let (mut average, mut share) = (0.0, 1.0);
    let next = |point: &Point| {
        average = weight * average + (1.0 - weight) * point.value;
        share *= weight;
        average / (1.0 - share)
    };
    points.iter().map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(values: impl IntoIterator<Item = f64>) -> Vec<Point> {
        let numbered = values.into_iter().zip(1..);
        numbered.map(|(value, step)| Point { step, value }).collect()
    }

    const ALL: CurveOptions = CurveOptions { from: 0, to: u64::MAX, smoothing: 0.0, points: 500 };

    #[test]
    fn few_points_are_kept_as_they_are() {
        let curve = Curve::of(&points([3.0, 1.0, 2.0]), ALL);
        assert_eq!((curve.x, curve.y), (vec![1, 2, 3], vec![3.0, 1.0, 2.0]));
    }

    #[test]
    fn many_points_are_grouped_with_their_extremes() {
        let values =
            points((1..=5000).map(|step| if step == 4000 { 1e6 } else { f64::from(step) }));
        let curve = Curve::of(&values, ALL);
        assert!(curve.x.len() <= 501 && curve.x.len() > 250, "{}", curve.x.len());
        assert_eq!(curve.max.iter().copied().fold(0.0, f64::max), 1e6);
        assert_eq!((curve.x.last(), curve.min[0]), (Some(&5000), 1.0));
        assert!(curve.x.is_sorted() && curve.min.iter().zip(&curve.y).all(|(min, y)| min <= y));
    }

    #[test]
    fn a_range_has_its_own_points() {
        let curve = Curve::of(
            &points((1..=5000).map(f64::from)),
            CurveOptions { from: 100, to: 110, ..ALL },
        );
        assert_eq!(curve.x, (100..=110).collect::<Vec<_>>());
        assert_eq!(
            Curve::of(&points([1.0]), CurveOptions { from: 5, to: 2, ..ALL }),
            Curve::default()
        );
    }

    #[test]
    fn smoothing_keeps_a_constant_and_damps_a_peak() {
        let smoothing = CurveOptions { smoothing: 0.9, ..ALL };
        let close = |value: &f64| (value - 2.0).abs() < 1e-12;
        assert!(Curve::of(&points([2.0; 50]), smoothing).y.iter().all(close));
        let peak = Curve::of(&points([0.0, 0.0, 0.0, 10.0]), smoothing);
        assert!(peak.y[3] > 0.0 && peak.y[3] < 5.0);
        assert_eq!(peak.max[3], 10.0);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_left_out_and_reported() {
        let mut columns = Columns::default();
        let line = serde_json::from_str(r#"{"step":3,"round":"full","data":{"a":1.5,"b":null}}"#);
        columns.line(Err(ReadError::NoResponses("line 1".to_owned())));
        columns.line(Ok(line.expect("a line")));
        assert_eq!(columns.of_step(3), BTreeMap::from([("a", 1.5)]));
        assert_eq!((columns.steps, columns.lines, columns.of_step(2).len()), (3, 2, 0));
        assert_eq!(columns.warning().expect("a warning"), "left out a line: line 1");
    }
}
