//! The rules that judge a run, each with a recommended change.

use serde::Serialize;

use super::recent::Recent;
#[cfg(feature = "cli")]
use super::recent::{MetricLookup, StepWindow};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// The run learns hardly or not at all.
    Severe,
    /// The run learns less than it could.
    Warning,
    /// The finding is for information; it does not prevent learning.
    Note,
}

/// A statement about a run that follows from its metrics.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// The metric from which the finding is derived.
    pub(crate) metric: &'static str,
    /// The judged value, such as the mean of the metric over the last steps or its ratio to the first steps.
    pub(crate) value: f64,
    /// The problem, as a sentence.
    pub(crate) problem: String,
    /// The change that may help, as a sentence; empty if there is none.
    pub(crate) advice: &'static str,
}

/// A rule that judges one metric.
pub(super) struct Rule {
    /// The metric that the value is derived from. `reward/errors` stands for the metrics of all kinds of errors.
    metric: &'static str,
    /// Returns the value that is judged; `None` if the run does not report it, or if the rule does not apply to the run.
    value: fn(&Recent<'_>) -> Option<f64>,
    /// The smallest value that is a problem.
    bound: f64,
    severity: Severity,
    /// The number of steps after which a run warns of the problem while it trains. `None` if only `rollpacker show` and `rollpacker view`
    /// report the problem.
    #[cfg_attr(
        not(feature = "torch"),
        expect(dead_code, reason = "only a run that trains reads it")
    )]
    pub(super) warns_after: Option<usize>,
    /// The problem; `{}` stands for the value, and `{%}` for the value in percent.
    problem: &'static str,
    advice: &'static str,
}

