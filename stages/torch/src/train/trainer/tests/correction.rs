//! Tests of rollout correction: rejection, importance weights divided by their mean, and the metrics of the mismatch, whole and streamed.

use rollpacker_stages::train::config::{Divergence, RejectionUnit, RolloutRs};

use super::*;

/// Returns the set of rules with the index `number`, from 0 to 2. Each set rejects some of the random responses of [`response`].
fn rules(number: usize) -> Vec<RolloutRs> {
    let of_tokens =
        RolloutRs { unit: RejectionUnit::Token, divergence: Divergence::K1 { min: 0.2, max: 3.0 } };
    let of_sequences =
        RolloutRs { unit: RejectionUnit::SequenceMean, divergence: Divergence::K3 { max: 1.0 } };
    [vec![of_tokens], vec![of_sequences], vec![of_sequences, of_tokens]][number].clone()
}

fn metrics_of(trainer: &TorchTrainer) -> Metrics {
    let tally = trainer.accumulated.tally().unwrap();
    tally.metrics().into_iter().chain(mismatch::derived(&tally)).collect()
}

#[track_caller]
fn check_same(found: &Metrics, expected: &Metrics) {
    assert!(found.keys().eq(expected.keys()), "{found:?}, expected {expected:?}");
    for (name, expected) in expected {
        let (found, size) = (found[name], expected.abs().max(1.0));
        assert!((found - expected).abs() <= 1e-9 * size, "{name}: {found}, expected {expected}");
    }
}

/// Returns a configuration whose loss is the policy loss alone.
fn plain(mode: Aggregation) -> TrainerConfig {
    TrainerConfig {
        kl_loss_coef: 0.0,
        entropy_coeff: 0.0,
        old_logprobs: OldLogprobs::Trainer,
        ..config(mode)
    }
}

fn is(level: Level, batch_normalize: bool) -> Option<RolloutIs> {
    Some(RolloutIs { level, threshold: Threshold::Above(1.5), batch_normalize })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_rejecting_update_does_not_depend_on_order_or_pieces(
        arrival in arrival(),
        mode in 0..4usize,
        loss in 0..policy_losses().names().count(),
        number in 0..3usize,
        weighs in any::<bool>(),
    ) {
        let name = policy_losses().names().nth(loss).map(str::to_owned).unwrap();
        let config = TrainerConfig {
            policy_loss: Choice::of(&name),
            rollout_is: is(Level::Token, false).filter(|_| weighs),
            rollout_rs: rules(number),
            ..config(MODES[mode])
        };
        let found = difference(&config, &arrival, widen);
        prop_assert!(found <= FLOAT64, "{name} {number}: {found}");
    }

    #[test]
    fn an_update_with_weights_of_mean_one_does_not_depend_on_order_or_pieces(
        arrival in arrival(),
        mode in 0..4usize,
        level in prop_oneof![Just(Level::Token), Just(Level::Sequence)],
    ) {
        let config = TrainerConfig { rollout_is: is(level, true), ..plain(MODES[mode]) };
        let found = difference(&config, &arrival, widen);
        prop_assert!(found <= FLOAT64, "{level:?}: {found}");
    }

    #[test]
    fn metrics_do_not_depend_on_pieces_or_replicas(
        arrival in arrival(),
        mode in 0..4usize,
        corrects in any::<bool>(),
        deterministic in any::<bool>(),
    ) {
        let budget = |micro_batch_tokens| TrainerConfig {
            micro_batch_tokens,
            deterministic,
            rollout_is: is(Level::Sequence, true).filter(|_| corrects),
            rollout_rs: if corrects { rules(2) } else { Vec::new() },
            ..plain(MODES[mode])
        };
        let mut trainers = [usize::MAX, arrival.micro_batch_tokens, arrival.micro_batch_tokens]
            .map(|tokens| trainer(budget(tokens)));
        if !deterministic {
            // Sums in fixed point are of float32, and equal to the bit.
            trainers.iter_mut().for_each(widen);
        }
        let [mut whole, mut first, mut second] = trainers;
        // In deterministic mode, the responses to a prompt come in one call.
        let named = |at: usize| Sequence {
            prompt: PromptId(at as u64),
            ..arrival.responses[at].sequence()
        };
        accumulate(&mut whole, [(0..arrival.responses.len()).map(named).collect()]);
        let mut sum = Partial::default();
        for (number, calls) in arrival.order.chunks(arrival.call).enumerate() {
            let own = if number % 2 == 0 { &mut first } else { &mut second };
            accumulate(own, [calls.iter().map(|&at| named(at)).collect()]);
            sum.add(own.take_partial(Step(0)).unwrap()).unwrap();
        }
        for replica in [&mut first, &mut second] {
            replica.put_sum(Step(0), sum.clone()).unwrap();
            check_same(&metrics_of(replica), &metrics_of(&whole));
        }
    }
}

