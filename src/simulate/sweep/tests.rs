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
fn sweeps_are_crossed_and_have_baselines() {
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
    // With `sim.steps = 1`, an epoch of one round is long enough for the run, so the length of the epoch has no effect on `sync`.
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
fn swept_schedules_ignore_settings_that_they_do_not_use() {
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
    // With the planner, the `sync` of the sweep differs from the baseline, which is therefore added.
    let mut labelled = labels(&overrides);
    assert_eq!(labelled.remove(0), "sync baseline");
    assert_eq!(labelled, labels(&[]));
    let error =
        read_sweep(&["pipeline.placement=separate", "planner.rule=paper"], &["schedule.name=all"]);
    let error = error.expect_err("the job combines them itself");
    assert!(format!("{error:#}").contains("key `planner.rule`"), "{error:#}");
}

#[test]
fn keys_that_cannot_be_swept_are_named() {
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
fn outcomes_do_not_depend_on_the_number_of_threads() {
    let labels = |threads| {
        let run = |job: &Job, seed| {
            let steps = job.raw.rollout.n as usize;
            let step = super::super::summary::tests::run(&[("full", seed as f64)], &[]);
            Ok(RunOutcome { steps: vec![step.steps[0].clone(); steps], ..RunOutcome::default() })
        };
        let threads = NonZero::new(threads).expect("some");
        let runs = sweep(&["rollout.n=1,2,3"]).expect("valid").run(threads, &run, &|| {});
        let runs = runs.expect("no error");
        let shown = |run: &ConfigurationRuns| {
            let of = |outcome: &RunOutcome| (outcome.steps.len(), outcome.steps[0].seconds);
            (run.label.clone(), run.outcomes.iter().map(of).collect::<Vec<_>>())
        };
        runs.iter().map(shown).collect::<Vec<_>>()
    };
    assert_eq!(labels(1), labels(5));
    assert_eq!(labels(5)[2], ("n=3 sync".to_owned(), vec![(3, 1.0), (3, 2.0)]));
    assert_eq!(labels(5)[5], ("n=3".to_owned(), vec![(3, 1.0), (3, 2.0)]));
}

#[test]
fn the_first_error_names_its_configuration_and_seed() {
    let run = |job: &Job, seed: u64| match (job.raw.rollout.n, seed) {
        (2, 2) => anyhow::bail!("no"),
        _ => Ok(RunOutcome::default()),
    };
    let sweep = sweep(&["rollout.n=1,2"]).expect("valid");
    let error = sweep.run(NonZero::<usize>::MIN, &run, &|| {}).expect_err("failed");
    assert_eq!(format!("{error:#}"), "configuration n=2 sync, seed 2: no");
}

#[test]
fn other_assumptions_run_with_their_baselines_and_one_seed() {
    let sweep = sweep(&["rollout.n=4,8", "schedule.name=fused,tail_batching"]).expect("valid");
    let labels = |sweep: &Sweep| -> Vec<String> {
        sweep.points.iter().map(|point| point.label.clone()).collect()
    };
    let all = ["n=4 sync", "n=8 sync", "n=4 fused", "n=4 tail_batching"];
    assert_eq!(labels(&sweep)[..4], all);
    let under = sweep.with_assumption(&[3], &["tasks.timeout_s=1".to_owned()]).expect("valid");
    assert_eq!(labels(&under), ["n=4 sync", "n=4 tail_batching"]);
    for SweepPoint { job, baseline, requested, label, .. } in &under.points {
        assert_eq!((job.raw.tasks.timeout_s, job.raw.sim.seeds, *baseline), (1.0, 1, 0));
        assert_eq!(*requested, label == "n=4 tail_batching");
    }
    let error =
        sweep.with_assumption(&[3], &["tasks.timeout_s=0".to_owned()]).expect_err("refused");
    let expected = "configuration n=4 sync: key `tasks.timeout_s`";
    assert!(format!("{error:#}").starts_with(expected), "{error:#}");
    let count = sweep.points.len();
    let error = sweep.with_assumption(&[0, count], &[]).expect_err("refused").to_string();
    assert!(error.ends_with(&format!("the number of configurations, found {count}")), "{error}");
}

#[test]
fn a_trace_that_leaves_the_correlation_open_has_an_upper_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |responses: u32| {
        let rows: String = (0..responses * 4).map(|n| format!("{},{}\n", n % 4, 9 + n)).collect();
        let trace = folder.path().join(format!("{responses}.csv"));
        std::fs::write(&trace, format!("prompt_id,tokens\n{rows}")).expect("written");
        let file = format!("lengths.file={}", trace.display());
        read_sweep(&["lengths.source=trace", &file], &[]).expect("valid")
    };
    let (open, determined) = (at(1), at(32));
    assert!(determined.at_upper_correlation().is_none());
    let upper = open.at_upper_correlation().expect("it is open");
    let correlations = |sweep: &Sweep| {
        sweep.points.iter().map(|point| point.job.correlation()).collect::<Vec<_>>()
    };
    assert_eq!((correlations(&open), correlations(&upper)), (vec![0.0; 2], vec![0.8; 2]));
}
