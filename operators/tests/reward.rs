//! Rewards that run during the rollout: cancellation, errors, and group rewards. Timelines in virtual time.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use arrow_array::types::{Float64Type, UInt32Type, UInt64Type};
use expect_test::{Expect, expect};
use proptest::prelude::*;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::SampleId;
use rollpacker_operators::overlap::Scoring;
use rollpacker_operators::report::{Observer, StepReport, measure};
use rollpacker_operators::schedule::{
    Decision, Dynamic, Event, OnExhausted, Partial, Schedule, Synchronous, TailBatching,
    ZeroVarianceFilter, dynamic, partial, sync, tail_batching,
};
use rollpacker_stages::reward::{
    Context, GroupReward, OnError, Reward, RewardError, Router, Sample, Score,
};
use support::rewarded::{
    Log, Logged, Rewarded, Script, Watched, abort, admit, close, defer, reject,
};
use support::{Reports, Run};

/// Returns a reward that takes 5 seconds per response. The score is the index of the sample.
fn five_seconds(log: &Log) -> Watched {
    let score = |id: SampleId| Ok(f64::from(id.sample).into());
    Watched { log: log.clone(), seconds: Arc::new(|_| 5), score }
}

fn synchronous(prompts: usize, responses: u32) -> Synchronous {
    Synchronous::new(sync::Config { prompts, responses, total_steps: None }).expect("valid")
}

/// Returns prompt, sample, score and error of the trained responses.
fn trained(reports: &[StepReport]) -> Vec<(u64, u32, f64, Option<String>)> {
    let batches = reports.iter().flat_map(|report| &report.groups);
    let rows = batches.flat_map(|batch| {
        let prompts = batch.values::<UInt64Type>(column::PROMPT_ID).values().iter();
        let samples = batch.values::<UInt32Type>(column::SAMPLE).values();
        let scores = batch.values::<Float64Type>(column::SCORE).values();
        let errors = batch.text(column::REWARD_ERROR).iter();
        let rows = prompts.zip(samples).zip(scores).zip(errors);
        rows.map(|(((prompt, sample), score), error)| {
            (*prompt, *sample, *score, error.map(str::to_owned))
        })
        .collect::<Vec<_>>()
    });
    rows.collect()
}

fn metrics<const N: usize>(report: &StepReport, names: [&str; N]) -> [f64; N] {
    let all = measure(report);
    names.map(|name| *all.get(name).unwrap_or_else(|| panic!("no {name} in {all:?}")))
}

fn check(log: &Log, expected: Expect) {
    expected.assert_eq(&log.text());
}

