//! The plan of jobs to run; each job is run once, even if several items need it.

use std::num::NonZero;

use anyhow::Context;
use toml::Table;

use super::super::job::Job;
use super::super::overrides::overlay_all;
use super::super::raw::RawJob;
use super::super::run;
use super::super::sweep::parallel;
use super::jobs::Base;
use super::runs::{JobId, PaperRuns};
use crate::recipe::from_table;

/// The jobs to run, and the seeds, steps and overrides that they share.
pub(super) struct Plan {
    size: PlanSize,
    /// Settings of every job, applied after its own.
    overrides: Vec<String>,
    wanted: Vec<PlannedJob>,
    /// The jobs that were added or looked up since the last call of [`take_requested`](Self::take_requested).
    requested: Vec<JobId>,
}

/// The number of seeds and steps of each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanSize {
    /// The number of seeds of each job.
    pub seeds: NonZero<u64>,
    /// The maximum number of measured steps; `None` for as many as the job has.
    pub steps: Option<NonZero<u64>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PlannedJob {
    base: Base,
    settings: Vec<String>,
    kept: bool,
}

impl Plan {
    pub(super) fn new(size: PlanSize, overrides: Vec<String>) -> Self {
        Self { size, overrides, wanted: Vec::new(), requested: Vec::new() }
    }

    /// Adds the job `base` with `settings`, `key=value` each, or finds it if the plan has it already.
    pub(super) fn job<S: Into<String>>(
        &mut self,
        base: Base,
        settings: impl IntoIterator<Item = S>,
    ) -> JobId {
        let settings = settings.into_iter().map(Into::into);
        let settings = settings.chain(self.overrides.iter().cloned()).collect();
        let job = PlannedJob { base, settings, kept: true };
        let known = self.wanted.iter().position(|wanted| *wanted == job);
        let id = JobId(known.unwrap_or(self.wanted.len()));
        if known.is_none() {
            self.wanted.push(job);
        }
        if !self.requested.contains(&id) {
            self.requested.push(id);
        }
        id
    }

    /// Returns the jobs that were requested through [`job`](Self::job) since the last call.
    pub(super) fn take_requested(&mut self) -> Vec<JobId> {
        std::mem::take(&mut self.requested)
    }

    /// Restricts the runs to these jobs.
    pub(super) fn keep(&mut self, jobs: impl Iterator<Item = JobId>) {
        self.wanted.iter_mut().for_each(|wanted| wanted.kept = false);
        jobs.for_each(|JobId(job)| self.wanted[job].kept = true);
    }

    /// Returns the command that runs a job by itself, with all steps of the job.
    pub(super) fn command(&self, JobId(job): JobId) -> String {
        let PlannedJob { base, settings, .. } = &self.wanted[job];
        let quoted = |setting: &String| {
            let needs_quotes = setting.contains(['[', '{', '"', ' ']);
            if needs_quotes { format!("'{setting}'") } else { setting.clone() }
        };
        let settings: Vec<String> = settings.iter().map(quoted).collect();
        let (path, seeds) = (base.path, self.size.seeds);
        format!("rollpacker simulate --config {path} --seeds {seeds} {}", settings.join(" "))
            .trim_end()
            .to_owned()
    }

    /// Returns the number of runs of [`run`](Self::run): one for each seed of each distinct job that is kept.
    ///
    /// # Errors
    /// If a job is not valid.
    pub(super) fn runs(&self) -> anyhow::Result<usize> {
        let (jobs, _) = self.distinct()?;
        Ok(jobs.iter().map(|job| job.seeds().len()).sum())
    }

    /// Runs the distinct jobs that are kept, the largest first so that no thread ends long after the others, and calls `done` after each
    /// run.
    ///
    /// # Errors
    /// If a job is not valid or its run fails.
    pub(super) fn run(
        &self,
        threads: NonZero<usize>,
        done: &(dyn Fn() + Sync),
    ) -> anyhow::Result<PaperRuns> {
        let (jobs, of) = self.distinct()?;
        let mut tasks: Vec<(usize, u64)> = (jobs.iter().enumerate())
            .flat_map(|(index, job)| job.seeds().into_iter().map(move |seed| (index, seed)))
            .collect();
        let size = |job: &Job| job.total_steps() * job.raw.data.train_batch_size as u64;
        tasks.sort_by_key(|&(index, seed)| (std::cmp::Reverse(size(&jobs[index])), index, seed));
        let outcomes = parallel(threads, tasks.len(), |task| {
            let (index, seed) = tasks[task];
            let job = &jobs[index];
            let outcome =
                run::run(job, seed).with_context(|| format!("{}, seed {seed}", job.title()));
            done();
            outcome
        });
        let mut by_job: Vec<Vec<_>> = jobs.iter().map(|_| Vec::new()).collect();
        for ((index, _), outcome) in tasks.iter().zip(outcomes) {
            by_job[*index].push(outcome?);
        }
        Ok(PaperRuns::new(by_job, of))
    }

    /// Returns the distinct jobs that are run, and for each job of the plan its index among the distinct jobs, or `None` if it is not run.
    fn distinct(&self) -> anyhow::Result<(Vec<Job>, Vec<Option<usize>>)> {
        let (mut jobs, mut of): (Vec<Job>, _) = (Vec::new(), Vec::new());
        let mut canonical = Vec::new();
        for (id, wanted) in self.wanted.iter().enumerate() {
            if !wanted.kept {
                of.push(None);
                continue;
            }
            let raw = wanted.raw(self.size).with_context(|| self.command(JobId(id)))?;
            let job = Job::resolve(raw, None).with_context(|| self.command(JobId(id)))?;
            let runs = job.canonical();
            let known = canonical.iter().position(|known| *known == runs);
            of.push(Some(known.unwrap_or(jobs.len())));
            if known.is_none() {
                jobs.push(job);
                canonical.push(runs);
            }
        }
        Ok((jobs, of))
    }
}

impl PlannedJob {
    fn raw(&self, size: PlanSize) -> anyhow::Result<RawJob> {
        let mut table: Table = self.base.text.parse()?;
        overlay_all(&mut table, &self.settings)?;
        let mut raw: RawJob = from_table(table)?;
        raw.sim.seeds = size.seeds.get();
        raw.sim.steps = size.steps.map_or(raw.sim.steps, |max| raw.sim.steps.min(max.get()));
        Ok(raw)
    }
}
