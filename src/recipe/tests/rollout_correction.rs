//! Tests of the section `[algorithm.rollout_correction]`.

use expect_test::{Expect, expect};
use rollpacker_stages::train::config::{
    Divergence, Level, OldLogprobs, RejectionUnit, RolloutRs, TrainerConfig,
};

use super::{check_error, read};

/// Returns the trainer configuration of a recipe that sets only these keys of `algorithm.rollout_correction`.
fn correction(overrides: &[&str]) -> TrainerConfig {
    let overrides: Vec<_> =
        overrides.iter().map(|set| format!("algorithm.rollout_correction.{set}")).collect();
    let overrides: Vec<_> = overrides.iter().map(String::as_str).collect();
    read("", &overrides).expect("valid").trainer
}

#[test]
fn rules_of_rejection_have_one_bound_or_one_each() {
    let of = |rules: &str, bounds: &str| {
        let overrides = [format!("rollout_rs={rules}"), format!("rollout_rs_threshold={bounds}")];
        correction(&[&overrides[0], &overrides[1]]).rollout_rs
    };
    let rule = |unit, divergence| RolloutRs { unit, divergence };
    let band = |min, max| rule(RejectionUnit::Token, Divergence::K1 { min, max });
    assert_eq!(of("token_k1", "\"0.5_3.0\""), [band(0.5, 3.0)]);
    assert_eq!(of("token_k1", "4"), [band(0.25, 4.0)]);
    let largest = |max| rule(RejectionUnit::SequenceMax, Divergence::K3 { max });
    assert_eq!(of("seq_max_k3", "0.001"), [largest(0.001)]);
    assert_eq!(of("token_k1, seq_max_k3", "\"0.5_3.0, 0.1\""), [band(0.5, 3.0), largest(0.1)]);
    assert_eq!(of("token_k1,seq_max_k3", "2.0"), [band(0.5, 2.0), largest(2.0)]);
    for name in RolloutRs::NAMES {
        assert_eq!(of(name, "2.0")[0].name(), name);
    }
    assert_eq!(correction(&[]).rollout_rs, []);
}

#[test]
fn the_loss_of_reinforce_is_the_weighted_log_probability() {
    let reinforce = ["bypass_mode=true", "loss_type=reinforce", "rollout_is=sequence"];
    let trainer = correction(&reinforce);
    assert_eq!(trainer.policy_loss.name, "gpg");
    assert_eq!(trainer.old_logprobs, OldLogprobs::Engine);
    assert_eq!(trainer.rollout_is.map(|is| is.level), Some(Level::Sequence));
    let clipped = correction(&["bypass_mode=true", "loss_type=ppo_clip"]);
    assert_eq!(clipped, correction(&["bypass_mode=true"]));
}

#[test]
fn a_wrong_correction_names_its_key() {
    let check = |overrides: &[&str], expected: Expect| check_error("", overrides, expected);
    check(
        &["algorithm.rollout_correction.rollout_rs=token_k4"],
        expect![
            "key `algorithm.rollout_correction.rollout_rs`: expected one of token_k1, token_k2, token_k3, seq_sum_k1, seq_sum_k2, seq_sum_k3, seq_mean_k1, seq_mean_k2, seq_mean_k3, seq_max_k2, seq_max_k3 (did you mean `token_k1`?), found `token_k4`"
        ],
    );
    check(
        &["algorithm.rollout_correction.rollout_rs='token_k2,token_k2'"],
        expect![
            "key `algorithm.rollout_correction.rollout_rs`: expected each rule once, found `token_k2` twice"
        ],
    );
    check(
        &["algorithm.rollout_correction.rollout_rs=token_k2"],
        expect![
            "key `algorithm.rollout_correction.rollout_rs_threshold`: expected a bound when rollout_rs = `token_k2` is set, found nothing"
        ],
    );
    check(
        &["algorithm.rollout_correction.rollout_rs_threshold=2"],
        expect![
            "key `algorithm.rollout_correction.rollout_rs`: expected the name of a rule when rollout_rs_threshold is set, found nothing"
        ],
    );
    let bounded = |rules: &str, bounds: &str, expected: Expect| {
        let rules = format!("algorithm.rollout_correction.rollout_rs='{rules}'");
        let bounds = format!("algorithm.rollout_correction.rollout_rs_threshold={bounds}");
        check(&[&rules, &bounds], expected);
    };
    bounded(
        "token_k2",
        "'0.5_2.0'",
        expect![
            "key `algorithm.rollout_correction.rollout_rs_threshold`: expected a number from 1e-9 to 1e6 for `token_k2`, found `0.5_2.0`"
        ],
    );
    bounded(
        "seq_mean_k1",
        "0.5",
        expect![
            "key `algorithm.rollout_correction.rollout_rs_threshold`: expected a ratio from 1 to 1e6, or a band as `low_high` of ratios from 1e-6 to 1e6 for `seq_mean_k1`, found `0.5`"
        ],
    );
    bounded(
        "token_k1,token_k2,seq_max_k3",
        "'0.5_2.0,1'",
        expect![
            "key `algorithm.rollout_correction.rollout_rs_threshold`: expected 1 bound, or 3, one for each rule of rollout_rs, found 2 in `0.5_2.0,1`"
        ],
    );
    check(
        &["algorithm.rollout_correction.rollout_is_batch_normalize=true"],
        expect![
            "key `algorithm.rollout_correction.rollout_is`: expected `token` or `sequence` when rollout_is_batch_normalize is set, found nothing"
        ],
    );
    check(
        &[
            "algorithm.rollout_correction.rollout_is=token",
            "algorithm.rollout_correction.rollout_is_batch_normalize=true",
            "actor.entropy_coeff=0.1",
        ],
        expect![
            "key `algorithm.rollout_correction.rollout_is_batch_normalize`: expected false when actor.entropy_coeff is set: the mean of the weights is known after the gradients, and dividing by it would change that term, found true"
        ],
    );
    check(
        &["algorithm.rollout_correction.loss_type=reinforce"],
        expect![
            "key `algorithm.rollout_correction.loss_type`: expected algorithm.rollout_correction.bypass_mode = true when it is set, found `reinforce`"
        ],
    );
    let reinforce = |other: &str, expected: Expect| {
        let common = [
            "algorithm.rollout_correction.loss_type=reinforce",
            "algorithm.rollout_correction.bypass_mode=true",
        ];
        check(&[common[0], common[1], other], expected);
    };
    reinforce(
        "actor.policy_loss.loss_mode=gspo",
        expect![
            "key `actor.policy_loss.loss_mode`: expected no other loss than that of algorithm.rollout_correction.loss_type, found `gspo`"
        ],
    );
    reinforce(
        "actor.clip_ratio=0.1",
        expect![
            "key `algorithm.rollout_correction.loss_type`: expected `ppo_clip` when actor.clip_ratio is set, found `reinforce`"
        ],
    );
    check(
        &[
            "algorithm.rollout_correction.rollout_is=token",
            "algorithm.rollout_correction.bypass_mode=true",
        ],
        expect![[
            r#"key `algorithm.rollout_correction.bypass_mode`: expected false when rollout_is is set without loss_type = "reinforce": the ratios of the loss correct already, found true"#
        ]],
    );
}
