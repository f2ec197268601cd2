//! Metrics of each step, derived from all facts up to the step.

use rollpacker_dataflow::differential_dataflow::VecCollection;
use rollpacker_dataflow::differential_dataflow::operators::CountTotal;
use rollpacker_dataflow::step::Step;
use rollpacker_stages::train::{Metrics, named_metrics};

use super::bias::{LengthComparison, UNIT, WeightSums};
use super::fact::{Fact, Sums, Topic};
use super::facts::Length;
use super::pairs::{Pairs, Products};

/// A summary of the facts of one topic up to a step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Summary {
    /// The numbers of responses and tokens trained so far, the policy's mean length in tokens, and metrics. The mean and the values of
    /// metrics are the bits of an `f64`, because differential dataflow needs ordered data.
    Lengths { trained: (i64, i64), mean: u64, metrics: Vec<(String, u64)> },
    /// The metrics of pairs. The values are the bits of an `f64`.
    Pairs(Vec<(String, u64)>),
    /// The sums of [`Fact::Rows`].
    Rows(Sums),
    /// The number of deferred prompts, the sum of the steps at which they were first deferred, and the earliest of these steps.
    Waiting { prompts: i64, sum: i64, first: u64 },
    /// The number of cases with an anchor, and the sum of the anchors in nanoseconds.
    Anchors { cases: i64, took: i64 },
    /// The number of audited executions that exceeded their time limit, and the number of correct executions among them.
    Audits { kills: i64, wrong: i64 },
}

/// Summarizes the facts up to each step, by topic. `cap` is the maximum response length in tokens.
pub(super) fn summarize(
    facts: VecCollection<'_, Step, Fact, Sums>,
    cap: u32,
) -> VecCollection<'_, Step, Summary> {
    let by_topic = facts.map(|fact| (fact.topic(), fact));
    let summaries = by_topic.reduce_named("summaries", move |topic, facts, output| {
        output.push((summary(*topic, facts, cap), 1));
    });
    summaries.map(|(_, summary)| summary)
}

/// Summarizes the facts of a topic. There is at least one fact, and the facts are sorted.
fn summary(topic: Topic, facts: &[(&Fact, Sums)], cap: u32) -> Summary {
    let (_, sums) = facts[0];
    match topic {
        Topic::Lengths => of_lengths(facts, cap),
        Topic::Pairs => of_pairs(facts),
        Topic::Rows => Summary::Rows(sums),
        Topic::Waiting => of_waits(facts),
        Topic::Anchors => {
            let [cases, took] = sums.first();
            Summary::Anchors { cases, took }
        }
        Topic::Audits => {
            let [kills, wrong] = sums.first();
            Summary::Audits { kills, wrong }
        }
    }
}

fn of_lengths(facts: &[(&Fact, Sums)], cap: u32) -> Summary {
    let lengths = compare(facts);
    let mean = lengths.policy.mean().unwrap_or(0.0);
    Summary::Lengths {
        trained: (lengths.trained.count(), lengths.trained.tokens()),
        mean: mean.to_bits(),
        metrics: as_bits(lengths.bias(cap)),
    }
}

fn compare(facts: &[(&Fact, Sums)]) -> LengthComparison {
    let mut lengths = LengthComparison::default();
    for (fact, sums) in facts {
        let Fact::Length(length) = fact else { continue };
        let [count, weight, square] = sums.first();
        let times = u64::try_from(count).unwrap_or(0);
        let policies = [&mut lengths.policy, &mut lengths.policy_low];
        match *length {
            Length::Entered(at) => policies.map(|policy| policy.enter_many(at, times)),
            Length::Ended(at) => policies.map(|policy| policy.observe_many(at, true, times)),
            Length::Cut(at) => policies.map(|policy| policy.observe_many(at, false, times)),
            Length::Surplus(at) => {
                let [policy, low] = policies;
                policy.observe_many(at, false, times);
                low.observe_many(at + 1, true, times);
                continue;
            }
            Length::Trained(at) => {
                lengths.trained.add(at, WeightSums { count, weight, square });
                continue;
            }
        };
    }
    lengths
}

fn of_pairs(facts: &[(&Fact, Sums)]) -> Summary {
    let mut pairs = Pairs::default();
    for (fact, sums) in facts {
        if let Fact::Pair(pair) = fact {
            pairs.add(*pair, &Products::of(sums.first()));
        }
    }
    Summary::Pairs(as_bits(pairs.metrics()))
}

fn of_waits(facts: &[(&Fact, Sums)]) -> Summary {
    let since = || {
        facts.iter().filter_map(|(fact, sums)| match fact {
            Fact::Waiting(since) => Some((since.0, sums.first::<1>()[0])),
            _ => None,
        })
    };
    Summary::Waiting {
        prompts: since().map(|(_, prompts)| prompts).sum(),
        sum: since().map(|(step, prompts)| step as i64 * prompts).sum(),
        first: since().next().map_or(0, |(step, _)| step),
    }
}

