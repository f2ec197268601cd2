//! Tests of whole simulated jobs: properties that hold for any constants of the cost model.

mod capacity;
mod curriculum;
mod equal_lengths;
mod event_model;
mod longest_first;
mod own_placement;
mod resources;

use std::cell::RefCell;
use std::rc::Rc;

use rollpacker_operators::report::{Observer, StepReport};

use super::job::Job;
use super::outcome::RunOutcome;
use super::raw::RawJob;
use super::run;
use crate::pipeline::Pipeline;
use crate::recipe::{from_table, overlay};

/// Returns the job of `base`, the text of a file, with `settings`, `key=value` each. As in a sweep, settings of `base` that `settings` make
/// useless are dropped.
fn job(base: &str, settings: &[String]) -> Job {
    let mut table = base.parse().expect("TOML");
    settings.iter().for_each(|setting| overlay(&mut table, setting).expect("a setting"));
    let mut raw: RawJob = from_table(table).expect("known keys");
    raw.drop_unused(settings).expect("a way to train");
    Job::resolve(raw, None).unwrap_or_else(|error| panic!("{settings:?}: {error:#}"))
}

fn owned(settings: &[&str]) -> Vec<String> {
    settings.iter().map(|&setting| setting.to_owned()).collect()
}

/// An observer that keeps the reports of a run.
#[derive(Default)]
struct Reports(Vec<StepReport>);

impl Observer for Reports {
    fn step(&mut self, report: StepReport) {
        self.0.push(report);
    }
}

fn reports(pipeline: Pipeline) -> Vec<StepReport> {
    let reports = Rc::new(RefCell::new(Reports::default()));
    pipeline.run(reports.clone()).expect("it runs");
    reports.take().0
}

/// Returns the mean seconds of a step.
fn step_seconds(job: &Job) -> f64 {
    let RunOutcome { steps, .. } = run::run(job, job.raw.sim.seed).expect("it runs");
    steps.iter().map(|step| step.seconds).sum::<f64>() / steps.len() as f64
}
