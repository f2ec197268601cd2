//! Rewards: scores each response as it arrives, beside the rollout.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Float64Array, StringArray, UInt64Array};
use arrow::datatypes::{Int32Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::bridge::{Executor, Lost, Tasks};
use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::fault::{Fault, faults_batch};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::{Capability, Concat, ConnectLoop};
use rollpacker_stages::reward::{Context, RewardError, Router, Sample, Score};
use slab::Slab;

use crate::overlap::Scoring;
use crate::rollout::Rollouts;
use crate::rows::{Row, gather};
use crate::schedule::operator::finish_reason;

/// Scored responses, and what formed their rounds.
pub struct Scored<'scope> {
    /// Batches of [`schema::SCORED`], as scores arrive.
    pub samples: BatchStream<'scope>,
    /// Batches of [`schema::DECISIONS`].
    pub decisions: BatchStream<'scope>,
    /// Batches of [`schema::PLACEMENTS`], if a policy places.
    pub placements: Option<BatchStream<'scope>>,
    /// Errors so far.
    pub errors: BatchStream<'scope>,
}

/// Scores responses.
pub trait RewardExt<'scope> {
    /// Scores each response that ended by itself with the reward that `router` has for its data source, on `executor`.
    ///
    /// A reward that fails ends the run with an error that names reward, step, prompt and sample.
    fn reward(self, router: Router, executor: Executor, clock: Arc<dyn Clock>) -> Scored<'scope>;
}

impl<'scope> RewardExt<'scope> for Rollouts<'scope> {
    fn reward(self, router: Router, executor: Executor, clock: Arc<dyn Clock>) -> Scored<'scope> {
        let (samples, errors) = score(self.responses, router, self.scoring, executor, clock);
        samples.clone().connect_loop(self.scores);
        Scored {
            samples,
            decisions: self.decisions,
            placements: self.placements,
            errors: self.errors.concat(errors),
        }
    }
}

type Capabilities = Rc<[Capability<Step>; 2]>;

/// What the operator keeps for a response that is being scored: where to give the score, and the row to add it to.
struct Pending {
    capabilities: Capabilities,
    row: Row,
    id: SampleId,
}

/// What a reward said, how long it took, and when it was done.
type Outcome = (Result<Score, RewardError>, Timing);

#[derive(Clone, Copy)]
struct Timing {
    took: Nanos,
    done: Nanos,
}

fn score<'scope>(
    responses: BatchStream<'scope>,
    router: Router,
    scoring: Scoring,
    executor: Executor,
    clock: Arc<dyn Clock>,
) -> (BatchStream<'scope>, BatchStream<'scope>) {
    let mut operator = Operator::new("reward", responses.scope());
    let mut responses = operator.input(responses, Pipeline, &schema::RESPONSES);
    let (mut scored, scored_stream) = operator.output(&schema::SCORED, &[0]);
    let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[0]);
    let scored_stream = operator.spanned(scored_stream);
    let mut tasks: Tasks<usize, Outcome> = Tasks::new(executor, operator.activator());
    operator.build(move |_capabilities| {
        let mut pending = Slab::new();
        let mut held: BTreeMap<Step, Vec<(Capabilities, Batch)>> = BTreeMap::new();
        move |frontiers| {
            responses.for_each(|capability, batch| {
                let capabilities =
                    Rc::new([capability.retain(scored.index()), capability.retain(errors.index())]);
                held.entry(*capability.time()).or_default().push((capabilities, batch));
            });
            let due = |step: &Step| match scoring {
                Scoring::Streamed => true,
                Scoring::AfterRollout => !frontiers[0].less_equal(step),
            };
            for (step, batches) in held.extract_if(.., |step, _| due(step)) {
                for (capabilities, batch) in batches {
                    for row in Row::all(&batch) {
                        let sample = sample(step, &row);
                        if sample.finish_reason.is_whole() {
                            let capabilities = capabilities.clone();
                            let slot = pending.insert(Pending { capabilities, row, id: sample.id });
                            tasks.spawn(slot, timed(router.clone(), sample, clock.clone()));
                        }
                    }
                }
            }
            let mut arrived = Vec::new();
            while let Some((slot, outcome)) = tasks.try_next() {
                match message(outcome) {
                    Ok(score) => arrived.push((pending.remove(slot), score)),
                    Err(message) => {
                        // The capability stays in its slot: the step is not done.
                        let Pending { capabilities, id, .. }: &Pending = &pending[slot];
                        let fault = Fault::new("reward", message).about(id.prompt, id.sample);
                        errors.give(&capabilities[1], faults_batch(&[fault]));
                    }
                }
            }
            for run in arrived.chunk_by(|(one, _), (next, _)| one.id.step == next.id.step) {
                scored.give(&run[0].0.capabilities[0], scored_batch(run));
            }
        }
    });
    (scored_stream, error_stream)
}

