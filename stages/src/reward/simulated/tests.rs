use std::task::{self, Poll, Waker};

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use rollpacker_dataflow::step::{PromptId, SampleId, Step};

use super::*;
use crate::rollout::simulated::lengths::{EmpiricalConfig, LengthsConfig, PopulationConfig};

fn lengths() -> Arc<dyn LengthModel> {
    let config = LengthsConfig::Empirical(EmpiricalConfig::rollpacker());
    config.build(&PopulationConfig::default(), 1, 8192).expect("in bounds")
}

fn config() -> SimulatedRewardsConfig {
    SimulatedRewardsConfig {
        seed: 3,
        slots: 64,
        workers: Workers::FirstFree,
        timeout: Timeout::Fixed { seconds: 30.0 },
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
    }
}

/// Scores `samples`, all asked for at time 0: when each score was there, in seconds, and what it was.
fn score(config: &SimulatedRewardsConfig, samples: Vec<Sample>) -> Vec<(f64, f64)> {
    let clock = VirtualClock::default();
    let router = simulated_router(config, &Calibration::default(), lengths(), &clock);
    let asked = Context::new(Arc::new(clock.clone()));
    let scoring = |(at, sample)| router.score(sample, &asked).map(move |score| (at, score));
    let mut waiting: FuturesUnordered<_> = samples.iter().enumerate().map(scoring).collect();
    let mut found = vec![(0.0, 0.0); samples.len()];
    let mut context = task::Context::from_waker(Waker::noop());
    loop {
        while let Poll::Ready(Some((at, score))) = waiting.poll_next_unpin(&mut context) {
            found[at] = (clock.now().as_secs_f64(), score.expect("it scores").value);
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

#[test]
fn a_sandbox_takes_the_measured_times_and_gives_up_at_its_limit() {
    let plenty = SimulatedRewardsConfig { slots: 100_000, ..config() };
    let times = |timeout| {
        let times = score(&SimulatedRewardsConfig { timeout, ..plenty }, all("code", 1000));
        let mut seconds: Vec<_> = times.iter().map(|(end, _)| end - 1.0).collect();
        seconds.sort_by(f64::total_cmp);
        seconds
    };
    let fixed = times(Timeout::Fixed { seconds: 30.0 });
    assert!((fixed[4000] - 0.31).abs() < 0.02, "median {}", fixed[4000]);
    assert!((fixed[7200] - 0.87).abs() < 0.1, "p90 {}", fixed[7200]);
    let hanging = fixed.iter().filter(|seconds| **seconds >= 30.0).count();
    assert!((300..540).contains(&hanging), "{hanging} of 8000");
    let adaptive = times(Timeout::Adaptive { seconds: 30.0 });
    assert!(adaptive[7900] < 30.0 && adaptive[7900] >= 3.0);
    assert!(times(Timeout::Fixed { seconds: 2.0 })[7999] <= 2.001);
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
fn after_the_rollout_all_is_taken_in_before_any_is_handed_out() {
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
