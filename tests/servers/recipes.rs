//! Tests of recipes that name servers that do not exist.

use super::workspace::{ProcessEnd, RECIPE, TestWorkspace};

/// No server listens at this port.
const DEAD: &str = "rollout.servers=[\"http://127.0.0.1:9\"]";

fn train(workspace: &TestWorkspace, more: &[&str]) -> ProcessEnd {
    let train = ["train", "--config", "recipe.toml", "schedule.name=sync"];
    workspace.run(&[&train[..], more].concat())
}

#[test]
fn a_recipe_with_servers_is_checked_without_them() {
    let workspace = TestWorkspace::new(RECIPE);
    for engine in ["rollout.engine=vllm", "rollout.engine=sglang"] {
        train(&workspace, &[engine, DEAD, "--dry-run"]).success();
    }
}

#[test]
fn unsupported_settings_of_servers_are_refused_by_key() {
    let workspace = TestWorkspace::new(RECIPE);
    let vllm = "rollout.engine=vllm";
    let cases: [(&[&str], &str); 10] = [
        (&[vllm, "--dry-run"], "at least one URL in `rollout.servers`"),
        (&[DEAD, "--dry-run"], "key `rollout.engine`: expected one of"),
        (
            &[vllm, "rollout.servers=[\"a:1\"]", "--dry-run"],
            "key `rollout.servers`: the URL `a:1`: expected `http` or `https`",
        ),
        (&[vllm, DEAD, "rollout.server_timeout=0", "--dry-run"], "`rollout.server_timeout`"),
        (
            &[vllm, DEAD, "rollout.engine_options.paus=keep", "--dry-run"],
            "did you mean `rollout.engine_options.pause`?",
        ),
        (
            &[vllm, DEAD, "rollout.temperature=0.7", "--dry-run"],
            "key `rollout.temperature`: expected 1",
        ),
        (
            &["rollout.engine=sglang", DEAD, "rollout.engine_options.pause=keep"],
            "`rollout.engine_options.pause`: expected `abort` or `wait`",
        ),
        (&[vllm, DEAD, "trainer.deterministic=true", "--dry-run"], "key `trainer.deterministic`"),
        (
            &[vllm, DEAD, "rollout.dtype=bfloat16", "--dry-run"],
            "key `rollout.dtype`: expected float32",
        ),
        (
            &[vllm, DEAD, "trainer.workers=2", "--dry-run"],
            "key `trainer.workers`: expected 1, in a single process, with an engine over servers, found 2",
        ),
    ];
    for (settings, expected) in cases {
        let end = train(&workspace, settings);
        assert_eq!(end.code, Some(2), "{settings:?}: {end:?}");
        assert!(end.err.contains(expected), "{settings:?}: {}", end.err);
    }
}

#[test]
fn a_run_without_any_server_can_be_started_again() {
    let workspace = TestWorkspace::new(RECIPE);
    let end = train(&workspace, &["rollout.engine=vllm", DEAD, "rollout.server_timeout=0.2"]);
    assert_eq!(end.code, Some(75), "{end:?}");
    assert!(end.err.contains("no server answered for 200ms"), "{}", end.err);
}
