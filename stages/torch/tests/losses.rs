//! Losses compared with those of verl and TRL on the same inputs: values, metrics and gradients of every entry of `fixtures/losses.json`.
#![allow(clippy::unwrap_used, reason = "the fixture is part of the test")]

use rollpacker_stages::catalog::Choice;
use rollpacker_stages::train::config::{Aggregation, Level, RolloutIs, Threshold};
use rollpacker_torch::train::loss::{
    self, Segments, SharedPolicyLoss, Tokens, importance_weights, kl_estimators, policy_losses,
    value_loss,
};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

const RELATIVE: f64 = 1e-5;
/// The minimum magnitude to which the relative tolerance is applied, as a share of the tensor's largest value. Smaller values are
/// differences of float32 numbers, so their relative errors are larger.
const FLOOR: f64 = 0.01;

fn fixture() -> Value {
    serde_json::from_str(include_str!("fixtures/losses.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        number => vec![number.as_f64().unwrap() as f32],
    }
}

/// Returns the unmasked entries of a `[8, 12]` array, row after row: the packed form.
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

fn segments(lengths: &[usize]) -> Segments {
    Segments::new(&lengths.iter().map(|&n| n as i64).collect::<Vec<_>>(), Device::Cpu).unwrap()
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_kind(Kind::Double).contiguous().view(-1)).unwrap()
}

#[track_caller]
fn close(what: &str, ours: &[f64], theirs: &[f64]) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let largest = theirs.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
        let tolerance = RELATIVE * b.abs().max(FLOOR * largest);
        assert!((a - b).abs() <= tolerance, "{what} [{i}]: {a}, expected {b}");
    }
}

/// Returns the aggregated loss as a trainer computes it: the numerator divided by the denominator.
fn aggregate(mode: Aggregation, scale: f64, lengths: &[usize], losses: &Tensor) -> Tensor {
    let coefficients: Vec<f32> =
        lengths.iter().flat_map(|n| vec![mode.coefficient(*n, scale) as f32; *n]).collect();
    let denominator: f64 = lengths.iter().map(|n| mode.measure(*n)).sum();
    (losses * Tensor::from_slice(&coefficients)).sum(Kind::Float) / denominator
}

/// An entry of `losses` in terms of this crate's configuration.
struct Configured {
    loss: SharedPolicyLoss,
    mode: Aggregation,
    scale: f64,
    /// The factor of the KL term, and `true` if the term is multiplied by the ratio.
    kl: Option<(f64, bool)>,
}

fn mode(name: &str) -> Aggregation {
    serde_json::from_value(name.into()).unwrap()
}

fn with_clip(name: &str, entry: &Value) -> Choice {
    Choice::of(name)
        .with("clip_ratio_low", entry["clip_low"].clone())
        .with("clip_ratio_high", entry["clip_high"].clone())
}

fn verl(entry: &Value) -> Configured {
    let policy = entry["policy"].as_str().unwrap();
    let choice = match policy {
        "vanilla" => with_clip("vanilla", entry).with("clip_ratio_c", entry["clip_c"].clone()),
        _ => with_clip(policy, entry),
    };
    let loss = policy_losses().make(&choice).unwrap();
    let mode = loss.aggregation().unwrap_or_else(|| mode(entry["agg"].as_str().unwrap()));
    let scale = entry["loss_scale_factor"].as_f64().unwrap_or(12.0);
    Configured { loss, mode, scale, kl: None }
}

/// Maps TRL's loss types to a policy loss and an aggregation. TRL's `delta` is the dual clip. Its CISPO clips only above, at `epsilon_high`
/// itself.
fn trl(entry: &Value) -> Configured {
    let far = 1e30;
    let policy = entry["policy"].as_str().unwrap();
    let choice = match (policy, entry["level"].as_str().unwrap()) {
        ("cispo", _) => Choice::of("cispo")
            .with("clip_ratio_low", 1.0)
            .with("clip_ratio_high", entry["clip_high"].as_f64().unwrap() - 1.0),
        ("sapo", _) => Choice::of("sapo"),
        (_, "sequence") => with_clip("gspo", entry),
        _ => {
            with_clip("vanilla", entry).with("clip_ratio_c", entry["delta"].as_f64().unwrap_or(far))
        }
    };
    let mode = mode(match policy {
        "grpo" | "sapo" => "seq-mean-token-mean",
        "dr_grpo" => "seq-mean-token-sum-norm",
        "bnpo" | "dapo" | "cispo" => "token-mean",
        other => panic!("no loss type {other}"),
    });
    let beta = entry["beta"].as_f64().unwrap();
    Configured {
        loss: policy_losses().make(&choice).unwrap(),
        mode,
        scale: entry["max_completion_length"].as_f64().unwrap(),
        kl: (beta > 0.0).then(|| (beta, entry["use_bias_correction_kl"].as_bool().unwrap())),
    }
}

