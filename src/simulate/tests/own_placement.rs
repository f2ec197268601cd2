//! Placements that the program adds to simulated jobs: they have the same effect as equal built-in placements.

use rollpacker_operators::placement::{Colocated, Separate};
use rollpacker_stages::catalog::{CatalogError, NoOptions};
use rollpacker_stages::rollout::Placement;
use serde::Deserialize;

use super::{owned, run};
use crate::placements::{PlacementContext, Placements};
use crate::recipe::{from_table, overlay};
use crate::simulate::job::Job;
use crate::simulate::raw::RawJob;
use crate::simulate::setup::Setup;

const BASE: &str = r#"
[cluster]
gpus = 8
[model]
name = "Qwen3-1.7B"
[rollout]
n = 4
max_num_seqs = 16
tensor_parallel = 2
[data]
train_batch_size = 16
max_response_length = 4096
[schedule]
name = "fused"
[sim]
steps = 4
"#;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolOptions {
    training_gpus: u32,
}

/// Returns the instances on `devices` devices.
fn instances(devices: u32, context: PlacementContext) -> Placement {
    let tensor_parallel = context.tensor_parallel;
    Placement { instances: devices / tensor_parallel, tensor_parallel }
}

/// Returns placements that are made of the policies of `separate` and `colocated`. The cluster cannot follow the decisions of `greedy` and
/// `narrow`.
fn placements() -> Placements {
    let pool = |PoolOptions { training_gpus }: PoolOptions, context: PlacementContext| {
        if !training_gpus.is_multiple_of(context.training_replica) {
            let expected = format!("a multiple of {}", context.training_replica);
            return Err(CatalogError::out_of_range("training_gpus", &expected, training_gpus));
        }
        Ok(Separate::new(instances(context.devices - training_gpus, context), training_gpus))
    };
    let turns = |_: NoOptions, context: PlacementContext| {
        Ok(Colocated::new(instances(context.devices, context)))
    };
    let greedy = |_: NoOptions, context: PlacementContext| {
        Ok(Separate::new(instances(context.devices, context), context.training_replica))
    };
    // The trainer gets fewer GPUs than a copy of the model needs.
    let narrow = |_: NoOptions, context: PlacementContext| {
        Ok(Separate::new(instances(context.devices - 2, context), context.training_replica - 1))
    };
    let placements = Placements::default().with("pool", pool).with("turns", turns);
    placements.with("greedy", greedy).with("narrow", narrow)
}

fn raw(settings: &[&str]) -> RawJob {
    let mut table = BASE.parse().expect("TOML");
    settings.iter().for_each(|setting| overlay(&mut table, setting).expect("a setting"));
    let mut raw: RawJob = from_table(table).expect("known keys");
    raw.pipeline.placements = placements();
    raw
}

fn job(settings: &[&str]) -> Job {
    Job::resolve(raw(settings), None).unwrap_or_else(|error| panic!("{settings:?}: {error:#}"))
}

