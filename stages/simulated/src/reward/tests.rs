use std::task::{self, Poll, Waker};

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use rollpacker_dataflow::step::{PromptId, SampleId, Step};

use super::*;
use crate::rollout::lengths::{EmpiricalConfig, LengthsConfig, PopulationConfig};
use rollpacker_stages::reward::Limits;

fn lengths() -> Arc<dyn LengthModel> {
    let config = LengthsConfig::Empirical(EmpiricalConfig::rollpacker());
    config.build(&PopulationConfig::default(), 1, 8192).expect("in bounds")
}

fn config() -> SimulatedRewardsConfig {
    SimulatedRewardsConfig {
        seed: 3,
        slots: 64,
        workers: Workers::FirstFree,
        reference_time: false,
        judge: Judge::Colocated,
        after_rollout: false,
        report_interval: Nanos(0),
    }
}

fn sample(data_source: &str, prompt: u64, sample: u32) -> Sample {
    Sample {
        id: SampleId { step: Step(0), prompt: PromptId(prompt), sample },
        row: prompt,
        data_source: data_source.to_owned(),
        messages: String::new(),
        response: String::new(),
        response_length: 10,
        response_ids: Vec::new(),
        ground_truth: None,
        extra_info: None,
        finish_reason: FinishReason::Stop,
        own_score: None,
    }
}

/// Scores `samples`, all submitted at time 0, with the initial limits. Returns the time of each score in seconds, and its value.
fn score(config: &SimulatedRewardsConfig, samples: Vec<Sample>) -> Vec<(f64, f64)> {
    let scores = score_within(config, samples, &Limits::default());
    scores.into_iter().map(|(end, score)| (end, score.value)).collect()
}

fn score_within(
    config: &SimulatedRewardsConfig,
    samples: Vec<Sample>,
    limits: &Limits,
) -> Vec<(f64, Score)> {
    let clock = VirtualClock::default();
    let calibration = Calibration { scoring_interval: 0.030, ..Calibration::default() };
    let router = simulated_router(config, &calibration, lengths(), &clock);
    let context = Context::new(Arc::new(clock.clone())).with_limits(limits.clone());
    let scoring = |(at, sample)| router.score(sample, &context).map(move |score| (at, score));
    let mut waiting: FuturesUnordered<_> = samples.iter().enumerate().map(scoring).collect();
    let mut found = vec![(0.0, Score::default()); samples.len()];
    let mut context = task::Context::from_waker(Waker::noop());
    loop {
        while let Poll::Ready(Some((at, score))) = waiting.poll_next_unpin(&mut context) {
            found[at] = (clock.now().as_secs_f64(), score.expect("it scores"));
        }
        if !clock.advance() {
            assert!(waiting.is_empty());
            return found;
        }
    }
}

fn all(data_source: &str, prompts: u64) -> Vec<Sample> {
    let of = |prompt| (0..8).map(move |at| sample(data_source, prompt, at));
    (0..prompts).flat_map(of).collect()
}

#[test]
fn scores_follow_the_pass_rates() {
    let lengths = lengths();
    let scores = score(&config(), all("math", 500));
    let expected: f64 = (0..500).map(|row| 8.0 * lengths.prompt(row).pass_rate).sum();
    let right: f64 = scores.iter().map(|(_, value)| value).sum();
    assert!((right - expected).abs() < 100.0, "{right} {expected}");
    let equal = |group: &[(f64, f64)]| group.iter().all(|(_, value)| *value == group[0].1);
    let flat = scores.chunks(8).filter(|group| equal(group)).count();
    assert!((50..400).contains(&flat), "{flat} of 500 groups have no variance");
    let mut cut = sample("math", 0, 0);
    cut.finish_reason = FinishReason::Length;
    assert_eq!(score(&config(), vec![cut])[0].1, 0.0, "a response that was cut is wrong");
}

const PLENTY: usize = 100_000;

fn plenty() -> SimulatedRewardsConfig {
    SimulatedRewardsConfig { slots: PLENTY, ..config() }
}