/// Returns the advantage of each token, packed.
fn advantages(all: &Value, entry: &Value, mask: &Value) -> Tensor {
    if let Some(sequences) = entry.get("advantages_seq") {
        let of = numbers(sequences).into_iter().zip(lengths(mask));
        return Tensor::from_slice(&of.flat_map(|(a, n)| vec![a; n]).collect::<Vec<_>>());
    }
    let name = entry["advantages"].as_str().unwrap();
    if name == "adv_tok" {
        return packed(&all["inputs"]["adv_tok"], mask);
    }
    let wanted = |a: &&Value| a["name"] == name && a["scores"] == "scores" && a["mask"] == "mask";
    packed(&all["advantages"].as_array().unwrap().iter().find(wanted).unwrap()["advantages"], mask)
}

/// Checks the loss, the gradient and the shared metrics of an entry.
fn check(all: &Value, entry: &Value) {
    let configured = if entry["source"] == "verl" { verl(entry) } else { trl(entry) };
    let what = format!("{} {} {}", entry["name"], entry["agg"], entry["mask"]);
    let inputs = &all["inputs"];
    let mask = &inputs[entry["mask"].as_str().unwrap()];
    let lengths = lengths(mask);
    let logprobs = packed(&inputs["logp"], mask).set_requires_grad(true);
    let (old, advantages) = (packed(&inputs["old_logp"], mask), advantages(all, entry, mask));
    let segments = segments(&lengths);
    let tokens =
        Tokens { logprobs: &logprobs, old: &old, advantages: &advantages, segments: &segments };
    let found = configured.loss.tokens(&tokens).unwrap();
    let mut total = found.loss.shallow_clone();
    if let Some((beta, by_ratio)) = configured.kl {
        let k3 = kl_estimators().make(&Choice::of("k3")).unwrap();
        let kl = k3.tokens(&logprobs, &packed(&inputs["ref_logp"], mask)).unwrap();
        let kl = if by_ratio { kl * tokens.log_ratio().unwrap().exp() } else { kl };
        total += kl * beta;
    }
    let loss = aggregate(configured.mode, configured.scale, &lengths, &total);
    loss.backward();
    close(&format!("{what} loss"), &floats(&loss), &[entry["loss"].as_f64().unwrap()]);
    let grad = packed(&entry["grad"], mask);
    close(&format!("{what} grad"), &floats(&logprobs.grad()), &floats(&grad));

    let mean = |t: &Tensor| floats(&t.to_kind(Kind::Float).mean(Kind::Float));
    let ppo_kl = ("actor/ppo_kl", -tokens.log_ratio().unwrap());
    let same = [("actor/pg_clipfrac", "clip_ratio/region_mean")];
    for (name, values) in found.metrics.iter().chain([&ppo_kl]) {
        let alias = same.iter().find(|(ours, _)| ours == name && entry["level"] == "token");
        let theirs = [Some(*name), alias.map(|(_, theirs)| *theirs)].into_iter().flatten();
        for theirs in theirs.filter_map(|theirs| entry["metrics"][theirs].as_f64()) {
            close(&format!("{what} {name}"), &mean(values), &[theirs]);
        }
    }
}

#[test]
fn every_policy_loss_matches_its_reference() {
    let all = fixture();
    let entries = all["losses"].as_array().unwrap();
    assert_eq!(entries.len(), 27);
    entries.iter().for_each(|entry| check(&all, entry));
}

#[test]
fn kl_estimators_match_verl() {
    let all = fixture();
    let mask = &all["inputs"]["mask"];
    let entries = all["kl"].as_array().unwrap();
    assert_eq!(entries.len(), 5);
    for entry in entries {
        let kind = entry["kind"].as_str().unwrap();
        let estimator = kl_estimators().make(&Choice::of(kind)).unwrap();
        let logprobs = packed(&all["inputs"]["logp"], mask).set_requires_grad(true);
        let kl = estimator.tokens(&logprobs, &packed(&all["inputs"]["ref_logp"], mask)).unwrap();
        let loss = aggregate(Aggregation::TokenMean, 1.0, &lengths(mask), &kl);
        loss.backward();
        close(&format!("{kind} value"), &floats(&kl), &floats(&packed(&entry["value"], mask)));
        close(&format!("{kind} mean"), &floats(&loss), &[entry["token_mean"].as_f64().unwrap()]);
        close(
            &format!("{kind} grad"),
            &floats(&logprobs.grad()),
            &floats(&packed(&entry["grad"], mask)),
        );
    }
}

