//! Tables for the terminal: how long steps take and what for, and what the speed costs.

use super::summary::{Stat, Summary};
use super::trace::Cut;

/// Both tables.
#[must_use]
pub fn render(summaries: &[Summary]) -> String {
    format!("{}\n{}", times(summaries), costs(summaries))
}

/// What is to be known of the tables: responses of a trace that were cut.
#[must_use]
pub fn footer(trace: &[Cut]) -> String {
    trace.iter().map(|cut| format!("\n{}\n", cut.text())).collect()
}

fn times(summaries: &[Summary]) -> String {
    let head = [
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
        let mut row = vec![summary.label.clone(), spread(Some(summary.step_s), number)];
        row.extend(["short", "long", "full"].map(round));
        row.extend(summary.stages.named().map(|(_, seconds)| number(seconds)));
        row.extend(
            [summary.bubble_ratio, summary.waiting_ratio].map(|ratio| plain(ratio, percent)),
        );
        row
    };
    aligned(&head, summaries.iter().map(row))
}

fn costs(summaries: &[Summary]) -> String {
    let head = [
        "configuration",
        "x a step",
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
        let mut row = vec![summary.label.clone()];
        row.extend([summary.speedup, summary.token_speedup].map(|stat| spread(stat, ratio)));
        row.extend(
            [bias.mean_ratio, bias.p90_ratio, bias.p99_ratio, bias.least_inclusion, bias.ess]
                .map(|stat| plain(stat, ratio)),
        );
        row.push(plain(bias.discarded, percent));
        row.push(number(summary.tokens_per_s.mean));
        row
    };
    aligned(&head, summaries.iter().map(row))
}

/// Pads columns to one width, the first to the left and numbers to the right.
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

fn plain(stat: Option<Stat>, shown: fn(f64) -> String) -> String {
    stat.map_or("-".to_owned(), |stat| shown(stat.mean))
}

fn spread(stat: Option<Stat>, shown: fn(f64) -> String) -> String {
    match stat {
        Some(stat) if stat.sd > 0.0 => format!("{} ±{}", shown(stat.mean), shown(stat.sd)),
        stat => plain(stat, shown),
    }
}

/// Three digits that count.
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

    use super::super::summary::tests::run;
    use super::*;

    #[test]
    fn speed_and_bias_stand_side_by_side() {
        let full = [("full", 200.0); 4];
        let sync = [run(&full, &[("rollout/bubble_ratio", 0.74), ("trainer/waiting_ratio", 0.8)])];
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
        let tail_batching = [run(&batched, &metrics)];
        let summary = |label: &str, runs| {
            Summary::of(label.to_owned(), vec![], runs, &sync, true).expect("steps")
        };
        expect![[r#"
            configuration  step s      short s      long s       full s  sync  rollout  reward  training  bubble  waiting
            sync              200            -           -  200 (100 %)  1.00      100    0.50      98.5    74 %     80 %
            tail_batching     125  90.0 (75 %)  230 (25 %)            -  1.00     62.5    0.50      61.0    31 %     60 %

            configuration  x a step  x a token  mean   p90   p99  inclusion   ESS  discarded  tokens/s
            sync               1.00       1.00     -     -     -          -     -          -      5.00
            tail_batching      1.60       1.60  0.66  0.50  0.91       0.49  1.00       20 %      8.00
        "#]]
        .assert_eq(&render(&[summary("sync", &sync), summary("tail_batching", &tail_batching)]));
    }
}