/// Returns two responses to the same prompt. At each token of the second response, the engine's probability is half the trainer's.
fn pair(trainer: &TorchTrainer) -> [Response; 2] {
    let near = on_policy(trainer, &example(&[2, 3], &[4, 5, 1], 0.5));
    let far = on_policy(trainer, &example(&[2, 3], &[6, 1], -1.0));
    let logprobs = far.logprobs.iter().map(|logprob| logprob - std::f32::consts::LN_2);
    [near, Response { logprobs: logprobs.collect(), weight: 0.5, ..far }]
}

/// Returns the rule that rejects the second response of [`pair`], or its tokens.
fn rejecting(unit: RejectionUnit) -> Vec<RolloutRs> {
    vec![RolloutRs { unit, divergence: Divergence::K1 { min: 0.6, max: 1.5 } }]
}

/// Returns the numerator of the gradient of some responses, and its denominator.
fn accumulated(config: TrainerConfig, responses: &[&Response]) -> (Tensor, f64) {
    let mut trainer = trainer(config);
    accumulate(&mut trainer, [responses.iter().map(|response| response.sequence()).collect()]);
    let numerator = trainer.accumulated.mean(trainer.decoder.parameters(), 1.0).unwrap();
    (numerator.copy(), denominator_of(&trainer))
}

#[test]
fn a_rejected_response_has_no_gradient_and_counts_unless_tokens_do() {
    for (mode, expected) in MODES.into_iter().zip([3.0, 1.5, 1.5, 1.5]) {
        for unit in [RejectionUnit::Token, RejectionUnit::SequenceMean] {
            // The loss has a KL term and an entropy bonus. A rejected response must not contribute to them, either.
            let rejects = TrainerConfig { rollout_rs: rejecting(unit), ..config(mode) };
            let [near, far] = pair(&trainer(config(mode)));
            let (numerator, denominator) = accumulated(rejects, &[&near, &far]);
            let (alone, _) = accumulated(config(mode), &[&near]);
            assert!(relative_difference(&alone, &numerator) < FLOAT32, "{mode:?} {unit:?}");
            assert_eq!(denominator, expected, "{mode:?} {unit:?}");
        }
    }
}

#[test]
fn a_rejected_token_has_no_gradient_and_is_not_in_the_mean_of_its_response() {
    for (mode, factor) in MODES.into_iter().zip([1.0, 1.0, 0.5, 1.0 / 32.0]) {
        let rejects = TrainerConfig {
            rollout_rs: rejecting(RejectionUnit::Token),
            policy_loss: Choice::of("gpg"),
            ..plain(mode)
        };
        let slow = trainer(rejects.clone());
        let mut response = on_policy(&slow, &example(&[2, 3], &[4, 5, 1], 2.0));
        response.logprobs[1] -= std::f32::consts::LN_2;
        let kept = Tensor::from_slice(&[1.0f32, 0.0, 1.0]);
        let loss = (slow_logprobs(&slow, &response) * kept * (-2.0 * factor)).sum(Kind::Float);
        loss.backward();
        let expected = slow.accumulated.mean(slow.decoder.parameters(), 1.0).unwrap();
        let (numerator, denominator) = accumulated(rejects, &[&response]);
        assert!(relative_difference(&expected, &numerator) < FLOAT32, "{mode:?}");
        assert_eq!(denominator, if mode == Aggregation::TokenMean { 2.0 } else { 1.0 });
    }
}

