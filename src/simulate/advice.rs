//! Advice: which configuration of a sweep to choose, and why.

use super::summary::{LEAST_ESS, Stat, Summary};
use super::table::{percent, ratio};

/// The best of a sweep by its speed-up a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Advice<'a> {
    /// The fastest of low bias that is on-policy.
    pub low_bias: Option<&'a Summary>,
    /// The fastest whatever it trains on.
    pub fastest: Option<&'a Summary>,
    /// How far the mean length may be off.
    pub tolerance: f64,
}

impl<'a> Advice<'a> {
    /// Of these configurations, with mean lengths that may be off by `tolerance`.
    #[must_use]
    pub fn of(summaries: &'a [Summary], tolerance: f64) -> Self {
        let speed = |summary: &&Summary| summary.speedup.map_or(0.0, |speedup| speedup.mean);
        let best = |fits: &dyn Fn(&&'a Summary) -> bool| {
            summaries.iter().filter(fits).max_by(|a, b| speed(a).total_cmp(&speed(b)))
        };
        Self {
            low_bias: best(&|summary| summary.on_policy && summary.bias.is_low(tolerance)),
            fastest: best(&|_| true),
            tolerance,
        }
    }

    /// As sentences.
    #[must_use]
    pub fn text(&self) -> String {
        let bound = percent(self.tolerance);
        let chosen = match self.low_bias {
            Some(chosen) => format!(
                "Choose {}: {}. Of the on-policy configurations whose mean trained length is within {bound} of the policy's and whose \
                 effective sample size is at least {LEAST_ESS}, it has the shortest steps: {}.",
                chosen.label,
                pace(chosen),
                price(chosen),
            ),
            None => format!(
                "No on-policy configuration trains on a mean length within {bound} of the policy's with an effective sample size of at \
                 least {LEAST_ESS}."
            ),
        };
        match self.fastest.filter(|fastest| self.low_bias.is_none_or(|low| low != *fastest)) {
            Some(fastest) => format!(
                "{chosen}\nWithout these bounds, {} has the shortest steps: {}, but {}{}.",
                fastest.label,
                pace(fastest),
                price(fastest),
                if fastest.on_policy { "" } else { "; it trains on tokens of earlier weights" },
            ),
            None => format!("{chosen} No other has shorter steps."),
        }
    }
}

fn pace(summary: &Summary) -> String {
    let times = |stat: Option<Stat>| stat.map_or(0.0, |stat| stat.mean);
    format!(
        "steps of {:.0} s on average, {} times as fast as sync, and {} times the trained tokens a second",
        summary.step_s.mean,
        ratio(times(summary.speedup)),
        ratio(times(summary.token_speedup)),
    )
}

fn price(summary: &Summary) -> String {
    let bias = &summary.bias;
    let of_policy = |stat: Option<Stat>| match stat {
        Some(stat) => format!("{} of the policy's", ratio(stat.mean)),
        None => "not known".to_owned(),
    };
    format!(
        "the mean trained length is {}, the 99th percentile {}, and {} of the sampled tokens are discarded",
        of_policy(bias.mean_ratio),
        of_policy(bias.p99_ratio),
        percent(bias.discarded.map_or(0.0, |discarded| discarded.mean)),
    )
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::summary::tests::run;
    use super::*;

    fn summary(label: &str, seconds: f64, mean_ratio: f64, on_policy: bool) -> Summary {
        let metrics = [("bias/mean_ratio", mean_ratio), ("bias/p99_ratio", mean_ratio)];
        let runs = [run(&[("full", seconds)], &metrics)];
        Summary::of(label.to_owned(), vec![], &runs, &[run(&[("full", 100.0)], &[])], on_policy)
            .expect("a step")
    }

    #[test]
    fn the_fastest_of_low_bias_is_chosen_and_the_fastest_named() {
        let all = [
            summary("sync", 100.0, 1.0, true),
            summary("history_sorted", 80.0, 1.01, true),
            summary("sync one-off", 50.0, 1.0, false),
            summary("tail_batching one-off", 40.0, 0.66, false),
        ];
        let advice = Advice::of(&all, 0.03);
        assert_eq!(advice.low_bias.map(|chosen| chosen.label.as_str()), Some("history_sorted"));
        expect![[r#"
            Choose history_sorted: steps of 80 s on average, 1.25 times as fast as sync, and 1.25 times the trained tokens a second. Of the on-policy configurations whose mean trained length is within 3 % of the policy's and whose effective sample size is at least 0.95, it has the shortest steps: the mean trained length is 1.01 of the policy's, the 99th percentile 1.01 of the policy's, and 0 % of the sampled tokens are discarded.
            Without these bounds, tail_batching one-off has the shortest steps: steps of 40 s on average, 2.50 times as fast as sync, and 2.50 times the trained tokens a second, but the mean trained length is 0.66 of the policy's, the 99th percentile 0.66 of the policy's, and 0 % of the sampled tokens are discarded; it trains on tokens of earlier weights."#]]
        .assert_eq(&advice.text());
    }
}
