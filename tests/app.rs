//! Tests of a command line with a reward, a schedule, a placement, an engine and a trainer of its own: the example `7_command_line`.
#![cfg(feature = "torch")]

mod workspace;

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use workspace::{ProcessEnd, RECIPE, TestWorkspace, json};

fn run(workspace: &TestWorkspace, args: &[&str]) -> ProcessEnd {
    run_example(workspace, "7_command_line", args)
}

/// Runs a command of an example, which `cargo test` builds into a folder next to the tests.
fn run_example(workspace: &TestWorkspace, name: &str, args: &[&str]) -> ProcessEnd {
    let mut path = PathBuf::from(env!("CARGO_BIN_EXE_rollpacker"));
    path.set_file_name("examples");
    let mut command = Command::new(path.join(name));
    workspace.prepare(command.args(args));
    ProcessEnd::of(command.spawn().expect("the example starts"))
}

fn ok(workspace: &TestWorkspace, args: &[&str]) -> String {
    let end = run(workspace, args);
    assert_eq!(end.code, Some(0), "{args:?}: {end:?}");
    end.out
}

fn run_refused(workspace: &TestWorkspace, args: &[&str]) -> String {
    let end = run(workspace, args);
    assert_eq!(end.code, Some(2), "{args:?}: {end:?}");
    end.err
}

#[test]
fn a_custom_reward_scores_a_file() {
    let workspace = TestWorkspace::new(RECIPE);
    workspace.write(
        "rows.jsonl",
        "{\"response\": \"short\"}\n{\"response\": \"longer than twenty characters\"}\n",
    );
    let score = ["score", "--reward", "terse", "--input", "rows.jsonl", "--output", "scores.jsonl"];
    ok(&workspace, &[&score[..], &["--option", "max=20"]].concat());
    let scores = std::fs::read_to_string(workspace.path("scores.jsonl")).expect("written");
    let score_of =
        |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["score"].as_f64();
    assert_eq!(scores.lines().map(score_of).collect::<Vec<_>>(), [Some(1.0), Some(0.0)]);
    let error = run_refused(&workspace, &[&score[..], &["--option", "least=1"]].concat());
    assert!(error.contains("least"), "{error}");
}

