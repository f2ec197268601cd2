//! Sweeps: the cross product of settings, each configuration run with each seed, on all cores.

use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use toml::Table;

use super::axis::{Axis, Place, product};
use super::job::Job;
use super::outcome::Outcome;
use super::raw::RawJob;
use super::summary::Summary;
use super::trace::Cut;
use crate::recipe::{RecipeError, from_table, overlay, read_table};

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
        let mut wanted = Wanted::default();
        for place in product(axes) {
            let raw = read(table.clone(), &place.settings, change);
            let raw = raw.with_context(|| named(&place.label()))?;
            let entry = wanted.entry(place, raw)?;
            wanted.merge(entry);
        }
        let (mut before, mut baselines) = (Wanted::default(), Vec::new());
        for Entry { place, job, .. } in &wanted.0 {
            let baseline = wanted.entry(place.baseline(), job.raw.baseline())?;
            baselines.push(baseline.canonical.clone());
            if wanted.position(&baseline).is_none() {
                before.merge(baseline);
            }
        }
        before.tell_from(&wanted);
        let alone = before.0.iter().map(|entry| entry.canonical.clone());
        let baselines = alone.chain(baselines).collect::<Vec<_>>();
        let all: Vec<Entry> = before.0.into_iter().chain(wanted.0).collect();
        let index = |baseline: &RawJob| all.iter().position(|entry| entry.canonical == *baseline);
        let found = baselines.iter().map(index).collect::<Option<Vec<_>>>();
        let found = found.expect("invariant: every baseline was added");
        Ok(Self { points: all.into_iter().zip(found).map(Entry::point).collect() })
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

    /// What the longest responses leave of the traces.
    #[must_use]
    pub fn cuts(&self) -> Vec<Cut> {
        let mut cuts = Vec::new();
        for cut in self.points.iter().filter_map(|point| Cut::of(&point.job)) {
            if !cuts.contains(&cut) {
                cuts.push(cut);
            }
        }
        cuts
    }

    /// The least steps that a job runs, those that do not count included.
    #[must_use]
    pub fn least_steps(&self) -> u64 {
        self.points.iter().map(|point| point.job.total_steps()).min().unwrap_or(0)
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

/// A job that is to be run.
struct Entry {
    place: Place,
    job: Job,
    canonical: RawJob,
}

impl Entry {
    fn point((Self { place, job, .. }, baseline): (Self, usize)) -> Point {
        let named = !place.labels.is_empty();
        let label = if named { place.label() } else { job.raw.schedule.name.clone() };
        Point { label, settings: place.settings, job, baseline }
    }
}

/// Jobs that are to be run, each baseline once.
#[derive(Default)]
struct Wanted(Vec<Entry>);

impl Wanted {
    /// A trace is read once for all.
    fn entry(&self, place: Place, raw: RawJob) -> anyhow::Result<Entry> {
        let read = self.0.iter().find(|entry| entry.job.raw.lengths == raw.lengths);
        let trace = read.and_then(|entry| entry.job.trace.clone());
        let job = Job::resolve(raw, trace).with_context(|| named(&place.label()))?;
        Ok(Entry { place, canonical: job.canonical(), job })
    }

    /// A baseline that is the same run as another stands where that does, under what both are called.
    fn merge(&mut self, entry: Entry) {
        let is_baseline = entry.job.raw.schedule.name == "sync";
        match self.position(&entry).filter(|_| is_baseline) {
            Some(index) => self.0[index].place.keep_common(&entry.place),
            None => self.0.push(entry),
        }
    }

    /// Calls those baselines that share their name with a configuration that is wanted.
    fn tell_from(&mut self, wanted: &Self) {
        for Entry { place, .. } in &mut self.0 {
            let label = place.label();
            if wanted.0.iter().any(|entry| entry.place.label() == label) {
                place.labels.push("baseline".to_owned());
            }
        }
    }

    fn position(&self, entry: &Entry) -> Option<usize> {
        self.0.iter().position(|known| known.canonical == entry.canonical)
    }
}

fn read(
    mut table: Table,
    settings: &[String],
    change: &dyn Fn(&mut RawJob),
) -> Result<RawJob, RecipeError> {
    for setting in settings {
        overlay(&mut table, setting)?;
    }
    let mut raw: RawJob = from_table(table)?;
    change(&mut raw);
    raw.leave_idle(settings)?;
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
        read_sweep(&[], axes)
    }

    fn read_sweep(overrides: &[&str], axes: &[&str]) -> anyhow::Result<Sweep> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("job.toml");
        std::fs::write(&path, JOB)?;
        let axes = axes.iter().map(|text| Axis::parse(text)).collect::<Result<Vec<_>, _>>()?;
        let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
        Sweep::read(&path, &overrides, &axes, &|_| {})
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
    fn baselines_that_are_the_same_run_are_listed_once() {
        check(
            &["stream.from=0.2,0.3", "schedule.name=sync,tail_batching"],
            expect![[r#"
            sync | schedule.name=sync | sync
            from=0.2 tail_batching | stream.from=0.2 schedule.name=tail_batching | sync
            from=0.3 tail_batching | stream.from=0.3 schedule.name=tail_batching | sync
        "#]],
        );
        check(
            &["stream.from=0.2,0.3"],
            expect![[r#"
            sync | schedule.name=sync | sync
            from=0.2 | stream.from=0.2 | sync
            from=0.3 | stream.from=0.3 | sync
        "#]],
        );
        check(
            &["training.layout=written,planned", "rollout.n=4,8"],
            expect![[r#"
                n=4 sync | rollout.n=4 schedule.name=sync | n=4 sync
                n=8 sync | rollout.n=8 schedule.name=sync | n=8 sync
                layout=written n=4 | training.layout=written rollout.n=4 | n=4 sync
                layout=written n=8 | training.layout=written rollout.n=8 | n=8 sync
                layout=planned n=4 | training.layout=planned rollout.n=4 | n=4 sync
                layout=planned n=8 | training.layout=planned rollout.n=8 | n=8 sync
            "#]],
        );
        // An epoch of one round is no less than the one step that is run.
        check(
            &["data.epoch_rounds=1,2", "schedule.name=sync,fused"],
            expect![[r#"
            sync | schedule.name=sync | sync
            epoch_rounds=1 fused | data.epoch_rounds=1 schedule.name=fused | sync
            epoch_rounds=2 fused | data.epoch_rounds=2 schedule.name=fused | sync
        "#]],
        );
    }

    #[test]
    fn every_schedule_runs_beside_settings_that_some_have_no_use_for() {
        let overrides = [
            "stream.keep=0.25",
            "planner.rule=paper",
            "tasks.timeout=adaptive",
            "pipeline.max_groups=4",
        ];
        let labels = |overrides: &[&str]| {
            let sweep = read_sweep(overrides, &["schedule.name=all"]).expect("valid");
            sweep.points.into_iter().map(|point| point.label).collect::<Vec<_>>()
        };
        // With the planner it is not what the others stand beside.
        let mut beside = labels(&overrides);
        assert_eq!(beside.remove(0), "sync baseline");
        assert_eq!(beside, labels(&[]));
        let error = read_sweep(
            &["pipeline.placement=separate", "planner.rule=paper"],
            &["schedule.name=all"],
        );
        let error = error.expect_err("the job combines them itself");
        assert!(format!("{error:#}").contains("key `planner.rule`"), "{error:#}");
    }

    #[test]
    fn what_cannot_be_swept_is_named() {
        check(&["rollout.n"], expect!["override `rollout.n`: expected key=value"]);
        check(&["rollout.n="], expect!["override `rollout.n=`: expected key=value"]);
        check(
            &["rollout.n=8,0"],
            expect!["configuration n=0: key `rollout.n`: expected at least 1, found 0"],
        );
        check(
            &["rollout.m=8"],
            expect!["configuration m=8: unknown key `rollout.m`; did you mean `rollout.n`?"],
        );
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
