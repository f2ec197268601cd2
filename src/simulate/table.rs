//! Tables for the terminal: step times by stage, speed-up and bias, and the setup of each configuration.

use super::correlation_ends::{CorrelationEnds, LowHigh};
use super::interval::SpeedupInterval;
use super::stat::SeedStat;
use super::summary::Summary;
use super::trace::TraceSummary;
use super::unused_settings::text as written;

/// A table; the first cell of each row is the name of a configuration.
pub(super) struct SummaryTable {
    pub(super) head: &'static [&'static str],
    /// A row for each configuration.
    pub(super) rows: Vec<Vec<String>>,
}

/// Returns the tables of step times, of speed-ups and biases, and of setups. If a trace does not determine the within-prompt correlation,
/// the tables show the figures of [`CorrelationEnds`] at both ends of its interval, and all other figures at the lower end.
pub(super) fn all(summaries: &[Summary]) -> [SummaryTable; 3] {
    [times(summaries), costs(summaries), setups(summaries)]
}

/// Renders all tables as text.
#[must_use]
pub fn render(summaries: &[Summary]) -> String {
    let text = |table: SummaryTable| aligned(table.head, table.rows.into_iter());
    all(summaries).map(text).join("\n")
}

/// Returns the lines below the tables: for each trace, the number of responses and how many of them are truncated.
#[must_use]
pub fn footer(trace: &[TraceSummary]) -> String {
    trace.iter().map(|trace| format!("\n{}\n", trace.text())).collect()
}

fn times(summaries: &[Summary]) -> SummaryTable {
    let head = &[
        "configuration",
        "step s",
        "short s",
        "long s",
        "full s",
        "sync",
        "rollout",
        "reward",
        "training",
        "bubble",
        "waiting",
    ];
    let row = |summary: &Summary| {
        let round = |kind: &str| match summary.rounds.get(kind) {
            Some(round) => format!("{} ({:.0} %)", number(round.step_s.mean), 100.0 * round.share),
            None => "-".to_owned(),
        };
        let steps = at_ends(summary, |ends| Some(ends.step_s), number);
        let mut row = vec![
            summary.label.clone(),
            steps.unwrap_or_else(|| spread(Some(summary.step_s), number)),
        ];
        row.extend(["short", "long", "full"].map(round));
        row.extend(summary.stages.named().map(|(_, seconds)| number(seconds)));
        row.extend(
            [summary.bubble_ratio, summary.waiting_ratio].map(|ratio| plain(ratio, percent)),
        );
        row
    };
    SummaryTable { head, rows: summaries.iter().map(row).collect() }
}

fn costs(summaries: &[Summary]) -> SummaryTable {
    let head = &[
        "configuration",
        "x a step",
        "interval",
        "x sync",
        "x a token",
        "mean",
        "p90",
        "p99",
        "inclusion",
        "ESS",
        "discarded",
        "tokens/s",
    ];
    let row = |summary: &Summary| {
        let bias = &summary.bias;
        let spread = |of: fn(&CorrelationEnds) -> Option<LowHigh>, stat| {
            at_ends(summary, of, ratio).unwrap_or_else(|| spread(stat, ratio))
        };
        let plain =
            |of: fn(&CorrelationEnds) -> Option<LowHigh>, stat, shown: fn(f64) -> String| {
                at_ends(summary, of, shown).unwrap_or_else(|| plain(stat, shown))
            };
        vec![
            summary.label.clone(),
            spread(|ends| ends.speedup, summary.speedup),
            interval(summary),
            spread(|ends| ends.speedup_over_sync, summary.speedup_over_sync),
            spread(|ends| ends.token_speedup, summary.token_speedup),
            plain(|ends| ends.mean_ratio, bias.mean_ratio, ratio),
            plain(|ends| ends.p90_ratio, bias.p90_ratio, ratio),
            plain(|ends| ends.p99_ratio, bias.p99_ratio, ratio),
            plain(|ends| ends.least_inclusion, bias.least_inclusion, ratio),
            plain(|ends| ends.ess, bias.ess, ratio),
            plain(|ends| ends.discarded, bias.discarded, percent),
            plain(|ends| Some(ends.tokens_per_s), Some(summary.tokens_per_s), number),
        ]
    };
    SummaryTable { head, rows: summaries.iter().map(row).collect() }
}

fn setups(summaries: &[Summary]) -> SummaryTable {
    let head = &[
        "configuration",
        "rollout",
        "planner",
        "training",
        "placement",
        "dispatch",
        "hand-out",
        "judge",
    ];
    let row = |summary: &Summary| {
        let setup = &summary.setup;
        vec![
            summary.label.clone(),
            setup.rollout_text(),
            written(&setup.planner),
            setup.training.to_string(),
            setup.placement.clone(),
            written(&setup.dispatch),
            written(&setup.hand_out),
            setup.judge.map_or("-".to_owned(), |judge| written(&judge)),
        ]
    };
    SummaryTable { head, rows: summaries.iter().map(row).collect() }
}

