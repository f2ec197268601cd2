//! Tests of the ledger: compares metrics with manual computations, and the facts of steps with the events of the steps.

use std::sync::Arc;

use arrow_array::types::{Float32Type, UInt32Type};
use arrow_array::{ArrayRef, StringArray, UInt32Array, UInt64Array};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::{PromptId, Step};

use super::bias::{LengthComparison, WeightSums, buckets, units};
use super::fact::Sums;
use super::facts::{DeferredPrompts, Facts, Length, StepFacts};
use super::pairs::{Member, ObservedGroup, Pair, Pairs, Products};
use crate::wire::blank::batch;
use crate::wire::columns::lists;

fn near(ours: f64, expected: f64) {
    assert!((ours - expected).abs() < 1e-6, "{ours} is not {expected}");
}

fn lengths(policy: &[u32], trained: &[(u32, f32)]) -> LengthComparison {
    let mut lengths = LengthComparison::default();
    for tokens in policy {
        lengths.policy.observe(*tokens, true);
        lengths.policy_low.observe(*tokens, true);
    }
    for (tokens, weight) in trained {
        lengths.trained.add(*tokens, WeightSums::one(*weight));
    }
    lengths
}

/// Lengths of the policy: 100, 300, 900, 2000. The first three are trained on.
#[test]
fn bias_metrics_match_a_manual_computation() {
    let metrics = lengths(&[100, 300, 900, 2000], &[(100, 1.0), (300, 1.0), (900, 1.0)]).bias(2000);
    near(metrics["bias/policy_mean"], 825.0);
    near(metrics["bias/mean_ratio"], 1300.0 / 3.0 / 825.0);
    near(metrics["bias/p90_ratio"], 900.0 / 2000.0);
    near(metrics["bias/share_above_500/policy"], 0.5);
    near(metrics["bias/share_above_500/trained"], 1.0 / 3.0);
    near(metrics["bias/share_above_2000/policy"], 0.25);
    near(metrics["bias/share_above_2000/trained"], 0.0);
    near(metrics["bias/inclusion/0_512"], 2.0 / 3.0 / 0.5);
    near(metrics["bias/inclusion/1024_2048"], 0.0);
    near(metrics["bias/ess"], 1.0);
    assert!(metrics.keys().all(|name| !name.contains("weighted")), "all weights are 1");
}

#[test]
fn extreme_weights_and_scores_do_not_overflow() {
    let mut sums = WeightSums::default();
    (0..100_000).for_each(|_| sums.add(WeightSums::one(f32::MAX)));
    assert_eq!(sums.count, 100_000);
    let scores: i64 = [1e30, 1e30, -1e30].map(units).into_iter().sum();
    assert_eq!(scores, units(1e30));
    // A million responses of two million tokens each: launched, ended, their tokens, the squares, trained, and their scores.
    let (n, tokens) = (1 << 20, 1 << 21);
    let row = Sums::of([n, n, n * tokens, n * tokens * tokens, 0, 0]);
    assert_eq!(Sums::of_row(&row).first(), [1, 0, n], "all deviations from the mean are 0");
}

/// The response of 900 tokens represents the two that are longer than 512.
#[test]
fn weights_count_in_the_weighted_columns_alone() {
    let metrics = lengths(&[100, 300, 900, 900], &[(100, 1.0), (300, 1.0), (900, 2.0)]).bias(2000);
    near(metrics["bias/weighted_mean_ratio"], 1.0);
    near(metrics["bias/weighted_inclusion/512_1024"], 1.0);
    near(metrics["bias/mean_ratio"], 1300.0 / 3.0 / 550.0);
    near(metrics["bias/ess"], 16.0 / (3.0 * 6.0));
}

#[test]
fn there_are_no_metrics_without_trained_responses() {
    assert!(lengths(&[100], &[]).bias(2000).is_empty());
    assert!(lengths(&[], &[]).bias(2000).is_empty());
}

#[test]
fn buckets_double_up_to_the_one_with_the_cap() {
    assert_eq!(buckets(2000).collect::<Vec<_>>(), [(0, 512), (512, 1024), (1024, 2048)]);
    assert_eq!(buckets(2048).last(), Some((2048, 4096)));
    assert_eq!(buckets(100).collect::<Vec<_>>(), [(0, 512)]);
}