#[test]
fn a_custom_schedule_is_simulated() {
    let workspace = TestWorkspace::new(RECIPE);
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/sim/7b.toml");
    let simulate = |settings: &[&'static str]| {
        [&["simulate", "--config", job, "sim.steps=2", "--json"][..], settings].concat()
    };
    let surplus = "schedule.name=surplus";
    let text = ok(&workspace, &simulate(&[surplus, "schedule.share=0.25"]));
    let simulated: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(simulated["configurations"].as_array().map(Vec::len), Some(2), "with its baseline");
    let swept = ["--sweep", "schedule.share=0,0.5"];
    ok(&workspace, &[simulate(&[surplus, "schedule.share=0.25"]), swept.to_vec()].concat());

    let error = |settings: &[&'static str]| run_refused(&workspace, &simulate(settings));
    let bound = error(&[surplus, "schedule.share=2"]);
    assert!(bound.contains("`schedule.share`: expected a number from 0 to 1, found 2"), "{bound}");
    let unknown = error(&[surplus, "schedule.share=0", "schedule.eta_prompts=1"]);
    assert!(unknown.contains("schedule.eta_prompts"), "{unknown}");
    let misspelt = error(&["schedule.name=surplu"]);
    assert!(misspelt.contains("surplus"), "{misspelt}");
}

#[test]
fn a_custom_schedule_and_a_custom_reward_train_and_resume() {
    let workspace = TestWorkspace::new(RECIPE);
    let train = [
        "train",
        "--config",
        "recipe.toml",
        "schedule.name=surplus",
        "schedule.share=0.5",
        "reward.routes={\"*\"=\"terse\"}",
        "reward.options.terse.max=20",
        "trainer.save_freq=1",
    ];
    let with = |more: &[&'static str]| [&train[..], more].concat();
    let described = ok(&workspace, &with(&["--dry-run"]));
    assert!(described.contains("surplus") && described.contains("share"), "{described}");
    ok(&workspace, &with(&["trainer.total_training_steps=2"]));
    assert_eq!(workspace.summary("run")["steps"], 2);
    ok(&workspace, &with(&["trainer.total_training_steps=3", "--resume"]));
    assert_eq!(workspace.summary("run")["steps"], 3);
    ok(&workspace, &with(&["trainer.total_training_steps=1", "--workers", "2", "--overwrite"]));
    let error = run_refused(&workspace, &with(&["schedule.share=-1", "--dry-run"]));
    assert!(error.contains("`schedule.share`: expected a number from 0 to 1"), "{error}");
}

/// The arguments of a run with the example's engine.
const UNIFORM: [&str; 8] = [
    "train",
    "--config",
    "recipe.toml",
    "rollout.engine=uniform",
    "rollout.engine_options.tokens=6",
    "reward.routes={\"*\"=\"terse\"}",
    "reward.options.terse.max=5",
    "schedule.name=sync",
];

fn uniform(workspace: &TestWorkspace, more: &[&str]) -> ProcessEnd {
    run(workspace, &[&UNIFORM[..], more].concat())
}

/// Returns the mean length of the responses and their mean score in the first step of a run.
fn first_step(workspace: &TestWorkspace, run: &str) -> [f64; 2] {
    let lines = workspace.metrics_lines(run).into_iter();
    // Validations have lines of their own.
    let step =
        lines.map(|line| line["data"].clone()).find(|data| data["critic/score/mean"].is_number());
    let step = step.expect("a step");
    ["response_length/mean", "critic/score/mean"].map(|name| step[name].as_f64().expect(name))
}

#[test]
fn a_custom_engine_trains_validates_and_resumes() {
    let workspace = TestWorkspace::new(RECIPE);
    let described = uniform(&workspace, &["--dry-run"]).success();
    assert!(described.out.contains("rollout(uniform x 2)"), "{described:?}");
    assert!(described.out.contains("engine = \"uniform\""), "{described:?}");

    let validated = ["data.val_files=data/validation.parquet", "trainer.save_freq=1"];
    let with = |more: &[&'static str]| uniform(&workspace, &[&validated[..], more].concat());
    with(&["trainer.total_training_steps=2"]).success();
    let [length, score] = first_step(&workspace, "run");
    assert_eq!(length, 6.0);
    assert!(score > 0.0 && score < 1.0, "{score}: responses differ");
    with(&["trainer.total_training_steps=3", "--resume"]).success();
    assert_eq!(workspace.summary("run")["steps"], 3);
    let other = with(&["rollout.engine_options.tokens=7", "--resume"]).refusal();
    assert!(other.err.contains("key `rollout.engine_options.tokens`"), "{other:?}");

    uniform(&workspace, &["--workers", "2", "--out", "two"]).success();
    assert_eq!(first_step(&workspace, "two"), [length, score], "responses depend on no worker");
}

#[test]
fn settings_that_a_custom_engine_cannot_honor_are_refused_by_name() {
    let workspace = TestWorkspace::new(RECIPE);
    for (settings, expected) in [
        (
            &["rollout.engine=unifrom"][..],
            "key `rollout.engine`: expected one of sglang, torch, uniform, vllm (did you mean `uniform`?), found `unifrom`",
        ),
        (
            &["rollout.engine_options.token=6"],
            "unknown key `rollout.engine_options.token`; did you mean `rollout.engine_options.tokens`?",
        ),
        (
            &["rollout.engine_options.tokens=many"],
            "`rollout.engine_options.tokens`: expected an integer",
        ),
        (&["rollout.engine=torch"], "`rollout.engine_options"),
        (
            &["rollout.profile=p.parquet"],
            "key `rollout.engine`: expected `torch` when `rollout.profile` is set, found `uniform`",
        ),
        (
            &["rollout.replay_lengths=lengths.json"],
            "expected `torch` when `rollout.replay_lengths` is set",
        ),
    ] {
        let end = uniform(&workspace, &[settings, &["--dry-run"]].concat());
        assert_eq!(end.code, Some(2), "{settings:?}: {end:?}");
        assert!(end.err.contains(expected), "{settings:?}: {end:?}");
    }
    // The program detects these errors only when the engine starts.
    for (setting, expected) in [
        (
            "rollout.engine_options.tokens=99",
            "key `rollout.engine_options.tokens`: expected 1 to 24, found 99",
        ),
        (
            "trainer.deterministic=true",
            "key `trainer.deterministic`: expected false with the engine `uniform`, which cannot race in lockstep, found true",
        ),
    ] {
        let end = uniform(&workspace, &[setting]);
        assert_eq!(end.code, Some(2), "{setting}: {end:?}");
        assert!(end.err.contains(expected), "{setting}: {end:?}");
    }
    let profile = ["profile", "--config", "recipe.toml", "rollout.engine=uniform"];
    let error =
        run_refused(&workspace, &[&profile[..], &["rollout.engine_options.tokens=6"]].concat());
    assert!(error.contains("expected `torch` when `rollpacker profile` measures it"), "{error}");
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/sim/7b.toml");
    let error = run_refused(&workspace, &["simulate", "--config", job, "rollout.engine=uniform"]);
    assert!(error.contains("unknown key `rollout.engine`"), "{error}");
}

/// The arguments of a run with the example's trainer.
const SGD: [&str; 10] = [
    "train",
    "--config",
    "recipe.toml",
    "actor.strategy=sgd",
    "actor.strategy_options.momentum=0.5",
    "actor.lr=0.05",
    "trainer.deterministic=true",
    "reward.routes={\"*\"=\"terse\"}",
    "reward.options.terse.max=5",
    "data.max_response_length=6",
];

fn sgd(workspace: &TestWorkspace, more: &[&str]) -> ProcessEnd {
    run(workspace, &[&SGD[..], more].concat())
}

fn trained_by_sgd(workspace: &TestWorkspace, more: &[&str]) {
    let end = sgd(workspace, more);
    assert_eq!(end.code, Some(0), "{more:?}: {end:?}");
}

/// Returns the norm of the gradient in each step of a run.
fn gradient_norms(workspace: &TestWorkspace, run: &str) -> Vec<f64> {
    let lines = workspace.metrics_lines(run).into_iter();
    lines.map(|line| line["data"]["actor/grad_norm"].as_f64().expect("a norm")).collect()
}

#[test]
fn a_custom_trainer_trains_the_torch_engine_and_resumes_exactly() {
    let workspace = TestWorkspace::new(RECIPE);
    let described = sgd(&workspace, &["--dry-run"]).success();
    assert!(described.out.contains("strategy = \"sgd\""), "{described:?}");
    assert!(described.out.contains("-> gradient(sgd) ->"), "{described:?}");

    let weights = |folder: &str| {
        std::fs::read(workspace.path(folder).join("model.safetensors")).expect("a model")
    };
    let kept = ["trainer.save_freq=1", "trainer.max_ckpt_to_keep=10"];
    trained_by_sgd(&workspace, &kept);
    let (whole, norms) = (weights("run/model"), gradient_norms(&workspace, "run"));
    assert!(whole != weights("model"), "it learns");
    assert!(norms.len() == 4 && norms[2..].iter().any(|&norm| norm > 0.0), "{norms:?}");
    std::fs::remove_file(workspace.path("run/model/model.safetensors")).expect("removed");
    trained_by_sgd(&workspace, &[&kept[..], &["--resume", "2"]].concat());
    assert_eq!(gradient_norms(&workspace, "run"), norms);
    assert!(weights("run/model") == whole, "the weights differ");

    let other = ["--resume", "latest", "actor.strategy_options.momentum=0.25"];
    let other = [&kept[..], &other].concat();
    let other = sgd(&workspace, &other).refusal();
    assert!(other.err.contains("key `actor.strategy_options.momentum`"), "{other:?}");
    let torch: Vec<_> = SGD.into_iter().filter(|key| !key.starts_with("actor.strategy")).collect();
    let error = run_refused(&workspace, &[&torch[..], &kept, &["--resume"]].concat());
    assert!(error.contains("key `actor.strategy`"), "{error}");
}

#[test]
fn settings_of_a_custom_trainer_are_refused_by_name() {
    let workspace = TestWorkspace::new(RECIPE);
    for (code, settings, expected) in [
        (
            2,
            &["actor.strategy=sdg", "--dry-run"][..],
            "key `actor.strategy`: expected one of sgd, torch (did you mean `sgd`?), found `sdg`",
        ),
        (
            2,
            &["actor.strategy_options.momentm=0.5", "--dry-run"],
            "unknown key `actor.strategy_options.momentm`; did you mean `actor.strategy_options.momentum`?",
        ),
        (
            2,
            &["actor.strategy_options.momentum=much", "--dry-run"],
            "key `actor.strategy_options.momentum`: expected a number",
        ),
        (2, &["actor.strategy=torch", "--dry-run"], "`actor.strategy_options"),
        // The program detects these errors only when the trainer starts or trains.
        (
            2,
            &["actor.strategy_options.momentum=2"],
            "key `actor.strategy_options.momentum`: expected a number from 0 to below 1, found 2",
        ),
        (
            2,
            &["--workers", "2"],
            "key `trainer.workers`: expected 1 with the trainer `sgd`, which cannot be one of several replicas, found 2",
        ),
        (
            1,
            &["algorithm.use_kl_in_reward=true"],
            "this trainer cannot infer the KL divergence that a penalty in the rewards needs",
        ),
        (
            1,
            &["algorithm.adv_estimator=gae"],
            "this trainer cannot infer the values that the advantage estimator needs",
        ),
    ] {
        let end = sgd(&workspace, settings);
        assert_eq!(end.code, Some(code), "{settings:?}: {end:?}");
        assert!(end.err.contains(expected), "{settings:?}: {end:?}");
    }
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/sim/7b.toml");
    let error = run_refused(&workspace, &["simulate", "--config", job, "actor.strategy=sgd"]);
    assert!(error.contains("unknown key `actor"), "{error}");
}

/// The arguments of a run with the fixed placement, to which [`early`] adds the example's placement.
const EARLY: [&str; 8] = [
    "train",
    "--config",
    "recipe.toml",
    "trainer.deterministic=true",
    "reward.routes={\"*\"=\"terse\"}",
    "reward.options.terse.max=5",
    "data.max_response_length=6",
    "actor.lr=1e-3",
];

fn early(workspace: &TestWorkspace, more: &[&str]) -> ProcessEnd {
    let named = ["placement.kind=early", "placement.options.groups=2"];
    run(workspace, &[&EARLY[..], &named, more].concat())
}

#[test]
fn a_custom_placement_lends_instances_and_resumes() {
    let workspace = TestWorkspace::new(RECIPE);
    let described = early(&workspace, &["--dry-run"]).success();
    let line = "placement                 early: divides 2 instances; 1 threads of each lent instance train, at least 1";
    assert!(described.out.contains(line), "{described:?}");

    let weights = |folder: &str| {
        std::fs::read(workspace.path(folder).join("model/model.safetensors")).expect("a model")
    };
    let lent = |step: u32| {
        let placement = json(&workspace.path(&format!("run/placements/step_{step:05}.json")));
        let decisions = placement["decisions"].as_array().expect("a list");
        decisions.iter().map(|one| one["training_devices"].as_u64()).collect::<Vec<_>>()
    };
    ok(&workspace, &[&EARLY[..], &["--out", "fixed"]].concat());
    let kept = ["trainer.save_freq=1", "trainer.max_ckpt_to_keep=10"];
    for resume in [&[][..], &["--resume", "2"]] {
        early(&workspace, &[&kept[..], resume].concat()).success();
        for step in 1..=4 {
            // All instances generate; one is lent after two of four groups, and both after the rollout.
            assert_eq!(lent(step), [Some(0), Some(1), Some(2)], "step {step}");
        }
        assert!(weights("run") == weights("fixed"), "the weights differ");
    }
    early(&workspace, &["--out", "two", "--workers", "2"]).success();
    assert!(weights("two") == weights("fixed"), "the weights differ");
}

#[test]
fn settings_of_a_custom_placement_are_refused_by_name() {
    let workspace = TestWorkspace::new(RECIPE);
    for (settings, expected) in [
        (
            &["placement.kind=erly"][..],
            "key `placement.kind`: expected one of fixed, planner, separate_pools, stream_trainer, time_sharing, early (did you mean `early`?), found `erly`",
        ),
        (
            &["placement.options.group=2"],
            "unknown key `placement.options.group`; did you mean `placement.options.groups`?",
        ),
        (&["placement.options.groups=many"], "key `placement.options.groups`: expected an integer"),
        (
            &["placement.options.groups=0"],
            "key `placement.options.groups`: expected at least 1, found 0",
        ),
        (
            &["algorithm.staleness=1"],
            "key `placement.kind`: expected a staleness of 0: rounds overlap",
        ),
        (
            &["placement.kind=time_sharing"],
            "key `placement.options`: expected no value unless placement.kind is one that the program adds, found `groups`",
        ),
        (
            &["placement.keep=0.5"],
            "key `placement.keep`: expected no value unless placement.kind = stream_trainer",
        ),
        (
            &["rollout.engine=uniform", "rollout.engine_options.tokens=6"],
            "expected `torch` when `placement.kind` is not `fixed`, found `uniform`",
        ),
    ] {
        let end = early(&workspace, &[settings, &["--dry-run"]].concat());
        assert_eq!(end.code, Some(2), "{settings:?}: {end:?}");
        assert!(end.err.contains(expected), "{settings:?}: {end:?}");
    }
}

#[test]
fn an_own_placement_is_simulated() {
    let workspace = TestWorkspace::new(RECIPE);
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/sim/7b.toml");
    let simulate = |settings: &[&'static str]| {
        let small = ["simulate", "--config", job, "schedule.name=fused", "sim.steps=2"];
        [&small[..], &["data.train_batch_size=32"], settings].concat()
    };
    let early = "pipeline.placement=early";
    let groups = "pipeline.placement_options.groups=4";
    let swept = ["--sweep", "pipeline.placement=colocated,early", "--json"];
    let text = ok(&workspace, &simulate(&[&[groups][..], &swept].concat()));
    let simulated: Value = serde_json::from_str(&text).expect("JSON");
    let configurations = simulated["configurations"].as_array().expect("a list");
    let of = |name: &str| {
        let named = |one: &&Value| one["setup"]["placement"] == name && one["asked"] != false;
        configurations.iter().rfind(named).unwrap_or_else(|| panic!("{name}: {text}"))
    };
    // The placement `early` trains on complete groups while other groups are sampled.
    let seconds = |name: &str| of(name)["step_s"]["mean"].as_f64().expect("seconds");
    assert!(seconds("early") < seconds("colocated"), "{text}");
    let table = ok(&workspace, &simulate(&[early, groups]));
    assert!(table.contains("early"), "{table}");

    let error = |settings: &[&'static str]| run_refused(&workspace, &simulate(settings));
    let bound = error(&[early, "pipeline.placement_options.groups=0"]);
    let expected = "key `pipeline.placement_options.groups`: expected at least 1, found 0";
    assert!(bound.contains(expected), "{bound}");
    let unknown = error(&[early, "pipeline.placement_options.group=4"]);
    assert!(unknown.contains("did you mean `pipeline.placement_options.groups`?"), "{unknown}");
    let misspelt = error(&["pipeline.placement=erly"]);
    assert!(misspelt.contains("stream, early (did you mean `early`?), found `erly`"), "{misspelt}");
}

#[test]
fn the_help_lists_the_names_that_a_recipe_may_select() {
    let workspace = TestWorkspace::new(RECIPE);
    let help = ok(&workspace, &["help", "train"]);
    // The lines are wrapped.
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for names in [
        "actor.strategy: sgd, torch",
        "stream_trainer, time_sharing, early",
        "rollout.engine: sglang, torch, uniform, vllm",
        "sorted, surplus, sync",
        "soft_overlong, terse",
    ] {
        assert!(help.contains(names), "{names}: {help}");
    }
}

#[test]
fn a_round_policy_is_a_schedule_that_trains_simulates_and_resumes() {
    let workspace = TestWorkspace::new(RECIPE);
    let train = ["train", "--config", "recipe.toml", "trainer.save_freq=1", "schedule.name=first"];
    let with = |more: &[&'static str]| {
        let args = [&train[..], &["schedule.extra=2"], more].concat();
        let end = run_example(&workspace, "4_round_policy", &args);
        assert_eq!(end.code, Some(0), "{args:?}: {end:?}");
        workspace.summary("run")["steps"].as_u64()
    };
    assert_eq!(with(&["trainer.total_training_steps=2"]), Some(2));
    assert_eq!(with(&["trainer.total_training_steps=4", "--resume"]), Some(4));
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/sim/7b.toml");
    let job = ["simulate", "--config", job, "sim.steps=2", "schedule.name=first"];
    run_example(&workspace, "4_round_policy", &[&job[..], &["schedule.extra=16"]].concat())
        .success();
}
