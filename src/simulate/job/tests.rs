use std::path::Path;

use expect_test::{Expect, expect};
use rollpacker_operators::overlap::{GroupDelivery, Scoring};
use rollpacker_operators::schedule::{Partial, partial};

use super::super::raw::{Dispatch, RawJob};
use super::super::variant;
use super::*;
use crate::recipe::schedule::Schedules;

fn read(text: &str, overrides: &[&str]) -> anyhow::Result<Job> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("job.toml");
    std::fs::write(&path, text)?;
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    Job::read(&path, &overrides)
}

fn check_error(text: &str, overrides: &[&str], expected: Expect) {
    expected.assert_eq(&format!("{:#}", read(text, overrides).expect_err("refused")));
}

#[test]
fn unset_keys_have_the_defaults_of_the_schedule() {
    let job = |overrides: &[&str]| read("", overrides).expect("valid");
    let sync = job(&["schedule.name=sync"]);
    assert_eq!(
        (sync.scoring, sync.delivery, sync.placement, sync.dispatch),
        (
            Scoring::AfterRollout,
            GroupDelivery::WholeStep,
            SimulatedPlacement::Colocated,
            Dispatch::PromptChunks
        )
    );
    let batched = job(&[]);
    assert_eq!(
        (batched.scoring, batched.placement),
        (Scoring::Streamed, SimulatedPlacement::Stream)
    );
    let configured = job(&["pipeline.placement=separate", "pipeline.gradient=once"]);
    assert_eq!(
        (&configured.placement, configured.delivery),
        (&SimulatedPlacement::Separate, GroupDelivery::Once)
    );
    assert_eq!((configured.training_gpus, configured.rollout_gpus()), (16, 16));
    let uneven = job(&[
        "pipeline.placement=separate",
        "cluster.gpus=24",
        "rollout.tensor_parallel=8",
        "training.tensor_parallel=4",
    ]);
    assert_eq!((uneven.training_gpus, uneven.rollout_gpus()), (8, 16));
}

#[test]
fn the_baseline_keeps_the_cluster_and_the_data_and_nothing_of_the_schedule() {
    let overrides = [
        "cluster.gpus=64",
        "schedule.eta_prompts=1.5",
        "pipeline.staleness=1",
        "pipeline.placement=separate",
        "rollout.n=4",
    ];
    let job = read("", &overrides).expect("valid");
    let baseline = Job::resolve(job.raw.baseline(), None).expect("valid");
    assert_eq!((baseline.raw.cluster.gpus, baseline.raw.rollout.n), (64, 4));
    assert_eq!((baseline.raw.schedule.name.as_str(), baseline.raw.pipeline.staleness), ("sync", 0));
    assert_eq!(baseline.raw.baseline(), baseline.raw);
}

#[test]
fn unknown_keys_are_named_at_every_level() {
    check_error(
        "[cluster]\ngpu = 3",
        &[],
        expect!["unknown key `cluster.gpu`; did you mean `cluster.gpus`?"],
    );
    check_error("", &["clustr.gpus=3"], expect!["unknown key `clustr`; did you mean `cluster`?"]);
    check_error("sim = 3", &[], expect!["key `sim`: expected a section, found integer"]);
    check_error(
        "[cluster.hardware]\nname = \"X1\"\nflop = 3.0",
        &[],
        expect![
            "key `cluster.hardware.flop`: unknown field `flop`, expected one of `name`, `flops`, `memory_bandwidth`, `memory`, `interconnect_bandwidth`, `devices_per_server`"
        ],
    );
    check_error(
        "",
        &["schedule.eta_prompt=1.2"],
        expect!["unknown key `schedule.eta_prompt`; did you mean `schedule.eta_prompts`?"],
    );
}

