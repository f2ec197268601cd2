//! Sweeps: the cross product of settings, each configuration run with each seed, on all cores.

use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use toml::Table;

use super::job::Job;
use super::outcome::Outcome;
use super::raw::RawJob;
use super::summary::Summary;
use super::variant::{self, Variant};
use crate::recipe::{RecipeError, from_table, overlay, read_table};

/// A setting and the values that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Values by name, each with the settings that make it.
    values: Vec<(String, Vec<String>)>,
}

/// A configuration, and what came of it.
#[derive(Clone, Debug)]
pub struct Configured {
    /// Its name in tables.
    pub label: String,
    /// What it overrides in the job.
    pub settings: Vec<String>,
    /// The seeds of the outcomes.
    pub seeds: Vec<u64>,
    /// One a seed.
    pub outcomes: Vec<Outcome>,
    /// Where its baseline is among the configurations.
    pub baseline: usize,
}

/// The configurations of a sweep, to be run.
#[derive(Clone, Debug)]
pub struct Sweep {
    points: Vec<Point>,
}

#[derive(Clone, Debug)]
struct Point {
    label: String,
    settings: Vec<String>,
    job: Job,
    baseline: usize,
}

impl Axis {
    /// Reads `key=a,b,c`. Commas within brackets, braces and quotes separate nothing; `schedule.name=all` is every schedule.
    ///
    /// # Errors
    /// If it is not of that form.
    pub fn parse(text: &str) -> Result<Self, RecipeError> {
        let wrong = || RecipeError::Override { text: text.to_owned() };
        let (key, values) = text.split_once('=').ok_or_else(wrong)?;
        let key = key.trim();
        if key.is_empty() || values.trim().is_empty() {
            return Err(wrong());
        }
        if (key, values.trim()) == ("schedule.name", "all") {
            return Ok(Self::schedules());
        }
        let name = |value: &str| match key {
            "schedule.name" => value.to_owned(),
            key => format!("{}={value}", key.rsplit('.').next().unwrap_or(key)),
        };
        let values = split(values).into_iter().map(|value| {
            let value = value.trim();
            (name(value), vec![format!("{key}={value}")])
        });
        Ok(Self { values: values.collect() })
    }

    /// Every schedule as its authors run it.
    #[must_use]
    pub fn schedules() -> Self {
        let value = |variant: &Variant| {
            let settings = variant.settings.iter().map(|&setting| setting.to_owned());
            (variant.label.to_owned(), settings.collect())
        };
        Self { values: variant::ALL.iter().map(value).collect() }
    }
}

/// Splits at the commas that are outside of brackets, braces and quotes.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut quoted, mut start, mut parts) = (0_usize, false, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '[' | '{' if !quoted => depth += 1,
            ']' | '}' if !quoted => depth = depth.saturating_sub(1),
            ',' if !quoted && depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

impl Sweep {
    /// The cross product of `axes` over the job in `path` with `overrides`, in their order, and before them the baselines that are not
    /// among it. `change` is applied to each job.
    ///
    /// # Errors
    /// If a configuration is no valid job; it is named.
    pub fn read(
        path: &Path,
        overrides: &[String],
        axes: &[Axis],
        change: &dyn Fn(&mut RawJob),
    ) -> anyhow::Result<Self> {
        let table = read_table(path, overrides)?;
        let mut wanted = Vec::new();
        for (label, settings) in product(axes) {
            let raw = point(table.clone(), &settings, change);
            wanted.push((label.clone(), settings, raw.with_context(|| named(&label))?));
        }
        let mut sweep = Self { points: Vec::new() };
        for (label, _, raw) in &wanted {
            let baseline = raw.baseline();
            if !sweep.has(&baseline) && !wanted.iter().any(|(.., raw)| *raw == baseline) {
                let label = if label.is_empty() {
                    "sync".to_owned()
                } else {
                    format!("sync, beside {label}")
                };
                sweep
                    .add("sync".to_owned(), vec!["schedule.name=sync".to_owned()], baseline)
                    .with_context(|| named(&label))?;
            }
        }
        for (label, settings, raw) in wanted {
            let shown = if label.is_empty() { raw.schedule.name.clone() } else { label };
            let failed = named(&shown);
            sweep.add(shown, settings, raw).context(failed)?;
        }
        sweep.find_baselines();
        Ok(sweep)
    }

