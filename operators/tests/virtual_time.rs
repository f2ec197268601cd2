//! The whole step in virtual time: its duration follows from the durations of its stages and from how they overlap.

mod support;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_operators::overlap::{GroupDelivery, Scoring};
use rollpacker_operators::placement::{Colocated, PlacementPolicy, Separate};
use rollpacker_operators::report::{StepReport, measure};
use rollpacker_stages::rollout::Placement;
use support::in_virtual_time::VirtualRun;

/// Returns a run of two steps with four prompts each and two responses to each prompt. In a step, sample `s` of prompt `p` (from 0 to 3)
/// takes `10 p + s + 1` seconds.
fn two_steps<P: PlacementPolicy + 'static>(
    placement: P,
    scoring: Scoring,
    delivery: GroupDelivery,
    staleness: u64,
) -> VirtualRun<P> {
    let seconds =
        |id: rollpacker_dataflow::step::SampleId| 10 * (id.prompt.0 % 4) + u64::from(id.sample) + 1;
    VirtualRun {
        placement,
        scoring,
        delivery,
        staleness,
        prompts: 4,
        responses: 2,
        steps: 2,
        seconds,
        load: None,
    }
}

fn run(
    placement: impl PlacementPolicy + 'static,
    scoring: Scoring,
    delivery: GroupDelivery,
    staleness: u64,
) -> Vec<StepReport> {
    two_steps(placement, scoring, delivery, staleness).run()
}

fn seconds(reports: &[StepReport]) -> Vec<f64> {
    reports.iter().map(|report| report.closed.since(report.opened).as_secs_f64()).collect()
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
}

const STAGES: [&str; 4] = [
    "timing_s/weight_sync",
    "timing_s/rollout",
    "timing_s/reward_exposed",
    "timing_s/training_exposed",
];

const ALL: Placement = Placement { instances: 4, tensor_parallel: 1 };
const STREAMED: GroupDelivery = GroupDelivery::Streamed { max_groups: None };

// The longest response takes 32 s, its reward 5 s, eight sequences on four devices 16 s, and the update 3 s.
#[test]
fn nothing_overlaps_in_a_synchronous_step() {
    let reports = run(Colocated::new(ALL), Scoring::AfterRollout, GroupDelivery::WholeStep, 0);
    assert_eq!(seconds(&reports), [56.0, 56.0]);
    let metrics = measure(&reports[1]);
    let stages = ["timing_s/gen", "timing_s/reward_exposed", "timing_s/training_exposed"];
    assert_eq!(stages.map(|name| metrics[name]), [32.0, 5.0, 19.0]);
}

// Three of the four prompts are scored when the rollout ends, and are trained on for 12 s. The last prompt is scored meanwhile, and is then
// trained on for 4 s.
#[test]
fn streamed_rewards_expose_only_the_last_score() {
    let reports = run(Colocated::new(ALL), Scoring::Streamed, STREAMED, 0);
    assert_eq!(seconds(&reports), [32.0 + 12.0 + 4.0 + 3.0; 2]);
}

// Groups of two sequences are complete at 2, 12, 22 and 32 s, and scored 5 s later; each is trained on for 4 s.
#[test]
fn a_trainer_with_its_own_devices_exposes_only_the_last_group() {
    let reports = run(Separate::new(ALL, 4), Scoring::Streamed, STREAMED, 0);
    assert_eq!(seconds(&reports), [37.0 + 4.0 + 3.0; 2]);
}

// The second rollout begins when the first one ends, and its groups are trained on after the first update.
#[test]
fn a_stale_step_overlaps_with_the_training_of_the_one_before() {
    let reports = run(Separate::new(ALL, 4), Scoring::Streamed, STREAMED, 1);
    assert_eq!(reports[1].closed.as_secs_f64(), 32.0 + 44.0);
    let metrics = measure(&reports[1]);
    // From the close of the first step, at 44 s; both steps train for 16 s and update for 3 s.
    let seconds = 32.0;
    near(metrics["perf/time_per_step"], seconds);
    near(metrics["timing_s/step"], 44.0);
    near(metrics["perf/throughput"], metrics["perf/total_num_tokens"] / seconds);
    near(metrics["trainer/waiting_ratio"], 1.0 - 19.0 / seconds);
    near(STAGES.map(|name| metrics[name]).iter().sum(), seconds);
}

// The engine starts each request without delay.
#[test]
fn the_stages_of_a_step_add_up_to_its_time() {
    let mut report =
        run(Colocated::new(ALL), Scoring::AfterRollout, GroupDelivery::WholeStep, 0).remove(1);
    let metrics = measure(&report);
    assert_eq!(stages(&report), [0.0, 32.0, 5.0, 19.0]);
    assert_eq!(metrics["perf/time_per_step"], metrics["timing_s/step"]);
    open_before(&mut report, 7);
    assert_eq!(stages(&report), [7.0, 32.0, 5.0, 19.0]);
}

// The report is changed as if the round had opened 7 s earlier: 2 s to load the weights, and 5 s to distribute the requests.
#[test]
fn weight_loading_excludes_dispatch_if_the_engine_reports_it() {
    let run = two_steps(Colocated::new(ALL), Scoring::AfterRollout, GroupDelivery::WholeStep, 0);
    let mut reports = VirtualRun { load: Some(Nanos(2_000_000_000)), ..run }.run();
    assert!(reports.iter().all(|report| report.metrics["rollout/load_s"] == 2.0));
    let report = &mut reports[1];
    // The stage ends at the latest when the first response starts, even if the engine reports a later time.
    assert_eq!(stages(report), [0.0, 32.0, 5.0, 19.0]);
    open_before(report, 7);
    assert_eq!(stages(report), [2.0, 37.0, 5.0, 19.0]);
}

fn stages(report: &StepReport) -> [f64; 4] {
    let metrics = measure(report);
    STAGES.map(|name| metrics[name].round())
}

fn open_before(report: &mut StepReport, seconds: u64) {
    report.opened = Nanos(report.opened.0 - seconds * 1_000_000_000);
    report.before = report.opened;
}
