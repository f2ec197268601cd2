//! The math rewards on the test suites of other projects, whose files are in the folder `ROLLPACKER_SHARED`.

#![allow(missing_docs, reason = "tests")]
#![allow(clippy::print_stdout, reason = "prints the skipped tests and the rows that differ")]

use std::path::PathBuf;

use rollpacker_math::Verifier;
use rollpacker_rewards::verl::{Gsm8k, MathDapo, MathReward, SearchR1};
use serde_json::Value;

/// Returns the rows of a fixture; none if `ROLLPACKER_SHARED` is not set.
fn rows(name: &str) -> Vec<Value> {
    let Some(shared) = std::env::var_os("ROLLPACKER_SHARED") else {
        println!("skipped: ROLLPACKER_SHARED is not set");
        return Vec::new();
    };
    let path = PathBuf::from(shared).join("fixtures").join(name);
    let text = std::fs::read_to_string(&path).expect("the fixture can be read");
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object per line")).collect()
}

fn math(row: &Value) -> Verifier {
    let mut options = serde_json::Map::new();
    let mut default = false;
    for key in
        ["match_types", "precision", "strict", "allow_set_relation_comp", "boxed_match_priority"]
    {
        default |= key == "match_types" && row[key] == serde_json::json!(["default"]);
        if !(default && key == "match_types") {
            options.insert(key.to_owned(), row[key].clone());
        }
    }
    serde_json::from_value(Value::Object(options)).expect("options")
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().expect("a text")
}

/// Returns the rows for which a reward's verdict differs from the suite's.
fn differing(rows: &[Value], reward: impl Fn(&Value) -> Verifier) -> Vec<&Value> {
    let differs = |row: &&Value| {
        let correct = reward(row).is_correct(text(row, "pred"), text(row, "gold"));
        Some(correct) != row["expected"].as_bool()
    };
    rows.iter().filter(differs).collect()
}

#[test]
fn math_answers_as_math_verify_expects() {
    let rows = rows("math_verify_even.jsonl");
    // Some rows need their own options: LaTeX only, or fewer decimal places.
    let own = ("options of the row", differing(&rows, math), 50);
    let default = ("default options", differing(&rows, |_| Verifier::default()), 25);
    for (name, differing, one_in) in [own, default] {
        for row in &differing {
            let end = |key| text(row, key).chars().rev().take(100).collect::<Vec<_>>();
            let end = |key| end(key).into_iter().rev().collect::<String>();
            println!(
                "{name}: {} {} expected {}: {:?} against {:?}",
                row["id"],
                row["test"],
                row["expected"],
                end("pred"),
                end("gold")
            );
        }
        println!("{name}: {} of {} as expected", rows.len() - differing.len(), rows.len());
        assert!(
            differing.len() * one_in <= rows.len(),
            "{name}: more than one in {one_in} differs"
        );
    }
}

/// Returns the result of the reward that matches the grader of a row, in the fixture's format; `None` for graders that are tested
/// elsewhere.
fn graded(row: &Value) -> Option<Value> {
    let response = row["args"][0].as_str()?;
    let truth = row["args"][1].as_str();
    let number = |score: f64| Some(Value::from(score));
    let dapo = |strict_box: bool| {
        let verdict = MathDapo { strict_box }.grade(response, truth?);
        Some(
            serde_json::json!({"score": verdict.score, "acc": verdict.correct, "pred": verdict.prediction}),
        )
    };
    let search = |substring: bool| {
        let target = row["args"][1]["target"].clone();
        let golden: Vec<String> = serde_json::from_value(target).ok()?;
        number(SearchR1 { substring }.grade(response, &golden))
    };
    match row["grader"].as_str()? {
        "verl.gsm8k.strict" => number(Gsm8k { flexible: false }.grade(response, truth?)),
        "verl.gsm8k.flexible" => number(Gsm8k { flexible: true }.grade(response, truth?)),
        "verl.math_reward" => number(MathReward {}.grade(response, truth?)),
        "verl.math_dapo" => dapo(false),
        "verl.math_dapo.strict_box" => dapo(true),
        "verl.search_r1_em" => search(false),
        "verl.search_r1_subem" => search(true),
        _ => None,
    }
}

/// Returns the value with all numbers as floats, because the other projects return both 0 and 0.0.
fn floats(value: &Value) -> Value {
    match value {
        Value::Number(number) => Value::from(number.as_f64()),
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (key.clone(), floats(value))).collect()
        }
        other => other.clone(),
    }
}

#[test]
fn named_modes_answer_exactly_as_verl() {
    let rows = rows("graders_even.jsonl");
    let graded = rows.iter().filter_map(|row| Some((row, graded(row)?)));
    let differing: Vec<String> = graded
        .filter(|(row, found)| floats(&row["result"]) != floats(found))
        .map(|(row, found)| format!("{row}: found {found}"))
        .collect();
    assert_eq!(differing, Vec::<String>::new());
}
