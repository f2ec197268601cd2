//! Items: a table or figure of a paper, and what each of its numbers is here.

use super::cell::{Cell, Measure};
use super::plan::Plan;
use super::runs::{JobId, Runs};

/// A table or figure.
pub(super) struct Item {
    source: &'static str,
    name: &'static str,
    targets: Vec<Target>,
    /// The jobs that it needs.
    pub(super) jobs: Vec<JobId>,
}

/// Whether the fit of the model knew a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Provenance {
    /// A constant was fitted to it, or chosen with it in view.
    Fitted,
    /// It was kept out of the fit.
    HeldOut,
}

struct Target {
    cell: String,
    paper: f64,
    measure: Measure,
    provenance: Provenance,
    ours: Box<dyn Fn(&Runs) -> f64>,
}

impl Item {
    /// The item `name` of `source`, with the targets that `fill` adds and the jobs that it plans.
    pub(super) fn new(
        plan: &mut Plan,
        source: &'static str,
        name: &'static str,
        fill: impl FnOnce(&mut Self, &mut Plan),
    ) -> Self {
        let mut item = Self { source, name, targets: Vec::new(), jobs: Vec::new() };
        plan.take_asked();
        fill(&mut item, plan);
        item.jobs = plan.take_asked();
        item
    }

    /// What it is called.
    pub(super) fn title(&self) -> String {
        format!("{}, {}", self.source, self.name)
    }

    /// A time, speed-up, throughput or length.
    pub(super) fn relative(
        &mut self,
        cell: impl Into<String>,
        paper: f64,
        provenance: Provenance,
        ours: impl Fn(&Runs) -> f64 + 'static,
    ) {
        self.add(cell.into(), paper, Measure::Relative, provenance, Box::new(ours));
    }

    /// A share, a ratio to a variant, or a correlation.
    pub(super) fn points(
        &mut self,
        cell: impl Into<String>,
        paper: f64,
        provenance: Provenance,
        ours: impl Fn(&Runs) -> f64 + 'static,
    ) {
        self.add(cell.into(), paper, Measure::Points, provenance, Box::new(ours));
    }

    fn add(
        &mut self,
        cell: String,
        paper: f64,
        measure: Measure,
        provenance: Provenance,
        ours: Box<dyn Fn(&Runs) -> f64>,
    ) {
        self.targets.push(Target { cell, paper, measure, provenance, ours });
    }

    /// Its numbers beside those of the runs.
    pub(super) fn cells(&self, runs: &Runs) -> Vec<Cell> {
        let cell = |target: &Target| {
            let Target { paper, measure, .. } = *target;
            let ours = (target.ours)(runs);
            Cell {
                source: self.source,
                item: self.name,
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
