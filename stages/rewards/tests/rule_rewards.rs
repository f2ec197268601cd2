//! Rule rewards compared with the graders of other projects, whose results are in the folder `ROLLPACKER_SHARED`.

#![allow(clippy::print_stderr, reason = "a skipped test prints a message")]

use std::path::PathBuf;

use futures::executor::block_on;
use rollpacker_rewards::{AnyReward, Registry};
use rollpacker_stages::reward::{Context, Options, Reward, Sample, Score};
use serde_json::{Value, json};

fn shared(path: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("ROLLPACKER_SHARED");
    if folder.is_none() {
        eprintln!("skipped: ROLLPACKER_SHARED is not set, so there is no {path}");
    }
    folder.map(|folder| PathBuf::from(folder).join(path))
}

fn score(name: &str, options: &Value, sample: &Sample) -> Score {
    let options: Options = options.as_object().expect("options").clone();
    let Ok(AnyReward::Sample(reward)) = Registry::builtin().make(name, options) else {
        panic!("{name} is no reward of samples");
    };
    block_on(reward.score(sample, &Context::detached())).expect("scored")
}

/// Returns the result of the matching reward in the grader's format; `None` for graders that are tested elsewhere.
fn ours(grader: &str, args: &[Value]) -> Option<Value> {
    let text = |index: usize| args[index].as_str().expect("a text");
    let response = |text: &str| Sample::of("any", text, None);
    let value = |name, options: Value, sample: &Sample| json!(score(name, &options, sample).value);
    Some(match grader {
        "slime.f1" => {
            let sample = Sample::of("any", text(0), Some(text(1)));
            let score = score("f1", &json!({"answer": "response"}), &sample);
            json!([score.value, score.components["precision"], score.components["recall"]])
        }
        "trl.soft_overlong(100,20)" => {
            let length = u32::try_from(args[0].as_u64().expect("a length")).expect("short");
            let sample = Sample { response_length: length, ..response("") };
            value("soft_overlong", json!({"max_length": 100, "cache": 20}), &sample)
        }
        "trl.repetition(ngram2,-1)" => {
            let ids = serde_json::from_value(args[0].clone()).expect("ids");
            value("repetition", json!({"ngram": 2}), &Sample { response_ids: ids, ..response("") })
        }
        "trl.think_format" => value("format", json!({"style": "think"}), &response(text(0))),
        _ => return None,
    })
}

/// Returns `true` if two numbers, or the numbers of two arrays, are equal, whether they are written as integers or not.
fn same(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().zip(theirs).all(|(one, other)| same(one, other))
        }
        _ => ours.as_f64() == theirs.as_f64() && ours.is_number(),
    }
}

#[test]
fn scores_match_other_graders_exactly() {
    let Some(path) = shared("fixtures/graders_even.jsonl") else { return };
    let text = std::fs::read_to_string(path).expect("readable");
    let mut tried = 0;
    for row in text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")) {
        let args = row["args"].as_array().expect("arguments");
        let Some(ours) = ours(row["grader"].as_str().expect("a name"), args) else { continue };
        assert!(same(&ours, &row["result"]), "{row}: found {ours}");
        tried += 1;
    }
    assert!(tried >= 13, "{tried} rows");
}

#[test]
fn repeated_ngrams_are_counted_as_trl_documents() {
    let sample = Sample { response_ids: vec![5; 5], ..Sample::of("any", "", None) };
    assert_eq!(
        score("repetition", &json!({"ngram_size": 2, "max_penalty": -1.0}), &sample).value,
        -0.75
    );
}
