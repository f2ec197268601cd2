//! Tests of training through two servers under each kind of schedule, compared with the same recipe with the torch engine in process.
//!
//! Responses differ, because servers sample with other random numbers. The order in which responses end differs, too, and all schedules but
//! `sync` choose the prompts of a step by this order. The prompts of the epoch and the sizes of all steps are the same, except that
//! `dynamic` rejects some prompts.

use super::outcome::Outcome;
use super::server_pair::{PROMPTS, RECIPE, ROWS, SAMPLES, STEPS};
use super::workspace::TestWorkspace;
use super::workspace::server::{Server, StartingServer};

/// Trains through two servers, and in process.
fn both(schedule: &[&str]) -> [Outcome; 2] {
    let workspace = TestWorkspace::with_rows(RECIPE, ROWS);
    let peers = StartingServer::pair(&workspace).map(StartingServer::ready);
    let servers = format!("rollout.servers={:?}", peers.each_ref().map(Server::url));
    let trained = |out: &str, engine: &[&str]| {
        workspace.train_ok(&[&["--out", out][..], schedule, engine].concat());
        Outcome::read(&workspace.path(out))
    };
    let served = trained("served", &["rollout.engine=vllm", &servers]);
    let direct = trained("direct", &["rollout.instances=1", "rollout.threads_per_instance=1"]);
    served.assert_canary_passed();
    let faults = ["moved_responses", "server_errors", "servers_lost"];
    assert!(faults.iter().all(|name| served.total(&format!("rollout/{name}")) == 0.0));
    assert!(served.0.keys().all(|step| served.of(*step, "rollout/servers_ready") == 2.0));
    [served, direct]
}

/// Checks that each prompt of the data was trained once, and four in each step.
fn assert_whole_epoch(outcome: &Outcome) {
    assert_eq!(outcome.trained_once(), (0..ROWS).collect::<Vec<_>>());
    assert_eq!(outcome.sizes(SAMPLES), [PROMPTS; STEPS]);
}

#[test]
fn synchronous_steps_have_the_same_prompts() {
    let [served, direct] = both(&["schedule.name=sync"]);
    assert_whole_epoch(&served);
    assert_eq!(served.prompts_by_step(), direct.prompts_by_step());
}

#[test]
fn tail_batching_trains_the_same_prompts() {
    let factors = ["schedule.eta_prompts=1.5", "schedule.eta_responses=1.5"];
    for outcome in both(&[&["schedule.name=tail_batching"][..], &factors].concat()) {
        assert_whole_epoch(&outcome);
    }
}

#[test]
fn paused_responses_continue_and_the_same_prompts_are_trained() {
    let limits = ["schedule.oversubscription=1.5", "schedule.max_versions=4"];
    for outcome in both(&[&["schedule.name=partial"][..], &limits].concat()) {
        assert_whole_epoch(&outcome);
    }
}

#[test]
fn dynamic_sampling_trains_or_rejects_the_same_prompts() {
    for outcome in both(&[
        "schedule.name=dynamic",
        "schedule.max_generated_batches=4",
        "schedule.on_exhausted=smaller_step",
    ]) {
        let trained = outcome.trained_once();
        let rejected = outcome.total("schedule/rejected_prompts");
        assert_eq!(trained.len() + rejected as usize, ROWS as usize);
        assert!(trained.iter().all(|prompt| *prompt < ROWS));
        let sizes = outcome.sizes(SAMPLES);
        let (last, others) = sizes.split_last().unwrap();
        assert!(*last <= PROMPTS && others.iter().all(|size| *size == PROMPTS), "{sizes:?}");
    }
}
