//! The token losses against what verl and TRL computed on the same inputs: values, metrics and gradients (`fixtures/losses.json`).
#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used, reason = "the fixture is part of the test")]

use rollpacker_stages::train::config::{Aggregation, KlPenalty, PolicyLoss};
use rollpacker_stages::train::loss;
use serde_json::Value;
use tch::{Kind, Tensor};

const RELATIVE: f64 = 1e-5;

fn fixture() -> Value {
    serde_json::from_str(include_str!("fixtures/losses.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        number => vec![number.as_f64().unwrap() as f32],
    }
}

/// The entries of a `[8, 12]` array at the unmasked positions, end to end: our packed form.
fn packed(values: &Value, mask: &Value) -> Tensor {
    let kept =
        numbers(values).into_iter().zip(numbers(mask)).filter(|(_, m)| *m != 0.0).map(|(v, _)| v);
    Tensor::from_slice(&kept.collect::<Vec<_>>())
}

fn lengths(mask: &Value) -> Vec<usize> {
    mask.as_array()
        .unwrap()
        .iter()
        .map(|row| numbers(row).iter().filter(|m| **m != 0.0).count())
        .collect()
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_kind(Kind::Double).contiguous().view(-1)).unwrap()
}

#[track_caller]
fn close(what: &str, ours: &[f64], theirs: &[f64]) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let largest = theirs.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
        let tolerance = RELATIVE * b.abs().max(0.01 * largest);
        assert!((a - b).abs() <= tolerance, "{what} [{i}]: {a}, expected {b}");
    }
}

/// Numerator over denominator, as a trainer adds them up.
fn aggregate(mode: Aggregation, scale: f64, lengths: &[usize], losses: &Tensor) -> Tensor {
    let coefficients: Vec<f32> =
        lengths.iter().flat_map(|n| vec![mode.coefficient(*n, scale) as f32; *n]).collect();
    let denominator: f64 = lengths.iter().map(|n| mode.measure(*n)).sum();
    (losses * Tensor::from_slice(&coefficients)).sum(Kind::Float) / denominator
}

fn aggregation(entry: &Value) -> Aggregation {
    serde_json::from_value(entry["agg"].clone()).unwrap()
}

fn clip(entry: &Value, dual: f64) -> PolicyLoss {
    PolicyLoss::Vanilla {
        clip_ratio_low: entry["clip_low"].as_f64().unwrap(),
        clip_ratio_high: entry["clip_high"].as_f64().unwrap(),
        clip_ratio_c: entry["clip_c"].as_f64().unwrap_or(dual),
    }
}

fn verl_advantages<'a>(all: &'a Value, entry: &Value) -> &'a Value {
    let name = entry["advantages"].as_str().unwrap();
    if name == "adv_tok" {
        return &all["inputs"]["adv_tok"];
    }
    let wanted = |a: &&Value| a["name"] == name && a["scores"] == "scores" && a["mask"] == "mask";
    &all["advantages"].as_array().unwrap().iter().find(wanted).unwrap()["advantages"]
}

#[test]
fn vanilla_matches_verl() {
    let all = fixture();
    let entries: Vec<_> = all["losses"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|e| e["source"] == "verl" && e["policy"] == "vanilla")
        .collect();
    assert_eq!(entries.len(), 11);
    for entry in entries {
        let what = format!("{} {} {}", entry["name"], entry["agg"], entry["mask"]);
        let inputs = &all["inputs"];
        let mask = &inputs[entry["mask"].as_str().unwrap()];
        let logprobs = packed(&inputs["logp"], mask).set_requires_grad(true);
        let old = packed(&inputs["old_logp"], mask);
        let tokens = clip(entry, 3.0)
            .tokens(&logprobs, &old, &packed(verl_advantages(&all, entry), mask))
            .unwrap();

        let scale = entry["loss_scale_factor"].as_f64().unwrap_or(12.0);
        let loss = aggregate(aggregation(entry), scale, &lengths(mask), &tokens.loss);
        loss.backward();
        close(&format!("{what} loss"), &floats(&loss), &[entry["loss"].as_f64().unwrap()]);
        close(
            &format!("{what} grad"),
            &floats(&logprobs.grad()),
            &floats(&packed(&entry["grad"], mask)),
        );

        let mean = |t: &Tensor| floats(&t.to_kind(Kind::Float).mean(Kind::Float));
        let metric = |name: &str| [entry["metrics"][name].as_f64().unwrap()];
        close(&format!("{what} clipfrac"), &mean(&tokens.clipped), &metric("actor/pg_clipfrac"));
        close(
            &format!("{what} clipfrac_lower"),
            &mean(&tokens.clipped_lower),
            &metric("actor/pg_clipfrac_lower"),
        );
        close(&format!("{what} ppo_kl"), &mean(&-tokens.log_ratio), &metric("actor/ppo_kl"));
    }
}

