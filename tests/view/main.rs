//! Tests of `rollpacker view` over run folders that the tests write themselves.
#![cfg(feature = "view")]

mod workspace;

use std::fs;

use serde_json::{Value, json};
use workspace::{TestWorkspace, line};

fn names(runs: &Value) -> Vec<&str> {
    let runs = runs.as_array().expect("runs");
    runs.iter().map(|run| run["name"].as_str().expect("a name")).collect()
}

#[test]
fn a_folder_of_runs_is_listed_and_their_curves_are_laid_over_each_other() {
    let workspace = TestWorkspace::with_run("runs/a", 3);
    workspace.run("runs/sweep/b", 2);
    let server = workspace.serve("runs");
    let runs = server.get("/api/runs");
    assert_eq!(names(&runs), ["a", "sweep/b"]);
    assert_eq!((&runs[0]["steps"], &runs[0]["rollouts"]), (&3.into(), &json!([[1, 3]])));
    assert_eq!(runs[0]["ended"], Value::Null);
    let curves =
        server.get("/api/curves?run=a&run=sweep%2Fb&metric=critic/score/mean&metric=absent");
    let curve = |run: &str, metric: &str| {
        let all = curves.as_array().expect("curves").iter();
        let mut own = all.filter(|curve| curve["run"] == run && curve["metric"] == metric);
        own.next().expect("a curve").clone()
    };
    assert_eq!(curve("a", "critic/score/mean")["x"], json!([1, 2, 3]));
    assert_eq!(curve("sweep/b", "critic/score/mean")["y"], json!([0.1, 0.2]));
    assert_eq!(curve("a", "absent")["x"], json!([]));
    let detail = server.get("/api/runs/sweep%2Fb");
    assert_eq!(detail["settings"]["schedule.name"], "tail_batching");
    let metrics = detail["metrics"].as_array().expect("metrics");
    let length = metrics.iter().find(|metric| metric["name"] == "response_length/mean");
    assert_eq!(length.expect("documented")["unit"], "{token}");
}

#[test]
fn a_round_lists_its_responses_with_times_and_outcomes() {
    let workspace = TestWorkspace::with_run("run", 2);
    let round = workspace.serve("run").get("/api/runs/run/steps/2");
    let outcomes: Vec<_> = round["responses"]
        .as_array()
        .expect("responses")
        .iter()
        .map(|one| &one["outcome"])
        .collect();
    assert_eq!(outcomes, ["trained", "trained", "aborted", "untrained", "untrained"]);
    assert_eq!(round["responses"][0]["started"], 0.0);
    assert_eq!(round["responses"][1]["finished"], 2.0);
    assert_eq!(round["responses"][0]["score"], 1.0);
    // The only prompt that is not trained on is deferred, because the step has deferred one and rejected none.
    let outcomes: Vec<_> =
        round["prompts"].as_array().expect("prompts").iter().map(|one| &one["outcome"]).collect();
    assert_eq!(outcomes, ["trained", "deferred"]);
    // The last response ends at 4 s and the rollout took 3.5 s.
    let stages = &round["stages"];
    assert_eq!((&stages[0]["name"], &stages[0]["from"]), (&"rollout".into(), &0.5.into()));
    assert_eq!((&stages[1]["name"], &stages[1]["to"]), (&"training alone".into(), &5.0.into()));
    assert_eq!(round["metrics"]["critic/score/mean"], 0.2);
}

#[test]
fn a_group_and_a_response_have_their_texts_and_values_per_token() {
    let workspace = TestWorkspace::with_run("run", 1);
    let server = workspace.serve("run");
    let group = server.get("/api/runs/run/steps/1/prompts/10");
    assert_eq!(group["text"], "user: <b>1 + 1?</b>");
    assert_eq!((&group["ground_truth"], &group["prompts"]), (&"2".into(), &json!([10, 11])));
    let responses = group["responses"].as_array().expect("responses");
    assert_eq!(responses.len(), 3);
    assert_eq!((&responses[1]["score"], &responses[1]["advantage"]), (&0.0.into(), &json!(-1.0)));
    assert_eq!((&responses[2]["score"], &responses[2]["trained"]), (&Value::Null, &false.into()));
    assert_eq!(responses[0]["labels"], json!({"outcome": "right"}));
    let view = server.get("/api/runs/run/steps/1/prompts/10/0");
    // The response has two characters and three tokens, the last of which is the end-of-sequence token.
    assert_eq!(view["pieces"], json!(["<", "2", ""]));
    assert_eq!((&view["ids"], &view["logprobs"]), (&json!([7, 8, 9]), &json!([-0.5, -0.5, -0.5])));
    assert_eq!((&view["versions"], &view["ref_logprobs"]), (&json!([0, 0, 0]), &json!([])));
    for path in [
        "/api/runs/run/steps/1/prompts/12",
        "/api/runs/run/steps/1/prompts/10/9",
        "/api/runs/run/steps/9",
    ] {
        assert_eq!(server.request("GET", path).status, 404, "{path}");
    }
}

#[test]
fn scores_and_lengths_are_counted_by_data_source() {
    let workspace = TestWorkspace::with_run("run", 3);
    let server = workspace.serve("run");
    let found = server.get("/api/runs/run/distributions?from=2");
    assert_eq!(found["steps"], json!([2, 3]));
    let source = &found["sources"][0];
    let sum = |name: &str| -> u64 {
        let counts = source[name].as_array().expect("counts");
        counts.iter().map(|count| count.as_u64().expect("a count")).sum()
    };
    assert_eq!((sum("trained"), sum("scores"), sum("untrained"), sum("cut")), (4, 4, 2, 4));
    let table = server.get("/api/runs/run/prompts");
    let line = &table["prompts"][0];
    assert_eq!(
        (&line["text"], &line["trained"], &line["score"]),
        (&"<b>1 + 1?</b>".into(), &6.into(), &0.5.into())
    );
    assert_eq!(
        (&line["step"], &line["responses"], &line["cut"]),
        (&3.into(), &9.into(), &3.into())
    );
}

