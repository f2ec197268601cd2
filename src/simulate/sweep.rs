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
    key: String,
    /// Values by name, each with the settings that make it.
    values: Vec<(String, Vec<String>)>,
}

/// The setting that tells a configuration from its baseline.
const SCHEDULE: &str = "schedule.name";

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
    /// Whether every trained token is sampled by the weights that are updated.
    pub on_policy: bool,
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
        if (key, values.trim()) == (SCHEDULE, "all") {
            return Ok(Self::schedules());
        }
        let name = |value: &str| match key {
            SCHEDULE => value.to_owned(),
            key => format!("{}={value}", key.rsplit('.').next().unwrap_or(key)),
        };
        let values = split(values).into_iter().map(|value| {
            let value = value.trim();
            (name(value), vec![format!("{key}={value}")])
        });
        Ok(Self { key: key.to_owned(), values: values.collect() })
    }

    /// Every schedule as its authors run it.
    #[must_use]
    pub fn schedules() -> Self {
        let value = |variant: &Variant| (variant.label.to_owned(), variant.overrides().collect());
        Self { key: SCHEDULE.to_owned(), values: variant::all().map(value).collect() }
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
        for point in product(axes) {
            let raw = read(table.clone(), &point.settings, change);
            wanted.push((raw.with_context(|| named(&point.label))?, point));
        }
        let mut sweep = Self { points: Vec::new() };
        for (raw, point) in &wanted {
            let baseline = raw.baseline();
            if !sweep.has(&baseline) && !wanted.iter().any(|(raw, _)| *raw == baseline) {
                sweep.add(point.baseline(), baseline)?;
            }
        }
        for (raw, mut point) in wanted {
            if point.label.is_empty() {
                point.label.clone_from(&raw.schedule.name);
            }
            sweep.add(point, raw)?;
        }
        sweep.find_baselines();
        Ok(sweep)
    }

    fn has(&self, raw: &RawJob) -> bool {
        self.points.iter().any(|point| point.job.raw == *raw)
    }

    fn add(&mut self, place: Place, raw: RawJob) -> anyhow::Result<()> {
        // A trace is read once for all.
        let trace = self.points.iter().find(|point| point.job.raw.lengths == raw.lengths);
        let trace = trace.and_then(|point| point.job.trace.clone());
        let job = Job::resolve(raw, trace).with_context(|| named(&place.label))?;
        let Place { label, settings, .. } = place;
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
                on_policy: point.job.is_on_policy(),
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
            let (label, settings) = (run.label.clone(), run.settings.clone());
            Summary::of(label, settings, &run.outcomes, baseline, run.on_policy)
        })
        .collect()
}

/// Calls `work` with 0, 1, .. `count` on `threads` threads; the results are in that order.
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

/// A place in the cross product.
#[derive(Clone, Debug, Default)]
struct Place {
    label: String,
    settings: Vec<String>,
    /// Label and settings without those of the schedule.
    beside: (String, Vec<String>),
}

impl Place {
    fn with(&self, axis: &Axis, label: &str, settings: &[String]) -> Self {
        let joined = |one: &str| format!("{one} {label}").trim().to_owned();
        let both = |one: &[String]| [one, settings].concat();
        let beside = match axis.key.as_str() {
            SCHEDULE => settings.iter().filter(|setting| RawJob::is_kept(setting)).fold(
                self.beside.clone(),
                |(label, kept), setting| {
                    let name = setting.rsplit('.').next().unwrap_or(setting);
                    (
                        format!("{label} {name}").trim().to_owned(),
                        [kept, vec![setting.clone()]].concat(),
                    )
                },
            ),
            _ => (joined(&self.beside.0), both(&self.beside.1)),
        };
        Self { label: joined(&self.label), settings: both(&self.settings), beside }
    }

    /// Where its baseline stands.
    fn baseline(&self) -> Self {
        let (label, settings) = &self.beside;
        let label = format!("{label} sync").trim().to_owned();
        let name = format!("{SCHEDULE}=sync");
        let settings = settings.iter().cloned().chain([name]).collect();
        Self { label, settings, beside: self.beside.clone() }
    }
}

/// The cross product; one place without settings where there is no axis.
fn product(axes: &[Axis]) -> Vec<Place> {
    let crossed = |places: Vec<Place>, axis: &Axis| {
        let along = |place: Place| {
            let values = axis.values.iter();
            values.map(move |(label, settings)| place.with(axis, label, settings))
        };
        places.into_iter().flat_map(along).collect()
    };
    axes.iter().fold(vec![Place::default()], crossed)
}

