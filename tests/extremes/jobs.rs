//! Tests of the keys of simulated jobs, in `simulate`, its sweeps, and `profile --simulated`.

use std::panic::catch_unwind;
use std::path::Path;

use rollpacker::recipe::schedule::Schedules;
use rollpacker::simulate::Job;
use rollpacker::simulate::raw::RawJob;
use rollpacker::stages::simulated::cluster::{Hardware, ModelShape};
use rollpacker::stages::simulated::rollout::lengths::{PopulationConfig, TwoModeDomain};
use serde::Serialize;
use serde_json::Value;

use crate::program::{self, Case, owned};
use crate::workspace::TestWorkspace;
use crate::{EXTREMES, Key, is_of_another_type, names, numbers};

const JOB: &str = r#"
[cluster]
gpus = 8

[model]
name = "Qwen2.5-7B"

[rollout]
n = 2
max_num_seqs = 8

[data]
train_batch_size = 4
max_response_length = 256

[schedule]
name = "fused"

[sim]
steps = 1
"#;

/// Returns the settings that a key needs to have an effect.
fn with_settings(name: &str) -> &'static [&'static str] {
    match name {
        "pipeline.staleness" | "pipeline.training_gpus" => &["pipeline.placement=separate"],
        "tasks.audit_share" => &["tasks.timeout=adaptive"],
        name if name.starts_with("stream.") => {
            &["schedule.name=tail_batching", "pipeline.placement=stream", "stream.rounds=all"]
        }
        _ => &[],
    }
}

/// Returns the keys of a table that another type defines. Each key is set together with all numbers of the table and `others`.
fn of_table(prefix: &str, table: &impl Serialize, others: &[&str]) -> Vec<Key> {
    let numbers = numbers(table);
    let written = numbers.iter().map(|(name, value)| format!("{prefix}.{name}={value}"));
    let with_settings: Vec<String> = owned(others).into_iter().chain(written).collect();
    let key = |(name, _): &(String, Value)| Key {
        name: format!("{prefix}.{name}"),
        with_settings: with_settings.clone(),
    };
    numbers.iter().map(key).collect()
}

/// Returns all keys, numeric or not. [`accepted`] finds out whether a key is numeric.
fn keys() -> Vec<Key> {
    let plain = |name: String| Key { with_settings: owned(with_settings(&name)), name };
    let mut keys: Vec<Key> = RawJob::keys().into_iter().map(plain).collect();
    let hardware = Hardware::built_in("H800").expect("built in");
    let model = ModelShape::built_in("Qwen2.5-7B").expect("built in");
    keys.extend(of_table("lengths.population", &PopulationConfig::default(), &[]));
    keys.extend(of_table("cluster.hardware", &hardware, &["cluster.hardware.name=x"]));
    keys.extend(of_table("model.shape", &model, &["model.shape.name=x"]));
    let mut domain = serde_json::to_value(TwoModeDomain::default()).expect("JSON");
    // The share is a setting of the task instead.
    domain.as_object_mut().expect("a table").remove("share");
    let two_mode = ["lengths.source=two_mode", "tasks.code=0", "tasks.judge=0"];
    keys.extend(of_table("lengths.domains.math", &domain, &two_mode));
    let schedules = Schedules::default();
    for name in schedules.names() {
        let options = schedules.options(name).expect("it is known");
        let with_settings = crate::recipes::of_schedule(name);
        keys.extend(options.into_iter().map(|option| Key {
            name: format!("schedule.{option}"),
            with_settings: with_settings.clone(),
        }));
    }
    keys
}

/// Returns the values of `key` that its bounds allow, or `None` if it is not numeric or is another name of a key that the job sets.
fn accepted(path: &Path, key: &Key) -> Option<Vec<&'static str>> {
    let resolve = |value: &str| {
        let settings = key.settings(value);
        let job = catch_unwind(|| Job::read(path, &settings).map(drop));
        job.unwrap_or_else(|_| panic!("{settings:?} panics")).map_err(|error| format!("{error:#}"))
    };
    let of_its_type = ["1", "0.5"]
        .iter()
        .any(|value| resolve(value).err().is_none_or(|error| !is_of_another_type(&error)));
    let is_accepted = |value: &&'static str| match resolve(value) {
        Ok(()) => true,
        Err(error) => {
            // Errors name a key with several names by its documented name.
            let section = key.name.split_once('.').map_or("", |(section, _)| section);
            let documented = error.contains(&format!("key `{section}."));
            assert!(documented || key.is_named_by(&error), "{} = {value}: {error}", key.name);
            false
        }
    };
    of_its_type.then(|| EXTREMES.into_iter().filter(is_accepted).collect())
}

fn cases(workspace: &TestWorkspace, command: &[&str]) -> Vec<Case> {
    workspace.write("job.toml", JOB);
    let path = workspace.path("job.toml");
    let (mut cases, mut numeric) = (Vec::new(), 0);
    for key in keys() {
        let Some(values) = accepted(&path, &key) else { continue };
        numeric += 1;
        for value in values {
            let args = [owned(command), key.settings(value)].concat();
            cases.push(Case { args, keys: key.named() });
        }
    }
    assert!(numeric > 80, "{numeric} numeric keys are found");
    cases
}

#[test]
fn simulating_succeeds_or_names_the_key() {
    let workspace = TestWorkspace::new("");
    let command = ["simulate", "--config", "job.toml", "--threads", "1"];
    program::check(&workspace, &cases(&workspace, &command));
}

#[test]
fn profiling_a_cluster_succeeds_or_names_the_key() {
    let workspace = TestWorkspace::new("");
    let command = ["profile", "--simulated", "--config", "job.toml", "--budget", "0.001"];
    let of_profile = |case: &Case| {
        let sections = ["cluster.", "model.", "rollout.", "data.", "calibration."];
        sections.iter().any(|section| case.keys[0].starts_with(section))
    };
    let mut cases: Vec<Case> = cases(&workspace, &command).into_iter().filter(of_profile).collect();
    for (number, case) in cases.iter_mut().enumerate() {
        case.args.push(format!("--output=written-{number}"));
    }
    program::check(&workspace, &cases);
}

#[test]
fn an_invalid_swept_key_is_named_like_a_set_one() {
    let workspace = TestWorkspace::new("");
    workspace.write("job.toml", JOB);
    for key in ["rollout.n", "data.train_batch_size", "sim.seeds", "tasks.sandbox_slots"] {
        let sweep = format!("{key}=1,9223372036854775807");
        let args = ["simulate", "--config", "job.toml", "--sweep", &sweep].map(str::to_owned);
        let end = program::run(&workspace, &args).refusal();
        assert!(names(&end.err, &[key]), "{}", end.err);
    }
}
