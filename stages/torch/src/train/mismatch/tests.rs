//! Tests of the metrics of the mismatch against numbers from a direct computation of the formulas.

use rollpacker_stages::train::config::{Divergence, RejectionUnit, RolloutIs, RolloutRs};
use tch::{Device, Tensor};

use super::*;
use crate::train::head::TokenScores;
use crate::train::objective::{Columns, Objective, factors};

const ENGINE: [&[f32]; 2] = [&[-1.0, -0.5], &[-2.0]];
const TRAINER: [&[f32]; 2] = [&[-1.25, -0.375], &[-1.5]];

/// Returns the sums of responses with the given log-probabilities.
fn sums_of(config: &TrainerConfig, engine: &[&[f32]], trainer: &[&[f32]]) -> StepSums {
    let sequences: Vec<_> = engine
        .iter()
        .map(|&logprobs| Sequence {
            response_ids: &[0; 3][..logprobs.len()],
            logprobs,
            advantages: &[1.0; 3][..logprobs.len()],
            ..Sequence::default()
        })
        .collect();
    let logprobs = Tensor::from_slice(&trainer.concat()).set_requires_grad(true);
    let scores = TokenScores { entropy: logprobs.zeros_like(), logprobs };
    let objective = Objective::builtin(config).unwrap();
    let factors = factors(&sequences, config.loss_agg_mode, 1.0, Device::Cpu).unwrap();
    let columns = Columns::new(&sequences, factors, None, None, Device::Cpu).unwrap();
    let (_, outcome) = objective.numerator(config, &scores, &columns, &sequences).unwrap();
    let tokens = sequences.iter().map(|sequence| sequence.logprobs.len()).sum::<usize>();
    let mut all = StepSums::of(tokens as f64, tokens, &outcome.terms).unwrap();
    all.add(&sums(config, &sequences, &outcome).unwrap());
    all
}

fn metrics(sums: &StepSums) -> Metrics {
    sums.metrics().into_iter().chain(derived(sums)).collect()
}

#[track_caller]
fn check(metrics: &Metrics, expected: &[(&str, f64)]) {
    for (name, value) in expected {
        let found = metrics[*name];
        assert!((found - value).abs() < 1e-6, "{name}: {found}, expected {value}");
    }
}

#[test]
fn metrics_are_those_of_the_formulas() {
    let found = metrics(&sums_of(&TrainerConfig::default(), &ENGINE, &TRAINER));
    check(
        &found,
        &[
            ("rollout_corr/kl", -0.125),
            ("rollout_corr/k3_kl", 0.061_890_169),
            ("rollout_corr/training_ppl", 3.367_611_929),
            ("rollout_corr/rollout_ppl", 4.753_028_058),
            ("rollout_corr/log_ppl_diff", -0.21875),
            ("rollout_corr/log_ppl_abs_diff", 0.28125),
            ("rollout_corr/ppl_ratio", 0.835_512_559),
            ("rollout_corr/chi2_token", 0.536_279_302),
            ("rollout_corr/chi2_seq", 0.748_541_305),
            ("rollout_corr/rollout_is_ratio_fraction_high", 0.0),
            ("rollout_corr/rollout_is_ratio_fraction_low", 0.0),
            ("training/rollout_probs_diff_mean", 0.083_309_380),
            ("training/rollout_probs_diff_max", 0.087_794_877),
            ("training/rollout_probs_diff_std", 0.003_896_746),
            ("training/rollout_actor_probs_pearson_corr", 0.924_953_535),
        ],
    );
    assert!(!found.keys().any(|name| name.contains("rollout_rs") || name.contains("is_mean")));
}

#[test]
fn parts_of_a_step_add_up_to_the_step() {
    let is =
        RolloutIs { level: Level::Token, threshold: Threshold::Above(1.2), batch_normalize: true };
    let rule = RolloutRs { unit: RejectionUnit::Token, divergence: Divergence::K2 { max: 0.1 } };
    let corrected =
        TrainerConfig { rollout_is: Some(is), rollout_rs: vec![rule], ..TrainerConfig::default() };
    for config in [TrainerConfig::default(), corrected] {
        let whole = sums_of(&config, &ENGINE, &TRAINER);
        let mut parts = StepSums::default();
        for at in [1, 0] {
            parts.add(&sums_of(&config, &ENGINE[at..=at], &TRAINER[at..=at]));
        }
        let (whole, parts) = (metrics(&whole), metrics(&parts));
        assert!(whole.keys().eq(parts.keys()), "{whole:?}, in parts {parts:?}");
        for (name, value) in &whole {
            assert!((value - parts[name]).abs() < 1e-6, "{name}: {}, whole {value}", parts[name]);
        }
    }
}