#[test]
fn the_weights_of_a_step_without_a_kept_token_stay() {
    let rejects = TrainerConfig { rollout_rs: rejecting(RejectionUnit::Token), ..plain(MODES[0]) };
    let mut trainer = trainer(rejects);
    let initial = trainer.publish(PolicyVersion(0)).unwrap();
    let [_, far] = pair(&trainer);
    accumulate(&mut trainer, [vec![far.sequence()]]);
    let (policy, metrics) = trainer.update(Step(0)).unwrap();
    assert_eq!(policy.digest, initial.digest);
    assert_eq!(metrics["rollout_corr/rollout_rs_masked_fraction"], 1.0);
    assert!((metrics["rollout_corr/kl"] + std::f64::consts::LN_2).abs() < 1e-5);
    assert!(!metrics.contains_key("actor/pg_loss"));
    // The next step must not contain the rejected response.
    let [near, _] = pair(&trainer);
    accumulate(&mut trainer, [vec![near.sequence()]]);
    let (policy, metrics) = trainer.update(Step(1)).unwrap();
    assert_ne!(policy.digest, initial.digest);
    assert_eq!(metrics["rollout_corr/rollout_rs_masked_fraction"], 0.0);
}

/// The importance weights of [`pair`] are 1 for the three tokens of the first response and 1.5 for the two tokens of the second. The second
/// response has weight 0.5 in the loss.
#[test]
fn weights_are_divided_by_their_mean() {
    for (level, mean) in [(Level::Token, (3.0 + 0.5 * 3.0) / 4.0), (Level::Sequence, 1.75 / 1.5)] {
        for mode in MODES {
            let of = |batch_normalize| {
                let weighted =
                    TrainerConfig { rollout_is: is(level, batch_normalize), ..plain(mode) };
                let mut trainer = trainer(weighted);
                let pair = pair(&trainer);
                accumulate(&mut trainer, pair.iter().map(|response| vec![response.sequence()]));
                let gradient = gradient(&trainer);
                (gradient, metrics_of(&trainer))
            };
            let ((raw, before), (normalized, after)) = (of(false), of(true));
            let found = relative_difference(&raw, &(normalized * mean));
            assert!(found < FLOAT32, "{level:?} {mode:?}: {found}");
            let factor = after["rollout_corr/rollout_is_batch_norm_factor"];
            assert!((factor - mean).abs() < 1e-6, "{level:?} {mode:?}: {factor}");
            let losses = [&before, &after].map(|metrics| metrics["actor/pg_loss"]);
            assert!((losses[0] - losses[1] * mean).abs() < 1e-6, "{losses:?}");
            let entropies = [before, after].map(|metrics| metrics["actor/entropy"]);
            assert_eq!(entropies[0], entropies[1]);
        }
    }
}

#[test]
fn weights_cannot_be_divided_by_their_mean_where_that_changes_other_terms() {
    let normalized = TrainerConfig { rollout_is: is(Level::Token, true), ..config(MODES[0]) };
    let decoder = Decoder::init(model(), 7, Device::Cpu).unwrap();
    let error = TorchTrainer::new(decoder, normalized, WeightStore::new(4)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "this trainer cannot divide importance weights by their mean over the step if the loss has a KL term or an entropy bonus"
    );
}

/// Importance weights are ratios of the trainer to the engine, even if the engine's log-probabilities are the old log-probabilities.
#[test]
fn weights_do_not_depend_on_the_old_log_probabilities() {
    let with = |old_logprobs| TrainerConfig {
        policy_loss: Choice::of("gpg"),
        rollout_is: is(Level::Token, false),
        old_logprobs,
        ..plain(MODES[0])
    };
    let pair = pair(&trainer(with(OldLogprobs::Engine)));
    let of = |old_logprobs| accumulated(with(old_logprobs), &[&pair[0], &pair[1]]).0;
    let (engine, trainer) = (of(OldLogprobs::Engine), of(OldLogprobs::Trainer));
    assert_eq!(relative_difference(&trainer, &engine), 0.0);
}