// The rewards of samples 0 and 1 of prompt 0 take 1 second. All other rewards would take 100 seconds.
#[test]
fn scoring_of_deferred_rejected_or_surplus_responses_is_cancelled() {
    let log = Log::new();
    let script = Script::new(
        &[(0, 3), (1, 2), (2, 2), (3, 1)],
        [
            // Sample 2 has ended and is not admitted; the second sample of prompt 1 has yet to end.
            ((0, 2), vec![admit(0, &[0, 1]), reject(1)]),
            ((2, 0), vec![defer(2), abort(2, 1)]),
            ((3, 0), vec![reject(3), close(), reject(2)]),
        ],
    );
    let seconds = Arc::new(|id: SampleId| if id.prompt.0 == 0 && id.sample < 2 { 1 } else { 100 });
    let router = Router::default().route("*", Watched { seconds, ..five_seconds(&log) });
    let run = Rewarded {
        prompts: 4,
        seconds: Box::new(|id| match id.prompt.0 {
            0 => u64::from(id.sample) + 1,
            1 => 2 + 3 * u64::from(id.sample),
            2 => 4 + 5 * u64::from(id.sample),
            _ => 6,
        }),
        ..Rewarded::of(&log, Logged(script, log.clone()), router)
    };
    let reports = run.run().expect("no fault");
    check(
        &log,
        expect![[r#"
            t=0   launch p0.0..3 (fresh)
            t=0   launch p1.0..2 (fresh)
            t=0   launch p2.0..2 (fresh)
            t=0   launch p3.0..1 (fresh)
            t=2   p0.0@0 scored
            t=3   p0.1@0 scored
            t=3   admit p0 [0, 1] (finished)
            t=3   reject p1 (no quota)
            t=3   p0.2@0 dropped
            t=3   p1.0@0 dropped
            t=4   defer p2 (round full)
            t=4   abort p2.1@0 (round full)
            t=4   p2.0@0 dropped
            t=6   reject p3 (no quota)
            t=6   close 0 (queue 0, age 0)
            t=6   reject p2 (no quota)
            t=6   p3.0@0 dropped
            t=9   step 0 over
        "#]],
    );
    assert_eq!(trained(&reports).len(), 2);
    let counts = ["reward/cancelled", "reward/skipped", "reward/in_flight_max", "reward/told"];
    assert_eq!(metrics(&reports[0], counts), [4.0, 1.0, 2.0, 1.0]);
}

// Prompt 1 has ended and waits for the rollout to end when it is rejected.
#[test]
fn after_the_rollout_only_admitted_responses_are_scored() {
    let log = Log::new();
    let then = [((0, 1), vec![admit(0, &[0]), reject(1), close()])];
    let router = Router::default().route("*", five_seconds(&log));
    let run = Rewarded {
        scoring: Scoring::AfterRollout,
        seconds: Box::new(|id| u64::from(id.sample) + 2 - id.prompt.0),
        ..Rewarded::of(&log, Logged(Script::new(&[(0, 2), (1, 1)], then), log.clone()), router)
    };
    let reports = run.run().expect("no fault");
    check(
        &log,
        expect![[r#"
            t=0   launch p0.0..2 (fresh)
            t=0   launch p1.0..1 (fresh)
            t=3   admit p0 [0] (finished)
            t=3   reject p1 (no quota)
            t=3   close 0 (queue 0, age 0)
            t=8   p0.0@0 scored
            t=12  step 0 over
        "#]],
    );
    assert_eq!(metrics(&reports[0], ["reward/cancelled", "reward/skipped"]), [0.0, 2.0]);
}

fn failing(log: &Log, on_error: OnError) -> Router {
    let score = |id: SampleId| match (id.prompt.0, id.sample) {
        (0, 1) => Err(RewardError::timeout("no answer in 5 s")),
        (2, 0) => Err(RewardError::timeout("no answer in 6 s")),
        (_, sample) => Ok(f64::from(sample + 1).into()),
    };
    Router::default()
        .route_named("*", "judge", Watched { score, ..five_seconds(log) })
        .on_error("*", on_error)
}

#[test]
fn an_error_that_fails_ends_the_run_and_is_named() {
    let log = Log::new();
    let run = Rewarded::of(&log, synchronous(2, 2), failing(&log, OnError::Fail));
    let fault = run.run().expect_err("the reward fails");
    let expected = "reward, step 1, prompt p0, sample 1: data_source `slow`: reward `judge`: timed out: no answer in 5 s";
    assert_eq!(fault.to_string(), expected);
}

#[test]
fn errors_are_tolerated_among_scores() {
    let log = Log::new();
    let run = Rewarded {
        prompts: 4,
        ..Rewarded::of(&log, synchronous(4, 2), failing(&log, OnError::default()))
    };
    let reports = run.run().expect("no fault");
    let prompts: Vec<u64> = trained(&reports).into_iter().map(|(prompt, ..)| prompt).collect();
    assert_eq!(prompts, [1, 1, 3, 3]);
    let counts = ["reward/errors/timeout", "reward/dropped_groups"];
    assert_eq!(metrics(&reports[0], counts), [2.0, 2.0]);
    assert!(log.text().contains("warning: reward, step 1, prompt p0, sample 1"), "{}", log.text());
}

#[test]
fn a_reward_that_never_scores_ends_the_run() {
    let run = |score: fn(SampleId) -> Result<Score, RewardError>| {
        let log = Log::new();
        let router =
            Router::default().route_named("*", "judge", Watched { score, ..five_seconds(&log) });
        let run = Rewarded { prompts: 20, ..Rewarded::of(&log, synchronous(20, 2), router) };
        run.run().map(|reports| trained(&reports).len()).map_err(|fault| fault.to_string())
    };
    let fault = run(|_| Err(RewardError::retryable("busy"))).expect_err("forty errors");
    assert!(fault.contains("judge") && fault.contains("32 times in a row"), "{fault}");
    let scores_once = |id: SampleId| match id.prompt.0 {
        10 => Ok(Score::from(1.0)),
        _ => Err(RewardError::retryable("busy")),
    };
    assert_eq!(run(scores_once), Ok(2), "twenty errors before a score, and eighteen after it");
}

#[test]
fn an_error_that_counts_as_zero_is_reported() {
    let log = Log::new();
    let run = Rewarded {
        prompts: 4,
        ..Rewarded::of(&log, synchronous(4, 2), failing(&log, OnError::Zero))
    };
    let reports = run.run().expect("no fault");
    let errors: Vec<_> =
        trained(&reports).into_iter().filter(|(.., error)| error.is_some()).collect();
    let message = |seconds| Some(format!("reward `judge`: timed out: no answer in {seconds} s"));
    assert_eq!(errors, [(0, 1, 0.0, message(5)), (2, 0, 0.0, message(6))]);
    let counts = ["reward/errors/timeout", "reward/errors/timeout/judge", "reward/errors/fatal"];
    assert_eq!(metrics(&reports[0], counts), [2.0, 2.0, 0.0]);
    let warnings = log.text().lines().filter(|line| line.contains("warning")).count();
    assert_eq!(warnings, 1, "the second is counted");
}

#[test]
fn a_group_with_an_error_is_dropped_and_a_step_may_be_left_with_none() {
    let log = Log::new();
    let router = failing(&log, OnError::DropGroup);
    // Each step has one prompt; nothing is trained on in the first and the third.
    let run = Rewarded { prompts: 4, ..Rewarded::of(&log, synchronous(1, 2), router) };
    let reports = run.run().expect("no fault");
    let prompts: Vec<u64> = trained(&reports).into_iter().map(|(prompt, ..)| prompt).collect();
    assert_eq!(prompts, [1, 1, 3, 3]);
    let of = |name| reports.iter().map(|report| metrics(report, [name])[0]).collect::<Vec<_>>();
    assert_eq!(of("reward/dropped_groups"), [1.0, 0.0, 1.0, 0.0]);
    assert_eq!(of("schedule/admitted_prompts"), [1.0; 4]);
    check(
        &log,
        expect![[r#"
            t=6   p0.0@0 scored
            t=7   p0.1@0 scored
            t=7   warning: reward, step 1, prompt p0, sample 1: data_source `slow`: reward `judge`: timed out: no answer in 5 s; its group is not trained on; further ones of the step are counted in `reward/errors/timeout`
            t=10  step 0 over
            t=26  p1.0@1 scored
            t=27  p1.1@1 scored
            t=32  step 1 over
            t=58  p2.0@2 scored
            t=58  warning: reward, step 3, prompt p2, sample 0: data_source `slow`: reward `judge`: timed out: no answer in 6 s; its group is not trained on; further ones of the step are counted in `reward/errors/timeout`
            t=59  p2.1@2 scored
            t=62  step 2 over
            t=98  p3.0@3 scored
            t=99  p3.1@3 scored
            t=104 step 3 over
        "#]],
    );
}

fn dynamic(prompts: usize) -> Dynamic {
    Dynamic::new(dynamic::Config {
        prompts,
        responses: 2,
        gen_prompts: None,
        max_generated_batches: 5,
        on_exhausted: OnExhausted::SmallerStep,
        total_steps: None,
    })
    .expect("valid")
}

#[test]
fn a_schedule_that_decides_by_rewards_replaces_a_group_with_an_error() {
    let log = Log::new();
    let router = failing(&log, OnError::DropGroup);
    let run = Rewarded { prompts: 4, ..Rewarded::of(&log, dynamic(2), router) };
    let reports = run.run().expect("no fault");
    let prompts: Vec<u64> = trained(&reports).into_iter().map(|(prompt, ..)| prompt).collect();
    assert_eq!(prompts, [1, 1, 3, 3]);
    let [rejected, launched] =
        metrics(&reports[0], ["schedule/rejected_prompts", "schedule/launched_prompts"]);
    assert_eq!((rejected, launched), (2.0, 4.0));
}

/// Returns a reward of ten for the first response of a group, and 0 for the others.
fn ten_for_the_first(log: &Log) -> Watched {
    let score = |id: SampleId| {
        let value = f64::from(u32::from(id.sample == 0) * 10);
        Ok(Score::from(value).component("first", value).label("outcome", "compared"))
    };
    Watched { score, ..five_seconds(log) }
}

#[test]
fn group_rewards_are_added_to_those_of_the_samples() {
    let log = Log::new();
    let router = Router::default().route("*", five_seconds(&log)).route_groups(
        "*",
        "first",
        ten_for_the_first(&log),
    );
    let reports = Rewarded::of(&log, synchronous(2, 2), router).run().expect("no fault");
    let scores: Vec<f64> = trained(&reports).into_iter().map(|(.., score, _)| score).collect();
    assert_eq!(scores, [10.0, 1.0, 10.0, 1.0]);
    let names =
        ["reward/first", "reward/outcome/compared", "reward/tail_time_s", "reward/mean_time_s"];
    assert_eq!(metrics(&reports[0], names), [5.0, 4.0, 10.0, 10.0]);
    check(
        &log,
        expect![[r#"
            t=6   p0.0@0 scored
            t=7   p0.1@0 scored
            t=12  group of p0 scored
            t=16  p1.0@0 scored
            t=17  p1.1@0 scored
            t=22  group of p1 scored
            t=27  step 0 over
        "#]],
    );
}

/// A group reward of ten times the samples' own reward, or -1 if they have none.
struct TenTimesItsOwn;

impl GroupReward for TenTimesItsOwn {
    async fn score(&self, group: &[Sample], _: &Context) -> Result<Vec<Score>, RewardError> {
        let ten_times = |sample: &Sample| sample.own_score.map_or(-1.0, |own| 10.0 * own).into();
        Ok(group.iter().map(ten_times).collect())
    }
}

#[test]
fn group_rewards_receive_the_scores_of_the_samples() {
    let scores = |own: bool| {
        let log = Log::new();
        let router = Router::default().route_groups("*", "ten_times", TenTimesItsOwn);
        let router = if own { router.route("*", five_seconds(&log)) } else { router };
        let reports = Rewarded::of(&log, synchronous(2, 2), router).run().expect("no fault");
        trained(&reports).into_iter().map(|(.., score, _)| score).collect::<Vec<_>>()
    };
    assert_eq!(scores(true), [0.0, 11.0, 0.0, 11.0]);
    assert_eq!(scores(false), [-1.0; 4]);
}

#[test]
fn errors_of_group_rewards_follow_their_route() {
    let score = |id: SampleId| match id.prompt.0 {
        0 => Err(RewardError::retryable("busy")),
        _ => Ok(Score::from(1.0)),
    };
    let run = |on_error| {
        let log = Log::new();
        let router = Router::default()
            .route("*", five_seconds(&log))
            .route_groups("*", "judge", Watched { score, ..five_seconds(&log) })
            .on_error("*", on_error);
        let reports = Rewarded::of(&log, synchronous(2, 2), router).run();
        (reports, log)
    };
    let (failed, _) = run(OnError::Fail);
    let expected =
        "group_reward, step 1, prompt p0: data_source `slow`: reward `judge`: failed for now: busy";
    assert_eq!(failed.expect_err("fails").to_string(), expected);

    let (dropped, log) = run(OnError::DropGroup);
    let dropped = dropped.expect("no fault");
    assert_eq!(trained(&dropped).into_iter().map(|row| row.2).collect::<Vec<_>>(), [1.0, 2.0]);
    let counts = ["reward/dropped_groups", "reward/errors/retryable"];
    assert_eq!(metrics(&dropped[0], counts), [1.0, 1.0]);
    assert!(log.text().contains("warning: group_reward, step 1, prompt p0: "), "{}", log.text());

    let (zero, _) = run(OnError::Zero);
    let zero = trained(&zero.expect("no fault"));
    let message = Some("reward `judge`: failed for now: busy".to_owned());
    assert_eq!(zero[..2], [(0, 0, 0.0, message.clone()), (0, 1, 1.0, message)]);
}

#[test]
fn group_rewards_are_refused_where_the_schedule_decides_by_rewards() {
    let log = Log::new();
    let router = Router::default().route_groups("*", "first", ten_for_the_first(&log));
    let fault = Rewarded::of(&log, dynamic(2), router).run().expect_err("refused");
    assert!(fault.to_string().contains("the schedule decides by rewards"), "{fault}");
    assert_eq!(log.text(), "", "nothing was launched");
}

#[test]
fn scoring_after_the_rollout_is_refused_where_the_schedule_decides_by_rewards() {
    let log = Log::new();
    let router = Router::default().route("*", five_seconds(&log));
    let late =
        Rewarded { scoring: Scoring::AfterRollout, ..Rewarded::of(&log, dynamic(2), router) };
    let fault = late.run().expect_err("refused").to_string();
    assert!(fault.starts_with("reward: the schedule decides by rewards"), "{fault}");
}

fn hash(seed: u64, id: SampleId, max: u64) -> u64 {
    let mut hash = seed ^ id.prompt.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ u64::from(id.sample) ^ (id.step.0 << 32)).wrapping_mul(0x94d0_49bb_1331_11eb);
    1 + (hash >> 33) % max
}

fn schedule(which: u8) -> Box<dyn Schedule> {
    let filter =
        ZeroVarianceFilter { max_generated_batches: 9, on_exhausted: OnExhausted::SmallerStep };
    let tail = |filters: bool, keep_partial| {
        TailBatching::new(tail_batching::Config {
            filter_zero_variance: filters.then_some(filter),
            keep_partial,
            ..support::tail(3, 2, 1.5, 2.0)
        })
        .expect("valid")
    };
    match which {
        0 => Box::new(synchronous(3, 2)),
        1 => Box::new(tail(false, false)),
        2 => Box::new(tail(true, false)),
        3 => Box::new(tail(false, true)),
        4 => Box::new(dynamic(3)),
        _ => Box::new(
            Partial::new(partial::Config {
                prompts: 3,
                responses: 2,
                oversubscription: 1.5,
                max_versions: 4,
                total_steps: None,
            })
            .expect("valid"),
        ),
    }
}

/// Runs the schedule with the number `which` ([`schedule`]). The durations follow from `seed`, and scorings are cancelled if `cancels` is
/// `true`. Returns the decisions with the trained responses, the times of the steps, and the number of cancelled scorings.
fn lawful(which: u8, seed: u64, staleness: u64, cancels: bool) -> (String, String, f64) {
    let log = Log::new();
    let score = |id: SampleId| Ok(((hash(3, id, 4) % 2) as f64).into());
    let seconds = Arc::new(move |id| hash(seed ^ 1, id, 40));
    let router = Router::default().route("*", Watched { log: log.clone(), seconds, score });
    let run = Rewarded {
        prompts: 15,
        seconds: Box::new(move |id| hash(seed, id, 30)),
        staleness,
        cancels,
        ..Rewarded::of(&log, schedule(which), router)
    };
    let reports = run.run().expect("no fault");
    let decisions = reports.iter().flat_map(|report| &report.decisions).map(|batch| batch.rows());
    let mut sorted = trained(&reports);
    sorted.sort_by_key(|(prompt, sample, ..)| (*prompt, *sample));
    let all: f64 = reports.iter().map(|report| metrics(report, ["reward/cancelled"])[0]).sum();
    let times: Vec<_> = reports.iter().map(|report| (report.opened, report.closed)).collect();
    (format!("{:?}\n{sorted:?}", decisions.collect::<Vec<_>>()), format!("{times:?}"), all)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn cancellation_changes_only_the_time(
        which in 0_u8..6, seed in any::<u64>(), staleness in 0_u64..3,
    ) {
        let (with, times, _) = lawful(which, seed, staleness, true);
        let (without, _, none) = lawful(which, seed, staleness, false);
        prop_assert_eq!(&with, &without);
        prop_assert_eq!(none, 0.0);
        let (again, same, _) = lawful(which, seed, staleness, true);
        prop_assert_eq!((with, times), (again, same));
    }
}

#[test]
fn speculation_cancels_scoring() {
    for which in [1, 2, 3, 5] {
        assert!(lawful(which, 7, 0, true).2 > 0.0, "schedule {which}");
    }
}

/// A reward that never ends for prompt 1. It signals that it has begun and that its future is dropped.
struct Stuck {
    begun: Sender<()>,
    gone: Arc<AtomicBool>,
}

struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Reward for Stuck {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        if sample.id.prompt.0 == 1 {
            let _gone = Gone(self.gone.clone());
            context.metric("stuck", 1.0);
            self.begun.send(()).expect("the schedule waits");
            std::future::pending::<()>().await;
        }
        Ok(1.0.into())
    }
}

/// A schedule that receives the last response only after the reward to be cancelled has begun.
struct AfterBegun(Script, Receiver<()>);

impl Schedule for AfterBegun {
    fn on(&mut self, now: Nanos, event: Event) {
        if let Event::Response { id, .. } = &event
            && (id.prompt.0, id.sample) == (0, 1)
        {
            self.1.recv_timeout(Duration::from_secs(60)).expect("the reward begins");
        }
        self.0.on(now, event);
    }

    fn poll(&mut self) -> Option<Decision> {
        self.0.poll()
    }

    fn wants_prompts(&self) -> bool {
        self.0.wants_prompts()
    }
}

/// An observer that checks that the future has been dropped when a step ends.
struct AtTheEnd(Arc<AtomicBool>, Reports);

impl Observer for AtTheEnd {
    fn step(&mut self, report: StepReport) {
        assert!(self.0.load(Ordering::SeqCst), "its future is gone before the step is over");
        self.1.step(report);
    }
}

#[test]
fn a_cancelled_live_reward_is_dropped_before_its_step_ends() {
    let gone = Arc::new(AtomicBool::new(false));
    let (begun, waits) = channel();
    let reward = Stuck { begun, gone: gone.clone() };
    let then = [((0, 1), vec![admit(0, &[0, 1]), defer(1), close(), reject(1)])];
    let mut run = Run::of(AfterBegun(Script::new(&[(0, 2), (1, 1)], then), waits));
    run.engine.lengths = Some(|id| if id.prompt.0 == 1 { 1 } else { 2 + id.sample });
    let run = Run { prompts: 2, router: Router::default().route("*", reward), ..run };
    let reports = Reports::default();
    run.observed_by(AtTheEnd(gone, reports.clone())).expect("no fault");
    let reports = reports.0.take();
    assert_eq!(trained(&reports).len(), 2);
    assert_eq!(metrics(&reports[0], ["reward/cancelled", "reward/stuck"]), [1.0, 1.0]);
}