fn read(
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

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    const JOB: &str = "[sim]\nseeds = 2\nsteps = 1";

    fn sweep(axes: &[&str]) -> anyhow::Result<Sweep> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("job.toml");
        std::fs::write(&path, JOB)?;
        let axes = axes.iter().map(|text| Axis::parse(text)).collect::<Result<Vec<_>, _>>()?;
        Sweep::read(&path, &[], &axes, &|_| {})
    }

    fn check(axes: &[&str], expected: Expect) {
        let shown = match sweep(axes) {
            Ok(sweep) => sweep
                .points
                .iter()
                .map(|point| {
                    let baseline = &sweep.points[point.baseline].label;
                    format!("{} | {} | {baseline}\n", point.label, point.settings.join(" "))
                })
                .collect(),
            Err(error) => format!("{error:#}"),
        };
        expected.assert_eq(&shown);
    }

    #[test]
    fn sweeps_are_crossed_and_stand_beside_their_baselines() {
        check(
            &[],
            expect![[r#"
            sync | schedule.name=sync | sync
            tail_batching |  | sync
        "#]],
        );
        check(
            &["rollout.n=4,8", "schedule.name=sync,tail_batching"],
            expect![[r#"
            n=4 sync | rollout.n=4 schedule.name=sync | n=4 sync
            n=4 tail_batching | rollout.n=4 schedule.name=tail_batching | n=4 sync
            n=8 sync | rollout.n=8 schedule.name=sync | n=8 sync
            n=8 tail_batching | rollout.n=8 schedule.name=tail_batching | n=8 sync
        "#]],
        );
    }

    #[test]
    fn what_cannot_be_swept_is_named() {
        check(&["rollout.n"], expect!["override `rollout.n`: expected key=value"]);
        check(&["rollout.n="], expect!["override `rollout.n=`: expected key=value"]);
        check(
            &["rollout.n=8,0"],
            expect!["configuration n=0 sync: key `rollout.n`: expected at least 1, found 0"],
        );
        check(
            &["rollout.m=8"],
            expect!["configuration m=8: unknown key `rollout.m`; did you mean `rollout.n`?"],
        );
    }

    #[test]
    fn commas_within_brackets_and_quotes_separate_nothing() {
        assert_eq!(split("1,{a = 2, b = [3, 4]},\"x,y\""), ["1", "{a = 2, b = [3, 4]}", "\"x,y\""]);
    }

    #[test]
    fn outcomes_are_those_of_their_seeds_whatever_the_threads() {
        let labels = |threads| {
            let run = |job: &Job, seed| {
                let steps = job.raw.rollout.n as usize;
                let step = super::super::summary::tests::run(&[("full", seed as f64)], &[]);
                Ok(Outcome { steps: vec![step.steps[0].clone(); steps], ..Outcome::default() })
            };
            let threads = NonZero::new(threads).expect("some");
            let runs = sweep(&["rollout.n=1,2,3"]).expect("valid").run(threads, &run, &|| {});
            let runs = runs.expect("no error");
            let shown = |run: &Configured| {
                let of = |outcome: &Outcome| (outcome.steps.len(), outcome.steps[0].seconds);
                (run.label.clone(), run.outcomes.iter().map(of).collect::<Vec<_>>())
            };
            runs.iter().map(shown).collect::<Vec<_>>()
        };
        assert_eq!(labels(1), labels(5));
        assert_eq!(labels(5)[2], ("n=3 sync".to_owned(), vec![(3, 1.0), (3, 2.0)]));
        assert_eq!(labels(5)[5], ("n=3".to_owned(), vec![(3, 1.0), (3, 2.0)]));
    }

    #[test]
    fn the_first_error_is_told_with_its_configuration_and_seed() {
        let run = |job: &Job, seed: u64| match (job.raw.rollout.n, seed) {
            (2, 2) => anyhow::bail!("no"),
            _ => Ok(Outcome::default()),
        };
        let sweep = sweep(&["rollout.n=1,2"]).expect("valid");
        let error = sweep.run(NonZero::<usize>::MIN, &run, &|| {}).expect_err("failed");
        assert_eq!(format!("{error:#}"), "configuration n=2 sync, seed 2: no");
    }
}
