use expect_test::{Expect, expect};

use super::super::configuration::tests::configured;
use super::super::configuration::{ConfigurationRuns, summaries};
use super::super::summary::tests::run;
use super::*;

/// Returns a configuration that takes `seconds` per step, with the given ratio of mean lengths and share of discarded tokens.
fn of(label: &str, seconds: f64, ratio: f64, discarded: f64) -> ConfigurationRuns {
    let metrics = [
        ("bias/mean_ratio", ratio),
        ("bias/p99_ratio", ratio),
        ("rollout/launched_tokens", 100.0),
        ("rollout/discarded_tokens", 100.0 * discarded),
    ];
    configured(label, &[run(&[("full", seconds)], &metrics)])
}

fn late(run: ConfigurationRuns) -> ConfigurationRuns {
    ConfigurationRuns { on_policy: false, ..run }
}

fn set(run: ConfigurationRuns, settings: &[&str]) -> ConfigurationRuns {
    ConfigurationRuns { settings: settings.iter().map(|&text| text.to_owned()).collect(), ..run }
}

fn advise(runs: &[ConfigurationRuns]) -> Advice {
    let figures = summaries(runs).expect("steps");
    let mut decisions = decide(runs, &figures, None, 0.03);
    assert_eq!(decisions.len(), 1);
    decisions.remove(0).advice(Vec::new())
}

fn check(advice: &Advice, expected: Expect) {
    expected.assert_eq(&advice.text);
}