#[test]
fn kl_estimators_match_verl() {
    let all = fixture();
    let mask = &all["inputs"]["mask"];
    for entry in all["kl"].as_array().unwrap() {
        let kind: KlPenalty = serde_json::from_value(entry["kind"].clone()).unwrap();
        let logprobs = packed(&all["inputs"]["logp"], mask).set_requires_grad(true);
        let kl = kind.tokens(&logprobs, &packed(&all["inputs"]["ref_logp"], mask)).unwrap();
        let loss = aggregate(Aggregation::TokenMean, 1.0, &lengths(mask), &kl);
        loss.backward();
        close(&format!("{kind:?} value"), &floats(&kl), &floats(&packed(&entry["value"], mask)));
        close(&format!("{kind:?} mean"), &floats(&loss), &[entry["token_mean"].as_f64().unwrap()]);
        close(
            &format!("{kind:?} grad"),
            &floats(&logprobs.grad()),
            &floats(&packed(&entry["grad"], mask)),
        );
    }
}

/// The sum of policy loss and KL term, which verl's fixtures hold only apart; TRL has no dual clip.
#[test]
fn policy_loss_with_kl_matches_trl() {
    let all = fixture();
    let entry = all["losses"]
        .as_array()
        .unwrap()
        .iter()
        .find(|e| e["name"] == "trl grpo beta k3 (classic)")
        .unwrap();
    let (inputs, mask) = (&all["inputs"], &all["inputs"]["mask"]);
    let lengths = lengths(mask);
    let advantages: Vec<f32> = numbers(&entry["advantages_seq"])
        .into_iter()
        .zip(&lengths)
        .flat_map(|(a, n)| vec![a; *n])
        .collect();
    let logprobs = packed(&inputs["logp"], mask).set_requires_grad(true);
    let policy = clip(entry, f64::MAX)
        .tokens(&logprobs, &packed(&inputs["old_logp"], mask), &Tensor::from_slice(&advantages))
        .unwrap();
    let kl = KlPenalty::K3.tokens(&logprobs, &packed(&inputs["ref_logp"], mask)).unwrap();
    let total = policy.loss + kl * entry["beta"].as_f64().unwrap();
    let loss = aggregate(Aggregation::SeqMeanTokenMean, 1.0, &lengths, &total);
    loss.backward();
    close("loss", &floats(&loss), &[entry["loss"].as_f64().unwrap()]);
    close("grad", &floats(&logprobs.grad()), &floats(&packed(&entry["grad"], mask)));
}

#[test]
fn log_probs_and_entropy_match_torch() {
    let entry = &fixture()["logprob"];
    let rows = entry["labels"].as_array().unwrap().len() as i64;
    let labels: Vec<i64> = numbers(&entry["labels"]).iter().map(|l| *l as i64).collect();
    let logits =
        || Tensor::from_slice(&numbers(&entry["logits"])).view([rows, -1]).set_requires_grad(true);
    let (input, targets) = (logits(), Tensor::from_slice(&labels));
    let (logprobs, entropy) = loss::log_probs(&input, &targets, false).unwrap();
    assert!(!entropy.requires_grad());
    logprobs.sum(Kind::Float).backward();
    let wanted = |key: &str| numbers(&entry[key]).into_iter().map(f64::from).collect::<Vec<_>>();
    close("logp", &floats(&logprobs), &wanted("logp"));
    close("entropy", &floats(&entropy), &wanted("entropy"));
    close("grad of logp", &floats(&input.grad()), &wanted("grad_logp_sum"));

    let input = logits();
    loss::log_probs(&input, &targets, true).unwrap().1.sum(Kind::Float).backward();
    close("grad of entropy", &floats(&input.grad()), &wanted("grad_entropy_sum"));
}