/// The rules, in the order in which findings of equal severity are shown: the causes that stop learning most often come first.
pub(super) const RULES: [Rule; 19] = [
    Rule {
        metric: "reward/errors",
        value: error_share,
        bound: 0.9,
        severity: Severity::Severe,
        warns_after: Some(1),
        problem: "The reward hardly ever answers: it failed for {%} of the responses.",
        advice: "Look at the run's warnings, which have the first error of each step; see that its server or program runs, and try it with `rollpacker score`.",
    },
    Rule {
        metric: "reward/errors",
        value: |run| error_share(run).filter(|share| *share < 0.9),
        bound: 0.01,
        severity: Severity::Severe,
        warns_after: Some(5),
        problem: "The reward failed for {%} of the responses.",
        advice: "Look at the run's warnings, which have the first error of each step; raise the time limit of the reward, or mend it.",
    },
    Rule {
        metric: "reward/dropped_groups",
        value: |run| Some(run.sum("reward/dropped_groups")),
        bound: 1.0,
        severity: Severity::Warning,
        warns_after: None,
        problem: "{} groups were dropped because of an error of the reward.",
        advice: "Look at the run's warnings, which have the first error of each step.",
    },
    Rule {
        metric: "reward/frac_zero_std",
        value: |run| run.mean("reward/frac_zero_std").filter(|_| score(run) >= 0.9),
        bound: 0.5,
        severity: Severity::Warning,
        warns_after: Some(20),
        problem: "In {%} of the groups all responses have the same score, mostly a high one: the prompts are too easy.",
        advice: "Use harder prompts; `data.curriculum` skips solved ones, and the schedule `dynamic` trains only on groups that differ.",
    },
    Rule {
        metric: "reward/frac_zero_std",
        value: |run| run.mean("reward/frac_zero_std").filter(|_| score(run) <= 0.1),
        bound: 0.5,
        severity: Severity::Severe,
        warns_after: Some(20),
        problem: "In {%} of the groups all responses have the same score, mostly a low one: nothing is rewarded.",
        advice: "Read the responses: either the reward does not recognize good answers (try it with `rollpacker score`), or the prompts \
                 are too hard. Raise `rollout.n`, use easier prompts, or fine-tune first.",
    },
    Rule {
        metric: "reward/frac_zero_std",
        value: |run| {
            run.mean("reward/frac_zero_std").filter(|_| (0.1 < score(run)) && score(run) < 0.9)
        },
        bound: 0.5,
        severity: Severity::Warning,
        warns_after: Some(20),
        problem: "In {%} of the groups all responses have the same score, so that they have no gradient.",
        advice: "Raise `rollout.n`, or use the schedule `dynamic`, which trains only on groups whose scores differ.",
    },
    Rule {
        metric: "response_length/clip_ratio",
        value: |run| run.mean("response_length/clip_ratio"),
        bound: 0.2,
        severity: Severity::Warning,
        warns_after: Some(5),
        problem: "{%} of the trained responses ended at the maximum length.",
        advice: "Raise `data.max_response_length`; if the responses repeat themselves, look at their text.",
    },
    Rule {
        metric: "actor/grad_norm",
        value: |run| run.max("actor/grad_norm").map(|norm| f64::from(norm == 0.0)),
        bound: 1.0,
        severity: Severity::Severe,
        warns_after: None,
        problem: "The gradient is 0.",
        advice: "No response has an advantage: see the scores. If they differ, look at `actor.clip_ratio` and `algorithm`.",
    },
    Rule {
        metric: "actor/lr",
        value: |run| run.max("actor/lr").map(|rate| f64::from(rate == 0.0)),
        bound: 1.0,
        severity: Severity::Severe,
        warns_after: None,
        problem: "The learning rate is 0.",
        advice: "Look at `actor.lr` and `actor.lr_warmup_steps`.",
    },
    Rule {
        metric: "actor/grad_norm",
        value: |run| {
            let first = run.first_mean("actor/grad_norm").filter(|norm| *norm > 0.0)?;
            Some(run.max("actor/grad_norm")? / first)
        },
        bound: 10.0,
        severity: Severity::Warning,
        warns_after: None,
        problem: "The largest norm of the gradient is {} times that of the first steps.",
        advice: "Lower `actor.lr`, or `actor.grad_clip`.",
    },
    Rule {
        metric: "actor/pg_clipfrac",
        value: |run| run.mean("actor/pg_clipfrac"),
        bound: 0.2,
        severity: Severity::Warning,
        warns_after: None,
        problem: "{%} of the tokens are clipped: the updates of a step move the policy too far.",
        advice: "Lower `actor.lr` or `actor.ppo_epochs`, or raise `actor.ppo_mini_batch_size`.",
    },
    Rule {
        metric: "actor/ppo_kl",
        value: |run| run.mean("actor/ppo_kl").map(f64::abs),
        bound: 0.1,
        severity: Severity::Warning,
        warns_after: None,
        problem: "The policy moves by {} nats a token within a step.",
        advice: "Lower `actor.lr` or `actor.ppo_epochs`.",
    },
    Rule {
        metric: "actor/kl_loss",
        value: |run| run.mean("actor/kl_loss"),
        bound: 0.5,
        severity: Severity::Warning,
        warns_after: None,
        problem: "The policy is {} nats a token away from the reference.",
        advice: "Raise `actor.kl_loss_coef`, or lower `actor.lr`.",
    },
    Rule {
        metric: "actor/entropy",
        value: |run| entropy_ratio(run).filter(|ratio| *ratio <= 0.1).map(|ratio| 1.0 - ratio),
        bound: 0.9,
        severity: Severity::Warning,
        warns_after: None,
        problem: "The entropy has fallen by {%}: the responses of a prompt become alike.",
        advice: "Raise `actor.clip_ratio_high` or `actor.entropy_coeff`, or lower `actor.lr`.",
    },
    Rule {
        metric: "actor/entropy",
        value: entropy_ratio,
        bound: 3.0,
        severity: Severity::Warning,
        warns_after: None,
        problem: "The entropy is {} times that of the first steps: the policy may become noise.",
        advice: "Lower `actor.lr` and `actor.entropy_coeff`; look at the responses.",
    },
    Rule {
        metric: "rollout_corr/k3_kl",
        value: |run| run.mean("rollout_corr/k3_kl"),
        bound: 0.01,
        severity: Severity::Warning,
        warns_after: None,
        problem: "The policy that samples differs from the trainer's by {} nats a token.",
        advice: "Use the same number format in both, check the delivery of weights, or set `algorithm.rollout_correction.rollout_is`.",
    },
    Rule {
        metric: "training/off_policy/token_staleness/mean",
        value: |run| run.mean("training/off_policy/token_staleness/mean"),
        bound: 4.0,
        severity: Severity::Warning,
        warns_after: None,
        problem: "The trained tokens are {} updates old on average.",
        advice: "Lower `algorithm.staleness`, or set `algorithm.rollout_correction.rollout_is`.",
    },
    Rule {
        metric: "bias/mean_ratio",
        value: |run| {
            run.mean("bias/mean_ratio").filter(|ratio| *ratio <= 0.9).map(|ratio| 1.0 - ratio)
        },
        bound: 0.1,
        severity: Severity::Note,
        warns_after: None,
        problem: "The trained responses are {%} shorter than those of the policy.",
        advice: "With deferred prompts this is temporary; if it stays, correct it (docs/bias.md).",
    },
    Rule {
        metric: "schedule/rejected_prompts",
        value: |run| {
            Some(run.sum("schedule/rejected_prompts") / run.sum("schedule/launched_prompts"))
        },
        bound: 0.5,
        severity: Severity::Note,
        warns_after: None,
        problem: "The schedule drops {%} of the launched prompts.",
        advice: "Most of the rollout is not trained on; `data.curriculum` can skip such prompts before they are sampled.",
    },
];

