//! Sweeps: the cross product of settings, run with each seed on several threads.

use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail};
use toml::Table;

use super::axis::{Axis, GridPoint, product};
use super::configuration::ConfigurationRuns;
use super::job::Job;
use super::outcome::RunOutcome;
use super::overrides::{overlay_all, read_table};
use super::raw::RawJob;
use super::setup::Setup;
use super::trace::TraceSummary;
use crate::recipe::{RecipeError, from_table};

/// The configurations of a sweep and their baselines.
#[derive(Clone, Debug)]
pub struct Sweep {
    points: Vec<SweepPoint>,
}

#[derive(Clone, Debug)]
struct SweepPoint {
    label: String,
    /// The labels of the swept values whose keys do not belong to the schedule.
    job_label: String,
    settings: Vec<String>,
    job: Job,
    /// The index of the baseline among the points of the sweep.
    baseline: usize,
    /// `true` if the configuration was requested, `false` if it was added as a baseline.
    requested: bool,
}

impl Sweep {
    /// Reads the job in `path` with `overrides` and forms the cross product of `axes` over it, in their order. `change` is applied to each
    /// job before it is checked, and baselines are derived from the changed jobs.
    ///
    /// Every configuration needs a baseline. A baseline that is one of the configurations (the same run, by its canonical form) is not
    /// added again. All other baselines are added before the configurations, each once even if several configurations share it. If an added
    /// baseline has the name of a configuration, "baseline" is appended to its name.
    ///
    /// # Errors
    /// If the file cannot be read, two axes have the same key, or a configuration is not a valid job; the error names the file, the key or
    /// the configuration.
    pub fn read(
        path: &Path,
        overrides: &[String],
        axes: &[Axis],
        change: &dyn Fn(&mut RawJob),
    ) -> anyhow::Result<Self> {
        Axis::check_keys(axes)?;
        let table = read_table(path, overrides)?;
        let mut wanted = ResolvedPoints::default();
        for grid_point in product(axes) {
            let raw = read(table.clone(), &grid_point.settings, change);
            let raw = raw.with_context(|| named(&grid_point.label()))?;
            let entry = wanted.entry(grid_point, raw)?;
            wanted.merge(entry);
        }
        let (mut before, mut baselines) = (ResolvedPoints::default(), Vec::new());
        for ResolvedPoint { grid_point, job, .. } in &wanted.0 {
            let baseline = wanted.entry(grid_point.baseline(), job.raw.baseline())?;
            baselines.push(baseline.canonical.clone());
            if wanted.position(&baseline).is_none() {
                before.merge(baseline);
            }
        }
        before.mark_ambiguous_labels(&wanted);
        let alone = before.0.iter().map(|entry| entry.canonical.clone());
        let baselines = alone.chain(baselines).collect::<Vec<_>>();
        let added = before.0.len();
        let all: Vec<ResolvedPoint> = before.0.into_iter().chain(wanted.0).collect();
        let index = |baseline: &RawJob| all.iter().position(|entry| entry.canonical == *baseline);
        let found = baselines.iter().map(index).collect::<Option<Vec<_>>>();
        let found = found.expect("invariant: every baseline was added");
        let mut points: Vec<SweepPoint> =
            all.into_iter().zip(found).map(ResolvedPoint::point).collect();
        points.iter_mut().skip(added).for_each(|point| point.requested = true);
        Ok(Self { points })
    }

    /// Returns the same configurations at the upper end of the within-prompt correlation. Jobs that set the correlation, have no trace, or
    /// have a trace that determines it are not changed; returns `None` if this holds for all jobs.
    #[must_use]
    pub fn at_upper_correlation(&self) -> Option<Self> {
        let mut upper = self.clone();
        let mut is_open = false;
        for job in upper.jobs_mut() {
            if let Some(high) = job.upper_correlation() {
                job.raw.lengths.correlation = Some(high);
                is_open = true;
            }
        }
        is_open.then_some(upper)
    }

