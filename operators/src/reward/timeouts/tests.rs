//! Tests of adaptive limits without a graph: the limits after given executions.

use std::fmt::Write;

use expect_test::expect;
use proptest::prelude::*;
use rollpacker_dataflow::step::{PromptId, Step};

use super::*;

fn timeouts(options: LimitOptions) -> AdaptiveLimits {
    AdaptiveLimits::new(options, 7).expect("in bounds")
}

fn unaudited() -> AdaptiveLimits {
    timeouts(LimitOptions { audit_share: 0.0, ..LimitOptions::default() })
}

fn id(sample: u32) -> SampleId {
    SampleId { step: Step(0), prompt: PromptId(0), sample }
}

/// Returns an execution of `case`, correct or not, that took `seconds`.
fn ran(case: u32, seconds: f64, correct: bool) -> Execution {
    let limit = LimitRule::default().max;
    Execution { case, took: Nanos::from_secs_f64(seconds), limit, correct, audited: false }
}

/// Returns the limits of row 0 before and after each of `scores`.
fn timeline(mut policy: AdaptiveLimits, scores: &[&[Execution]]) -> String {
    let mut text = String::new();
    let mut line = |policy: &mut AdaptiveLimits, what: &str| {
        let limits = policy.limits(id(0), 0);
        let [first, second] = [0, 1].map(|case| limits.of(case, None).as_secs_f64());
        writeln!(text, "{what:<28}{first:>6.2} s {second:>6.2} s").expect("a string");
    };
    line(&mut policy, "nothing known");
    for executions in scores {
        policy.executed(id(0), 0, executions);
        let right = |it: &Execution| if it.correct { "right" } else { "wrong" };
        let fields: Vec<_> = executions
            .iter()
            .map(|it| format!("{}:{} {}", it.case, right(it), it.took.as_secs_f64()))
            .collect();
        line(&mut policy, &fields.join(", "));
    }
    text
}

