//! Findings while a run trains.

use std::collections::BTreeSet;

use rollpacker_stages::train::Metrics;

use super::recent::StepWindow;
use super::rule::{Finding, RULES};

/// Judges a run after each step while it trains, and returns the finding of each rule at most once.
#[derive(Debug, Default)]
pub(crate) struct FindingMonitor {
    window: StepWindow<Metrics>,
    /// The indices of the rules whose findings were returned.
    reported: BTreeSet<usize>,
}

impl FindingMonitor {
    /// Adds a step and judges the rules whose `warns_after` is reached. Returns the findings of rules that had no finding in an earlier
    /// step.
    pub(crate) fn step(&mut self, metrics: &Metrics) -> Vec<Finding> {
        self.window.push(metrics.clone());
        let (run, steps) = (self.window.recent(), self.window.steps());
        let mut found = Vec::new();
        for (index, rule) in RULES.iter().enumerate() {
            if rule.warns_after.is_some_and(|after| steps >= after)
                && !self.reported.contains(&index)
                && let Some(finding) = rule.judge(&run)
            {
                self.reported.insert(index);
                found.push(finding);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use rollpacker_stages::train::named_metrics;

    use super::*;

    /// Judges a run of 60 steps. Returns the metric of each finding with the step, from 1, in which it was found.
    fn found(metrics: impl Fn(u32) -> Vec<(&'static str, f64)>) -> Vec<(u32, &'static str)> {
        let mut monitor = FindingMonitor::default();
        let step = |step| {
            let found = monitor.step(&named_metrics(metrics(step)));
            found.into_iter().map(|finding| (step, finding.metric)).collect::<Vec<_>>()
        };
        (1..=60).flat_map(step).collect()
    }

    #[test]
    fn truncation_is_reported_once() {
        let clipped = |share| found(move |_| vec![("response_length/clip_ratio", share)]);
        assert_eq!(clipped(0.25), [(5, "response_length/clip_ratio")]);
        assert_eq!(clipped(0.15), []);
    }

    #[test]
    fn groups_without_variance_are_reported_after_many_steps() {
        let equal = |last| {
            found(move |step| {
                let share = if step <= last { 1.0 } else { 0.0 };
                vec![("reward/frac_zero_std", share), ("critic/score/mean", 0.0)]
            })
        };
        assert_eq!(equal(60), [(20, "reward/frac_zero_std")]);
        assert_eq!(equal(5), []);
    }

    #[test]
    fn a_reward_without_answers_is_reported_at_once() {
        let failing = |errors| {
            found(move |_| {
                vec![("reward/errors/timeout", errors), ("rollout/launched_responses", 64.0)]
            })
        };
        assert_eq!(failing(64.0), [(1, "reward/errors")]);
        assert_eq!(failing(4.0), [(5, "reward/errors")]);
        assert_eq!(failing(0.0), []);
    }

    #[test]
    fn other_findings_are_left_to_the_report() {
        assert_eq!(found(|_| vec![("actor/kl_loss", 5.0), ("schedule/rejected_prompts", 1.0)]), []);
    }
}
