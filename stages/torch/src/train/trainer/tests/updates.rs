//! Tests of updates: their metrics, their effect, the policies that they publish, and the inputs that they reject.

use super::*;

#[test]
fn on_policy_the_ratio_is_one_and_the_loss_is_minus_the_mean_advantage() {
    let mut trainer = trainer(config(Aggregation::TokenMean));
    let responses = [
        example(&[2, 3], &[4, 5, 1], 0.5),
        example(&[6], &[7], -1.0),
        example(&[8, 9], &[3, 3, 3, 1], 2.0),
    ];
    let responses = responses.map(|r| on_policy(&trainer, &r));
    accumulate(&mut trainer, [responses.iter().map(Response::sequence).collect()]);
    let (_, metrics) = trainer.update(Step(0)).unwrap();
    let near = |name: &str, expect: f64| {
        assert!((metrics[name] - expect).abs() < 1e-5, "{name}: {}", metrics[name])
    };
    near("actor/pg_loss", -(3.0 * 0.5 - 1.0 + 4.0 * 2.0) / 8.0);
    near("actor/ppo_kl", 0.0);
    near("actor/pg_clipfrac", 0.0);
    near("actor/lr", 1e-2);
    near("training/rollout_probs_diff_max", 0.0);
    assert!(
        metrics["actor/kl_loss"] > 0.0
            && metrics["actor/entropy"] > 0.0
            && metrics["actor/grad_norm"] > 0.0
    );
}

#[test]
fn the_difference_to_the_engine_is_reported() {
    let mut trainer = trainer(config(Aggregation::TokenMean));
    let mut response = on_policy(&trainer, &example(&[2, 3], &[4, 5, 1, 6], 0.5));
    let (before, after) = (response.logprobs[1].exp(), response.logprobs[1].exp() + 0.04);
    response.logprobs[1] = after.ln();
    accumulate(&mut trainer, [vec![response.sequence()]]);
    let (_, metrics) = trainer.update(Step(0)).unwrap();
    let expect = f64::from(after - before);
    assert!((metrics["training/rollout_probs_diff_max"] - expect).abs() < 1e-6);
    assert!((metrics["training/rollout_probs_diff_mean"] - expect / 4.0).abs() < 1e-6);
}

#[test]
fn updates_make_the_better_response_likelier() {
    let plain =
        TrainerConfig { kl_loss_coef: 0.0, entropy_coeff: 0.0, ..config(Aggregation::TokenMean) };
    let mut trainer = trainer(plain);
    assert!(trainer.reference.is_none());
    let (good, bad) = (example(&[2, 3], &[4, 5, 1], 1.0), example(&[2, 3], &[6, 7, 8, 1], -1.0));
    let margin = |trainer: &TorchTrainer| {
        let total = |r| slow_logprobs(trainer, r).sum(Kind::Float).double_value(&[]);
        total(&good) - total(&bad)
    };
    let before = margin(&trainer);
    for step in 0..10 {
        let pair = [on_policy(&trainer, &good), on_policy(&trainer, &bad)];
        accumulate(&mut trainer, [pair.iter().map(Response::sequence).collect()]);
        let _published = trainer.update(Step(step)).unwrap();
    }
    assert!(margin(&trainer) > before + 2.0, "{before} to {}", margin(&trainer));
}

#[test]
fn an_update_without_sequences_publishes_the_same_weights() {
    let mut trainer = trainer(config(Aggregation::TokenMean));
    let initial = trainer.publish(PolicyVersion(0)).unwrap();
    accumulate(&mut trainer, [vec![], vec![example(&[2], &[], 1.0).sequence()]]);
    let (policy, metrics) = trainer.update(Step(0)).unwrap();
    assert_eq!((initial.version, policy.version), (PolicyVersion(0), PolicyVersion(1)));
    assert_eq!(policy.digest, initial.digest);
    assert!(metrics.is_empty());
}

#[test]
fn an_update_publishes_other_weights_and_starts_a_new_accumulation() {
    let mut trainer = trainer(config(Aggregation::TokenMean));
    let initial = trainer.publish(PolicyVersion(0)).unwrap();
    accumulate(&mut trainer, [vec![example(&[2], &[3, 4], 1.0).sequence()]]);
    let (first, _) = trainer.update(Step(0)).unwrap();
    assert_ne!(first.digest, initial.digest);
    let (second, _) = trainer.update(Step(1)).unwrap();
    assert_eq!((second.version, second.digest), (PolicyVersion(2), first.digest));
}

/// Returns the metrics of one update with products of `dtype`, and the change of each parameter.
fn update_with(dtype: Precision, threads: usize) -> (Metrics, Vec<Tensor>) {
    let config = TrainerConfig {
        dtype,
        threads,
        micro_batch_tokens: 8,
        deterministic: true,
        ..config(Aggregation::TokenMean)
    };
    let mut trainer = trainer(config);
    let responses = [(2, 0.5), (6, -1.0), (8, 2.0), (3, 1.0)].map(|(prompt, advantage)| {
        let response = example(&[prompt, 3], &[4, 5, prompt, 1], advantage);
        Response { id: (prompt as u64, 0), ..response }
    });
    let before: Vec<Tensor> =
        trainer.decoder.parameters().iter().map(|(_, one)| one.copy()).collect();
    accumulate(&mut trainer, [responses.iter().map(Response::sequence).collect()]);
    let (_, metrics) = trainer.update(Step(0)).unwrap();
    let after = trainer.decoder.parameters().iter().map(|(_, one)| one.detach());
    assert!(after.clone().all(|one| one.kind() == Kind::Float), "the weights stay float32");
    (metrics, after.zip(before).map(|(after, before)| after - before).collect())
}

#[test]
fn bfloat16_products_round_the_gradient_a_little() {
    let (exact, _) = update_with(Precision::Float32, 1);
    let (rounded, change) = update_with(Precision::Bfloat16, 1);
    let norm = "actor/grad_norm";
    assert_ne!(exact[norm], rounded[norm], "products are rounded");
    assert!((exact[norm] / rounded[norm] - 1.0).abs() < 0.05, "{} {}", exact[norm], rounded[norm]);
    assert!((exact["actor/entropy"] - rounded["actor/entropy"]).abs() < 0.02);
    // Every thread rounds, and the sum does not depend on their number.
    let (_, of_two) = update_with(Precision::Bfloat16, 2);
    assert!(change.iter().zip(&of_two).all(|(one, other)| one.equal(other)));
}

fn refusal(response: &Response) -> String {
    trainer(config(Aggregation::TokenMean))
        .accumulate(Step(3), &[response.sequence()])
        .unwrap_err()
        .to_string()
}

#[test]
fn refusals_name_what_is_wrong() {
    let good = example(&[2], &[3, 4], 1.0);
    let without_prompt = Response { prompt: vec![], ..good.clone() };
    assert_eq!(
        refusal(&without_prompt),
        "sequence 0: `prompt_ids` has 0 entries, expected at least 1"
    );
    let short = Response { advantages: vec![1.0], ..good.clone() };
    assert_eq!(refusal(&short), "sequence 0: `advantages` has 1 entries, expected 2");
    let infinite = Response { advantages: vec![f32::INFINITY, 1.0], ..good.clone() };
    assert_eq!(refusal(&infinite), "loss is not finite at step 4");
    let out_of_vocabulary = Response { response: vec![3, 99], ..good };
    assert!(
        refusal(&out_of_vocabulary).starts_with("trainer failed in accumulating gradients: "),
        "{}",
        refusal(&out_of_vocabulary)
    );
}