/// An estimator with `+` has the value of the estimator without `+`, and the gradient of `mse`. The fixture has no numbers of verl for
/// these estimators.
#[test]
fn straight_through_changes_the_gradient_and_not_the_value() {
    let reference = Tensor::from_slice(&[-1.0f32, -0.5, -3.0]);
    let run = |name: &str| {
        let logprobs = Tensor::from_slice(&[-0.2f32, -0.9, -2.5]).set_requires_grad(true);
        let estimator = kl_estimators().make(&Choice::of(name)).unwrap();
        let kl = estimator.tokens(&logprobs, &reference).unwrap();
        kl.sum(Kind::Float).backward();
        (floats(&kl), floats(&logprobs.grad()))
    };
    for name in ["kl", "abs", "low_var_kl"] {
        let (plain, through) = (run(name), run(&format!("{name}+")));
        close(name, &through.0, &plain.0);
        close(name, &through.1, &run("mse").1);
    }
}

#[test]
fn value_losses_match_verl() {
    let all = fixture();
    let (inputs, mask) = (&all["inputs"], &all["inputs"]["mask"]);
    let entries = all["value_loss"].as_array().unwrap();
    assert_eq!(entries.len(), 2);
    for entry in entries {
        let clip = entry["cliprange_value"].as_f64().unwrap();
        let predicted = packed(&inputs["vpreds"], mask).set_requires_grad(true);
        let (before, returns) = (packed(&inputs["values"], mask), packed(&entry["returns"], mask));
        let found = value_loss(&predicted, &before, &returns, clip).unwrap();
        let mode = mode(entry["agg"].as_str().unwrap());
        let loss = aggregate(mode, 1.0, &lengths(mask), &found.loss);
        loss.backward();
        close(&format!("{clip} loss"), &floats(&loss), &[entry["loss"].as_f64().unwrap()]);
        close(
            &format!("{clip} grad"),
            &floats(&predicted.grad()),
            &floats(&packed(&entry["grad"], mask)),
        );
        let clipfrac = found.clipped.to_kind(Kind::Float).mean(Kind::Float);
        let expect = [entry["clipfrac"].as_f64().unwrap()];
        close(&format!("{clip} clipfrac"), &floats(&clipfrac), &expect);
    }
}

/// The expected values are `exp(old - rollout)`, computed by hand for two sequences of 2 and 1 tokens.
#[test]
fn importance_weights_are_of_tokens_or_sequences_and_cut_off() {
    let old = Tensor::from_slice(&[-1.0f32, -2.0, -0.5]).set_requires_grad(true);
    let rollout = Tensor::from_slice(&[-2.0f32, -1.5, -3.0]);
    let weights = |level, threshold| {
        let is = RolloutIs { level, threshold, batch_normalize: false };
        let weights = importance_weights(&is, &old, &rollout, &segments(&[2, 1])).unwrap();
        assert!(!weights.requires_grad());
        floats(&weights)
    };
    let (one, half, far) = (1.0f64.exp(), (-0.5f64).exp(), 2.5f64.exp());
    close("token", &weights(Level::Token, Threshold::Above(2.0)), &[2.0, half, 2.0]);
    close("token, far", &weights(Level::Token, Threshold::Above(1e3)), &[one, half, far]);
    let sequence = (0.5f64).exp();
    close("sequence", &weights(Level::Sequence, Threshold::Above(5.0)), &[sequence, sequence, 5.0]);
    close("band", &weights(Level::Token, Threshold::Outside(0.7, 4.0)), &[one, 0.0, 0.0]);
}

/// Importance weights apply token by token, except for GMPO, which weighs a sequence by the geometric mean of its token weights, as verl
/// does.
#[test]
fn geo_mean_weighs_sequences_by_the_geometric_mean() {
    let weights = Tensor::from_slice(&[0.5f32, 2.0, 1.5, 0.25, 0.0]);
    let segments = segments(&[2, 2, 1]);
    let factors = |name: &str| {
        let loss = policy_losses().make(&Choice::of(name)).unwrap();
        floats(&loss.importance(&weights, &segments).unwrap())
    };
    let second = (1.5f64 * 0.25).sqrt();
    close("geo_mean", &factors("geo_mean"), &[1.0, 1.0, second, second, 1e-10]);
    for name in policy_losses().names().filter(|name| *name != "geo_mean") {
        close(name, &factors(name), &[0.5, 2.0, 1.5, 0.25, 0.0]);
    }
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