async fn timed(router: Router, sample: Sample, clock: Arc<dyn Clock>) -> Outcome {
    let begun = clock.now();
    let score = router.score(&sample, &Context::new(clock.clone())).await;
    let done = clock.now();
    (score, Timing { took: done.since(begun), done })
}

fn message(outcome: Result<Outcome, Lost>) -> Result<(Score, Timing), String> {
    match outcome {
        Ok((Ok(score), took)) => Ok((score, took)),
        Ok((Err(error), _)) => Err(error.to_string()),
        Err(lost) => Err(lost.to_string()),
    }
}

fn sample(step: Step, row: &Row) -> Sample {
    let (batch, index) = (&row.batch, row.index);
    let text = |column| row.text(column).unwrap_or_default().to_owned();
    Sample {
        id: SampleId {
            step,
            prompt: PromptId(batch.values::<UInt64Type>(column::PROMPT_ID).value(index)),
            sample: batch.values::<UInt32Type>(column::SAMPLE).value(index),
        },
        row: batch.values::<UInt64Type>(column::ROW).value(index),
        data_source: text(column::DATA_SOURCE),
        messages: text(column::MESSAGES),
        response: text(column::RESPONSE_TEXT),
        response_length: batch.values::<UInt32Type>(column::RESPONSE_LENGTH).value(index),
        response_ids: batch.lists::<Int32Type>(column::RESPONSE_IDS).get(index).to_vec(),
        ground_truth: row.text(column::GROUND_TRUTH).map(str::to_owned),
        extra_info: row.text(column::EXTRA_INFO).map(str::to_owned),
        finish_reason: finish_reason(batch.text(column::FINISH_REASON).value(index)),
    }
}

fn scored_batch(run: &[(Pending, (Score, Timing))]) -> Batch {
    let rows: Vec<Row> = run.iter().map(|(pending, _)| pending.row.clone()).collect();
    let names: Vec<&str> =
        schema::RESPONSES.fields().iter().map(|field| field.name().as_str()).collect();
    let mut columns: Vec<ArrayRef> = gather(&rows, names).collect();
    columns.extend([
        Arc::new(Float64Array::from_iter_values(run.iter().map(|(_, (score, _))| score.value)))
            as ArrayRef,
        Arc::new(StringArray::from_iter_values(
            run.iter().map(|(_, (score, _))| components(score)),
        )),
        Arc::new(UInt64Array::from_iter_values(run.iter().map(|(_, (_, time))| time.took.0))),
        Arc::new(UInt64Array::from_iter_values(run.iter().map(|(_, (_, time))| time.done.0))),
        Arc::new(Float32Array::from(vec![1.0; run.len()])),
    ]);
    Batch::from_columns(&schema::SCORED, columns)
}

fn components(score: &Score) -> String {
    serde_json::to_string(&score.components)
        .expect("invariant: a map of numbers by name is valid JSON")
}
