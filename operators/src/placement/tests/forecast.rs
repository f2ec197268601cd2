//! Tests of forecasts against values computed by hand.

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::PromptId;
use rollpacker_stages::rollout::{FinishReason, Placement};

use super::{Cost, cost, job};
use crate::placement::RoundLoad;
use crate::placement::forecast::{Change, Forecast, Layout, projected};
use crate::placement::round_progress::{EndedResponse, RoundProgress};
use crate::survival::{Curve, Survival};
use crate::wire::decision::RoundKind;

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
}

fn curve(lengths: &[u32]) -> Curve {
    let mut survival = Survival::default();
    lengths.iter().for_each(|length| survival.observe(*length, true));
    survival.curve()
}

fn load(launched: u32, completed: u32) -> RoundLoad {
    RoundLoad { launched, completed, prompts: 1, admitted: 1, prompt_tokens: 0, preemptions: 0 }
}

fn on(instances: u32, tensor_parallel: u32, training_devices: u32) -> Layout {
    Layout { rollout: Placement { instances, tensor_parallel }, training_devices }
}

fn always(layout: Layout) -> Change {
    Change { from: layout, to: layout, after: usize::MAX }
}

/// Four responses have 10, 20, 40 and 80 tokens. An iteration takes 0.1 s, plus 0.01 s for each response that an instance runs.
#[test]
fn surplus_responses_slow_a_round_without_extending_it() {
    let cost = Cost { response: 0.01, ..cost() };
    let curve = curve(&[10, 20, 40, 80]);
    let seconds = |completed, layout| {
        Forecast::of_round(load(4, completed), &curve, job()).simulate_rollout(
            &cost,
            always(layout),
            |_, _, _| {},
        )
    };
    let one = 10.0 * 0.14 + 10.0 * 0.13 + 20.0 * 0.12 + 40.0 * 0.11;
    near(seconds(4, on(1, 1, 0)), one);
    near(seconds(4, on(4, 1, 0)), 80.0 * 0.11);
    near(seconds(2, on(1, 1, 0)), 10.0 * 0.14 + 10.0 * 0.13);
}

/// An instance whose cache holds a tenth of the running responses takes ten times as long, with a tenth of the batch.
#[test]
fn responses_that_do_not_fit_into_the_cache_wait() {
    let forecast = Forecast::of_round(load(4, 4), &curve(&[50]), job());
    let seconds = |capacity| {
        let cost = Cost { capacity, ..cost() };
        forecast.simulate_rollout(&cost, always(on(1, 1, 0)), |_, _, _| {})
    };
    near(seconds(1000), 5.0);
    near(seconds(10), 50.0);
}

fn response(tokens: u32, resumed: u32, finish_reason: FinishReason) -> EndedResponse {
    EndedResponse { tokens, resumed, finish_reason, preemptions: 0 }
}

/// One prompt with two responses. One response ended after 10 s with 10 tokens, in addition to 10 of the prompt. The other also has 10
/// tokens and is expected to reach 100. Another group is complete, with 40 tokens.
fn tail() -> RoundProgress {
    let mut progress = RoundProgress::new(RoundKind::Long);
    progress.launch(Nanos(0), PromptId(0), 2, 10);
    progress.launch(Nanos(0), PromptId(1), 2, 10);
    let now = Nanos::from_secs_f64(10.0);
    for prompt in [0, 1, 1] {
        progress.end(now, PromptId(prompt), response(10, 0, FinishReason::Stop));
    }
    progress.admit(PromptId(1), 2);
    progress
}

/// The rest lasts 90 iterations, or 9 s. The trainer processes 10 tokens per second and device. The complete group has 40 tokens; the open
/// one will have 20 + 110.
#[test]
fn training_on_complete_groups_overlaps_with_the_tail() {
    let forecast =
        Forecast::new(&tail(), Nanos::from_secs_f64(10.0), &curve(&[10, 100]), job(), None, 0.0);
    near(forecast.seconds(&cost(), always(on(4, 1, 0))), 9.0 + 170.0 / 40.0);
    let change = Change { from: on(4, 1, 0), to: on(2, 1, 2), after: 0 };
    near(forecast.seconds(&cost(), change), 9.0 + 130.0 / 40.0);
    near(forecast.seconds(&Cost { change: 2.0, ..cost() }, change), 11.0 + 130.0 / 40.0);
    let slow = Cost { training: 1.0, ..cost() };
    near(forecast.seconds(&slow, change), 9.0 + (170.0 - 18.0) / 4.0);
}

#[test]
fn the_projection_adds_the_mean_residual_or_what_the_longest_response_leaves() {
    let cohorts = tail().cohorts(Nanos::from_secs_f64(10.0));
    near(projected(&cohorts, &curve(&[10, 50, 90]), job()), 10.0 + 10.0 + 60.0);
    near(projected(&cohorts, &Curve::default(), job()), 10.0 + 10.0 + 90.0);
}

/// Two seconds after a response ended with 10 tokens in 10 s, the responses that still run have 12; younger ones have fewer.
#[test]
fn running_responses_are_as_fast_as_the_fastest_that_ended() {
    let mut progress = tail();
    let now = Nanos::from_secs_f64(12.0);
    progress.launch(Nanos::from_secs_f64(11.0), PromptId(2), 3, 10);
    let cohorts = progress.cohorts(now);
    let found: Vec<_> = cohorts.iter().map(|cohort| (cohort.count, cohort.tokens)).collect();
    assert_eq!(found, [(1.0, 12.0), (3.0, 1.0)]);
}

/// One response resumed with 90 tokens and sampled 10 more in 10 s; another was kept whole. Running responses are taken to have sampled 10
/// tokens, and one length was observed.
#[test]
fn tokens_of_an_earlier_step_count_neither_for_pace_nor_for_lengths() {
    let mut progress = RoundProgress::new(RoundKind::Long);
    progress.launch(Nanos(0), PromptId(0), 3, 10);
    progress.end(Nanos(1), PromptId(0), response(80, 80, FinishReason::Stop));
    let now = Nanos::from_secs_f64(10.0);
    progress.end(now, PromptId(0), response(100, 90, FinishReason::Length));
    let cohorts = progress.cohorts(now);
    assert_eq!((cohorts[0].count, cohorts[0].tokens), (1.0, 10.0));
    assert_eq!((progress.lengths.count(), progress.lengths.longest()), (1, Some(100)));
    assert_eq!(progress.load().completed, 2);
}

#[test]
fn a_paused_response_is_not_a_length_and_an_aborted_one_is_a_lower_bound() {
    let mut progress = RoundProgress::new(RoundKind::Short);
    progress.launch(Nanos(0), PromptId(0), 3, 10);
    let now = Nanos::from_secs_f64(1.0);
    for reason in [FinishReason::Pause, FinishReason::Abort, FinishReason::Length] {
        progress.end(now, PromptId(0), EndedResponse { preemptions: 1, ..response(10, 0, reason) });
    }
    assert_eq!(progress.lengths.count(), 2);
    assert_eq!((progress.load().completed, progress.load().preemptions), (1, 3));
    assert!(!progress.is_open());
}
