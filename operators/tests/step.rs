//! The whole step over stages without work: the laws of the graph.

mod support;

use std::collections::BTreeMap;

use arrow_array::types::{Int32Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::fault::Origin;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::{PolicyVersion, Step};
use rollpacker_operators::report::{Lengths, StepReport, measure, token_versions};
use rollpacker_operators::schedule::operator::Stop;
use rollpacker_operators::schedule::{
    Decision, Dynamic, Event, FrontierGroup, OnExhausted, Partial, Schedule, Sorted, Synchronous,
    TailBatching, dynamic, frontier_group, partial, sorted, sync,
};
use rollpacker_stages::rollout::TokenVersions;
use rollpacker_stages::train::Metrics;
use support::{Remembering, Run, ShortestFirst};

fn synchronous() -> Synchronous {
    Synchronous::new(sync::Config { prompts: 8, responses: 4, total_steps: None }).expect("valid")
}

fn tail_batching() -> TailBatching {
    let config = support::tail(8, 4, 1.25, 1.5);
    TailBatching::new(config).expect("valid")
}

/// Returns the number of trained responses of each prompt.
fn trained(reports: &[StepReport]) -> BTreeMap<u64, usize> {
    let mut trained = BTreeMap::new();
    for batch in reports.iter().flat_map(|report| &report.groups) {
        let prompts = batch.values::<UInt64Type>(column::PROMPT_ID).values();
        prompts.iter().for_each(|prompt| *trained.entry(*prompt).or_default() += 1);
    }
    trained
}

fn each_once(prompts: u64) -> BTreeMap<u64, usize> {
    (0..prompts).map(|prompt| (prompt, 4)).collect()
}

#[test]
fn synchronous_rounds_train_every_prompt_once() {
    let reports = Run::of(synchronous()).run().expect("no fault");
    assert_eq!(reports.len(), 5);
    assert_eq!(trained(&reports), each_once(40));
}

#[test]
fn tail_batching_trains_every_prompt_once_over_two_epochs() {
    let reports = Run { epochs: 2, ..Run::of(tail_batching()) }.run().expect("no fault");
    assert_eq!(trained(&reports), each_once(80));
    let metrics: Vec<Metrics> = reports.iter().map(measure).collect();
    let sum = |name: &str| metrics.iter().map(|metrics| metrics[name]).sum::<f64>();
    assert!(sum("schedule/deferred_prompts") > 0.0, "something was deferred");
    assert_eq!(sum("schedule/launched_prompts"), 80.0 + sum("schedule/deferred_prompts"));
    assert_eq!(
        metrics.last().expect("steps")["schedule/queue_length"],
        0.0,
        "the queue is empty at the end"
    );
}

#[test]
fn speculation_shortens_what_is_trained_in_short_rounds() {
    let longest = |reports: Vec<StepReport>| {
        let of = |report: &StepReport| Lengths::of(&report.groups).finished.into_iter().max();
        reports.iter().filter_map(of).collect::<Vec<_>>()
    };
    let (full, tail) = (
        longest(Run::of(synchronous()).run().expect("no fault")),
        longest(Run::of(tail_batching()).run().expect("no fault")),
    );
    assert!(tail.iter().min() < full.iter().min(), "{tail:?} against {full:?}");
}

#[test]
fn with_staleness_0_every_trained_token_is_on_policy() {
    check_lag(0);
}

#[test]
fn with_staleness_k_the_lag_is_k() {
    (1..4).for_each(check_lag);
}

#[test]
fn many_responses_at_once_are_passed_on_in_batches() {
    let config = sync::Config { prompts: 80, responses: 8, total_steps: None };
    let schedule = Synchronous::new(config).expect("valid");
    let run = Run { prompts: 80, budget: 80, ..Run::with(schedule, ShortestFirst::instant()) };
    let reports = run.run().expect("no fault");
    let rows: Vec<usize> = reports[0].responses.iter().map(Batch::num_rows).collect();
    assert_eq!((reports.len(), rows.iter().sum::<usize>()), (1, 640));
    assert!(rows.iter().all(|rows| *rows <= 256) && rows.contains(&256), "{rows:?}");
}

fn check_lag(staleness: u64) {
    let reports =
        Run { staleness, prompts: 80, ..Run::of(tail_batching()) }.run().expect("no fault");
    assert!(reports.len() > 5);
    for report in &reports {
        for batch in &report.groups {
            let tokens = batch.lists::<Int32Type>(column::RESPONSE_IDS);
            for row in 0..batch.num_rows() {
                let expected = PolicyVersion(report.step.0.saturating_sub(staleness));
                let expected = TokenVersions::of(expected, tokens.get(row).len());
                assert_eq!(token_versions(batch, row), expected, "step {}", report.step);
            }
        }
        let lag = report.step.0.min(staleness) as f64;
        let metrics = measure(report);
        let reported = ["mean", "max", "min"]
            .map(|part| metrics[&format!("training/off_policy/token_staleness/{part}")]);
        assert_eq!(reported, [lag; 3], "step {}", report.step);
    }
}

#[test]
fn the_trainer_gets_admitted_groups_and_updates_once_per_step() {
    let trainer = Remembering::default();
    let run = Run { trainer: trainer.clone(), ..Run::of(tail_batching()) };
    let reports = run.run().expect("no fault");
    let steps = trainer.steps.lock().expect("unpoisoned").clone();
    assert_eq!(steps.len(), reports.len());
    for report in &reports {
        let lengths = Lengths::of(&report.groups);
        assert_eq!(steps[&report.step].sequences, lengths.finished.len());
        assert_eq!(steps[&report.step].tokens, lengths.total());
        assert_eq!(report.metrics["actor/lr"], 0.1, "the trainer's metrics arrive");
        let rows = report.metrics["operator/advantage/rows_out"];
        assert_eq!(rows, lengths.finished.len() as f64, "operators count what they give, by step");
    }
    assert!(
        steps.values().any(|trained| trained.calls > 1),
        "groups are trained on before the step is complete"
    );
}

#[test]
fn responses_are_reported_exactly_once() {
    let reports = Run::of(tail_batching()).run().expect("no fault");
    for report in &reports {
        let metrics = measure(report);
        let launched = metrics["rollout/launched_responses"];
        let mut ids: Vec<_> = report
            .responses
            .iter()
            .flat_map(|batch| {
                let prompts = batch.values::<UInt64Type>(column::PROMPT_ID).values();
                let samples =
                    batch.values::<arrow_array::types::UInt32Type>(column::SAMPLE).values();
                prompts.iter().copied().zip(samples.iter().copied()).collect::<Vec<_>>()
            })
            .collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len() as f64, launched);
    }
}