/// Formats the interval of a speed-up; with two ends, the smallest interval that contains the intervals at both.
fn interval(summary: &Summary) -> String {
    let both = summary.ends.and_then(|ends| ends.speedup_interval);
    match both.or(summary.speedup_interval) {
        Some(SpeedupInterval { low, high }) => range(LowHigh { low, high }, ratio),
        None => "-".to_owned(),
    }
}

/// Formats a figure at both ends of the correlation. Returns `None` if the correlation has only one value, or the figure is not known.
fn at_ends(
    summary: &Summary,
    of: fn(&CorrelationEnds) -> Option<LowHigh>,
    shown: fn(f64) -> String,
) -> Option<String> {
    Some(range(of(summary.ends.as_ref()?)?, shown))
}

/// Formats a figure at both ends, ascending; a single number if both format alike.
pub(super) fn range(values: LowHigh, shown: fn(f64) -> String) -> String {
    let (min, max) = (values.low.min(values.high), values.low.max(values.high));
    let (min, max) = (shown(min), shown(max));
    if min == max { min } else { format!("{min}–{max}") }
}

/// Pads the columns to equal widths; the first column is left-aligned, the others right-aligned. Each row has as many cells as `head`.
pub(super) fn aligned(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head: Vec<String> = head.iter().map(|&name| name.to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = format!("{:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            line.push_str(&format!("  {cell:>width$}"));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn plain(stat: Option<SeedStat>, shown: fn(f64) -> String) -> String {
    stat.map_or("-".to_owned(), |stat| shown(stat.mean))
}

fn spread(stat: Option<SeedStat>, shown: fn(f64) -> String) -> String {
    match stat {
        Some(stat) if stat.sd > 0.0 => format!("{} ±{}", shown(stat.mean), shown(stat.sd)),
        stat => plain(stat, shown),
    }
}

/// Formats a number with no decimals from 100, one decimal from 10, and two decimals below.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub(super) fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::configuration::summaries;
    use super::super::configuration::tests::configured;
    use super::super::summary::tests::run;
    use super::*;

    #[test]
    fn the_table_has_speed_and_bias() {
        let full = [("full", 200.0); 4];
        let sync = run(&full, &[("rollout/bubble_ratio", 0.74), ("trainer/waiting_ratio", 0.8)]);
        let metrics = [
            ("rollout/bubble_ratio", 0.31),
            ("trainer/waiting_ratio", 0.6),
            ("rollout/launched_tokens", 3000.0),
            ("rollout/discarded_tokens", 600.0),
            ("bias/mean_ratio", 0.66),
            ("bias/p90_ratio", 0.5),
            ("bias/p99_ratio", 0.91),
            ("bias/inclusion/0_512", 1.1),
            ("bias/inclusion/8192_16384", 0.49),
            ("bias/ess", 1.0),
        ];
        let batched = [("short", 80.0), ("short", 90.0), ("short", 100.0), ("long", 230.0)];
        let tail_batching = run(&batched, &metrics);
        let runs = [configured("sync", &[sync]), configured("tail_batching", &[tail_batching])];
        expect![[r#"
            configuration  step s      short s      long s       full s  sync  rollout  reward  training  bubble  waiting
            sync              200            -           -  200 (100 %)  1.00      100    0.50      98.5    74 %     80 %
            tail_batching     125  90.0 (75 %)  230 (25 %)            -  1.00     62.5    0.50      61.0    31 %     60 %

            configuration  x a step   interval  x sync  x a token  mean   p90   p99  inclusion   ESS  discarded  tokens/s
            sync               1.00       1.00    1.00       1.00     -     -     -          -     -          -      5.00
            tail_batching      1.60  1.31–1.89    1.60       1.60  0.66  0.50  0.91       0.49  1.00       20 %      8.00

            configuration   rollout  planner  training  placement       dispatch  hand-out      judge
            sync           32 x TP1    fixed  16 x TP2  colocated  prompt_chunks  together  dedicated
            tail_batching  32 x TP1    fixed  16 x TP2  colocated  prompt_chunks  together  dedicated
        "#]]
        .assert_eq(&render(&summaries(&runs).expect("steps")));
    }

    #[test]
    fn figures_of_a_trace_that_leaves_the_correlation_open_are_ranges() {
        let at = |seconds: f64, ratio: f64| {
            let sync = configured("sync", &[run(&[("full", 200.0)], &[])]);
            let metrics = [("bias/mean_ratio", ratio)];
            let batched = configured("tail_batching", &[run(&[("short", seconds)], &metrics)]);
            summaries(&[sync, batched]).expect("steps").remove(1)
        };
        let (low, high) = (at(80.0, 0.7), at(100.0, 0.95));
        let summary = Summary { ends: Some(CorrelationEnds::of(&low, &high)), ..low };
        let cells = costs(&[summary]).rows.remove(0);
        assert_eq!(
            cells[..6],
            ["tail_batching", "2.00–2.50", "1.64–2.95", "2.00–2.50", "2.00–2.50", "0.70–0.95"]
        );
        assert_eq!(range(LowHigh { low: 0.501, high: 0.499 }, ratio), "0.50");
    }
}