fn as_bits(metrics: Metrics) -> Vec<(String, u64)> {
    metrics.into_iter().map(|(name, value)| (name, value.to_bits())).collect()
}

fn of_bits(metrics: &[(String, u64)]) -> impl Iterator<Item = (String, f64)> {
    metrics.iter().map(|(name, bits)| (name.clone(), f64::from_bits(*bits)))
}

/// Sums the histories of all rows. Each row is one record, which is revised when the history of the row changes.
pub(super) fn histories(
    rows: VecCollection<'_, Step, u64, Sums>,
) -> VecCollection<'_, Step, Fact, Sums> {
    let by_row = rows.count_total_core::<i64>();
    by_row.explode(|(_, launches)| Some((Fact::Rows, Sums::of_row(&launches))))
}

/// Returns the metrics of a step from the summaries that became valid (+1) or invalid (-1) in it. If the last deferred prompt was settled
/// in the step, the metrics of deferred prompts are 0.
pub(super) fn metrics(step: Step, changes: &[(Summary, isize)]) -> Metrics {
    let mut metrics = Metrics::new();
    for (summary, _) in changes.iter().filter(|(_, change)| *change > 0) {
        match summary {
            Summary::Lengths { metrics: columns, mean, trained } => {
                metrics.extend(of_bits(columns));
                let now = since(*trained, before(changes));
                let step_mean = now.1 as f64 / now.0 as f64 / f64::from_bits(*mean);
                if step_mean.is_finite() {
                    metrics.insert("bias/step_mean_ratio".to_owned(), step_mean);
                }
            }
            Summary::Pairs(columns) => metrics.extend(of_bits(columns)),
            Summary::Rows(sums) => metrics.extend(of_rows(*sums)),
            Summary::Waiting { prompts, sum, first } => {
                metrics.extend(of_waiting(step, *prompts, *sum, *first));
            }
            Summary::Anchors { cases, took } => {
                metrics.extend(of_anchors(*cases as f64, *took as f64));
            }
            Summary::Audits { kills, wrong } => {
                let rate = *wrong as f64 / *kills as f64;
                metrics.insert("reward/wrong_kill_rate".to_owned(), rate);
            }
        }
    }
    if is_over(changes) {
        metrics.extend(of_waiting(step, 0, 0, step.0));
    }
    metrics
}

/// Returns the numbers of responses and tokens trained before the step, from the summary that the step retracts; 0 if it retracts none.
fn before(changes: &[(Summary, isize)]) -> (i64, i64) {
    let taken = changes.iter().find_map(|(summary, change)| match summary {
        Summary::Lengths { trained, .. } if *change < 0 => Some(*trained),
        _ => None,
    });
    taken.unwrap_or_default()
}

fn since(now: (i64, i64), before: (i64, i64)) -> (i64, i64) {
    (now.0 - before.0, now.1 - before.1)
}

/// Returns `true` if the last deferred prompt was settled in this step.
fn is_over(changes: &[(Summary, isize)]) -> bool {
    let waiting = |sign: isize| {
        changes.iter().any(|(summary, change)| {
            matches!(summary, Summary::Waiting { .. }) && change.signum() == sign
        })
    };
    waiting(-1) && !waiting(1)
}

fn of_rows(sums: Sums) -> Metrics {
    let [rows, within, launched, n, s, q, trained, scores] = sums.first().map(|sum| sum as f64);
    let mut metrics =
        named_metrics([("ledger/rows", rows), ("ledger/launches_per_row", launched / rows)]);
    if trained > 0.0 {
        metrics.insert("ledger/pass_rate".to_owned(), scores / UNIT / trained);
    }
    // Analysis of variance: the mean square within rows estimates the variance that no history can predict.
    let (total, within) = ((q - s * s / n) / (n - 1.0), within / (n - rows));
    if n > rows && total > 0.0 {
        metrics.insert("ledger/between_row_share".to_owned(), (1.0 - within / total).max(0.0));
    }
    metrics
}

fn of_waiting(step: Step, prompts: i64, sum: i64, first: u64) -> Metrics {
    let mean = if prompts > 0 { step.0 as f64 - sum as f64 / prompts as f64 } else { 0.0 };
    let longest = if prompts > 0 { step.0.saturating_sub(first) } else { 0 };
    named_metrics([
        ("ledger/waiting_prompts", prompts as f64),
        ("ledger/mean_wait", mean),
        ("ledger/longest_wait", longest as f64),
    ])
}

fn of_anchors(cases: f64, took: f64) -> Metrics {
    named_metrics([("ledger/anchored_cases", cases), ("ledger/mean_anchor_s", took / 1e9 / cases)])
}
