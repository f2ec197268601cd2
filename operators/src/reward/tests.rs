//! Tests in which the text of a prompt arrives later than the responses to the prompt.

use std::cell::RefCell;
use std::rc::Rc;

use arrow_array::types::Float64Type;
use arrow_array::{ArrayRef, StringArray, UInt32Array};
use arrow_schema::SchemaRef;
use rollpacker_dataflow::clock::WallClock;
use rollpacker_dataflow::fault::raise;
use rollpacker_dataflow::runtime::run;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::Scope;
use rollpacker_dataflow::timely::dataflow::operators::generic::operator::empty;
use rollpacker_stages::reward::{Context, GroupReward, Limits, Reward, RewardError, Sample, Score};

use super::*;
use crate::group_reward::score_groups;
use crate::wire::blank::batch;

/// A reward that gives one point for each byte of the prompt's texts.
struct Bytes;

fn bytes(sample: &Sample) -> Score {
    let texts =
        [&sample.ground_truth, &sample.extra_info].map(|text| text.clone().unwrap_or_default());
    ((sample.messages.len() + texts.concat().len()) as f64).into()
}

impl Reward for Bytes {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        Ok(bytes(sample))
    }
}

impl GroupReward for Bytes {
    async fn score(&self, group: &[Sample], _: &Context) -> Result<Vec<Score>, RewardError> {
        Ok(group.iter().map(bytes).collect())
    }
}

/// Returns a batch of `schema` with two responses to prompt 0.
fn responses(schema: &SchemaRef) -> Batch {
    let columns: [(&str, ArrayRef); 5] = [
        (column::DATA_SOURCE, Arc::new(StringArray::from(vec!["any"; 2]))),
        (column::SAMPLE, Arc::new(UInt32Array::from(vec![0, 1]))),
        (column::FINISH_REASON, Arc::new(StringArray::from(vec!["stop"; 2]))),
        (column::COMPONENTS, Arc::new(StringArray::from(vec!["{}"; 2]))),
        (column::LABELS, Arc::new(StringArray::from(vec!["{}"; 2]))),
    ];
    batch(schema, 2, &columns)
}

/// Returns the texts of prompt 0, which have 7 bytes together.
fn texts() -> Batch {
    let column = |text: &str| -> ArrayRef { Arc::new(StringArray::from(vec![text])) };
    let named = [
        (column::MESSAGES, column("[]")),
        (column::GROUND_TRUTH, column("yes")),
        (column::EXTRA_INFO, column("{}")),
    ];
    batch(&schema::TEXTS, 1, &named)
}

/// Returns two streams. The first emits `early`, a batch of `schema`, and ends. The second emits `late`, a batch of [`schema::TEXTS`], a
/// few activations later.
fn sent<'scope>(
    scope: Scope<'scope, Step>,
    schema: &SchemaRef,
    early: Batch,
    late: Batch,
) -> [BatchStream<'scope>; 2] {
    let mut source = Operator::new("source", scope);
    let (mut first, early_stream) = source.output(schema, &[]);
    let (mut second, late_stream) = source.output(&schema::TEXTS, &[]);
    let again = source.waker();
    source.build(move |mut capabilities| {
        let mut turn = 0;
        move |_frontiers| {
            let Some(capability) = capabilities.last() else { return };
            match turn {
                0 => first.give(&capabilities[0], early.clone()),
                1 => drop(capabilities.remove(0)),
                5 => second.give(capability, late.clone()),
                6 => capabilities.clear(),
                _ => {}
            }
            turn += 1;
            again();
        }
    });
    [early_stream, late_stream]
}

/// Returns a list to which the scores of a stream are appended as they arrive.
fn scores(stream: BatchStream<'_>) -> Rc<RefCell<Vec<f64>>> {
    let scores: Rc<RefCell<Vec<f64>>> = Rc::default();
    let mut sink = Operator::new("sink", stream.scope());
    let mut input = sink.input(stream, Pipeline, &schema::SCORED);
    let seen = scores.clone();
    sink.build(move |_| {
        move |_frontiers| {
            input.for_each(|_, batch| {
                let column = batch.values::<Float64Type>(column::SCORE);
                seen.borrow_mut().extend(column.values());
            });
        }
    });
    scores
}

#[test]
fn a_response_before_its_prompt_text_is_scored_once_the_text_arrives() {
    let found = run(|scope, faults| {
        let [responses, texts] =
            sent(scope, &schema::RESPONSES, responses(&schema::RESPONSES), texts());
        let inputs =
            RewardInputs { responses, decisions: empty(scope), texts, known: empty(scope) };
        let rules = ScorerConfig {
            router: Router::default().route("any", Bytes),
            limit: Limits::default(),
            scoring: Scoring::Streamed,
            scope: ScoringScope::All,
            clock: Arc::new(WallClock::start()) as Arc<dyn Clock>,
        };
        let scored = score(inputs, rules, Executor::Inline, Tallies::default());
        raise(scored.errors, faults);
        scores(scored.samples)
    });
    assert_eq!(*found.expect("no fault").borrow(), [7.0, 7.0]);
}

#[test]
fn a_group_before_its_prompt_text_is_scored_once_the_text_arrives() {
    let found = run(|scope, faults| {
        let [groups, texts] = sent(scope, &schema::SCORED, responses(&schema::SCORED), texts());
        let scoring = GroupScoring {
            router: Router::default().route_groups("any", "bytes", Bytes),
            executor: Executor::Inline,
            clock: Arc::new(WallClock::start()),
            tallies: Tallies::default(),
            wants_scores: false,
            has_curriculum: false,
        };
        let scored = score_groups(groups, texts, &scoring);
        raise(scored.errors, faults);
        scores(scored.groups)
    });
    assert_eq!(*found.expect("no fault").borrow(), [7.0, 7.0]);
}