#[test]
fn a_budget_smaller_than_a_round_does_not_block_it() {
    let reports = Run { budget: 1, ..Run::of(tail_batching()) }.run().expect("no fault");
    assert_eq!(trained(&reports), each_once(40));
}

#[test]
fn a_requested_stop_ends_the_run_after_the_open_round() {
    let stop = Stop::default();
    stop.request();
    let reports = Run { stop, ..Run::of(synchronous()) }.run().expect("no fault");
    assert_eq!(reports.len(), 0);
}

#[test]
fn a_stop_within_a_round_completes_open_and_due_rounds() {
    for staleness in 0..3 {
        let stop = Stop::default();
        let mut run = Run { staleness, prompts: 80, stop: stop.clone(), ..Run::of(synchronous()) };
        run.engine.stops_at = Some((rollpacker_dataflow::step::PromptId(17), stop));
        let reports = run.run().expect("no fault");
        // The third round launches prompt 17. With staleness, later rounds may be due by then.
        let steps = reports.len() as u64;
        assert!((3..=3 + staleness).contains(&steps), "{steps} steps with staleness {staleness}");
        assert_eq!(trained(&reports), each_once(8 * steps));
    }
}

#[test]
fn a_failing_engine_ends_the_run_and_is_named() {
    let mut run = Run::of(synchronous());
    run.engine.fails_at = Some(rollpacker_dataflow::step::PromptId(9));
    let fault = run.run().expect_err("the engine fails");
    assert_eq!(
        fault.to_string(),
        "rollout, step 2: rollout engine instance 3 failed: out of memory"
    );
}