fn score(run: &Recent<'_>) -> f64 {
    run.mean("critic/score/mean").unwrap_or(0.5)
}

fn entropy_ratio(run: &Recent<'_>) -> Option<f64> {
    let first = run.first_mean("actor/entropy").filter(|entropy| *entropy > 0.0)?;
    Some(run.mean("actor/entropy")? / first)
}

fn error_share(run: &Recent<'_>) -> Option<f64> {
    let kinds = ["retryable", "fatal", "timeout"];
    let errors: f64 = kinds.iter().map(|kind| run.sum(&format!("reward/errors/{kind}"))).sum();
    let responses = run.sum("rollout/launched_responses");
    (responses > 0.0).then(|| errors / responses)
}

impl Rule {
    /// Returns the finding if the value reaches the bound.
    pub(super) fn judge(&self, run: &Recent<'_>) -> Option<Finding> {
        let value = (self.value)(run).filter(|value| *value >= self.bound)?;
        let Self { severity, metric, advice, .. } = *self;
        let digits = if value.fract() == 0.0 { 0 } else { 3 };
        let problem = self
            .problem
            .replace("{%}", &format!("{:.0} %", value * 100.0))
            .replace("{}", &format!("{value:.digits$}"));
        Some(Finding { severity, metric, value, problem, advice })
    }
}

/// Returns the findings on the last steps: first the trend of the score, then the problems, the severest first.
#[cfg(feature = "cli")]
pub(crate) fn findings<S: MetricLookup + Clone>(window: &StepWindow<S>) -> Vec<Finding> {
    let run = window.recent();
    let mut findings: Vec<_> = RULES.iter().filter_map(|rule| rule.judge(&run)).collect();
    findings.sort_by_key(|finding| finding.severity);
    trend(&run).into_iter().chain(findings).collect()
}

/// Returns a finding on the mean score of the last steps compared with that of the first steps. A change of at most twice its standard
/// error counts as no change. Returns `None` if there are too few scores to compare.
#[cfg(feature = "cli")]
fn trend(run: &Recent<'_>) -> Option<Finding> {
    let metric = "critic/score/mean";
    let (rise, error) = run.rise(metric)?;
    let (severity, problem) = if rise > 2.0 * error && rise > 0.0 {
        (
            Severity::Note,
            format!("The run learns: the score rose by {rise:.3} (standard error {error:.3})."),
        )
    } else if rise < -2.0 * error {
        (Severity::Severe, format!("The score fell by {:.3} (standard error {error:.3}).", -rise))
    } else {
        (
            Severity::Warning,
            format!("The score did not change clearly: {rise:+.3} (standard error {error:.3})."),
        )
    };
    Some(Finding { severity, metric, value: rise, problem, advice: "" })
}

