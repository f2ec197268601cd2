//! Compares the advantage estimators with the results of verl and TRL on the same inputs. The inputs and results are the entries of
//! `advantages` in the fixture of losses.
#![allow(clippy::unwrap_used, reason = "the fixture is part of the test")]

use rollpacker_operators::advantage::{Estimator, Grpo, Trajectory, advantages};
use rollpacker_stages::catalog::Choice;
use serde_json::Value;

const RELATIVE: f64 = 1e-5;
/// The minimum scale of a comparison, as a share of the largest value. Smaller values are compared with the tolerance for this scale,
/// because verl sums in float32, and a sum that cancels keeps the rounding errors of its terms.
const FLOOR: f64 = 0.05;

fn fixture() -> Value {
    serde_json::from_str(include_str!("../../stages/torch/tests/fixtures/losses.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        number => vec![number.as_f64().unwrap()],
    }
}

/// Returns, for each row, the values whose mask is not 0.
fn packed(values: &Value, mask: &Value) -> Vec<Vec<f64>> {
    let rows = values.as_array().unwrap().iter().zip(mask.as_array().unwrap());
    rows.map(|(values, mask)| {
        let kept = numbers(values).into_iter().zip(numbers(mask));
        kept.filter(|(_, m)| *m != 0.0).map(|(v, _)| v).collect()
    })
    .collect()
}

fn trajectories(all: &Value, entry: &Value) -> Vec<Trajectory> {
    let (inputs, mask) = (&all["inputs"], &all["inputs"][entry["mask"].as_str().unwrap()]);
    let scores = numbers(&inputs[entry["scores"].as_str().unwrap()]);
    let values = packed(&inputs["values"], mask);
    let rewards = match entry.get("token_rewards") {
        Some(rewards) => packed(rewards, mask),
        None => {
            let last = |(score, values): (f64, &Vec<f64>)| {
                let mut rewards = vec![0.0; values.len()];
                *rewards.last_mut().unwrap() = score;
                rewards
            };
            scores.iter().copied().zip(&values).map(last).collect()
        }
    };
    let groups = numbers(&inputs["index"]);
    let rows = groups.into_iter().zip(rewards).zip(values);
    rows.map(|((group, rewards), values)| Trajectory {
        group: group as u64,
        score: rewards.iter().sum(),
        rewards,
        values,
    })
    .collect()
}

/// Returns the estimator of a name with options, such as `gae gamma=0.99 lam=0.95 (raw)`.
fn estimator(name: &str) -> Estimator {
    if name.starts_with("trl grpo") {
        return Grpo { norm_by_std: true, epsilon: 1e-4 }.into();
    }
    let words = name.split(' ');
    let choice = words.fold(Choice::of(name.split(' ').next().unwrap()), |choice, word| match word
        .split_once('=')
    {
        Some((key @ ("gamma" | "lam"), value)) => choice.with(key, value.parse::<f64>().unwrap()),
        None if word == "(raw)" => choice.with("whiten", false),
        _ => choice,
    });
    advantages().make(&choice).unwrap()
}

#[track_caller]
fn close(what: &str, ours: &[Vec<f64>], theirs: &[Vec<f64>]) {
    let largest = theirs.iter().flatten().fold(0.0f64, |a, b| a.max(b.abs()));
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (row, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(ours.len(), theirs.len(), "{what} [{row}]");
        for (a, b) in ours.iter().zip(theirs) {
            let tolerance = RELATIVE * b.abs().max(FLOOR * largest).max(1e-9);
            assert!((a - b).abs() <= tolerance, "{what} [{row}]: {a}, expected {b}");
        }
    }
}

#[test]
fn every_estimator_matches_its_reference() {
    let all = fixture();
    let entries = all["advantages"].as_array().unwrap();
    assert_eq!(entries.len(), 25);
    for entry in entries {
        let name = entry["name"].as_str().unwrap();
        let what = format!("{name} {} {}", entry["scores"], entry["mask"]);
        let mask = &all["inputs"][entry["mask"].as_str().unwrap()];
        let trajectories = trajectories(&all, entry);
        let estimates = estimator(name).estimate(&trajectories).expect("it keeps its contract");
        let ours: Vec<_> = estimates.iter().map(|one| one.advantages.clone()).collect();
        let theirs = match entry.get("advantages_seq") {
            Some(rows) => {
                numbers(rows).into_iter().zip(&ours).map(|(a, n)| vec![a; n.len()]).collect()
            }
            None => packed(&entry["advantages"], mask),
        };
        close(&what, &ours, &theirs);
        if name.starts_with("gae") {
            let ours: Vec<_> = estimates.into_iter().map(|one| one.returns).collect();
            close(&format!("{what} returns"), &ours, &packed(&entry["returns"], mask));
        }
    }
}