/// A schedule that fails in its second round.
struct Failing {
    rounds: Synchronous,
    decided: Vec<Decision>,
}

impl Schedule for Failing {
    fn on(&mut self, now: Nanos, event: Event) {
        self.rounds.on(now, event);
        self.decided.extend(std::iter::from_fn(|| self.rounds.poll()).flat_map(|decision| {
            let fails = matches!(decision, Decision::Open { step: Step(1), .. });
            let message = "no prompt teaches anything".to_owned();
            [decision]
                .into_iter()
                .chain(fails.then_some(Decision::Fail { origin: Origin::User, message }))
        }));
    }

    fn poll(&mut self) -> Option<Decision> {
        (!self.decided.is_empty()).then(|| self.decided.remove(0))
    }

    fn wants_prompts(&self) -> bool {
        self.rounds.wants_prompts()
    }
}

#[test]
fn a_failing_schedule_ends_the_run_and_is_named() {
    let run = Run::of(Failing { rounds: synchronous(), decided: Vec::new() });
    let fault = run.run().expect_err("the schedule fails");
    assert_eq!(fault.to_string(), "schedule, step 2: no prompt teaches anything");
}

#[test]
fn requests_that_wait_in_the_schedule_are_served() {
    let order = frontier_group::Order::GroupMajor;
    let config =
        frontier_group::Config { prompts: 8, responses: 4, slots: 5, order, total_steps: None };
    let run = Run::of(FrontierGroup::new(config).expect("valid"));
    let reports = run.run().expect("no fault");
    assert_eq!(trained(&reports), each_once(40));
}

fn kept_and_resumed(schedule: impl Schedule + 'static) -> Vec<StepReport> {
    let reports = Run::of(schedule).run().expect("no fault");
    assert_eq!(trained(&reports), each_once(40));
    let lengths = |batches: fn(&StepReport) -> &Vec<Batch>| {
        let each = reports.iter().map(|report| Lengths::of(batches(report)));
        each.fold((0, 0), |(whole, sampled), of| {
            (whole + of.finished.iter().sum::<usize>(), sampled + of.sampled)
        })
    };
    let ((trained, _), (_, sampled)) =
        (lengths(|report| &report.groups), lengths(|r| &r.responses));
    assert_eq!(trained, sampled, "every token is sampled once and trained on");
    reports
}

fn partial_rollouts() -> Partial {
    Partial::new(partial::Config {
        prompts: 8,
        responses: 4,
        oversubscription: 1.5,
        max_versions: 4,
        total_steps: None,
    })
    .expect("valid")
}

#[test]
fn a_partial_rollout_resumes_paused_responses_in_a_later_step() {
    let reports = kept_and_resumed(partial_rollouts());
    let paused: usize =
        reports.iter().map(|report| Lengths::of(&report.responses).paused.len()).sum();
    assert!(paused > 0, "a round ends before its longest responses");
    assert!(reports.iter().all(|report| measure(report)["rollout/discarded_tokens"] == 0.0));
}

// Responses that were kept whole are returned again and paused ones resume; both belong to the policy of the step that launched them first.
#[test]
fn a_response_is_of_the_policy_that_launched_it_first() {
    let mut run = Run::of(partial_rollouts());
    run.engine.counts = true;
    let reports = run.run().expect("no fault");
    let (mut first, mut later) = (BTreeMap::new(), [0, 0]);
    for batch in reports.iter().flat_map(|report| &report.responses) {
        let numbers = |name| batch.values::<UInt32Type>(name).values();
        let ids = batch.values::<UInt64Type>(column::PROMPT_ID).values();
        let versions = batch.values::<UInt64Type>(column::POLICY_VERSION).values();
        let tokens = numbers(column::RESPONSE_LENGTH).iter().zip(numbers(column::RESUMED_LENGTH));
        let samples = ids.iter().zip(numbers(column::SAMPLE)).zip(versions).zip(tokens);
        for (((prompt, sample), version), (tokens, resumed)) in samples {
            assert_eq!(first.entry((*prompt, *sample)).or_insert(*version), version);
            later[usize::from(tokens > resumed)] += usize::from(*resumed > 0);
        }
    }
    assert!(later[0] > 0 && later[1] > 0, "some are kept whole, some go on: {later:?}");
}

