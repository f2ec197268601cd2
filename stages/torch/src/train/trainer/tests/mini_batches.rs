//! Tests of several updates per step.

use super::*;
use crate::train::config::MiniBatches;

fn several(prompts: usize, epochs: u32) -> TrainerConfig {
    TrainerConfig {
        mini_batches: Some(MiniBatches { prompts, epochs }),
        old_logprobs: OldLogprobs::Trainer,
        ..config(Aggregation::TokenMean)
    }
}

/// Returns two responses to each of three prompts.
fn step() -> Vec<Response> {
    let response = |prompt: u64, sample: u32, tokens: &[i32], advantage| Response {
        id: (prompt, sample),
        ..example(&[2, 3 + prompt as i32], tokens, advantage)
    };
    vec![
        response(4, 0, &[4, 5, 1], 0.5),
        response(4, 1, &[6, 1], -0.5),
        response(7, 0, &[3, 3, 9, 1], 1.5),
        response(7, 1, &[8], -1.0),
        response(9, 0, &[5, 5, 1], -2.0),
        response(9, 1, &[], 1.0),
    ]
}

fn sequences(responses: &[Response]) -> Vec<Sequence<'_>> {
    responses.iter().map(Response::sequence).collect()
}

fn weights(trainer: &TorchTrainer) -> Tensor {
    let flat = trainer.decoder.parameters().iter().map(|(_, tensor)| tensor.detach().reshape(-1));
    Tensor::cat(&flat.collect::<Vec<_>>(), 0)
}

#[test]
fn updates_are_those_of_steps_with_the_log_probabilities_of_the_first_policy() {
    let mut ours = trainer(several(2, 2));
    let before = weights(&ours);
    accumulate(&mut ours, [sequences(&step())]);
    assert!(before == weights(&ours), "nothing changes before the update");

    // The engine's log-probabilities are set to those of the first policy.
    let start: Vec<_> = step().iter().map(|response| on_policy(&ours, response)).collect();
    let mut expected = trainer(config(Aggregation::TokenMean));
    for _ in 0..2 {
        for mini_batch in [&start[..4], &start[4..]] {
            accumulate(&mut expected, [sequences(mini_batch)]);
            expected.update(Step(0)).unwrap();
        }
    }
    let (_, metrics) = ours.update(Step(0)).unwrap();
    let found = (weights(&ours) - weights(&expected)).norm().double_value(&[]);
    let moved = (weights(&expected) - before).norm().double_value(&[]);
    assert!(moved > 0.1 && found < 1e-4 * moved, "{found} of {moved}");
    assert_eq!(metrics["actor/updates"], 4.0);
    assert_eq!(metrics["actor/lr"], 1e-2);
    assert!(metrics["actor/ppo_kl"].abs() > 1e-4, "the policy leaves the first one");
}

#[test]
fn the_mismatch_is_that_of_the_first_policy() {
    let (mut one, mut two) = (trainer(config(Aggregation::TokenMean)), trainer(several(1, 1)));
    let mut metrics = [&mut one, &mut two].map(|trainer| {
        accumulate(trainer, [sequences(&step())]);
        trainer.update(Step(0)).unwrap().1
    });
    for metrics in &mut metrics {
        metrics.retain(|name, _| name.starts_with("rollout_corr") || name.starts_with("training"));
    }
    assert!(metrics[0].len() > 8 && metrics[0].keys().eq(metrics[1].keys()));
    for (name, value) in &metrics[0] {
        assert!((value - metrics[1][name]).abs() < 1e-5, "{name}: {value}, {}", metrics[1][name]);
    }
}

#[test]
fn a_mini_batch_does_not_depend_on_the_order_of_arrival() {
    let config = TrainerConfig { deterministic: true, ..several(2, 1) };
    let responses = step();
    let groups: Vec<_> = responses.chunks(2).collect();
    let digests = [[0, 1, 2], [2, 0, 1]].map(|order| {
        let mut trainer = trainer(config.clone());
        accumulate(&mut trainer, order.map(|group| sequences(groups[group])));
        trainer.update(Step(0)).unwrap().0.digest
    });
    assert_eq!(digests[0], digests[1]);
}

#[test]
fn one_mini_batch_and_epoch_is_one_update() {
    let mut trainers = [several(3, 1), config(Aggregation::TokenMean)].map(trainer);
    for trainer in &mut trainers {
        let responses: Vec<_> =
            step().iter().map(|response| on_policy(trainer, response)).collect();
        accumulate(trainer, [sequences(&responses)]);
        trainer.update(Step(0)).unwrap();
    }
    let [held, streamed] = trainers.each_ref().map(weights);
    assert!((held - streamed).abs().max().double_value(&[]) < 1e-6);
}

#[test]
fn a_critic_is_updated_as_often() {
    let critic = Some(CriticConfig { warmup_steps: 1, ..CriticConfig::default() });
    let mut trainer = trainer(TrainerConfig { critic, ..several(2, 3) });
    let before = weights(&trainer);
    let mut update = |step| {
        let responses = super::mini_batches::step();
        trainer.accumulate(Step(step), &responses.iter().map(valued).collect::<Vec<_>>()).unwrap();
        let metrics = trainer.update(Step(step)).unwrap().1;
        (
            metrics,
            before == weights(&trainer),
            trainer.critic.as_mut().unwrap().optimizer().updates(),
        )
    };
    let (metrics, unchanged, updates) = update(0);
    assert!(unchanged && metrics["critic/vf_loss"] > 0.0, "the critic is trained alone at first");
    assert_eq!((metrics["actor/updates"], updates), (0.0, 6));
    let (metrics, unchanged, updates) = update(1);
    assert!(!unchanged);
    assert_eq!((metrics["actor/updates"], updates), (6.0, 12));
}

#[test]
fn a_step_without_responses_changes_nothing() {
    let mut trainer = trainer(several(1, 2));
    let before = weights(&trainer);
    let (policy, metrics) = trainer.update(Step(0)).unwrap();
    assert_eq!(policy.version, PolicyVersion(1));
    assert!(before == weights(&trainer) && !metrics.contains_key("actor/grad_norm"));
}

#[test]
fn a_response_that_comes_twice_and_replicas_are_refused() {
    let mut trainer = trainer(several(1, 2));
    accumulate(&mut trainer, [sequences(&step())]);
    let error = trainer.accumulate(Step(0), &sequences(&step()[..1])).unwrap_err();
    assert!(matches!(error, TrainError::Partial(_)), "{error}");
    let error = trainer.take_partial(Step(0)).unwrap_err().to_string();
    assert!(error.contains("several updates per step"), "{error}");
}