/// The ratios of the tokens are 0.779 and 1.133 in the first response, and 1.649 in the second.
#[test]
fn weights_beyond_the_threshold_are_counted_at_its_level() {
    let fractions = |level, threshold| {
        let is = RolloutIs { level, threshold, batch_normalize: false };
        let config = TrainerConfig { rollout_is: Some(is), ..TrainerConfig::default() };
        let found = metrics(&sums_of(&config, &ENGINE, &TRAINER));
        ["high", "low"].map(|side| found[&format!("rollout_corr/rollout_is_ratio_fraction_{side}")])
    };
    let third = 1.0 / 3.0;
    assert_eq!(fractions(Level::Token, Threshold::Above(1.2)), [third, third]);
    assert_eq!(fractions(Level::Token, Threshold::Outside(0.7, 1.1)), [2.0 * third, 0.0]);
    // The product of the first response is 0.88.
    assert_eq!(fractions(Level::Sequence, Threshold::Above(1.2)), [0.5, 0.0]);
    assert_eq!(fractions(Level::Sequence, Threshold::Outside(0.9, 2.0)), [0.0, 0.5]);
}

#[test]
fn the_effective_sample_size_is_that_of_the_truncated_weights() {
    let is =
        RolloutIs { level: Level::Token, threshold: Threshold::Above(1.2), batch_normalize: true };
    let config = TrainerConfig { rollout_is: Some(is), ..TrainerConfig::default() };
    let found = metrics(&sums_of(&config, &ENGINE, &TRAINER));
    check(
        &found,
        &[
            ("rollout_corr/rollout_is_mean", 1.037_316_412),
            ("rollout_corr/rollout_is_max", 1.2),
            ("rollout_corr/rollout_is_eff_sample_size", 0.969_230_345),
            ("rollout_corr/rollout_is_batch_norm_factor", 1.037_316_412),
        ],
    );
}

#[test]
fn rejected_tokens_are_counted_and_stay_in_the_other_metrics() {
    let of = |unit| {
        let rule = RolloutRs { unit, divergence: Divergence::K2 { max: 0.03 } };
        let config = TrainerConfig { rollout_rs: vec![rule], ..TrainerConfig::default() };
        metrics(&sums_of(&config, &ENGINE, &TRAINER))
    };
    // Estimates of 0.031, 0.008 and 0.125.
    for (unit, tokens) in [(RejectionUnit::Token, 2.0 / 3.0), (RejectionUnit::SequenceMax, 1.0)] {
        let found = of(unit);
        check(
            &found,
            &[
                ("rollout_corr/rollout_rs_masked_fraction", tokens),
                ("rollout_corr/rollout_rs_seq_masked_fraction", 1.0),
                ("rollout_corr/kl", -0.125),
                ("rollout_corr/chi2_seq", 0.748_541_305),
            ],
        );
    }
    // The mean over the only token that is kept.
    check(&of(RejectionUnit::Token), &[("actor/ppo_kl", -0.5 + 0.375)]);
    assert!(!of(RejectionUnit::SequenceMax).contains_key("actor/ppo_kl"));
}

#[test]
fn a_wrong_model_gives_finite_sums() {
    let found = sums_of(&TrainerConfig::default(), &[&[-9999.0, -1e30]], &[&[-0.1, -1e4]]);
    assert!(found.is_finite());
    let found = metrics(&found);
    assert!(found["rollout_corr/k3_kl"] > 1e8 && found["rollout_corr/chi2_token"] > 1e17);
}

#[test]
fn a_single_token_has_neither_deviation_nor_correlation() {
    let found = metrics(&sums_of(&TrainerConfig::default(), &[&[-1.0]], &[&[-2.0]]));
    assert!(found.contains_key("training/rollout_probs_diff_mean"));
    assert!(!found.contains_key("training/rollout_probs_diff_std"));
    assert!(!found.contains_key("training/rollout_actor_probs_pearson_corr"));
    // Equal probabilities do not vary, up to rounding.
    let equal: &[f32] = &[-0.3, -0.3, -0.3];
    let found = metrics(&sums_of(&TrainerConfig::default(), &[equal], &[equal]));
    assert!(found["training/rollout_probs_diff_std"].abs() < 1e-12);
    assert!(!found.contains_key("training/rollout_actor_probs_pearson_corr"));
}