#[test]
fn a_sorted_load_is_consumed_before_the_next() {
    let config = sorted::Config {
        prompts: 4,
        responses: 4,
        group_size: 2,
        slots: 20,
        harvest: None,
        mode: sorted::Mode::Partial,
        carry_over: false,
        total_steps: None,
    };
    kept_and_resumed(Sorted::new(config).expect("valid"));
}

// Scores are 0 or 1 by the parity of lengths, so in a few groups all are equal.
#[test]
fn groups_without_variance_are_replaced() {
    let config = dynamic::Config {
        prompts: 4,
        responses: 2,
        gen_prompts: None,
        max_generated_batches: 5,
        on_exhausted: OnExhausted::SmallerStep,
        total_steps: None,
    };
    let reports = Run::of(Dynamic::new(config).expect("valid")).run().expect("no fault");
    let equal = |report: &StepReport| measure(report)["reward/frac_zero_std"];
    assert!(reports.iter().all(|report| equal(report) == 0.0));
    let sum = |name: &str| reports.iter().map(|report| measure(report)[name]).sum::<f64>();
    assert!(sum("schedule/rejected_prompts") > 0.0);
    assert_eq!(sum("schedule/admitted_prompts") + sum("schedule/rejected_prompts"), 40.0);
}

#[test]
fn a_failing_trainer_ends_the_run_and_is_named() {
    let mut run = Run::of(synchronous());
    run.trainer.fails_at = Some(Step(2));
    let fault = run.run().expect_err("the trainer fails");
    assert_eq!(fault.to_string(), "gradient, step 3: loss is not finite at step 3");
}

#[test]
fn a_data_source_without_a_reward_ends_the_run_and_is_named() {
    let fault = Run { data_source: "even", ..Run::of(synchronous()) }
        .run()
        .expect_err("there is no such reward");
    assert!(
        fault.to_string().ends_with("no reward for data_source `even`; there are routes for odd"),
        "{fault}"
    );
    assert!(fault.prompt.is_some() && fault.sample.is_some());
}

#[test]
fn the_ledger_measures_the_bias_of_speculation() {
    let reports = Run::of(tail_batching()).run().expect("no fault");
    let last = &reports.last().expect("steps").metrics;
    let seen = |name: &str| *last.get(name).unwrap_or_else(|| panic!("no {name} in {last:?}"));
    assert!(seen("bias/mean_ratio") < 0.9, "{}", seen("bias/mean_ratio"));
    assert!(seen("bias/mean_ratio") <= seen("bias/mean_ratio_high"));
    assert!((seen("bias/ess") - 1.0).abs() < 1e-9);
    assert!((seen("ledger/rows") - 40.0).abs() < 1e-9);
    let launched: f64 =
        reports.iter().map(|report| measure(report)["rollout/launched_responses"]).sum();
    assert!((seen("ledger/launches_per_row") - launched / 40.0).abs() < 1e-9);
    assert!(reports.iter().all(|report| report.metrics.contains_key("bias/step_mean_ratio")));
}

#[test]
fn without_aborts_the_ledger_finds_no_bias() {
    for report in Run::of(synchronous()).run().expect("no fault") {
        for name in ["bias/mean_ratio", "bias/p90_ratio", "bias/inclusion/0_512"] {
            assert!((report.metrics[name] - 1.0).abs() < 1e-9, "{name} {}", report.metrics[name]);
        }
        assert!(!report.metrics.contains_key("ledger/waiting_prompts"));
    }
}