#[test]
fn a_job_follows_a_placement_of_the_program() {
    let ways = [
        (
            &["pipeline.placement=separate", "pipeline.training_gpus=2"][..],
            &["pipeline.placement=pool", "pipeline.placement_options.training_gpus=2"][..],
        ),
        (
            &["pipeline.placement=separate", "pipeline.training_gpus=6", "pipeline.staleness=1"],
            &[
                "pipeline.placement=pool",
                "pipeline.placement_options.training_gpus=6",
                "pipeline.staleness=1",
            ],
        ),
        (&["pipeline.placement=colocated"], &["pipeline.placement=turns"]),
    ];
    let mut outcomes = Vec::new();
    for (built_in, own) in ways {
        let (built_in, own) = (job(built_in), job(own));
        let [expected, found] = [&built_in, &own].map(|job| run::run(job, 1).expect("it runs"));
        assert_eq!(found.steps.len(), 4);
        assert_eq!(found.instances, expected.instances);
        let seconds = |steps: &[super::super::StepOutcome]| {
            steps.iter().map(|step| step.seconds.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(seconds(&found.steps), seconds(&expected.steps), "{:?}", own.placement);
        assert_eq!(Setup::of(&own, &[]).placement, own.raw.pipeline.placement.expect("written"));
        outcomes.push(seconds(&found.steps));
    }
    outcomes.dedup();
    assert_eq!(outcomes.len(), 3, "the placements differ");
}

#[test]
fn a_placement_of_the_program_receives_the_job() {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(None));
    let into = seen.clone();
    let look = move |_: NoOptions, context: PlacementContext| {
        *into.lock().expect("unpoisoned") = Some(context);
        Ok(Colocated::new(instances(context.devices, context)))
    };
    let mut raw: RawJob = from_table(BASE.parse().expect("TOML")).expect("known keys");
    raw.pipeline.placements = Placements::default().with("look", look);
    raw.pipeline.placement = Some("look".to_owned());
    raw.training.pipeline_parallel = 2;
    raw.pipeline.staleness = 3;
    let job = Job::resolve(raw, None).expect("valid");
    let context = seen.lock().expect("unpoisoned").expect("it was made");
    assert_eq!((context.devices, context.threads_per_device), (8, 1));
    assert_eq!((context.tensor_parallel, context.training_replica), (2, 4));
    assert_eq!((context.max_response_length, context.staleness), (4096, 3));
    let of_instance = job.cost().kv_capacity(2).expect("it fits");
    assert_eq!(context.kv_cache_tokens as u64, of_instance / 2);
}

#[test]
fn settings_of_a_placement_of_the_program_are_refused_by_key() {
    let own = "pipeline.placement=pool";
    for (settings, expected) in [
        (
            &["pipeline.placement=poool"][..],
            "key `pipeline.placement`: expected one of colocated, separate, stream, greedy, narrow, pool, turns (did you mean `pool`?), found `poool`",
        ),
        (
            &[own, "pipeline.placement_options.training_gpu=2"],
            "unknown key `pipeline.placement_options.training_gpu`; did you mean `pipeline.placement_options.training_gpus`?",
        ),
        (
            &[own, "pipeline.placement_options.training_gpus=3"],
            "key `pipeline.placement_options.training_gpus`: expected a multiple of 2, found 3",
        ),
        (&[own], "key `pipeline.placement_options.training_gpus`: expected a value, found nothing"),
        (
            &["pipeline.placement=turns", "pipeline.training_gpus=2"],
            "key `pipeline.training_gpus`: expected pipeline.placement = separate with it, found 2",
        ),
    ] {
        let error = Job::resolve(raw(settings), None).expect_err("refused");
        assert_eq!(format!("{error:#}"), expected);
    }
    for (settings, key) in [
        (["pipeline.placement=turns", "planner.rule=paper"], "planner.rule"),
        (["pipeline.placement=turns", "stream.keep=0.25"], "stream.keep"),
        (
            ["pipeline.placement=separate", "pipeline.placement_options.training_gpus=2"],
            "pipeline.placement_options",
        ),
    ] {
        let error = Job::resolve(raw(&settings), None).expect_err("refused").to_string();
        assert!(error.starts_with(&format!("key `{key}`: expected ")), "{error}");
        // A sweep over the placement drops what only other placements use.
        let mut swept = raw(&settings);
        swept.drop_unused(&owned(&settings[..1])).expect("valid");
        Job::resolve(swept, None).expect("dropped");
    }
    // Any placement may move responses.
    job(&["pipeline.placement=turns", "stream.kv_transfer_bandwidth=1e9"]);
}

#[test]
fn decisions_that_a_cluster_cannot_follow_end_the_run() {
    for (name, expected) in [
        ("greedy", "expected at most 8 devices in all, found rollout 4 x tp2, training 2 (round)"),
        (
            "narrow",
            "the trainer is placed on 1 devices, expected at least the 2 of a copy of the model",
        ),
    ] {
        let job = job(&[&format!("pipeline.placement={name}")]);
        let error = format!("{:#}", run::run(&job, 1).expect_err("refused"));
        assert!(error.contains(expected), "{name}: {error}");
    }
}