    fn has(&self, raw: &RawJob) -> bool {
        self.points.iter().any(|point| point.job.raw == *raw)
    }

    fn add(&mut self, label: String, settings: Vec<String>, raw: RawJob) -> anyhow::Result<()> {
        // A trace is read once for all.
        let trace = self.points.iter().find(|point| point.job.raw.lengths == raw.lengths);
        let trace = trace.and_then(|point| point.job.trace.clone());
        let job = Job::resolve(raw, trace)?;
        self.points.push(Point { label, settings, job, baseline: 0 });
        Ok(())
    }

    fn find_baselines(&mut self) {
        for index in 0..self.points.len() {
            let baseline = self.points[index].job.raw.baseline();
            self.points[index].baseline = self
                .points
                .iter()
                .position(|point| point.job.raw == baseline)
                .expect("invariant: every baseline was added");
        }
    }

    /// How many runs there are.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.points.iter().map(|point| point.job.seeds().len()).sum()
    }

    /// The jobs, in order.
    pub fn jobs_mut(&mut self) -> impl Iterator<Item = &mut Job> {
        self.points.iter_mut().map(|point| &mut point.job)
    }

    /// The first job.
    #[must_use]
    pub fn job(&self) -> Option<&Job> {
        self.points.first().map(|point| &point.job)
    }

    /// Runs everything on `threads` threads; `run` is one run with one seed, `done` is told after each. The result does not depend on
    /// the number of threads.
    ///
    /// # Errors
    /// That of the first run that failed; the configuration and the seed are named.
    pub fn run(
        self,
        threads: NonZero<usize>,
        run: &(dyn Fn(&Job, u64) -> anyhow::Result<Outcome> + Sync),
        done: &(dyn Fn() + Sync),
    ) -> anyhow::Result<Vec<Configured>> {
        let tasks: Vec<(&Point, u64)> = self
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
            .map(|point| Configured {
                label: point.label.clone(),
                settings: point.settings.clone(),
                seeds: point.job.seeds(),
                outcomes: outcomes.by_ref().take(point.job.seeds().len()).collect(),
                baseline: point.baseline,
            })
            .collect())
    }
}

/// Summaries of the configurations, each beside its baseline.
#[must_use]
pub fn summaries(runs: &[Configured]) -> Vec<Summary> {
    runs.iter()
        .filter_map(|run| {
            let baseline = &runs[run.baseline].outcomes;
            Summary::of(run.label.clone(), run.settings.clone(), &run.outcomes, baseline)
        })
        .collect()
}

/// Calls `work` with 0, 1, .. `count` on `threads` threads; the results are in that order.
fn parallel<T: Send>(
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

/// Labels and settings of the cross product; one without any where there is no axis.
fn product(axes: &[Axis]) -> Vec<(String, Vec<String>)> {
    let mut points = vec![(Vec::new(), Vec::new())];
    for axis in axes {
        points = points
            .into_iter()
            .flat_map(|(labels, settings): (Vec<String>, Vec<String>)| {
                axis.values.iter().map(move |(label, more)| {
                    (
                        [&labels[..], std::slice::from_ref(label)].concat(),
                        [&settings[..], &more[..]].concat(),
                    )
                })
            })
            .collect();
    }
    points.into_iter().map(|(labels, settings)| (labels.join(" "), settings)).collect()
}

fn point(
    mut table: Table,
    settings: &[String],
    change: &dyn Fn(&mut RawJob),
) -> Result<RawJob, RecipeError> {
    for setting in settings {
        overlay(&mut table, setting)?;
    }
    let mut raw = from_table(table)?;
    change(&mut raw);
    Ok(raw)
}

fn named(label: &str) -> String {
    if label.is_empty() { "the job".to_owned() } else { format!("configuration {label}") }
}
