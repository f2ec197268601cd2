//! Tests of runs over three domains, each with its own reward: mathematics, code and a judge. Also tests the effect of a judge that stops.
#![cfg(feature = "torch")]

mod judge_server;
#[path = "../workspace/mod.rs"]
mod workspace;

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use judge_server::{JudgeServer, verdict};
use rollpacker_rewards::Math;
use rollpacker_stages::reward::{Context, Reward, Sample};
use serde_json::{Value, json};
use workspace::{ProcessEnd, Sft, TestWorkspace, parquet_rows};

const STEPS: u64 = 3;
/// The number of prompts of a domain in a step.
const QUOTA: usize = 2;
/// The number of responses to a prompt that are trained on.
const GROUP: usize = 4;

const RECIPE: &str = r#"
[data]
train_files = "train.jsonl"
val_files = "validation.jsonl"
train_batch_size = 6
max_response_length = 24

[model]
path = "warm"

[rollout]
n = 4

[schedule]
eta_prompts = 1.5
eta_responses = 1.5
quotas = { math = 2, code = 2, judge = 2 }

[reward.routes]
"t/math" = "math"
"t/code" = "code"
"t/judge" = "judge"

[reward.options.judge]
model = "judge"
prompt = "{{ response }}"
system = ""

[reward.timeout]
max_s = 10

[actor]
lr = 1e-4

[trainer]
total_training_steps = 3
val_before_train = false
device = "cpu"
default_local_dir = "run"
"#;

/// Returns the rows of a domain. The vocabulary of the model has digits and few other characters, and the output of the model is random.
fn rows(domain: &str, truth: &str, count: usize) -> impl Iterator<Item = Value> {
    (0..count).map(move |row| {
        json!({
            "data_source": format!("t/{domain}"),
            "ability": domain,
            "prompt": [{"role": "user", "content": format!("{}+{}*7", row % 10, row / 10)}],
            "reward_model": {"style": "rule", "ground_truth": truth},
        })
    })
}

/// Returns `true` for a response that passes the tests of the code rows. The criterion is arbitrary.
fn is_even(response: &str) -> bool {
    response.len().is_multiple_of(2)
}

fn all_rows(count: usize) -> String {
    let tests = json!({"case_type": "text", "test_cases": ["assert len({response}) % 2 == 0"]});
    let tests = tests.to_string();
    let domains = [("math", "9"), ("code", tests.as_str()), ("judge", "a multiple of three")];
    let all = domains.into_iter().flat_map(|(domain, truth)| rows(domain, truth, count));
    all.map(|row| format!("{row}\n")).collect()
}

/// Creates the prompts of all domains and an untrained model.
fn workspace() -> TestWorkspace {
    let workspace = TestWorkspace::warm(RECIPE, Sft { steps: 1, ..Sft::SMALL }, 16, 1);
    workspace.write("train.jsonl", &all_rows(12));
    workspace.write("validation.jsonl", &all_rows(2));
    workspace
}

impl TestWorkspace {
    /// Trains with rewards that call `server`.
    fn train(&self, server: &JudgeServer, settings: &[&str]) -> ProcessEnd {
        let url = format!("reward.options.judge.base_url=\"{}\"", server.base_url());
        self.train_to_end(&[&[url.as_str()], settings].concat())
    }

    /// Returns the metrics of the steps, and of the validation after the last step.
    fn metrics(&self) -> (Vec<Value>, Value) {
        let lines = self.metrics_lines("run").into_iter();
        let mut all: Vec<Value> = lines.map(|mut line| line["data"].take()).collect();
        let validation = all.pop().expect("a validation");
        (all, validation)
    }

    /// Returns the responses trained on in a step, by data source.
    fn rows_of(&self, step: u64) -> BTreeMap<String, Vec<Trained>> {
        let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (source, row) in trained(&parquet_rows(&self.rollouts("run", step))) {
            all.entry(source).or_default().push(row);
        }
        all
    }
}

/// A response that was trained on.
#[derive(Debug)]
struct Trained {
    prompt: u64,
    response: String,
    score: f64,
    outcome: Option<String>,
    error: Option<String>,
}

fn trained(batch: &RecordBatch) -> Vec<(String, Trained)> {
    let text = |name: &str, row: usize| {
        let texts = batch[name].as_string::<i32>();
        texts.is_valid(row).then(|| texts.value(row).to_owned())
    };
    let admitted = batch["admitted"].as_boolean();
    let rows = (0..batch.num_rows()).filter(|row| admitted.value(*row));
    rows.map(|row| {
        let labels: Value =
            serde_json::from_str(&text("labels", row).expect("labels")).expect("JSON");
        let trained = Trained {
            prompt: batch["prompt_id"].as_primitive::<UInt64Type>().value(row),
            response: text("response_text", row).expect("a response"),
            score: batch["score"].as_primitive::<Float64Type>().value(row),
            outcome: labels["outcome"].as_str().map(str::to_owned),
            error: text("reward_error", row),
        };
        (text("data_source", row).expect("a source"), trained)
    })
    .collect()
}

fn number(metrics: &Value, name: &str) -> f64 {
    metrics[name].as_f64().unwrap_or_else(|| panic!("no metric `{name}`: {metrics}"))
}

fn mean(rows: &[Trained]) -> f64 {
    rows.iter().map(|row| row.score).sum::<f64>() / rows.len() as f64
}

/// Returns the expected score of a response, computed without the reward under test.
fn expected(source: &str, response: &str) -> f64 {
    match source {
        "t/code" => f64::from(is_even(response)),
        "t/judge" => f64::from(verdict(response)),
        _ => {
            let sample = Sample::of(source, response, Some("9"));
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime
                .block_on(Math::default().score(&sample, &Context::detached()))
                .expect("scored")
                .value
        }
    }
}