#[test]
fn a_sandbox_takes_the_measured_times_and_gives_up_at_its_limit() {
    let times = |limits: &Limits| {
        let scores = score_within(&plenty(), all("code", 1000), limits);
        let mut seconds: Vec<_> = scores.iter().map(|(end, _)| end - 1.0).collect();
        seconds.sort_by(f64::total_cmp);
        seconds
    };
    let unknown = times(&Limits::default());
    assert!((unknown[4000] - 0.31).abs() < 0.02, "median {}", unknown[4000]);
    assert!((unknown[7200] - 0.87).abs() < 0.1, "p90 {}", unknown[7200]);
    let hanging = unknown.iter().filter(|seconds| **seconds >= 30.0).count();
    assert!((300..540).contains(&hanging), "{hanging} of 8000");
    assert!(times(&Limits::fixed(Nanos::from_secs_f64(2.0)))[7999] <= 2.001);
    let anchors = Arc::from([Some(Nanos::from_secs_f64(4.0))]);
    assert!((times(&Limits { anchors, ..Limits::default() })[7999] - 6.0).abs() < 1e-3);
}

#[test]
fn a_response_that_was_cut_has_no_program_to_run() {
    let cut = |sample: Sample| Sample { finish_reason: FinishReason::Length, ..sample };
    let scores = score_within(
        &SimulatedRewardsConfig { slots: 1, ..config() },
        all("code", 50).into_iter().map(cut).collect(),
        &Limits::default(),
    );
    for (end, score) in scores {
        assert!((end - 1.0).abs() < 1e-6, "{end}: the latency alone");
        assert!(score.executions.is_empty() && score.value == 0.0);
    }
}

#[test]
fn a_reference_time_limits_unknown_tasks() {
    let config = SimulatedRewardsConfig { reference_time: true, ..plenty() };
    let scores = score_within(&config, all("code", 1000), &Limits::default());
    let limits: Vec<_> = scores.iter().map(|(_, score)| score.executions[0].limit).collect();
    let min = Limits::default().rule.min;
    let at_least = limits.iter().filter(|limit| **limit == min).count();
    assert!((7200..8000).contains(&at_least), "{at_least} of 8000 are at the least limit");
    assert!(limits.chunks(8).all(|task| task.iter().all(|limit| *limit == task[0])));
    let wrong = scores.iter().filter(|(_, score)| score.executions[0].is_killed()).count();
    assert!((400..600).contains(&wrong), "{wrong} of 8000, of which 416 hang");
}

#[test]
fn an_audit_ends_at_the_greatest_limit_or_when_the_run_does_and_changes_no_score() {
    let known = Limits { anchors: Arc::from([Some(Nanos(1))]), ..Limits::default() };
    let audited = Limits { audit: true, ..known.clone() };
    let of = |limits| score_within(&plenty(), all("code", 1000), limits);
    let (plain, audited) = (of(&known), of(&audited));
    let executions = |scores: &[(f64, Score)]| -> Vec<_> {
        scores.iter().flat_map(|(_, score)| score.executions.clone()).collect()
    };
    assert!(executions(&plain).iter().all(|it| it.took <= it.limit && !it.audited));
    assert!(plain.iter().zip(&audited).all(|(one, other)| one.1.value == other.1.value));
    let wrong = executions(&audited).iter().filter(|it| it.is_wrongly_killed()).count();
    let killed = executions(&plain).iter().filter(|it| it.is_killed()).count();
    assert_eq!(killed, executions(&audited).iter().filter(|it| it.is_killed()).count());
    assert!(wrong > 0 && wrong < killed, "{wrong} of {killed}");
}

#[test]
fn runs_wait_for_slots() {
    let end = |slots| {
        let ends = score(&SimulatedRewardsConfig { slots, ..config() }, all("code", 50));
        ends.iter().map(|(end, _)| *end).fold(0.0, f64::max)
    };
    let (wide, narrow) = (end(100_000), end(4));
    assert!(narrow > 3.0 * wide, "{narrow} {wide}");
}

#[test]
fn after_the_rollout_all_responses_are_taken_in_before_any_is_scored() {
    let after = SimulatedRewardsConfig { after_rollout: true, ..config() };
    let ends = score(&after, all("math", 10));
    assert!(ends.iter().all(|(end, _)| (end - 80.0 * 0.030 - 0.01).abs() < 1e-6), "{ends:?}");
    let judged = score(&after, vec![sample("judge", 0, 0)])[0].0;
    assert!((judged - 7.03).abs() < 1e-6, "{judged}");
    assert!((score(&config(), vec![sample("judge", 0, 0)])[0].0 - 3.0).abs() < 1e-6);
}

#[test]
fn scores_are_seen_at_the_ends_of_intervals() {
    let grid = SimulatedRewardsConfig { report_interval: Nanos(250_000_000), ..config() };
    let ends = score(&grid, all("code", 20));
    assert!(ends.iter().all(|(end, _)| (end * 4.0 - (end * 4.0).round()).abs() < 1e-6), "{ends:?}");
}