#[test]
fn a_page_is_notified_of_steps_while_the_run_writes_them() {
    let workspace = TestWorkspace::with_run("runs/a", 1);
    let server = workspace.serve("runs");
    let mut events = server.events();
    let steps = |runs: &Value| runs[0]["steps"].as_u64().expect("steps");
    assert_eq!(steps(&events.next_data()), 1);
    // Half a line is no step until the line is complete.
    let text = line(2);
    let (begin, end) = text.split_at(text.len() / 2);
    workspace.append("runs/a/metrics.jsonl", begin);
    assert_eq!(steps(&server.get("/api/runs")), 1);
    workspace.append("runs/a/metrics.jsonl", end);
    assert_eq!(steps(&events.next_data()), 2);
    workspace.run("runs/b", 1);
    assert_eq!(names(&events.next_data()), ["a", "b"]);
    workspace.write("runs/a/summary.json", r#"{"ended": "finished"}"#);
    assert_eq!(events.next_data()[0]["ended"], "finished");
}

#[test]
fn everything_that_a_killed_run_leaves_can_be_shown() {
    let workspace = TestWorkspace::with_run("run", 2);
    workspace.append("run/metrics.jsonl", "not a line\n");
    workspace.append("run/metrics.jsonl", &line(3));
    workspace.append("run/metrics.jsonl", "{\"step\":4,\"da");
    workspace.write("run/summary.json", "{\"end");
    workspace.write("run/recipe.toml", "[model\n");
    workspace.write("run/rollouts/.step_00004.parquet.tmp", "half");
    workspace.write("run/rollouts/step_00003.parquet", "half");
    fs::create_dir(workspace.path("run/model")).expect("made");
    let server = workspace.serve("run");
    let run = server.get("/api/runs/run");
    assert_eq!((&run["steps"], &run["ended"]), (&3.into(), &Value::Null));
    let warnings = run["warnings"].to_string();
    for part in ["recipe.toml", "summary.json", "line 3"] {
        assert!(warnings.contains(part), "{part} is expected in: {warnings}");
    }
    assert_eq!(server.request("GET", "/api/runs/run/steps/2").status, 200);
    // A damaged file is an error of its step only.
    let damaged = server.request("GET", "/api/runs/run/steps/3");
    assert!(damaged.status == 500 && damaged.body.contains("step_00003.parquet"), "{damaged:?}");
    // The run starts anew in its folder.
    fs::remove_dir_all(workspace.path("run")).expect("removed");
    assert_eq!(server.request("GET", "/api/runs/run").status, 404);
    workspace.run("run", 1);
    assert_eq!(server.get("/api/runs/run")["steps"], 1);
}

#[test]
fn only_runs_can_be_read_and_nothing_can_be_written() {
    let workspace = TestWorkspace::with_run("runs/a", 1);
    workspace.run("outside", 1);
    workspace.write("secret.parquet", "secret");
    let server = workspace.serve("runs");
    for path in [
        "/api/runs/..%2Foutside",
        "/api/runs/a%2F..%2F..%2Foutside",
        "/api/runs/../outside",
        "/api/runs/%2Fetc",
        "/api/runs/.",
        "/api/curves?run=..%2Foutside&metric=x",
        "/api/runs/..%2Foutside/steps/1",
        "/../secret.parquet",
        "/..%2Fsecret.parquet",
        "/vendor/../../secret.parquet",
        "/etc/passwd",
    ] {
        let answer = server.request("GET", path);
        assert_eq!(answer.status, 404, "{path}: {answer:?}");
        assert!(!answer.body.contains("critic") && !answer.body.contains("root:"), "{path}");
    }
    for path in [
        "/api/runs/a/steps/..%2F1",
        "/api/runs/a/steps/-1",
        "/api/curves?run=a&points=0",
        "/api/curves?run=a&smoothing=1",
    ] {
        assert_eq!(server.request("GET", path).status, 400, "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        assert_eq!(server.request(method, "/api/runs").status, 405, "{method}");
    }
    // Another site's name that leads to this machine is refused.
    assert_eq!(server.request_as("evil.example", "GET", "/api/runs").status, 403);
}

#[test]
fn the_page_is_complete_and_loads_nothing_else() {
    let workspace = TestWorkspace::with_run("run", 1);
    let server = workspace.serve("run");
    let page = server.request("GET", "/");
    assert!(
        page.head.contains("text/html") && page.head.contains("default-src 'none'"),
        "{}",
        page.head
    );
    for file in
        page.body.split(['"', '\'']).filter(|file| file.ends_with(".js") || file.ends_with(".css"))
    {
        assert_eq!(server.request("GET", &format!("/{file}")).status, 200, "{file}");
    }
}

#[test]
fn a_folder_that_is_not_a_run_is_refused() {
    let workspace = TestWorkspace::with_run("run", 1);
    fs::create_dir(workspace.path("empty")).expect("made");
    assert!(workspace.run_refused("empty").contains("metrics.jsonl"));
    assert!(workspace.run_refused("absent").contains("it is no folder"));
    assert!(workspace.run_refused("run/metrics.jsonl").contains("it is no folder"));
}
