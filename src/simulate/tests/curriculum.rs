//! A curriculum in simulated jobs: its effect on groups without reward variance, conservation of prompts, and its errors.

use super::super::job::Job;
use super::super::outcome::RunOutcome;
use super::super::raw::RawJob;
use super::super::run::run;
use crate::recipe::{from_table, overlay};

/// The number of prompts of an epoch.
const PROMPTS: usize = 64;

fn job(settings: &[&str]) -> Result<Job, String> {
    let common = [
        "data.train_batch_size=16",
        "data.max_response_length=2048",
        "rollout.n=4",
        "sim.steps=40",
        "sim.warmup_steps=0",
        "cluster.gpus=8",
    ];
    let mut table = toml::Table::new();
    let all = common.iter().chain(settings);
    all.for_each(|setting| overlay(&mut table, setting).expect("valid"));
    let raw = from_table::<RawJob>(table).map_err(|error| error.to_string())?;
    Job::resolve(raw, None).map_err(|error| error.to_string())
}

fn simulated(settings: &[&str]) -> RunOutcome {
    let prompts = format!("data.prompts={PROMPTS}");
    let settings = [&[prompts.as_str()], settings].concat();
    run(&job(&settings).expect("valid"), 1).expect("simulated")
}

fn metrics<'a>(outcome: &'a RunOutcome, name: &'a str) -> impl Iterator<Item = f64> {
    outcome.steps.iter().filter_map(move |step| step.metrics.get(name).copied())
}

/// Returns the mean share of groups without variance after the first epoch.
fn without_variance(outcome: &RunOutcome) -> f64 {
    let shares: Vec<f64> = metrics(outcome, "reward/frac_zero_std").skip(4).collect();
    shares.iter().sum::<f64>() / shares.len() as f64
}

#[test]
fn a_curriculum_lowers_the_share_of_groups_without_variance() {
    for schedule in ["schedule.name=sync", "schedule.name=fused", "schedule.name=tail_batching"] {
        let plain = simulated(&[schedule]);
        let judged = simulated(&[schedule, "data.curriculum.exploration=0.1"]);
        let (before, after) = (without_variance(&plain), without_variance(&judged));
        assert!(after < before - 0.1, "{schedule}: {before:.3} without, {after:.3} with");
        assert!(metrics(&plain, "curriculum/untried_prompts").next().is_none());
    }
}

#[test]
fn every_prompt_of_an_epoch_is_drawn_or_skipped() {
    let outcome = simulated(&["schedule.name=sync", "data.curriculum.exploration=0.2"]);
    let sum = |name| metrics(&outcome, name).sum::<f64>();
    let drawn = sum("curriculum/untried_prompts")
        + sum("curriculum/in_bounds_prompts")
        + sum("curriculum/explored_prompts");
    let skipped = sum("curriculum/skipped_easy_prompts") + sum("curriculum/skipped_hard_prompts");
    let trained = sum("schedule/admitted_prompts");
    assert_eq!(sum("curriculum/untried_prompts"), PROMPTS as f64);
    // The schedule holds at most the prompt by which it saw the end of the last epoch.
    assert!((0.0..=1.0).contains(&(drawn - trained)), "{drawn} drawn, {trained} trained");
    let epochs = (drawn + skipped) / PROMPTS as f64;
    assert!(skipped > 0.0 && epochs > trained / PROMPTS as f64, "{skipped} skipped");
    let known = metrics(&outcome, "curriculum/known_prompts").last();
    assert_eq!(known, Some(PROMPTS as f64));
}

#[test]
fn an_epoch_without_a_drawn_prompt_ends_the_run() {
    let settings = [
        "data.prompts=4",
        "data.train_batch_size=4",
        "schedule.name=sync",
        "data.curriculum.exploration=0",
        "data.curriculum.pass_score=2",
    ];
    let error = run(&job(&settings).expect("valid"), 1).expect_err("nothing is drawn").to_string();
    let expected = "the curriculum skipped all 4 prompts of epoch 1: 0 are too easy";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_curriculum_without_effect_or_out_of_bounds_is_rejected() {
    for (settings, expected) in [
        (["data.prompts=64", "data.curriculum.exploration=1"], "key `data.curriculum.exploration`"),
        (
            ["data.prompts=64", "data.curriculum.min_pass_rate=1"],
            "key `data.curriculum.min_pass_rate`",
        ),
        (["data.prompts=64", "data.curriculum.max_passrate=1"], "data.curriculum.max_pass_rate"),
        (["sim.seed=1", "data.curriculum.exploration=0.1"], "key `data.curriculum`"),
    ] {
        let settings = [&["schedule.name=sync"], &settings[..]].concat();
        let error = job(&settings).expect_err("rejected");
        assert!(error.contains(expected), "{error}");
    }
}