    /// Returns the configurations at `indices` and their baselines, with `settings` (`key=value` each) applied to every job. Each job runs
    /// with a single seed. The result has no job labels, so that all configurations are compared with each other as one job. Only the
    /// configurations at `indices` count as requested.
    ///
    /// # Errors
    /// If an index is out of range, or a configuration is not a valid job after `settings` are applied; the error names the index or the
    /// configuration.
    pub fn with_assumption(&self, indices: &[usize], settings: &[String]) -> anyhow::Result<Self> {
        let count = self.points.len();
        if let Some(index) = indices.iter().find(|&&index| index >= count) {
            bail!("expected indices below {count}, the number of configurations, found {index}");
        }
        let wanted = |index: &usize| {
            let is_baseline_of = |requested: &usize| self.points[*requested].baseline == *index;
            indices.contains(index) || indices.iter().any(is_baseline_of)
        };
        let kept: Vec<usize> = (0..count).filter(wanted).collect();
        let point = |&index: &usize| {
            let point = self.points[index].clone();
            let job = point.job.with_overrides(settings).with_context(|| named(&point.label))?;
            let baseline = kept
                .iter()
                .position(|&kept| kept == point.baseline)
                .expect("invariant: the baselines of the kept configurations are kept");
            Ok(SweepPoint {
                job,
                baseline,
                requested: indices.contains(&index),
                job_label: String::new(),
                ..point
            })
        };
        Ok(Self { points: kept.iter().map(point).collect::<anyhow::Result<_>>()? })
    }

    /// Returns the job of the configuration with the index `index`, or `None` if there is no such configuration.
    #[must_use]
    pub fn job_at(&self, index: usize) -> Option<&Job> {
        self.points.get(index).map(|point| &point.job)
    }

    /// Returns the number of runs: one for each seed of each configuration, including the added baselines.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.points.iter().map(|point| point.job.seeds().len()).sum()
    }

    /// Returns the jobs of all configurations, including the added baselines, in order.
    pub fn jobs_mut(&mut self) -> impl Iterator<Item = &mut Job> {
        self.points.iter_mut().map(|point| &mut point.job)
    }

    /// Returns the summaries of the traces that the jobs use, each once.
    #[must_use]
    pub fn traces(&self) -> Vec<TraceSummary> {
        let mut traces = Vec::new();
        for trace in self.points.iter().filter_map(|point| point.job.trace_summary()) {
            if !traces.contains(&trace) {
                traces.push(trace);
            }
        }
        traces
    }

    /// Returns the minimum number of steps of any job, including the warm-up; 0 without jobs.
    #[must_use]
    pub fn min_steps(&self) -> u64 {
        self.points.iter().map(|point| point.job.total_steps()).min().unwrap_or(0)
    }

    /// Returns the first job, which may be the job of an added baseline, or `None` without jobs.
    #[must_use]
    pub fn job(&self) -> Option<&Job> {
        self.points.first().map(|point| &point.job)
    }

    /// Runs each job with each of its seeds, on at most `threads` threads. `run` performs one run with one seed; `done` is called after
    /// each run. All runs are performed even if one fails. The result does not depend on the number of threads.
    ///
    /// # Errors
    /// If a run fails. The error is the error of the first failed run in the order of the configurations, and names the configuration and
    /// the seed.
    pub fn run(
        self,
        threads: NonZero<usize>,
        run: &(dyn Fn(&Job, u64) -> anyhow::Result<RunOutcome> + Sync),
        done: &(dyn Fn() + Sync),
    ) -> anyhow::Result<Vec<ConfigurationRuns>> {
        let tasks: Vec<(&SweepPoint, u64)> = self
            .points
            .iter()
            .flat_map(|point| point.job.seeds().into_iter().map(move |seed| (point, seed)))
            .collect();
        let outcomes = parallel(threads, tasks.len(), |index| {
            let (point, seed) = tasks[index];
            let outcome = run(&point.job, seed)
                .with_context(|| format!("{}, seed {seed}", named(&point.label)));
            done();
            outcome
        });
        let mut outcomes = outcomes.into_iter().collect::<anyhow::Result<Vec<_>>>()?.into_iter();
        Ok(self
            .points
            .iter()
            .map(|point| {
                let seeds = point.job.seeds();
                point.configured(outcomes.by_ref().take(seeds.len()).collect())
            })
            .collect())
    }
}