#[cfg(all(test, feature = "cli"))]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The metrics of a step.
    #[derive(Clone)]
    struct Line(Value);

    impl MetricLookup for Line {
        fn metric(&self, metric: &str) -> Option<f64> {
            self.0.get(metric)?.as_f64()
        }
    }

    fn found(steps: impl IntoIterator<Item = Value>) -> Vec<(&'static str, Severity)> {
        let found = findings(&steps.into_iter().map(Line).collect());
        found.iter().map(|finding| (finding.metric, finding.severity)).collect()
    }

    #[test]
    fn every_rule_is_in_the_page() {
        let page = include_str!("../../docs/show.md");
        for Rule { metric, bound, .. } in &RULES {
            let is_row = |line: &&str| {
                line.starts_with(&format!("| `{metric}` |"))
                    && line.contains(&format!("| {bound} |"))
            };
            assert!(page.lines().any(|line| is_row(&line)), "{metric} from {bound} on");
        }
    }

    #[test]
    fn a_rising_score_is_noted_and_nothing_else() {
        let steps = (0..40).map(|step| {
            json!({"critic/score/mean": 0.2 + f64::from(step) / 100.0 + f64::from(step % 2) / 50.0,
                   "reward/frac_zero_std": 0.3, "actor/grad_norm": 1.0, "actor/lr": 1e-6})
        });
        assert_eq!(found(steps), [("critic/score/mean", Severity::Note)]);
    }

    #[test]
    fn equal_scores_are_severe_only_at_zero() {
        for (score, severity) in
            [(0.0, Severity::Severe), (0.5, Severity::Warning), (1.0, Severity::Warning)]
        {
            let steps =
                (0..4).map(|_| json!({"critic/score/mean": score, "reward/frac_zero_std": 0.75}));
            let own =
                found(steps).into_iter().find(|(metric, _)| *metric == "reward/frac_zero_std");
            assert_eq!(own, Some(("reward/frac_zero_std", severity)), "{score}");
        }
    }

    #[test]
    fn each_problem_is_found_separately() {
        for (data, metric) in [
            (
                json!({"reward/errors/timeout": 2.0, "rollout/launched_responses": 64.0}),
                "reward/errors",
            ),
            (json!({"reward/dropped_groups": 1.0}), "reward/dropped_groups"),
            (json!({"response_length/clip_ratio": 0.25}), "response_length/clip_ratio"),
            (json!({"actor/grad_norm": 0.0}), "actor/grad_norm"),
            (json!({"actor/lr": 0.0}), "actor/lr"),
            (json!({"actor/pg_clipfrac": 0.5}), "actor/pg_clipfrac"),
            (json!({"actor/ppo_kl": -0.2}), "actor/ppo_kl"),
            (json!({"actor/kl_loss": 0.6}), "actor/kl_loss"),
            (json!({"rollout_corr/k3_kl": 0.02}), "rollout_corr/k3_kl"),
            (
                json!({"training/off_policy/token_staleness/mean": 5.0}),
                "training/off_policy/token_staleness/mean",
            ),
            (json!({"bias/mean_ratio": 0.5}), "bias/mean_ratio"),
            (
                json!({"schedule/rejected_prompts": 6.0, "schedule/launched_prompts": 8.0}),
                "schedule/rejected_prompts",
            ),
        ] {
            let found: Vec<_> =
                found([data.clone(), data]).into_iter().map(|(name, _)| name).collect();
            assert_eq!(found, [metric]);
        }
    }

    #[test]
    fn changes_are_judged_against_the_first_steps() {
        let run = |last: f64| {
            (0..40).map(move |step| json!({"actor/entropy": if step < 20 { 1.0 } else { last }}))
        };
        assert_eq!(found(run(0.05)), [("actor/entropy", Severity::Warning)]);
        assert_eq!(found(run(4.0)), [("actor/entropy", Severity::Warning)]);
        assert_eq!(found(run(0.5)), []);
        let spike =
            (0..40).map(|step| json!({"actor/grad_norm": if step == 39 { 50.0 } else { 1.0 }}));
        assert_eq!(found(spike), [("actor/grad_norm", Severity::Warning)]);
    }

    #[test]
    fn a_falling_score_is_severe() {
        let steps = (0..40).map(|step| json!({"critic/score/mean": 1.0 - f64::from(step) / 100.0}));
        assert_eq!(found(steps), [("critic/score/mean", Severity::Severe)]);
    }

    #[test]
    fn a_run_without_steps_has_no_findings() {
        assert_eq!(found([]), []);
    }
}
