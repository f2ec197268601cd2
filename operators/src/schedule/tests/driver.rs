//! Tests of inputs that reach the driver out of order, and of the texts that a round sends.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::clock::WallClock;
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::runtime::run;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::{PolicyVersion, PromptId, Step};
use rollpacker_stages::rollout::Policy;

use crate::prompts::{PromptRow, prompt_batch};
use crate::schedule::driver::{ScheduleDriver, SchedulePort, unsent_texts};
use crate::schedule::published::OpenStep;
use crate::schedule::snapshot::HeldPrompts;
use crate::schedule::stop::Stop;
use crate::schedule::{Decision, Dynamic, OnExhausted, Reason, Schedule, dynamic};
use crate::wire::rows::Row;

/// Returns a schedule of rounds with one prompt and two responses whose rewards must differ.
fn differing() -> Box<dyn Schedule> {
    let config = dynamic::Config {
        prompts: 1,
        responses: 2,
        gen_prompts: None,
        max_generated_batches: 1,
        on_exhausted: OnExhausted::SmallerStep,
        total_steps: Some(1),
    };
    Box::new(Dynamic::new(config).expect("valid"))
}

fn prompt(id: u64) -> Batch {
    prompt_batch(&[PromptRow {
        prompt: PromptId(id),
        epoch: 0,
        row: id,
        domain: "".into(),
        prompt_ids: vec![1],
        prompt_length: 1,
        data_source: "any".into(),
        messages: "[]".into(),
        ground_truth: None,
        extra_info: None,
    }])
}

/// Returns a batch of responses 0 and 1 to prompt 7, with their lengths, and with `values` as the column `column`.
fn of_both(column: &str, values: ArrayRef) -> Batch {
    let mut columns: Vec<(&str, ArrayRef)> = vec![
        (column::PROMPT_ID, Arc::new(UInt64Array::from(vec![7, 7]))),
        (column::SAMPLE, Arc::new(UInt32Array::from(vec![0, 1]))),
        (column::RESPONSE_LENGTH, Arc::new(UInt32Array::from(vec![3, 4]))),
    ];
    columns.push((column, values));
    Batch::new(RecordBatch::try_from_iter(columns).expect("of one length"))
}

#[test]
fn early_scores_are_delivered_after_the_ends_of_their_responses() {
    let (decided, stop) = (Rc::new(RefCell::new(Vec::new())), Stop::default());
    let ends = stop.clone();
    let sink = decided.clone();
    run(|scope, _| {
        let mut operator = Operator::new("schedule", scope);
        let (_requests, _) = operator.output(&schema::REQUESTS, &[]);
        let (_texts, _) = operator.output(&schema::TEXTS, &[]);
        let (_decisions, _) = operator.output(&schema::DECISIONS, &[]);
        let (_errors, _) = operator.output(&schema::ERRORS, &[]);
        operator.build(move |capabilities| {
            let [requests, texts, decisions, errors] =
                <[_; 4]>::try_from(capabilities).expect("one capability for each output");
            let version = PolicyVersion(0);
            let policy = Policy { version, location: "nowhere".into(), digest: 0 };
            let clock = Arc::new(WallClock::start());
            let stocked = HeldPrompts::default();
            let mut driver = ScheduleDriver::new(differing(), stocked, Budget::new(1), ends, clock);
            let decide = |driver: &mut ScheduleDriver| {
                let text = |batch: Batch| -> Vec<String> {
                    let decisions = batch.text(column::DECISION);
                    decisions.iter().flatten().map(str::to_owned).collect()
                };
                driver.decide(|port, _, batch| {
                    if port == SchedulePort::Decisions {
                        sink.borrow_mut().extend(text(batch));
                    }
                });
            };
            driver.on_policy(
                Step(0),
                OpenStep { policy, requests, texts, decisions, errors, metrics: None },
            );
            driver.deliver_policy(Step(0));
            driver.on_prompts(&prompt(7));
            decide(&mut driver);
            let scores = Float64Array::from(vec![0.0, 1.0]);
            driver.on_scores(Step(0), &of_both(column::SCORE, Arc::new(scores)));
            decide(&mut driver);
            let reasons = StringArray::from(vec!["stop", "stop"]);
            driver.on_responses(Step(0), &of_both(column::FINISH_REASON, Arc::new(reasons)));
            decide(&mut driver);
            // Input that arrives after the schedule has ended the run is read again by a run that resumes.
            driver.on_prompts(&prompt(8));
            let last = driver.state().prompts.last.expect("an offered prompt");
            assert_eq!(last.prompt, PromptId(7));
            |_| {}
        });
    })
    .expect("no fault");
    assert!(stop.is_complete());
    assert_eq!(*decided.borrow(), ["open", "admit", "close"]);
}

#[test]
fn a_round_sends_the_text_of_a_prompt_once_to_its_worker() {
    let row_of = |id: PromptId| Row { batch: prompt(id.0), index: 0 };
    let launch = |prompt, samples| Decision::Launch {
        prompt: PromptId(prompt),
        samples,
        reason: Reason::Fresh,
    };
    let mut sent = BTreeSet::new();
    let mut texts = |decided: &[Decision], workers: &[Option<u32>]| -> Vec<(u64, u32)> {
        let batch = unsent_texts(decided, workers, &mut sent, &row_of);
        let Some(rows) = batch.rows() else { return Vec::new() };
        assert_eq!(rows.schema().fields(), schema::TEXTS.fields());
        let prompts = batch.values::<UInt64Type>(column::PROMPT_ID).values().iter().copied();
        prompts.zip(batch.values::<UInt32Type>(column::WORKER).values().iter().copied()).collect()
    };
    let launches = [launch(7, 0..2), launch(8, 0..2), launch(7, 2..4)];
    assert_eq!(texts(&launches, &[Some(0), Some(1), Some(0)]), [(7, 0), (8, 1)]);
    let again = [launch(8, 2..3), Decision::Finish, launch(9, 0..1)];
    assert_eq!(texts(&again, &[Some(1), None, Some(0)]), [(9, 0)]);
    assert_eq!(texts(&again[..2], &[Some(1), None]), []);
}