fn check_group_sizes(source: &str, rows: &[Trained]) {
    let mut sizes: BTreeMap<u64, usize> = BTreeMap::new();
    rows.iter().for_each(|row| *sizes.entry(row.prompt).or_default() += 1);
    assert_eq!(sizes.into_values().collect::<Vec<_>>(), [GROUP; QUOTA], "{source}");
}

#[test]
fn every_domain_is_scored_by_its_reward_and_has_its_quota_in_every_step() {
    let (workspace, server) = (workspace(), JudgeServer::start(usize::MAX));
    workspace.train(&server, &[]).success();
    let (steps, validation) = workspace.metrics();
    assert_eq!(steps.len() as u64, STEPS);
    let mut scores = Vec::new();
    for (step, metrics) in (1..).zip(&steps) {
        let trained = workspace.rows_of(step);
        assert_eq!(trained.keys().collect::<Vec<_>>(), ["t/code", "t/judge", "t/math"]);
        for (source, rows) in &trained {
            check_group_sizes(source, rows);
            for row in rows {
                assert_eq!(row.score, expected(source, &row.response), "{source}: {row:?}");
                assert_eq!((&row.error, row.outcome.is_some()), (&None, source == "t/code"));
                scores.push((source.clone(), row.score.to_string()));
            }
            let name = format!("reward/score/{source}");
            assert!((number(metrics, &name) - mean(rows)).abs() < 1e-9, "{name}");
        }
        assert!((number(metrics, "reward/passed") - mean(&trained["t/code"])).abs() < 1e-9);
        assert_eq!(number(metrics, "reward/judge_unreadable"), 0.0);
        assert!(number(metrics, "reward/seconds") > 0.0);
        assert!(number(metrics, "rollout/load_s") >= 0.0);
        assert_eq!(number(metrics, "reward/errors/retryable"), 0.0);
    }
    // The scores of both code and the judge are present.
    scores.sort_unstable();
    scores.dedup();
    assert!(scores.len() >= 5, "{scores:?}");
    assert_eq!(number(&validation, "val/reward_errors"), 0.0);
    // Besides the responses trained on, validation judges the responses to two prompts twice.
    assert!(server.answered() >= STEPS as usize * QUOTA * GROUP + 4);
}

/// Asserts that each step has retryable errors, all of them of the judge, and `dropped` dropped groups.
fn check_errors(steps: &[Value], dropped: f64) {
    for (step, metrics) in (1..).zip(steps) {
        let errors = number(metrics, "reward/errors/retryable/judge");
        assert_eq!(number(metrics, "reward/errors/retryable"), errors, "step {step}");
        assert!(errors >= 1.0, "step {step}: {errors}");
        assert_eq!(number(metrics, "reward/dropped_groups"), dropped, "step {step}");
    }
}

#[test]
fn a_dead_judge_scores_0_or_drops_its_groups_and_the_run_continues() {
    let workspace = workspace();
    for (on_error, dropped) in [("zero", 0.0), ("drop_group", QUOTA as f64)] {
        let server = JudgeServer::start(1);
        let end = workspace
            .train(&server, &[&format!("reward.options.judge.on_error={on_error}")])
            .success();
        let output = &end.out;
        assert_eq!(server.answered(), 1);
        let (steps, validation) = workspace.metrics();
        check_errors(&steps, dropped);
        for step in 1..=STEPS {
            let trained = workspace.rows_of(step);
            assert!(
                ["t/math", "t/code"].iter().all(|source| trained[*source].len() == QUOTA * GROUP)
            );
            let judged = trained.get("t/judge").map_or(&[][..], Vec::as_slice);
            assert_eq!(judged.len(), if on_error == "zero" { QUOTA * GROUP } else { 0 });
            let mut failed = judged.iter().filter(|row| row.error.is_some());
            assert!(
                failed.clone().count() + 1 >= judged.len(),
                "all but the first failed: {judged:?}"
            );
            assert!(failed.all(|row| row.score == 0.0));
            let warning = format!("warning: reward, step {step}, prompt p");
            let warned =
                output.lines().filter(|line| line.starts_with(&warning)).collect::<Vec<_>>();
            assert_eq!(warned.len(), 1, "{output}");
            let expected = format!(
                "data_source `t/judge`: reward `judge`: failed for now: {}",
                server.base_url()
            );
            assert!(warned[0].contains(&expected), "{warned:?}");
        }
        // Two prompts are validated, by sampling and by greedy decoding.
        assert_eq!(number(&validation, "val/reward_errors"), 4.0);
        let judged = validation.get("val-core/t/judge/acc/mean@1").and_then(Value::as_f64);
        assert_eq!(judged, (on_error == "zero").then_some(0.0), "{validation}");
    }
}

#[test]
fn a_dead_judge_ends_the_run_with_one_message_if_configured() {
    let (workspace, server) = (workspace(), JudgeServer::start(1));
    let end = workspace.train(&server, &["reward.options.judge.on_error=fail"]);
    assert_eq!(end.code, Some(1), "{end:?}");
    let [line] = end.errors()[..] else { panic!("{end:?}") };
    let last: Vec<&str> = end.err.lines().skip_while(|other| *other != line).skip(1).collect();
    assert!(
        matches!(last[..], [note] if note.starts_with("note: the cause is outside of this program")),
        "only a note follows it: {last:?}"
    );
    assert!(line.starts_with("error: reward, step 1, prompt p"), "{line}");
    let expected = format!(
        ": data_source `t/judge`: reward `judge`: failed for now: {}/chat/completions: ",
        server.base_url()
    );
    assert!(line.contains(&expected), "{line}");
}