#[test]
fn the_fastest_of_low_bias_is_chosen_and_the_fastest_named() {
    let advice = advise(&[
        of("sync", 100.0, 1.0, 0.0),
        of("history_sorted", 40.0, 1.01, 0.0),
        late(of("sync one-off", 50.0, 1.0, 0.0)),
        late(of("tail_batching one-off", 25.0, 0.66, 0.2)),
    ]);
    assert_eq!(advice.choice.as_deref(), Some("history_sorted"));
    assert_eq!(advice.fastest.as_deref(), Some("tail_batching one-off"));
    assert_eq!(advice.not_separated, Vec::<String>::new());
    check(
        &advice,
        expect![[r#"
        Choose history_sorted: steps of 40 s, 2.50 [2.05 to 2.95] times as fast as plain sync, and 2.50 times the trained tokens per second of its baseline. It is on-policy; the mean trained length is 1.01 of the policy's, the 99th percentile 1.01 of the policy's, and 0 % of the sampled tokens are discarded.
        Without the bounds, tail_batching one-off has the shortest steps: steps of 25 s, 4.00 [3.28 to 4.72] times as fast as plain sync, and 4.00 times the trained tokens per second of its baseline, but the mean trained length is 0.66 of the policy's, the 99th percentile 0.66 of the policy's, and 20 % of the sampled tokens are discarded; it resumes responses of earlier steps, so some tokens were sampled by earlier weights.
        Bounds of a choice: on-policy, a mean trained length within 3 % of the policy's, an effective sample size of at least 0.95. Intervals allow for the error of step-time ratios on held-out measurements, 18 %; the spread over seeds is unknown with one seed."#]],
    );
}

#[test]
fn overlapping_intervals_prefer_less_bias_and_then_simplicity() {
    let biased = advise(&[
        of("sync", 100.0, 1.0, 0.0),
        of("weighted", 50.0, 0.98, 0.0),
        of("fused", 55.0, 1.0, 0.0),
    ]);
    assert_eq!(biased.choice.as_deref(), Some("fused"));
    assert_eq!(biased.not_separated, ["weighted"]);
    check(
        &biased,
        expect![[r#"
        Choose fused: steps of 55 s, 1.82 [1.49 to 2.15] times as fast as plain sync, and 1.82 times the trained tokens per second of its baseline. It is on-policy; the mean trained length is 1.00 of the policy's, the 99th percentile 1.00 of the policy's, and 0 % of the sampled tokens are discarded.
        The intervals of these overlap that of the first, so the simulator cannot tell which is faster: weighted 2.00 [1.64 to 2.36], fused 1.82 [1.49 to 2.15]. Of them fused has the least bias.
        Bounds of a choice: on-policy, a mean trained length within 3 % of the policy's, an effective sample size of at least 0.95. Intervals allow for the error of step-time ratios on held-out measurements, 18 %; the spread over seeds is unknown with one seed."#]],
    );
    let wasteful = advise(&[
        of("sync", 100.0, 1.0, 0.0),
        of("greedy", 50.0, 1.0, 0.2),
        of("thrifty", 52.0, 1.0, 0.0),
    ]);
    assert_eq!(wasteful.choice.as_deref(), Some("thrifty"));
    let simple = advise(&[
        of("sync", 100.0, 1.0, 0.0),
        set(of("tuned", 50.0, 1.0, 0.0), &["a=1", "b=2", "c=3"]),
        set(of("plain", 52.0, 1.0, 0.0), &["a=1"]),
    ]);
    assert_eq!(simple.choice.as_deref(), Some("plain"));
    assert!(simple.text.contains("plain needs the fewest settings"), "{}", simple.text);
}

#[test]
fn an_insignificant_gain_is_not_advised() {
    let advice = advise(&[of("sync", 100.0, 1.0, 0.0), of("fused", 92.0, 1.0, 0.0)]);
    assert_eq!(advice.choice.as_deref(), Some("sync"));
    assert_eq!(advice.not_separated, ["fused"]);
}

#[test]
fn plain_sync_has_no_settings_whatever_its_job_is() {
    let of_job = |run, settings: &[&str], baseline| ConfigurationRuns {
        job: "gpus=16".to_owned(),
        baseline,
        ..set(run, settings)
    };
    let (sync, gpus, planned) =
        ("schedule.name=sync", "cluster.gpus=16", "training.layout=planned");
    let advice = advise(&[
        of_job(of("planned sync", 100.0, 1.0, 0.0), &[gpus, sync, planned], 0),
        of_job(of("sync", 100.0, 1.0, 0.0), &[gpus, sync], 1),
        of_job(of("fused", 92.0, 1.0, 0.0), &[gpus, "schedule.name=fused"], 1),
    ]);
    assert_eq!(advice.choice.as_deref(), Some("sync"));
    assert_eq!(advice.not_separated, ["planned sync", "fused"]);
}

#[test]
fn jobs_are_not_compared() {
    let of_job = |run: ConfigurationRuns, job: &str, baseline| ConfigurationRuns {
        job: job.to_owned(),
        baseline,
        ..run
    };
    let runs = [
        of_job(of("gpus=64 sync", 200.0, 1.0, 0.0), "gpus=64", 0),
        of_job(of("gpus=64 fused", 100.0, 1.0, 0.0), "gpus=64", 0),
        of_job(of("gpus=128 sync", 90.0, 1.0, 0.0), "gpus=128", 2),
        of_job(of("gpus=128 fused", 85.0, 1.0, 0.0), "gpus=128", 2),
    ];
    let figures = summaries(&runs).expect("steps");
    let advice: Vec<Advice> = decide(&runs, &figures, None, 0.03)
        .into_iter()
        .map(|decision| decision.advice(Vec::new()))
        .collect();
    let chosen: Vec<_> =
        advice.iter().map(|one| (one.job.as_str(), one.choice.as_deref())).collect();
    assert_eq!(chosen, [("gpus=64", Some("gpus=64 fused")), ("gpus=128", Some("gpus=128 sync"))]);
    assert!(advice[0].text.starts_with("For gpus=64: Choose gpus=64 fused"), "{}", advice[0].text);
}

#[test]
fn a_choice_holds_at_both_ends_or_names_the_correlation() {
    let at = |batched: (f64, f64)| {
        [
            of("sync", 100.0, 1.0, 0.0),
            of("fused", 70.0, 1.0, 0.0),
            of("batched", batched.0, batched.1, 0.0),
        ]
    };
    let advice = |low: (f64, f64), high: (f64, f64)| {
        let (low, high) = (at(low), at(high));
        let (figures, upper) = (summaries(&low).expect("steps"), summaries(&high).expect("steps"));
        let open = OpenCorrelation { low: 0.0, high: 0.8, upper: &upper };
        decide(&low, &figures, Some(open), 0.03).remove(0).advice(Vec::new())
    };
    let decided = advice((30.0, 0.7), (30.0, 1.0));
    assert_eq!(decided.choice.as_deref(), Some("fused"), "batched is biased at one end");
    let ends: Vec<_> =
        decided.ends.iter().map(|end| (end.correlation, end.choice.as_deref())).collect();
    assert_eq!(ends, [(0.0, Some("fused")), (0.8, Some("batched"))]);
    check(
        &decided,
        expect![[r#"
        Choose fused: steps of 70 s, 1.43 [1.17 to 1.69] times as fast as plain sync, and 1.43 times the trained tokens per second of its baseline. It is on-policy; the mean trained length is 1.00 of the policy's, the 99th percentile 1.00 of the policy's, and 0 % of the sampled tokens are discarded.
        Without the bounds, batched has the shortest steps: steps of 30 s, 3.33 [2.73 to 3.93] times as fast as plain sync, and 3.33 times the trained tokens per second of its baseline, but the mean trained length is 0.70–1.00 of the policy's, the 99th percentile 0.70–1.00 of the policy's, and 0 % of the sampled tokens are discarded.
        The choice depends on the within-prompt correlation of lengths: with 0.00 it would be fused, with 0.80 batched. fused is of low bias at both ends. Record several responses to each prompt to determine it.
        Bounds of a choice: on-policy, a mean trained length within 3 % of the policy's, an effective sample size of at least 0.95. Intervals allow for the error of step-time ratios on held-out measurements, 18 %; the spread over seeds is unknown with one seed."#]],
    );
    let robust = advice((30.0, 1.0), (40.0, 0.99));
    assert_eq!(robust.choice.as_deref(), Some("batched"));
    let same =
        "The choice is the same at both ends of the within-prompt correlation, 0.00 and 0.80.";
    assert!(robust.text.contains(same), "{}", robust.text);
    assert!(robust.text.contains("2.50–3.33"), "{}", robust.text);
}

#[test]
fn an_assumption_that_changes_the_choice_is_named() {
    let runs = [of("sync", 100.0, 1.0, 0.0), of("fused", 50.0, 1.0, 0.0)];
    let figures = summaries(&runs).expect("steps");
    let decision = decide(&runs, &figures, None, 0.03).remove(0);
    assert_eq!(decision.nearest(), [1, 0]);
    let checked = |assumption: &str, choice: &str| AssumptionCheck {
        assumption: assumption.to_owned(),
        settings: vec!["a=1".to_owned()],
        choice: Some(choice.to_owned()),
        changes: choice != "fused",
    };
    let advice = decision.advice(vec![checked("no clouds", "sync"), checked("rain", "fused")]);
    let expected = "With no clouds (a=1) it would be sync. It stays the same with rain (a=1).";
    assert!(advice.text.contains(expected), "{}", advice.text);
}

#[test]
fn without_a_choice_of_low_bias_none_is_advised() {
    let advice = advise(&[late(of("partial", 50.0, 1.0, 0.0))]);
    assert_eq!((advice.choice, advice.fastest.as_deref()), (None, Some("partial")));
    assert!(advice.text.starts_with("No configuration is within"), "{}", advice.text);
}
