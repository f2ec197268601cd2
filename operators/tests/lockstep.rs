//! Races that are decided by tokens, in the whole step: for any delays of instances, every run decides and trains on the same
//! responses.

mod support;

use std::collections::BTreeMap;

use arrow_array::types::{Float32Type, Float64Type, Int32Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;
use rollpacker_operators::curriculum::{
    Curriculum, CurriculumOptions, CurriculumStage, SkippedPrompts,
};
use rollpacker_operators::report::{StepReport, depends_on_time, ids, measure, token_versions};
use rollpacker_operators::schedule::{
    Builtin, Dynamic, FrontierGroup, HistorySorted, Partial, Sorted, Synchronous, TailBatching,
};
use rollpacker_stages::rollout::TokenVersions;
use rollpacker_stages::train::Metrics;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use support::Run;
use support::racer::Racer;

fn config<T: DeserializeOwned>(rest: Value) -> T {
    let mut config = json!({ "prompts": 4, "responses": 3 });
    let all = config.as_object_mut().expect("an object");
    all.extend(rest.as_object().expect("an object").clone());
    serde_json::from_value(config).expect("a configuration")
}

fn tail_batching(rest: Value) -> Builtin {
    TailBatching::new(config(rest)).expect("valid").into()
}

fn schedules() -> Vec<Builtin> {
    let filter = json!({ "max_generated_batches": 8, "on_exhausted": "smaller_step" });
    let dynamic =
        json!({ "max_generated_batches": 8, "on_exhausted": "smaller_step", "gen_prompts": 5 });
    let sorted = json!({ "group_size": 2, "slots": 7, "mode": "partial", "carry_over": true });
    let on_policy = json!({ "group_size": 2, "slots": 7, "mode": "on_policy" });
    let partial = json!({ "oversubscription": 1.5, "max_versions": 3 });
    let frontier = json!({ "slots": 6, "order": "group_major" });
    vec![
        Synchronous::new(config(json!({}))).expect("valid").into(),
        HistorySorted::new(config(json!({ "window": 2 }))).expect("valid").into(),
        tail_batching(json!({ "eta_prompts": 1.5, "eta_responses": 1.5 })),
        tail_batching(json!({ "eta_prompts": 1.5, "eta_responses": 1.0, "selection": "weighted" })),
        tail_batching(json!({ "keep_partial": true, "filter_zero_variance": filter })),
        Dynamic::new(config(dynamic)).expect("valid").into(),
        Sorted::new(config(sorted)).expect("valid").into(),
        Sorted::new(config(on_policy)).expect("valid").into(),
        Partial::new(config(partial)).expect("valid").into(),
        FrontierGroup::new(config(frontier)).expect("valid").into(),
        Synchronous::longest_first(config(json!({ "slots": 6 }))).expect("valid").into(),
    ]
}

/// A response: its length, finish reason, tokens, and the policy versions that sampled the tokens.
type Response = (u32, String, Vec<i32>, TokenVersions);

/// The results that are equal in two equal runs.
#[derive(Debug, PartialEq)]
struct Outcome {
    decisions: Vec<String>,
    /// Every response, by its id.
    responses: BTreeMap<(u64, u32), Response>,
    /// The trained responses, in order.
    trained: Vec<Trained>,
    metrics: Vec<(String, u64)>,
}

/// A trained response: its prompt, sample, tokens, weight, score and advantages. Floating-point numbers are stored as their bits.
type Trained = (u64, u32, Vec<i32>, u32, u64, Vec<u32>);

fn outcome(report: &StepReport) -> Outcome {
    let metrics: Metrics = measure(report);
    let timeless = metrics.into_iter().filter(|(name, _)| !depends_on_time(name));
    Outcome {
        decisions: report.decisions.iter().flat_map(decisions).collect(),
        responses: report.responses.iter().flat_map(responses).collect(),
        trained: report.groups.iter().flat_map(trained).collect(),
        metrics: timeless.map(|(name, value)| (name, value.to_bits())).collect(),
    }
}

fn decisions(batch: &Batch) -> Vec<String> {
    let prompts = batch.values::<UInt64Type>(column::PROMPT_ID);
    let samples = batch.lists::<UInt32Type>(column::ADMITTED);
    let rows = batch.text(column::DECISION).iter().zip(batch.text(column::REASON)).enumerate();
    let text = |(row, (decision, reason)): (usize, (Option<&str>, Option<&str>))| {
        format!("{decision:?} {} {:?} {reason:?}", prompts.value(row), samples.get(row))
    };
    rows.map(text).collect()
}

fn responses(batch: &Batch) -> Vec<((u64, u32), Response)> {
    let lengths = batch.values::<UInt32Type>(column::RESPONSE_LENGTH);
    let tokens = batch.lists::<Int32Type>(column::RESPONSE_IDS);
    let reasons = batch.text(column::FINISH_REASON);
    let ids = ids(batch).enumerate();
    ids.map(|(row, id)| {
        let (reason, versions) = (reasons.value(row).to_owned(), token_versions(batch, row));
        (id, (lengths.value(row), reason, tokens.get(row).to_vec(), versions))
    })
    .collect()
}

fn trained(batch: &Batch) -> Vec<Trained> {
    let tokens = batch.lists::<Int32Type>(column::RESPONSE_IDS);
    let weights = batch.values::<Float32Type>(column::WEIGHT);
    let scores = batch.values::<Float64Type>(column::SCORE);
    let advantages = batch.lists::<Float32Type>(column::ADVANTAGES);
    let ids = ids(batch).enumerate();
    ids.map(|(row, (prompt, sample))| {
        let advantages = advantages.get(row).iter().map(|one| one.to_bits()).collect();
        let (weight, score) = (weights.value(row).to_bits(), scores.value(row).to_bits());
        (prompt, sample, tokens.get(row).to_vec(), weight, score, advantages)
    })
    .collect()
}

/// Runs two epochs of 21 prompts on one to three instances, whose number and delays come from the seed `dice`. Races are decided by tokens
/// if `in_lockstep` is `true`, and by time otherwise.
fn run(schedule: &Builtin, in_lockstep: bool, staleness: u64, dice: u64) -> Vec<Outcome> {
    let instances = 1 + usize::try_from(dice % 3).expect("small");
    let run = Run::with(schedule.clone(), Racer::new(instances, dice));
    let run = Run { in_lockstep, staleness, prompts: 21, epochs: 2, ..run };
    run.run().expect("no fault").iter().map(outcome).collect()
}

#[test]
fn every_schedule_decides_the_same_however_late_instances_are() {
    for (at, schedule) in schedules().iter().enumerate() {
        for staleness in 0..2 {
            let first = run(schedule, true, staleness, 0);
            assert!(first.len() > 5, "schedule {at} made {} steps", first.len());
            for dice in 1..6 {
                let other = run(schedule, true, staleness, dice);
                assert_eq!(other.len(), first.len(), "schedule {at}, dice {dice}");
                for (step, (one, other)) in first.iter().zip(&other).enumerate() {
                    assert_eq!(one, other, "schedule {at}, step {step}, dice {dice}");
                }
            }
        }
    }
}

#[test]
fn a_curriculum_draws_the_same_prompts_however_late_instances_and_scores_are() {
    for (at, schedule) in schedules().iter().enumerate() {
        for staleness in 0..2 {
            let run = |dice| {
                let options = CurriculumOptions {
                    min_pass_rate: 0.4,
                    exploration: 0.25,
                    ..CurriculumOptions::default()
                };
                let curriculum = Curriculum::new(options, 3).expect("valid");
                let curriculum = curriculum.with_staleness(staleness);
                let skipped = SkippedPrompts::default();
                let stage = CurriculumStage { curriculum, skipped: skipped.clone() };
                let instances = 1 + usize::try_from(dice % 3).expect("small");
                let run = Run::with(schedule.clone(), Racer::new(instances, dice));
                let curriculum = Some(stage);
                let run = Run { prompts: 21, epochs: 3, curriculum, ..run };
                let run = Run { in_lockstep: true, staleness, ..run };
                let all = run.run().expect("no fault");
                let all: Vec<Outcome> = all.iter().map(outcome).collect();
                (all, skipped.too_easy(), skipped.too_hard())
            };
            let first = run(0);
            assert!(first.1 + first.2 > 0, "schedule {at} skipped nothing");
            for dice in 1..5 {
                assert_eq!(run(dice), first, "schedule {at}, dice {dice}");
            }
        }
    }
}

#[test]
fn without_lockstep_decisions_depend_on_timing() {
    let schedule = tail_batching(json!({ "eta_prompts": 1.5, "eta_responses": 1.5 }));
    let first = run(&schedule, false, 0, 0);
    assert!((1..6).any(|dice| run(&schedule, false, 0, dice) != first));
}

#[test]
fn responses_that_end_first_by_tokens_are_admitted() {
    let schedule = tail_batching(json!({ "eta_prompts": 1.5, "eta_responses": 1.5 }));
    let outcomes = run(&schedule, true, 0, 4);
    let dropped = |one: &&Response| one.1 == "abort";
    let cut = outcomes.iter().flat_map(|it| it.responses.values()).filter(dropped).count();
    assert!(cut > 20, "{cut} were aborted");
    for outcome in outcomes.iter().filter(|it| it.trained.len() == 12) {
        let whole = outcome.responses.values().filter(|one| one.1 == "stop");
        let last = whole.map(|one| one.0).max().expect("some are whole");
        assert!(outcome.responses.values().filter(dropped).all(|one| one.0 <= last));
    }
}

#[test]
fn an_engine_without_lockstep_is_refused() {
    let run = Run { in_lockstep: true, ..Run::of(schedules().swap_remove(0)) };
    let fault = run.run().expect_err("it has no lockstep");
    assert_eq!(fault.operator, "rollout");
    assert!(fault.message.contains("cannot race in lockstep"), "{fault}");
}
