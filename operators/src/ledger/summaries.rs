//! Metrics of each step, derived from all facts up to it.

use rollpacker_dataflow::differential_dataflow::VecCollection;
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_stages::train::Metrics;
use serde::{Deserialize, Serialize};

use super::bias::{LengthComparison, UNIT, WeightSums};
use super::facts::Length;
use super::pairs::{Pair, Pairs, Products};

/// The diff of a length: the number of responses, their weights and squared weights.
pub(super) type Weighing = (i64, i64, i64);
/// The diff of a pair: the sums of its [`Products`].
pub(super) type Sums = ((i64, i64, i64), (i64, i64, i64));
/// The diff of a row: launched responses; whole responses, their tokens and squared tokens; trained responses and their scores.
pub(super) type RowSums = (i64, (i64, i64, i64), (i64, i64));

/// A summary of all facts up to a step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) enum Summary {
    /// Responses and tokens trained so far, the policy's mean length as bits, and metrics with their values as bits. Bits make the values
    /// comparable exactly.
    Lengths { trained: (i64, i64), mean: u64, metrics: Vec<(String, u64)> },
    /// The metrics of pairs, with their values as bits.
    Pairs(Vec<(String, u64)>),
    /// Sums over rows, and the sum over rows of the squared deviations from the mean of the row.
    Rows { rows: i64, sums: RowSums, within: i64 },
    /// The number of deferred prompts, the sum of the steps at which they were deferred, and the earliest of these.
    Waiting { prompts: i64, sum: i64, first: u64 },
}

/// Compares the length distributions up to each step.
pub(super) fn compare(
    lengths: VecCollection<'_, Step, Length, Weighing>,
    cap: u32,
) -> VecCollection<'_, Step, Summary> {
    let output =
        lengths.map(|length| ((), length)).reduce_named("lengths", move |(), facts, output| {
            output.push((of_lengths(facts, cap), 1));
        });
    output.map(|((), output)| output)
}

fn of_lengths(facts: &[(&Length, Weighing)], cap: u32) -> Summary {
    let lengths = gathered(facts);
    let mean = lengths.policy.mean().unwrap_or(0.0);
    Summary::Lengths {
        trained: (lengths.trained.count(), lengths.trained.tokens()),
        mean: mean.to_bits(),
        metrics: as_bits(lengths.bias(cap)),
    }
}

fn gathered(facts: &[(&Length, Weighing)]) -> LengthComparison {
    let mut lengths = LengthComparison::default();
    for (length, (count, weight, square)) in facts {
        let times = u64::try_from(*count).unwrap_or(0);
        let policies = [&mut lengths.policy, &mut lengths.policy_low];
        match **length {
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
                let weighed = WeightSums { count: *count, weight: *weight, square: *square };
                lengths.trained.add(at, weighed);
                continue;
            }
        };
    }
    lengths
}

/// Compares the pairs up to each step.
pub(super) fn compare_pairs(
    pairs: VecCollection<'_, Step, Pair, Sums>,
) -> VecCollection<'_, Step, Summary> {
    let output = pairs.map(|pair| ((), pair)).reduce_named("pairs", |(), facts, output| {
        let mut pairs = Pairs::default();
        for (pair, ((a, b, c), (d, e, f))) in facts {
            pairs.add(**pair, &Products::of([*a, *b, *c, *d, *e, *f]));
        }
        output.push((Summary::Pairs(as_bits(pairs.metrics())), 1));
    });
    output.map(|((), output)| output)
}

fn as_bits(metrics: Metrics) -> Vec<(String, u64)> {
    metrics.into_iter().map(|(name, value)| (name, value.to_bits())).collect()
}

fn of_bits(metrics: &[(String, u64)]) -> impl Iterator<Item = (String, f64)> {
    metrics.iter().map(|(name, bits)| (name.clone(), f64::from_bits(*bits)))
}

/// Sums the histories of all rows. Each row is one record, which is revised when the row is launched again.
pub(super) fn histories(
    rows: VecCollection<'_, Step, u64, RowSums>,
) -> VecCollection<'_, Step, Summary> {
    let by_row = rows.count_core::<i64>();
    let total = by_row.explode(|(_, sums)| {
        let (_, (n, s, q), _) = sums;
        let within = if n > 0 { q - s * s / n } else { 0 };
        Some(((), ((1i64, within), sums)))
    });
    total.count_core::<isize>().map(|((), ((rows, within), sums))| Summary::Rows {
        rows,
        sums,
        within,
    })
}

/// Summarizes the deferred prompts.
pub(super) fn waits(
    waiting: VecCollection<'_, Step, (PromptId, Step)>,
) -> VecCollection<'_, Step, Summary> {
    let since = waiting.map(|(_, since)| ((), since));
    let output = since.reduce_named("waiting", |(), since, output| {
        let prompts = since.iter().map(|(_, count)| *count as i64).sum();
        let sum = since.iter().map(|(since, count)| since.0 as i64 * *count as i64).sum();
        let first = since.first().map_or(0, |(since, _)| since.0);
        output.push((Summary::Waiting { prompts, sum, first }, 1));
    });
    output.map(|((), output)| output)
}

/// Returns the metrics of a step from the summaries that became valid (+1) or invalid (-1) in it.
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
            Summary::Rows { rows, sums, within } => metrics.extend(of_rows(*rows, *sums, *within)),
            Summary::Waiting { prompts, sum, first } => {
                metrics.extend(of_waiting(step, *prompts, *sum, *first));
            }
        }
    }
    if is_over(changes) {
        metrics.extend(of_waiting(step, 0, 0, step.0));
    }
    metrics
}

/// Returns the responses and tokens trained before the step: those of the summary that the step retracts.
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

fn of_rows(rows: i64, sums: RowSums, within: i64) -> Metrics {
    let (launched, (n, s, q), (trained, scores)) = sums;
    let [rows, launched, n, s, q, trained, within] =
        [rows, launched, n, s, q, trained, within].map(|sum| sum as f64);
    let mut metrics = Metrics::from([
        ("ledger/rows".to_owned(), rows),
        ("ledger/launches_per_row".to_owned(), launched / rows),
    ]);
    if trained > 0.0 {
        metrics.insert("ledger/pass_rate".to_owned(), scores as f64 / UNIT / trained);
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
    Metrics::from([
        ("ledger/waiting_prompts".to_owned(), prompts as f64),
        ("ledger/mean_wait".to_owned(), mean),
        ("ledger/longest_wait".to_owned(), longest as f64),
    ])
}
