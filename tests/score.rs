//! Tests of the program `rollpacker score`: lines, order, errors and exit status.

#![cfg(all(feature = "cli", feature = "http", feature = "code"))]
#![allow(clippy::print_stderr, reason = "a skipped test prints a message")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rollpacker::datasets::Records;
use serde_json::{Value, json};

struct TestWorkspace(tempfile::TempDir);

impl TestWorkspace {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, rows: &[Value]) {
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        fs::write(self.path().join(name), lines).expect("written");
    }

    fn run(&self, args: &[&str]) -> Output {
        let program = env!("CARGO_BIN_EXE_rollpacker");
        Command::new(program).args(args).current_dir(self.path()).output().expect("it starts")
    }

    fn score(&self, args: &[&str]) -> Output {
        self.run(&[&["score"], args].concat())
    }

    /// Returns the summary and the lines of a run that exits with `status`.
    fn scored(&self, status: i32, args: &[&str]) -> (Value, Vec<Value>) {
        let output = self.score(&[args, &["--json", "--output", "out.jsonl"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {error}");
        let summary = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let lines = fs::read_to_string(self.path().join("out.jsonl")).expect("written");
        let lines = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        (summary, lines)
    }

    fn run_refused(&self, args: &[&str]) -> String {
        let output = self.score(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        error
    }
}

#[test]
fn lines_are_in_the_order_of_the_rows_with_their_outcomes_and_errors() {
    let workspace = TestWorkspace::new();
    workspace.write(
        "rows.jsonl",
        &[
            json!({"data_source": "a", "response": "<answer>Paris</answer>", "ground_truth": "Paris"}),
            json!({"data_source": "b", "response": "Rome", "ground_truth": "Paris"}),
            json!({"data_source": "b", "response": "Rome"}),
            json!({"data_source": "b", "response": 3}),
            json!({"response": "paris", "reward_model": {"ground_truth": ["Paris", "Lutetia"]}}),
        ],
    );
    let args = ["--reward", "exact", "--input", "rows.jsonl", "--option", "ignore_case=true"];
    let (summary, lines) = workspace.scored(1, &args);
    let column = |name: &str| lines.iter().map(|line| line[name].clone()).collect::<Vec<_>>();
    assert_eq!(column("index"), [0, 1, 2, 3, 4]);
    assert_eq!(json!(column("score")), json!([1.0, 0.0, null, null, 1.0]));
    assert_eq!(column("outcome"), ["right", "wrong", "error", "error", "right"]);
    assert_eq!(lines[0]["labels"], json!({"answer": "Paris"}));
    assert_eq!(json!([lines[0]["error"], lines[1]["error"]]), json!([null, null]));
    let missing = "reward `exact`: failed: needs the field `ground_truth`, which the row of data_source `b` lacks";
    assert_eq!(lines[2]["error"], missing);
    assert_eq!(lines[3]["error"], "column `response`: expected a text, found 3");

    assert_eq!((&summary["rows"], &summary["scored"]), (&json!(5), &json!(3)));
    assert!((summary["mean"].as_f64().expect("a mean") - 2.0 / 3.0).abs() < 1e-9);
    assert_eq!(summary["errors"], json!({"fatal": 1, "input": 1}));
    assert_eq!(summary["outcomes"], json!({"right": 2, "wrong": 1}));
    let of_b = json!({"rows": 2, "scored": 1, "mean": 0.0});
    assert_eq!(summary["by_data_source"]["b"], of_b);
    assert!(summary["seconds"].as_f64().expect("seconds") > 0.0);

    workspace.scored(0, &[&args[..], &["--allow-errors"]].concat());
    let one = workspace.scored(1, &[&args[..], &["--concurrency", "1"]].concat());
    assert_eq!(one.1, lines);
}

#[test]
fn lines_go_to_standard_output_on_request_and_the_summary_is_text_by_default() {
    let workspace = TestWorkspace::new();
    workspace.write("rows.jsonl", &[json!({"said": {"text": "7"}, "truth": 7, "source": "s"})]);
    let columns = ["--response-key", "said.text", "--ground-truth-key", "truth"];
    let args = [&["--reward", "f1", "--input", "rows.jsonl"], &columns[..]].concat();
    let output = workspace.score(&[&args[..], &["--output", "-"]].concat());
    let line: Value = serde_json::from_slice(&output.stdout).expect("one line");
    assert_eq!((&line["score"], &line["outcome"]), (&json!(1.0), &json!("scored")));
    assert_eq!(line["components"], json!({"precision": 1.0, "recall": 1.0}));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("data source  s: mean 1.0000, 1 of 1")
    );
    let output = workspace.score(&args);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("rows           1, 1 scored, "));
    assert!(output.stderr.is_empty() && output.status.success());
}

#[test]
fn a_recipe_provides_routes_options_and_columns() {
    let workspace = TestWorkspace::new();
    let recipe = r#"
        [data]
        ground_truth_key = "gold"
        [reward]
        on_error = "zero"
        [reward.routes]
        "qa/*" = { exact = 0.75, shape = 0.25 }
        [reward.options.exact]
        ignore_case = true
        attempts = 2
        [reward.options.shape]
        kind = "regex"
        pattern = "^[a-z]+$"
    "#;
    fs::write(workspace.path().join("recipe.toml"), recipe).expect("written");
    let row = |source: &str, response: &str| json!({"data_source": source, "completion": response, "gold": "Paris"});
    let rows = ["qa/x paris", "qa/y Paris", "other Paris"]
        .map(|row| row.split_once(' ').expect("two words"))
        .map(|(source, response)| row(source, response));
    workspace.write("rows.jsonl", &rows);
    let args = ["--reward", "recipe.toml", "--input", "rows.jsonl"];
    let (_, lines) = workspace.scored(1, &args);
    let scores: Vec<_> = lines.iter().map(|line| line["score"].clone()).collect();
    assert_eq!(json!(scores), json!([1.0, 0.75, null]));
    let components = json!({"exact": 1.0, "shape": 0.0});
    assert_eq!((&lines[1]["components"], &lines[1]["outcome"]), (&components, &json!("scored")));
    let error = |row: usize| lines[row]["error"].as_str().expect("an error");
    assert!(error(2).contains("no reward for data_source `other`; there are routes for qa/*"));
    let (_, lines) = workspace
        .scored(1, &[&args[..], &["--option", "reward.options.exact.ignore_case=false"]].concat());
    assert_eq!(lines[0]["score"], 0.25);
}

const GROUPED: &str = r#"
    [reward.routes]
    "g" = { exact = 1.0, length = 0.5 }
    "*" = "exact"
"#;

/// Returns the row of a right or wrong response with this many tokens, in a group.
fn of_group(uid: u64, right: bool, tokens: u64) -> Value {
    let response = if right { "yes" } else { "no" };
    json!({"data_source": "g", "response": response, "ground_truth": "yes", "uid": uid, "response_length": tokens})
}

#[test]
fn rows_of_one_prompt_are_scored_together_at_any_position() {
    let workspace = TestWorkspace::new();
    fs::write(workspace.path().join("recipe.toml"), GROUPED).expect("written");
    let alone = json!({"data_source": "s", "response": "yes", "ground_truth": "yes"});
    let mut rows = vec![of_group(1, true, 10), of_group(2, true, 8), of_group(1, false, 30), alone];
    // The rows of a group are further apart than the number of rows that are scored at once or wait for an earlier row.
    rows.extend(
        (0..100).map(|_| json!({"data_source": "s", "response": "no", "ground_truth": "yes"})),
    );
    rows.extend([of_group(1, true, 20), of_group(2, false, 8)]);
    workspace.write("rows.jsonl", &rows);
    let args = ["--reward", "recipe.toml", "--input", "rows.jsonl"];
    let one_by_one = [&args[..], &["--concurrency", "1"]].concat();
    let (summary, lines) = workspace.scored(0, &one_by_one);
    let score = |row: usize| lines[row]["score"].as_f64().expect("a score");
    // The score is 1 or 0 for correctness, plus 0.5 times a value between 0.5 and -0.5 for the length.
    assert_eq!([0, 2, 104].map(score), [1.25, -0.25, 1.0]);
    assert_eq!([1, 105, 3, 4].map(score), [1.0, 0.0, 1.0, 0.0]);
    assert_eq!(lines[0]["components"], json!({"exact": 1.0, "length": 0.5}));
    assert!(lines.iter().zip(0..).all(|(line, row)| line["index"] == row));
    assert_eq!((&summary["rows"], &summary["groups"]), (&json!(106), &json!(2)));
    assert_eq!(workspace.scored(0, &args).1, lines);

    // Each row is its own group.
    let (summary, lines) =
        workspace.scored(0, &[&args[..], &["--group-key", "response_length"]].concat());
    assert_eq!((&summary["groups"], &lines[2]["score"]), (&json!(4), &json!(0.0)));
}

#[test]
fn a_group_that_cannot_be_scored_is_an_error_of_its_rows_or_of_the_file() {
    let workspace = TestWorkspace::new();
    fs::write(workspace.path().join("recipe.toml"), GROUPED).expect("written");
    let mut unreadable = of_group(1, true, 10);
    unreadable["response"] = json!(3);
    let mut strange = of_group(1, true, 10);
    strange["uid"] = Value::Null;
    let unknown = json!({"data_source": "g", "response": "yes", "ground_truth": "yes", "uid": 2});
    workspace.write("rows.jsonl", &[of_group(1, true, 10), unreadable, strange, unknown]);
    let args = ["--reward", "recipe.toml", "--input", "rows.jsonl"];
    let (summary, lines) = workspace.scored(1, &args);
    let error = |row: usize| lines[row]["error"].as_str().expect("an error").to_owned();
    assert_eq!(error(0), "row 1 of its group has no score");
    assert_eq!(error(1), "column `response`: expected a text, found 3");
    assert_eq!(error(2), "column `uid`: expected a group id, found null");
    let expected = "reward `length`: failed: needs the field `response_length`, which the row of data_source `g` lacks";
    assert_eq!(error(3), expected);
    assert_eq!(summary["errors"], json!({"fatal": 1, "group": 1, "input": 2}));

    workspace.write("rows.jsonl", &[json!({"data_source": "g", "response": "yes"})]);
    let refused = workspace.run_refused(&args);
    let expected = "reward `0.5 length` of data_source `g` scores whole groups: column `group` is absent: \
                    expected one of uid, group_id, prompt_id, index, extra_info.index, or `--group-key`; found data_source, response";
    assert!(refused.contains(expected), "{refused}");
}

#[test]
fn unusable_inputs_are_refused_by_name_with_exit_status_2() {
    let workspace = TestWorkspace::new();
    workspace.write("rows.jsonl", &[json!({"text": "x"})]);
    workspace.write("empty.jsonl", &[]);
    fs::write(workspace.path().join("recipe.toml"), "[reward]\non_eror = \"zero\"")
        .expect("written");
    workspace.write(
        "sparse.jsonl",
        &[json!({"response": "x"}), json!({"response": "x", "source_name": "y"})],
    );
    let cases: [(&[&str], &str); 17] = [
        (&["exact", "empty.jsonl"], "empty.jsonl: expected at least one row, found 0"),
        (&["exakt", "rows.jsonl"], "option `--reward`: expected a recipe, whose name ends with"),
        (&["exakt", "rows.jsonl"], "(did you mean `exact`?)"),
        (&["exakt", "rows.jsonl", "--option", "kind=exackt"], "`reward.options.exakt.kind`"),
        (&["exact", "absent.jsonl"], "absent.jsonl"),
        (&["exact", "rows.jsonl"], "column `response` is absent: expected one of response, "),
        (
            &["exact", "rows.jsonl", "--option", "ignore_cas=true"],
            "did you mean `reward.options.exact.ignore_case`?",
        ),
        (
            &["exact", "rows.jsonl", "--option", "attempts=0"],
            "`reward.options.exact.attempts`: expected a number above 0",
        ),
        (&["exact", "rows.jsonl", "--option", "attempts"], "expected key=value"),
        (
            &["length", "rows.jsonl"],
            "key `reward.routes.*`: `length` depends on the scores of a per-sample reward",
        ),
        (&["exact", "rows.jsonl", "--group-key", "uid"], "no reward scores whole groups"),
        (
            &["recipe.toml", "rows.jsonl"],
            "unknown key `reward.on_eror`; did you mean `reward.on_error`?",
        ),
        (&["exact", "rows.jsonl", "--concurrency", "0"], "`--concurrency`: expected at least 1"),
        (
            &["exact", "sparse.jsonl", "--prompt-key", "promt", "--data-source-key", "source_name"],
            "sparse.jsonl: no row has the column `promt`, which the command line names; the last row has response, source_name",
        ),
        (&["exact", "sparse.jsonl", "--data-source-key", "sorce"], "no row has the column `sorce`"),
        (&["exact", "sparse.jsonl", "--extra-info-key", "a.b"], "no row has the column `a.b`"),
        (&["exact", "sparse.jsonl", "--extra-columns", "*,b"], "no row has the column `b`"),
    ];
    for (args, expected) in cases {
        let args = [&["--reward", args[0], "--input", args[1]], &args[2..]].concat();
        let error = workspace.run_refused(&args);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn demonstrations_of_the_built_in_task_are_right() {
    let workspace = TestWorkspace::new();
    let made = workspace.run(&[
        "data",
        "generate",
        "--output",
        "data",
        "--rows",
        "700",
        "--validation-rows",
        "1",
    ]);
    assert!(made.status.success());
    let args = ["--reward", "math", "--input", "data/train.parquet"];
    let (summary, lines) =
        workspace.scored(0, &[&args[..], &["--response-key", "extra_info.demonstration"]].concat());
    assert_eq!((&summary["rows"], &summary["mean"]), (&json!(700), &json!(1.0)));
    assert!(lines.iter().zip(0..).all(|(line, index)| line["index"] == index));
}

/// A reward file in the form that verl loads with `custom_reward_function.path`.
const VERL: &str = r#"
import re

def extract_solution(solution_str):
    found = re.findall(r'#### (-?[0-9.,]+)', solution_str)
    return found[-1].replace(",", "") if found else None

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    print(f"scoring {data_source}")
    answer = extract_solution(solution_str)
    if extra_info.get("broken"):
        raise ValueError("a broken row")
    return {"score": float(answer == ground_truth), "acc": answer == ground_truth, "pred": answer}
"#;

#[test]
fn a_reward_file_of_verl_scores_unchanged() {
    if !Command::new("python3").arg("--version").output().is_ok_and(|found| found.status.success())
    {
        eprintln!("skipped: there is no python3");
        return;
    }
    let workspace = TestWorkspace::new();
    fs::write(workspace.path().join("reward.py"), VERL).expect("written");
    let row = |response: &str, broken: bool| {
        json!({"data_source": "openai/gsm8k", "response": response, "reward_model": {"ground_truth": "1234"},
               "extra_info": {"broken": broken}})
    };
    workspace.write(
        "rows.jsonl",
        &[row("so\n#### 1,234", false), row("#### 7", true), row("no idea", false)],
    );
    let args = ["--reward", "python", "--input", "rows.jsonl", "--option", "file=reward.py"];
    let two = [&args[..], &["--option", "processes=2"]].concat();
    let (summary, lines) = workspace.scored(1, &two);
    let column = |name: &str| lines.iter().map(|line| line[name].clone()).collect::<Vec<_>>();
    assert_eq!(json!(column("score")), json!([1.0, null, 0.0]));
    assert_eq!(
        (&lines[0]["labels"], &lines[0]["components"]),
        (&json!({"pred": "1234"}), &json!({"acc": 1.0}))
    );
    let error = lines[1]["error"].as_str().expect("an error");
    let expected =
        "reward `python`: failed: `compute_score` raised ValueError: a broken row\nTraceback";
    assert!(error.starts_with(expected) && error.contains("reward.py\", line 12"), "{error}");
    assert_eq!(summary["errors"], json!({"fatal": 1}));

    let error = workspace.run_refused(&[&args[..], &["--option", "function=score"]].concat());
    let expected = "reward.options.python`: cannot load `reward.py`: it has no function `score`: its functions are `extract_solution`, \
                    `compute_score`";
    assert!(error.contains(expected), "{error}");
    let error = workspace.run_refused(&["--reward", "python", "--input", "rows.jsonl"]);
    assert!(error.contains("`reward.options.python.file`: expected a value"), "{error}");
}

/// Scores knights-and-knaves puzzles of an external dataset: the solution is right, and wrong with the role of any one person changed.
#[test]
fn knights_and_knaves_in_the_data_of_logic_rl_are_scored() {
    let Some(shared) = std::env::var_os("ROLLPACKER_SHARED").map(PathBuf::from) else {
        eprintln!("skipped: ROLLPACKER_SHARED is not set to the folder with the puzzles");
        return;
    };
    for people in [3, 7] {
        let puzzles = shared.join(format!("data/kk_{people}ppl_train.parquet"));
        let workspace = TestWorkspace::new();
        let input = puzzles.to_str().expect("text");
        let args =
            ["--reward", "logic", "--input", input, "--response-key", "solution_text_format"];
        let (summary, _) = workspace.scored(0, &args);
        assert_eq!((&summary["rows"], &summary["mean"]), (&json!(900), &json!(1.0)));

        let puzzles = Records::open(&puzzles).expect("opened").map(|row| row.expect("a row"));
        let rows: Vec<Value> = puzzles
            .enumerate()
            .map(|(at, row)| {
                let solution = row["solution_text_format"].as_str().expect("a solution");
                let response =
                    format!("<think>so</think><answer>{}</answer>", flipped(solution, at % people));
                json!({"response": response, "ground_truth": row["reward_model"]["ground_truth"]})
            })
            .collect();
        workspace.write("flipped.jsonl", &rows);
        let (summary, _) = workspace.scored(0, &["--reward", "logic", "--input", "flipped.jsonl"]);
        assert_eq!(summary["mean"], 0.0);
        assert_eq!(summary["components"]["format"], 1.0);
        assert_eq!(summary["outcomes"], json!({"wrong": 900}));
    }
}

/// Returns the solution with the role in one line changed.
fn flipped(solution: &str, at: usize) -> String {
    let flip = |(index, line): (usize, &str)| match line.rsplit_once(' ') {
        Some((claim, role)) if index == at => {
            format!("{claim} {}", if role == "knight" { "knave" } else { "knight" })
        }
        _ => line.to_owned(),
    };
    solution.lines().enumerate().map(flip).collect::<Vec<_>>().join("\n")
}