#[test]
fn every_number_out_of_its_range_has_an_error() {
    check_error(
        "",
        &["cluster.gpus=0", "stream.keep=1.5", "pipeline.max_groups=0"],
        expect![[r#"
            key `cluster.gpus`: expected at least 1, found 0
            key `pipeline.max_groups`: expected at least 1, found 0
            key `stream.keep`: expected in (0, 1], found 1.5"#]],
    );
}

#[test]
fn errors_list_the_valid_names_and_bounds() {
    check_error(
        "",
        &["cluster.hardware=H8000"],
        expect![
            "key `cluster.hardware`: expected a table, or one of A100, H800, H100, H200, B200 (did you mean `H800`?), found `H8000`"
        ],
    );
    check_error(
        "",
        &["model.name=Qwen2.5-6B"],
        expect![
            "key `model.name`: expected one of Qwen2.5-7B, Qwen2.5-14B, Qwen2.5-32B, Qwen3-1.7B, Qwen3-8B (did you mean `Qwen2.5-7B`?), found `Qwen2.5-6B`"
        ],
    );
    check_error(
        "",
        &["rollout.tensor_parallel=3"],
        expect!["key `rollout.tensor_parallel`: expected a divisor of cluster.gpus = 32, found 3"],
    );
    check_error(
        "",
        &["rollout.tensor_parallel=16"],
        expect![
            "key `rollout.tensor_parallel`: expected at most 8, the GPUs of a server (cluster.gpus_per_server or cluster.hardware.devices_per_server), found 16"
        ],
    );
    check_error(
        "",
        &["training.tensor_parallel=16"],
        expect![
            "key `training.tensor_parallel`: expected at most 8, the GPUs of a server (cluster.gpus_per_server or cluster.hardware.devices_per_server), found 16"
        ],
    );
    check_error(
        "",
        &["pipeline.training_gpus=3"],
        expect![
            "key `pipeline.training_gpus`: expected pipeline.placement = separate with it, found 3"
        ],
    );
    check_error(
        "",
        &["pipeline.placement=seperate"],
        expect![
            "key `pipeline.placement`: expected one of colocated, separate, stream (did you mean `separate`?), found `seperate`"
        ],
    );
    check_error(
        "",
        &["lengths.source=trace"],
        expect![
            "key `lengths.file`: expected a file or folder with lengths.source = trace, found nothing"
        ],
    );
    check_error("", &["sim.seeds=0"], expect!["key `sim.seeds`: expected at least 1, found 0"]);
}

#[test]
fn settings_without_effect_are_refused() {
    let check = |overrides: &[&str], expected: Expect| check_error("", overrides, expected);
    check(
        &["pipeline.placement=separate", "stream.keep=0.25"],
        expect![
            "key `stream.keep`: expected no value with pipeline.placement = separate: no GPUs move from the rollout to the trainer, found 0.25"
        ],
    );
    check(
        &["schedule.name=fused", "stream.trigger=fixed"],
        expect![
            "key `stream.trigger`: expected no value with pipeline.placement = colocated: no GPUs move from the rollout to the trainer, found fixed"
        ],
    );
    check(
        &["stream.trigger=fixed", "stream.to=0.6"],
        expect!["key `stream.to`: expected no value with stream.trigger = fixed, found 0.6"],
    );
    check(
        &["schedule.name=frontier_group", "planner.rule=paper"],
        expect![
            "key `planner.rule`: expected fixed with pipeline.placement = separate: the pools keep their GPUs, found paper"
        ],
    );
    check(
        &["pipeline.reward=after_rollout", "tasks.timeout=adaptive"],
        expect![
            "key `tasks.timeout`: expected fixed with rewards after the rollout: no execution times are known before, found adaptive"
        ],
    );
    check(
        &["tasks.timeout=fixed", "tasks.audit_share=0.1"],
        expect![
            "key `tasks.audit_share`: expected no value with tasks.timeout = fixed: only adaptive limits use it, found 0.1"
        ],
    );
    check(
        &["lengths.file=a.csv"],
        expect!["key `lengths.source`: expected trace with lengths.file, found paper"],
    );
    check(
        &["lengths.domains={math = {median = 100.0}}"],
        expect![
            "key `lengths.source`: expected two_mode or empirical with lengths.domains, found paper"
        ],
    );
    check(
        &["data.prompts=100", "data.epoch_rounds=10"],
        expect![
            "key `data.epoch_rounds`: expected no value with data.prompts: both set the prompts of an epoch, found 10"
        ],
    );
}

#[test]
fn a_job_that_does_not_fit_is_refused_before_a_run() {
    let check = |overrides: &[&str], expected: Expect| check_error("", overrides, expected);
    check(
        &["model.name=Qwen2.5-32B"],
        expect![
            "key `rollout.tensor_parallel`: Qwen2.5-32B does not fit on 1 x H800: weights take 65.5 GB, expected less than 60.0 GB; the memory left depends on cluster.hardware.memory, rollout.gpu_memory_utilization, calibration.memory_share and calibration.activation_bytes"
        ],
    );
    check(
        &["data.max_response_length=4000000"],
        expect![
            "key `rollout.tensor_parallel`: expected instances whose KV cache holds data.max_response_length = 4000000 tokens and a longest prompt of 2000 (recorded, or of lengths.population.prompt_length), found 154927 tokens on 1 x H800; the memory left depends on cluster.hardware.memory, rollout.gpu_memory_utilization, calibration.memory_share and calibration.activation_bytes"
        ],
    );
    check(
        &["stream.from=0.6"],
        expect!["key `stream.to`: expected at least `from`, at most 1, found 0.5"],
    );
    check(
        &["cluster.gpus_per_server=3", "rollout.tensor_parallel=2"],
        expect![
            "key `rollout.tensor_parallel`: `tensor_parallel` is 2: it does not divide the 3 devices of a server, or exceeds the 32 of the job"
        ],
    );
    check(
        &["lengths.source=empirical"],
        expect![
            "key `lengths.domains`: expected one for each task that has a share: code, judge, math, found none"
        ],
    );
    check(
        &["lengths.source=two_mode", "lengths.domains={math = {}}"],
        expect![
            "key `lengths.domains`: expected one for each task that has a share: code, judge, math, found math"
        ],
    );
    check(
        &[
            "tasks.code=0",
            "tasks.judge=0",
            "lengths.source=two_mode",
            "lengths.domains={math = {median = -1.0}}",
        ],
        expect!["key `lengths.domains.math.median`: expected more than 0, found -1.0"],
    );
    check(
        &[
            "lengths.population={pass_rate = {median = 2.0, spread = 1.0, length_correlation = 0.5}}",
        ],
        expect!["key `lengths.population.pass_rate.median`: expected 0 to 1, found 2.0"],
    );
}

// Every schedule rejects it, also those that do not plan with the size of the cache.
#[test]
fn a_cache_below_a_longest_prompt_and_response_is_refused_for_every_schedule() {
    let capacity = 154_927;
    let longest = |response: u32| format!("data.max_response_length={response}");
    for variant in variant::all() {
        let settings: Vec<String> = variant.overrides().collect();
        let job = |response| {
            let longest = longest(response);
            // The trainer has to hold the same sequences, so it is spread over more GPUs.
            let also = [longest.as_str(), "training.context_parallel=4"];
            let settings = settings.iter().map(String::as_str).chain(also);
            read("", &settings.collect::<Vec<_>>())
        };
        let error = format!("{:#}", job(capacity).expect_err(variant.label));
        let named = "key `rollout.tensor_parallel`: expected instances whose KV cache holds data.max_response_length";
        assert!(error.starts_with(named), "{}: {error}", variant.label);
        job(capacity - 2000).unwrap_or_else(|error| panic!("{}: {error:#}", variant.label));
    }
}

#[test]
fn every_invalid_number_of_a_job_is_refused_by_its_key() {
    for key in RawJob::keys() {
        for value in ["nan", "inf", "-inf", "-1"] {
            let Err(error) = read("", &[&format!("{key}={value}")]) else { continue };
            let error = format!("{error:#}");
            let section = key.split('.').next().unwrap_or_default();
            assert!(error.contains(&format!("key `{section}")), "{key}={value}: {error}");
        }
        let number =
            read("", &[&format!("{key}=1")]).is_ok() || read("", &[&format!("{key}=0.5")]).is_ok();
        let free = ["sim.seed", "model.name"];
        if number && !free.contains(&key.as_str()) {
            for value in ["nan", "inf", "-inf", "-1"] {
                read("", &[&format!("{key}={value}")]).expect_err(&format!("{key}={value}"));
            }
        }
    }
}

#[test]
fn a_correlation_out_of_bounds_or_without_effect_is_refused() {
    read("", &["lengths.correlation=0.5"]).expect("valid");
    check_error(
        "",
        &["lengths.correlation=1"],
        expect!["key `lengths.correlation`: expected from 0 to 0.99, found 1"],
    );
    check_error(
        "",
        &["lengths.source=two_mode", "lengths.correlation=0.5"],
        expect![
            "key `lengths.source`: expected paper or trace with lengths.correlation: each domain sets its own, found two_mode"
        ],
    );
    check_error(
        "",
        &["lengths.prompt_length_column=size"],
        expect![
            "key `lengths.source`: expected trace with lengths.prompt_length_column, found paper"
        ],
    );
}

#[test]
fn jobs_that_are_shipped_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/sim");
    let mut jobs = 0;
    for file in std::fs::read_dir(folder).expect("a folder") {
        let job = Job::read(&file.expect("a file").path(), &[]).expect("valid");
        Job::resolve(job.raw.baseline(), None).expect("valid");
        jobs += 1;
    }
    assert_eq!(jobs, 8);
}

#[test]
fn a_job_is_on_policy_if_its_schedule_pauses_no_response() {
    let is_on_policy = |overrides: &[&str]| read("", overrides).expect("valid").is_on_policy();
    assert!(is_on_policy(&[]) && is_on_policy(&["schedule.name=sync"]));
    assert!(!is_on_policy(&["pipeline.placement=separate", "pipeline.staleness=1"]));
    assert!(!is_on_policy(&["schedule.keep_partial=true"]));
    for variant in variant::all().filter(|variant| variant.label.contains("partial")) {
        let overrides: Vec<String> = variant.overrides().collect();
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        assert!(!is_on_policy(&overrides), "{}", variant.label);
    }
    // A schedule of a program, whatever its name and options.
    let own = |options: partial::Config| Partial::new(options);
    let mut raw: RawJob = "[schedule]\noversubscription = 1.5\nmax_versions = 3\nname = \"own\""
        .parse::<toml::Table>()
        .map(|table| crate::recipe::from_table(table).expect("known keys"))
        .expect("TOML");
    raw.schedule.schedules = Schedules::default().with("own", own);
    assert!(!Job::resolve(raw, None).expect("valid").is_on_policy());
}