impl SweepPoint {
    fn configured(&self, outcomes: Vec<RunOutcome>) -> ConfigurationRuns {
        ConfigurationRuns {
            label: self.label.clone(),
            job: self.job_label.clone(),
            settings: self.settings.clone(),
            setup: Setup::of(&self.job, &outcomes),
            seeds: self.job.seeds(),
            outcomes,
            baseline: self.baseline,
            requested: self.requested,
            on_policy: self.job.is_on_policy(),
        }
    }
}

/// Calls `work` with each index below `count` on at most `threads` threads and returns the results in the order of the indices.
pub(super) fn parallel<T: Send>(
    threads: NonZero<usize>,
    count: usize,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..threads.get().min(count) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    let result = work(index);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A job to run, at its point of the cross product.
struct ResolvedPoint {
    grid_point: GridPoint,
    job: Job,
    canonical: RawJob,
}

impl ResolvedPoint {
    fn point((Self { grid_point, job, .. }, baseline): (Self, usize)) -> SweepPoint {
        let named = !grid_point.labels.is_empty();
        let label = if named { grid_point.label() } else { job.raw.schedule.name.clone() };
        let job_label = grid_point.job.join(" ");
        SweepPoint {
            label,
            job_label,
            settings: grid_point.settings,
            job,
            baseline,
            requested: false,
        }
    }
}

/// The jobs to run, in which equal `sync` jobs occur only once.
#[derive(Default)]
struct ResolvedPoints(Vec<ResolvedPoint>);

impl ResolvedPoints {
    /// Resolves a job. A trace with the same settings is shared with an entry that has read it.
    fn entry(&self, grid_point: GridPoint, raw: RawJob) -> anyhow::Result<ResolvedPoint> {
        let read = self.0.iter().find(|entry| entry.job.raw.lengths == raw.lengths);
        let trace = read.and_then(|entry| entry.job.trace.clone());
        let job = Job::resolve(raw, trace).with_context(|| named(&grid_point.label()))?;
        Ok(ResolvedPoint { grid_point, canonical: job.canonical(), job })
    }

    /// Adds a job. A `sync` job that is the same run as a known job is merged into the known job, which keeps only the labels and settings
    /// that both have.
    fn merge(&mut self, entry: ResolvedPoint) {
        let is_baseline = entry.job.raw.schedule.name == "sync";
        match self.position(&entry).filter(|_| is_baseline) {
            Some(index) => self.0[index].grid_point.retain_common(&entry.grid_point),
            None => self.0.push(entry),
        }
    }

    /// Marks the baselines that have the same label as a requested configuration.
    fn mark_ambiguous_labels(&mut self, wanted: &Self) {
        for ResolvedPoint { grid_point, .. } in &mut self.0 {
            let label = grid_point.label();
            if wanted.0.iter().any(|entry| entry.grid_point.label() == label) {
                grid_point.labels.push("baseline".to_owned());
            }
        }
    }

    fn position(&self, entry: &ResolvedPoint) -> Option<usize> {
        self.0.iter().position(|known| known.canonical == entry.canonical)
    }
}

fn read(
    mut table: Table,
    settings: &[String],
    change: &dyn Fn(&mut RawJob),
) -> Result<RawJob, RecipeError> {
    overlay_all(&mut table, settings)?;
    let mut raw: RawJob = from_table(table)?;
    change(&mut raw);
    raw.drop_unused(settings)?;
    Ok(raw)
}

fn named(label: &str) -> String {
    if label.is_empty() { "the job".to_owned() } else { format!("configuration {label}") }
}

#[cfg(test)]
mod tests;