#[test]
fn limits_follow_the_longest_correct_execution_of_the_case() {
    let scores: [&[Execution]; 6] = [
        &[ran(0, 9.0, false), ran(1, 0.4, true)],
        &[ran(0, 4.0, true)],
        &[ran(0, 3.0, true), ran(1, 0.5, false)],
        &[ran(1, 6.0, true)],
        &[ran(0, 25.0, true)],
        &[ran(0, 0.0, true)],
    ];
    expect![[r#"
        nothing known                30.00 s  30.00 s
        0:wrong 9, 1:right 0.4       30.00 s   2.00 s
        0:right 4                     6.00 s   2.00 s
        0:right 3, 1:wrong 0.5        6.00 s   2.00 s
        1:right 6                     6.00 s   9.00 s
        0:right 25                   30.00 s   9.00 s
        0:right 0                    30.00 s   9.00 s
    "#]]
    .assert_eq(&timeline(unaudited(), &scores));
}

#[test]
fn a_fixed_limit_does_not_adapt() {
    let fixed = LimitOptions { mode: LimitMode::Fixed, max_s: 1.0, ..LimitOptions::default() };
    let expected = timeline(timeouts(fixed), &[&[ran(0, 0.1, true), ran(1, 0.9, true)]]);
    expect![[r#"
        nothing known                 1.00 s   1.00 s
        0:right 0.1, 1:right 0.9      1.00 s   1.00 s
    "#]]
    .assert_eq(&expected);
}

#[test]
fn limits_are_per_row_and_case_and_fall_back_to_the_reference() {
    let mut policy = unaudited();
    policy.executed(id(0), 3, &[ran(1, 4.0, true)]);
    let seconds = |policy: &mut AdaptiveLimits, row, case| {
        policy.limits(id(0), row).of(case, Some(Nanos::from_secs_f64(8.0))).as_secs_f64()
    };
    assert_eq!(
        [(3, 1), (3, 0), (3, 2), (0, 1)].map(|(row, case)| seconds(&mut policy, row, case)),
        [6.0, 12.0, 12.0, 12.0]
    );
}

#[test]
fn audits_depend_on_seed_and_response_and_have_the_given_share() {
    let options = LimitOptions { audit_share: 0.25, ..LimitOptions::default() };
    let audited = |seed| -> Vec<bool> {
        let mut policy = AdaptiveLimits::new(options, seed).expect("in bounds");
        (0..4000).map(|sample| policy.limits(id(sample), 0).audit).collect()
    };
    let share = audited(1).iter().filter(|it| **it).count() as f64 / 4000.0;
    assert!((share - 0.25).abs() < 0.03, "{share}");
    assert_eq!(audited(1), audited(1));
    assert_ne!(audited(1), audited(2));
    let mut none = unaudited();
    assert!((0..100).all(|sample| !none.limits(id(sample), 0).audit));
}

#[test]
fn a_correct_execution_beyond_its_limit_raises_it() {
    let mut policy = unaudited();
    policy.executed(id(0), 0, &[ran(0, 2.0, true)]);
    let limits = Limits { audit: true, ..policy.limits(id(1), 0) };
    let late = limits.execution(0, None, Nanos::from_secs_f64(5.0), true);
    assert!(late.is_wrongly_killed());
    policy.executed(id(1), 0, &[late]);
    assert_eq!(policy.limits(id(2), 0).of(0, None), Nanos::from_secs_f64(7.5));
}

#[test]
fn options_out_of_bounds_are_named() {
    let defaults = LimitOptions::default;
    let error = |options: LimitOptions| options.validated().expect_err("out").to_string();
    let errors = [
        error(LimitOptions { max_s: 0.0, ..defaults() }),
        error(LimitOptions { max_s: 1.0, ..defaults() }),
        error(LimitOptions { slack: 0.5, ..defaults() }),
        error(LimitOptions { audit_share: f64::NAN, ..defaults() }),
    ];
    expect![[r#"
        `max_s` is 0, expected seconds above 0, at most 86400
        `min_s` is 2, expected seconds above 0, at most `max_s`
        `slack` is 0.5, expected a number from 1 to 1000
        `audit_share` is NaN, expected a number in [0, 1]"#]]
    .assert_eq(&errors.join("\n"));
    let fixed = LimitOptions { mode: LimitMode::Fixed, max_s: 1.0, ..defaults() };
    assert!(fixed.validated().is_ok());
}

#[test]
fn a_snapshot_round_trips() {
    let mut policy = unaudited();
    policy.executed(id(0), 5, &[ran(2, 1.0 / 3.0, true)]);
    let written = serde_json::to_string(&policy).expect("JSON");
    assert_eq!(serde_json::from_str::<AdaptiveLimits>(&written).expect("what was written"), policy);
}

/// Returns a strategy for executions of a few rows and cases.
fn executions() -> impl Strategy<Value = Vec<(u64, Execution)>> {
    let one = (0u64..3, 0u32..4, 0u32..40, any::<bool>());
    let of =
        |(row, case, halves, correct)| (row, ran(case, f64::from(halves) / 2.0 + 0.25, correct));
    prop::collection::vec(one.prop_map(of), 0..40)
}

proptest! {
    /// Compares with an oracle that searches all executions for each case.
    #[test]
    fn anchors_are_the_longest_correct_executions_in_any_order(
        (ran, shuffled) in executions().prop_flat_map(|ran| (Just(ran.clone()), Just(ran).prop_shuffle()))
    ) {
        let [mut policy, mut other] = [unaudited(), unaudited()];
        for (row, execution) in &ran {
            policy.executed(id(0), *row, &[*execution]);
        }
        for (row, execution) in shuffled.iter().chain(&shuffled) {
            other.executed(id(0), *row, &[*execution]);
        }
        prop_assert_eq!(&policy, &other);
        for row in 0..3 {
            for case in 0..4u32 {
                let longest = ran
                    .iter()
                    .filter(|(of, it)| *of == row && it.case == case && it.correct)
                    .map(|(_, it)| it.took)
                    .max();
                let anchors = policy.limits(id(0), row).anchors;
                let found = anchors.get(case as usize).copied().flatten();
                prop_assert_eq!(found, longest);
            }
        }
    }
}