/// Returns a batch of responses `(prompt, tokens, finish reason)`. The dataset row is ten times the prompt.
fn responses(rows: &[(u64, u32, &str)]) -> Batch {
    let named: [(&str, ArrayRef); 4] = [
        (column::PROMPT_ID, Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.0)))),
        (column::ROW, Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.0 * 10)))),
        (
            column::RESPONSE_LENGTH,
            Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| row.1))),
        ),
        (
            column::FINISH_REASON,
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.2))),
        ),
    ];
    batch(&schema::RESPONSES, rows.len(), &named)
}

fn decisions(rows: &[(&str, u64)]) -> Batch {
    let empty = || rows.iter().map(|_| [].as_slice());
    let named: [(&str, ArrayRef); 4] = [
        (column::DECISION, Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0)))),
        (column::PROMPT_ID, Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.1)))),
        (column::ADMITTED, lists::<UInt32Type>(empty().map(|_: &[f32]| [].as_slice()))),
        (column::WEIGHTS, lists::<Float32Type>(empty())),
    ];
    batch(&schema::DECISIONS, rows.len(), &named)
}

fn close(
    step: u64,
    waits: &mut DeferredPrompts,
    rows: &[(u64, u32, &str)],
    decided: &[(&str, u64)],
) -> Facts {
    let mut gathering = StepFacts::default();
    gathering.responses(&responses(rows));
    gathering.decisions(&decisions(decided));
    gathering.close(Step(step), waits)
}

fn counts(facts: &Facts) -> Vec<(Length, i64)> {
    facts.lengths.iter().map(|(length, weighed)| (*length, weighed.count)).collect()
}

/// Prompt 1 is deferred at 50 tokens and drawn again; prompt 0 has a surplus response.
#[test]
fn a_relaunched_prompt_enters_at_its_cut() {
    let mut waits = DeferredPrompts::default();
    let rows =
        [(0, 10, "stop"), (0, 10, "abort"), (1, 30, "stop"), (1, 50, "abort"), (2, 7, "pause")];
    let first = close(0, &mut waits, &rows, &[("admit", 0), ("defer", 1), ("close", 0)]);
    let expected = [
        (Length::Ended(10), 1),
        (Length::Ended(30), 1),
        (Length::Cut(50), 1),
        (Length::Surplus(10), 1),
    ];
    assert_eq!(counts(&first), expected);
    assert_eq!(first.waiting, [(Step(0), 1)]);
    assert_eq!(waits.0.keys().collect::<Vec<_>>(), [&PromptId(1)]);
    assert_eq!((first.rows[&10].launched, first.rows[&10].whole), (2, [1, 30, 900]));

    let rows = [(1, 40, "stop"), (1, 90, "length"), (3, 20, "stop")];
    let second = close(1, &mut waits, &rows, &[("admit", 1), ("admit", 3)]);
    let expected = [(Length::Entered(50), 1), (Length::Ended(20), 1), (Length::Ended(90), 1)];
    assert_eq!(counts(&second), expected);
    assert_eq!(second.waiting, [(Step(0), -1)]);
    assert!(waits.0.is_empty());
}

/// A response: its number of tokens, and its score and weight if it was trained on. A response that was not trained on was aborted.
type Row = (u32, Option<(f64, f32)>);

fn pairs(groups: &[(&[Row], bool)]) -> std::collections::BTreeMap<Pair, Products> {
    let mut facts = std::collections::BTreeMap::new();
    for (rows, is_admitted) in groups {
        let member =
            |&(tokens, trained): &Row| Member { tokens, whole: trained.is_some(), trained };
        let members = rows.iter().map(member).collect();
        ObservedGroup { members, entry: None, is_admitted: *is_admitted }.count(&mut facts);
    }
    facts
}

fn pair_metrics(groups: &[(&[Row], bool)]) -> rollpacker_stages::train::Metrics {
    let mut all = Pairs::default();
    for (pair, products) in pairs(groups) {
        all.add(pair, &products);
    }
    all.metrics()
}

const RIGHT_IF_LONG: &[Row] = &[(100, Some((0.0, 1.0))), (300, Some((1.0, 1.0)))];
const BOTH_RIGHT: &[Row] = &[(50, Some((1.0, 1.0))), (150, Some((1.0, 1.0)))];

