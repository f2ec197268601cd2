//! Items: a table or figure of a paper, and how each of its numbers is computed from simulated runs.

use super::cell::{ErrorMeasure, PaperCell};
use super::plan::Plan;
use super::runs::{JobId, PaperRuns};

/// A table or figure of a paper, or another group of numbers from the paper or the repository of its authors.
pub(super) struct Item {
    /// The name of the paper, also for numbers from the repository of its authors.
    source: &'static str,
    /// The name of the table or figure, such as `Fig. 10`, or a description of the group of numbers.
    name: &'static str,
    /// The experiment as the source describes it, and how the simulated experiment differs.
    pub(super) setting: &'static str,
    targets: Vec<PaperTarget>,
    pub(super) jobs: Vec<JobId>,
}

/// The relation of a number to the fit of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Provenance {
    /// A constant was fitted to the number, or chosen with knowledge of the number.
    Fitted,
    /// The number was held out of the fit.
    HeldOut,
}

/// A function that computes the simulated value from the runs.
pub(super) type SimulatedValue = Box<dyn Fn(&PaperRuns) -> f64>;

struct PaperTarget {
    cell: String,
    paper: f64,
    measure: ErrorMeasure,
    provenance: Provenance,
    ours: SimulatedValue,
}

impl Item {
    /// Creates the item `name` of `source` with the targets that `fill` adds and the jobs that it plans. `setting` describes the experiment
    /// of the source, with the section, and how the simulated experiment differs.
    pub(super) fn new(
        plan: &mut Plan,
        source: &'static str,
        name: &'static str,
        setting: &'static str,
        fill: impl FnOnce(&mut Self, &mut Plan),
    ) -> Self {
        let mut item = Self { source, name, setting, targets: Vec::new(), jobs: Vec::new() };
        plan.take_requested();
        fill(&mut item, plan);
        item.jobs = plan.take_requested();
        item
    }

    /// Returns the title: source and name.
    pub(super) fn title(&self) -> String {
        format!("{}, {}", self.source, self.name)
    }

    /// Adds a number whose error is relative: a time, speed-up, throughput or length.
    pub(super) fn relative(
        &mut self,
        cell: impl Into<String>,
        paper: f64,
        provenance: Provenance,
        ours: impl Fn(&PaperRuns) -> f64 + 'static,
    ) {
        self.add(cell.into(), paper, ErrorMeasure::Relative, provenance, Box::new(ours));
    }

    /// Adds a number whose error is in points: a share, a ratio to a variant, or a correlation.
    pub(super) fn points(
        &mut self,
        cell: impl Into<String>,
        paper: f64,
        provenance: Provenance,
        ours: impl Fn(&PaperRuns) -> f64 + 'static,
    ) {
        self.add(cell.into(), paper, ErrorMeasure::Points, provenance, Box::new(ours));
    }

    /// Adds the share of ratios whose direction agrees between the paper and the simulation: more than 1, less than 1, or within half a
    /// percent of 1. Each of `pairs` is the paper's ratio and the simulated ratio.
    pub(super) fn signs(&mut self, pairs: Vec<(f64, SimulatedValue)>) {
        self.points("signs that agree", 1.0, Provenance::HeldOut, move |runs| {
            let agree = pairs.iter().filter(|(paper, ours)| sign(*paper) == sign(ours(runs)));
            agree.count() as f64 / pairs.len() as f64
        });
    }

    /// Adds Spearman's rank correlation between the paper's values and the simulated values, which are the first and the second items of
    /// `pairs`.
    pub(super) fn order(&mut self, cell: impl Into<String>, pairs: Vec<(f64, SimulatedValue)>) {
        self.points(cell, 1.0, Provenance::HeldOut, move |runs| {
            let (paper, ours): (Vec<_>, Vec<_>) =
                pairs.iter().map(|(paper, ours)| (*paper, ours(runs))).unzip();
            rank_correlation(&paper, &ours)
        });
    }

    fn add(
        &mut self,
        cell: String,
        paper: f64,
        measure: ErrorMeasure,
        provenance: Provenance,
        ours: SimulatedValue,
    ) {
        self.targets.push(PaperTarget { cell, paper, measure, provenance, ours });
    }

    /// Evaluates the targets on the runs.
    pub(super) fn cells(&self, runs: &PaperRuns) -> Vec<PaperCell> {
        let cell = |target: &PaperTarget| {
            let PaperTarget { paper, measure, .. } = *target;
            let ours = (target.ours)(runs);
            PaperCell {
                source: self.source,
                item: self.name,
                setting: self.setting,
                cell: target.cell.clone(),
                paper,
                ours,
                error: measure.error(paper, ours),
                fitted: target.provenance == Provenance::Fitted,
                measure,
            }
        };
        self.targets.iter().map(cell).collect()
    }
}

/// The minimum deviation of a ratio from 1 that counts as a change.
const CHANGE: f64 = 0.005;

/// Returns the direction of a ratio: -1 below 1, 0 near 1, 1 above.
fn sign(ratio: f64) -> i8 {
    i8::from(ratio > 1.0 + CHANGE) - i8::from(ratio < 1.0 - CHANGE)
}

/// Returns Spearman's rank correlation; equal values share the mean of their ranks.
fn rank_correlation(one: &[f64], other: &[f64]) -> f64 {
    let (one, other) = (ranks(one), ranks(other));
    let middle = (one.len() as f64 - 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - middle) * (b - middle)).sum()
    };
    product(&one, &other) / (product(&one, &one) * product(&other, &other)).sqrt()
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count() as f64;
        let equal = values.iter().filter(|other| *other == value).count() as f64;
        below + (equal - 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_has_a_sign() {
        assert_eq!([0.9, 0.996, 1.0, 1.004, 1.1].map(sign), [-1, 0, 0, 0, 1]);
    }

    #[test]
    fn ranks_are_compared_and_ties_shared() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 9.0]), [1.5, 0.0, 1.5, 3.0]);
        assert_eq!(rank_correlation(&[1.0, 2.0, 3.0], &[10.0, 20.0, 900.0]), 1.0);
        assert_eq!(rank_correlation(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), -1.0);
        assert!((rank_correlation(&[1.0, 2.0, 3.0], &[1.0, 3.0, 2.0]) - 0.5).abs() < 1e-12);
    }
}