/// Pairs of 150 and 300 tokens with products 0 and 100 are trained on, and as many pairs are cut at 400, which count as 100 each.
#[test]
fn the_length_advantage_of_the_policy_matches_a_manual_computation() {
    let cut: &[Row] = &[(100, None), (400, None)];
    let groups = [(RIGHT_IF_LONG, true), (BOTH_RIGHT, true), (cut, false)].repeat(50);
    let metrics = pair_metrics(&groups);
    near(metrics["bias/length_advantage_trained"], 50.0);
    near(metrics["bias/length_advantage"], 200.0 / 3.0);
    near(metrics["bias/gradient_ratio"], 0.75);
    near(metrics["bias/gradient_ratio_high"], 0.75);
    assert!(!metrics.contains_key("bias/weighted_gradient_ratio"), "all weights are 1");
    let few = pair_metrics(&groups[..3]);
    assert!(!few.contains_key("bias/gradient_ratio"), "three groups are too few for an estimate");
}

/// Every second prompt has a third response, which is aborted at 300 tokens. Its pairs are censored there; for the lower bound, they end
/// with the next token.
#[test]
fn surplus_responses_give_bounds() {
    let surplus: &[Row] = &[RIGHT_IF_LONG[0], RIGHT_IF_LONG[1], (300, None)];
    let found = pairs(&[(surplus, true)]);
    assert_eq!((found[&Pair::Ended(300)].pairs, found[&Pair::Surplus(300)].pairs), (1, 2));
    let metrics = pair_metrics(&[(surplus, true), (BOTH_RIGHT, true)].repeat(50));
    near(metrics["bias/length_advantage_trained"], 50.0);
    // One of four pairs ends at 150 tokens with product 0; all others go beyond with product 100.
    near(metrics["bias/gradient_ratio"], 50.0 / 75.0);
    near(metrics["bias/gradient_ratio_high"], 50.0 / 75.0);
}

/// The longer response counts twice: ((0 - 1) (1 x 100 - 2 x 300)) / 2 over the mean weight of 1.5.
#[test]
fn weights_multiply_lengths() {
    let weighted: &[Row] = &[(100, Some((0.0, 1.0))), (300, Some((1.0, 2.0)))];
    let metrics = pair_metrics(&[(weighted, true)].repeat(50));
    near(metrics["bias/gradient_ratio"], 1.0);
    near(metrics["bias/weighted_gradient_ratio"], 250.0 / 1.5 / 100.0);
}

#[test]
fn weights_that_are_all_zero_have_no_ratios() {
    let unweighted: &[Row] = &[(100, Some((0.0, 0.0))), (300, Some((1.0, 0.0)))];
    let metrics = pair_metrics(&[(unweighted, true)].repeat(50));
    near(metrics["bias/gradient_ratio"], 1.0);
    assert!(!metrics.contains_key("bias/weighted_gradient_ratio"));

    let mut lengths = LengthComparison::default();
    for tokens in [100, 300] {
        lengths.policy.observe(tokens, true);
        lengths.policy_low.observe(tokens, true);
        lengths.trained.add(tokens, WeightSums::one(0.0));
    }
    let metrics = lengths.bias(1024);
    near(metrics["bias/mean_ratio"], 1.0);
    assert!(metrics.values().all(|value| value.is_finite()), "{metrics:?}");
}

#[test]
fn new_draws_of_a_prompt_count_only_beyond_its_cut() {
    let mut facts = std::collections::BTreeMap::new();
    let rows = [(100, 0.0), (200, 1.0), (400, 1.0)];
    let member = |(tokens, score)| Member { tokens, whole: true, trained: Some((score, 1.0)) };
    let members = rows.map(member).to_vec();
    ObservedGroup { members, entry: Some(250), is_admitted: true }.count(&mut facts);
    let found: Vec<_> = facts.iter().map(|(pair, products)| (*pair, products.pairs)).collect();
    let expected = [
        (Pair::Entered(250), 2),
        (Pair::Ended(400), 2),
        (Pair::Scored(400), 2),
        (Pair::Trained(0), 3),
    ];
    assert_eq!(found, expected);
}
