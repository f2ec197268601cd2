//! The reward operator: scores responses that ended by themselves. With [`Scoring::Streamed`], a response is scored when it arrives, during
//! the rollout. With [`Scoring::AfterRollout`], the responses of a step are scored when its rollout has ended.
//!
//! A score is needed while its response may be trained on. It is no longer needed when the schedule defers or rejects the prompt, admits a
//! group without the response, or closes the round without admitting the response. A scoring in flight is then cancelled, and a response
//! that arrives later is not scored. A step therefore waits only for the scores of the responses that are trained on.
//!
//! There are two exceptions. If the schedule decides by scores, the score of every response is needed until the round closes. In a rollout
//! [without cancellation](crate::rollout::Rollouts::without_cancellation), every score is always needed.

mod load;
mod needed_scores;
mod reward_errors;
mod score_row;
mod scorer;
mod tally;
#[cfg(test)]
mod tests;
mod timeouts;

use std::sync::Arc;

use arrow_array::{BooleanArray, UInt32Array, UInt64Array};
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::bridge::{Executor, Tasks};
use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::fault::{Fault, Origin, fault_stream, faults_batch, give_fault};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::route;
use rollpacker_dataflow::schema;
use rollpacker_dataflow::step::Steps;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::{Concat, ConnectLoop, Feedback};
use rollpacker_stages::reward::{Execution, Router};

use crate::ledger::{AnchorTotals, Anchors, anchors};
use crate::overlap::Scoring;
use crate::rollout::Rollouts;
use crate::streams::StepStreams;
use crate::wire::rows::Row;

use self::scorer::{Capabilities, FinishedScore, NAME, Scorer, ScorerConfig};

use self::needed_scores::ScoringScope;
pub(crate) use self::reward_errors::{ErrorEffect, describe, describe_last, error_effect};
pub(crate) use self::score_row::{ScoreRow, Timing, scored_batch};
pub(crate) use self::scorer::{name_of, prompt_id, sample};
pub(crate) use self::tally::Tallies;

pub use self::timeouts::{AdaptiveLimits, LimitMode, LimitOptions};
pub use crate::time_limit::TimeLimit;

/// The output of the reward operator: the streams of scored responses and of executions, and the streams of the preceding operators.
pub struct Scored<'scope> {
    /// Batches of [`schema::SCORED`], emitted as scores arrive.
    pub samples: BatchStream<'scope>,
    /// Batches of [`schema::EXECUTIONS`], emitted with the scores that they led to.
    pub executions: BatchStream<'scope>,
    /// The streams that the next operators pass on. Metrics include the metrics of executions and time limits. Warnings are the first error
    /// of each reward and kind per step.
    pub streams: StepStreams<'scope>,
    pub(crate) scoring: GroupScoring,
}

pub(crate) struct GroupScoring {
    pub(crate) router: Router,
    pub(crate) executor: Executor,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tallies: Tallies,
    /// `true` if the schedule decides by scores.
    pub(crate) wants_scores: bool,
    /// `true` if a curriculum decides by the scores of earlier steps.
    pub(crate) has_curriculum: bool,
}

/// Scores responses.
///
/// ```
/// # mod step {
/// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/step.rs"));
/// # }
/// # use step::{clock, numbers, rollouts, run};
/// use arrow_array::types::Float64Type;
/// use rollpacker_dataflow::bridge::Executor;
/// use rollpacker_dataflow::schema::column;
/// use rollpacker_operators::RewardExt;
/// use rollpacker_stages::reward::{Limits, Router, from_fn};
///
/// // The length of a response as its score. The responses of the rollout have 1, 2, 1 and 2 tokens.
/// let length = from_fn(|sample| Ok(f64::from(sample.response_length).into()));
/// let router = Router::default().route("*", length);
/// let scored = run(|scope, _| {
///     rollouts(scope).reward(router, Limits::default(), Executor::Inline, clock()).samples
/// });
/// assert_eq!(numbers::<Float64Type>(&scored, column::SCORE), [1.0, 2.0, 1.0, 2.0]);
/// ```
///
/// [`Executor::Inline`] runs futures on the worker, in tests and in virtual time; a live run passes the handle of a tokio runtime.
pub trait RewardExt<'scope> {
    /// Scores each response that ended by itself and whose score is needed, with the reward that `router` selects for its data source. The
    /// rewards run on `executor`, and `clock` measures how long they take. A panic of a reward ends the run.
    ///
    /// `limit` determines how long test cases may run. [`Limits`](rollpacker_stages::reward::Limits) set the same limits for all responses.
    ///
    /// A schedule that decides by scores cannot be combined with [`Scoring::AfterRollout`]: its round would wait for scores that begin only
    /// after the round. The run then ends with an error.
    ///
    /// The route of the data source determines the effect of an error of its reward ([`OnError`](rollpacker_stages::reward::OnError)):
    ///
    /// - The run ends, and the error is reported with step, prompt and sample.
    /// - The error is counted and written to the column `reward_error` of the response. The score of the response is 0, or it is NaN and
    ///   the group of the response is not trained on. The first such error of each reward and kind in a step is reported as a warning.
    ///
    /// By default, errors have the second effect, and the run ends when a reward has failed
    /// [`MAX_TOLERATED`](rollpacker_stages::reward::MAX_TOLERATED) times in a row on a worker.
    fn reward(
        self,
        router: Router,
        limit: impl TimeLimit + 'static,
        executor: Executor,
        clock: Arc<dyn Clock>,
    ) -> Scored<'scope>;
}

impl<'scope> RewardExt<'scope> for Rollouts<'scope> {
    fn reward(
        self,
        router: Router,
        mut limit: impl TimeLimit + 'static,
        executor: Executor,
        clock: Arc<dyn Clock>,
    ) -> Scored<'scope> {
        let streams = self.streams;
        if let Some(known) = streams.resumable.read::<AnchorTotals>() {
            known.apply_to(&mut limit);
        }
        let tallies = Tallies::default();
        let (scoring, wants_scores) = (self.scoring, self.wants_scores);
        let has_curriculum = self.has_curriculum;
        let scope = match (self.cancels, wants_scores) {
            (false, _) => ScoringScope::All,
            (true, true) => ScoringScope::UntilClosed,
            (true, false) => ScoringScope::Undecided,
        };
        let rules =
            ScorerConfig { router: router.clone(), limit, scoring, scope, clock: clock.clone() };
        // The path summary may be 0: no output is derived from anchors, so the loop contains no cycle of timestamps.
        let scope = self.responses.scope();
        let (edge, known) = scope.feedback(Steps(0));
        let inputs = RewardInputs {
            responses: self.responses,
            decisions: streams.decisions.clone(),
            texts: streams.texts.clone(),
            known,
        };
        let mut given = score(inputs, rules, executor.clone(), tallies.clone());
        if wants_scores && scoring == Scoring::AfterRollout {
            given.errors = given.errors.concat(fault_stream(scope, scoring_too_late_fault()));
        }
        if let Some(scores) = self.scores {
            given.samples.clone().connect_loop(scores);
        }
        let executions = route::gather_at_first(
            "executions_to_first",
            given.executions.clone(),
            &schema::EXECUTIONS,
        );
        let Anchors { changes, metrics } = anchors(executions, &streams.resumable);
        // The ledger keeps each case on the worker of its key, but any worker may score a response that needs it.
        let changes = route::broadcast("anchors_to_all", changes, &schema::ANCHORS);
        changes.connect_loop(edge);
        let streams = streams.with_metrics(metrics).with_errors(given.errors);
        Scored {
            samples: given.samples,
            executions: given.executions,
            streams: StepStreams { warnings: given.warnings, ..streams },
            scoring: GroupScoring {
                router,
                executor,
                clock,
                tallies,
                wants_scores,
                has_curriculum,
            },
        }
    }
}

fn scoring_too_late_fault() -> Fault {
    Fault::new(
        NAME,
        Origin::User,
        "the schedule decides by rewards, but responses are scored only after the round is over: \
         score responses as they end, or choose a schedule that does not decide by rewards",
    )
}

struct RewardInputs<'scope> {
    responses: BatchStream<'scope>,
    decisions: BatchStream<'scope>,
    /// Batches of [`schema::TEXTS`]: the texts of the prompts of this worker.
    texts: BatchStream<'scope>,
    /// Batches of [`schema::ANCHORS`]: the anchors of test cases from the ledger.
    known: BatchStream<'scope>,
}

struct RewardOutputs<'scope> {
    samples: BatchStream<'scope>,
    executions: BatchStream<'scope>,
    errors: BatchStream<'scope>,
    warnings: BatchStream<'scope>,
}

fn score<'scope>(
    inputs: RewardInputs<'scope>,
    rules: ScorerConfig<impl TimeLimit + 'static>,
    executor: Executor,
    tallies: Tallies,
) -> RewardOutputs<'scope> {
    let mut operator = Operator::new(NAME, inputs.responses.scope());
    let mut responses = operator.input(inputs.responses, Pipeline, &schema::RESPONSES);
    let mut decisions = operator.input(inputs.decisions, Pipeline, &schema::DECISIONS);
    let mut texts = operator.input(inputs.texts, Pipeline, &schema::TEXTS);
    let mut known = operator.input(inputs.known, Pipeline, &schema::ANCHORS);
    // Outputs are derived from responses only. Decisions only drop responses, and texts and anchors only affect how they are scored.
    let (mut scored, samples) = operator.output(&schema::SCORED, &[0]);
    let (mut executed, executions) = operator.output(&schema::EXECUTIONS, &[0]);
    let (mut failed, errors) = operator.output(&schema::ERRORS, &[0]);
    let (mut warned, warnings) = operator.output(&schema::ERRORS, &[0]);
    let samples = operator.end_spans_by(samples);
    let tasks = Tasks::new(executor, operator.activator());
    let waiting = operator.wait_handle();
    operator.build(move |_capabilities| {
        let mut scorer = Scorer::new(rules, tallies, tasks, waiting);
        move |frontiers| {
            // Decisions come first, so that no scoring starts for a response that they drop.
            decisions.for_each(|capability, batch| scorer.decide(*capability.time(), &batch));
            texts.for_each(|capability, batch| scorer.add_texts(*capability.time(), &batch));
            known.for_each(|_, batch| scorer.set_anchors(&batch));
            responses.for_each(|capability, batch| {
                scorer.add_responses(*capability.time(), &batch, || Capabilities {
                    scored: capability.retain(scored.index()),
                    executions: capability.retain(executed.index()),
                    errors: capability.retain(failed.index()),
                    warnings: capability.retain(warned.index()),
                });
            });
            scorer.dispatch(&frontiers[0]);
            let (arrived, faults) = scorer.take_finished();
            for (capability, fault) in faults {
                give_fault(&mut failed, capability, fault);
            }
            for run in arrived.chunk_by(|one, next| one.pending.id.step == next.pending.id.step) {
                let capabilities = &run[0].pending.capabilities;
                scored.give(&capabilities.scored, samples_batch(run));
                executed.give(&capabilities.executions, executions_batch(run));
                warned.give(&capabilities.warnings, warnings_batch(run));
            }
            scorer.drop_complete_steps(&frontiers[..3]);
        }
    });
    RewardOutputs { samples, executions, errors, warnings }
}

fn samples_batch(run: &[FinishedScore]) -> Batch {
    let (rows, scores): (Vec<Row>, Vec<ScoreRow>) =
        run.iter().map(|arrived| (arrived.pending.row.clone(), arrived.score.clone())).unzip();
    scored_batch(&rows, &scores)
}

fn warnings_batch(run: &[FinishedScore]) -> Batch {
    let warnings: Vec<Fault> = run.iter().filter_map(|arrived| arrived.warning.clone()).collect();
    faults_batch(&warnings)
}

fn executions_batch(run: &[FinishedScore]) -> Batch {
    let all: Vec<(u64, Execution)> = run
        .iter()
        .flat_map(|FinishedScore { pending, executions, .. }| {
            executions.iter().map(|execution| (pending.dataset_row, *execution))
        })
        .collect();
    if all.is_empty() {
        return Batch::default();
    }
    let times = |of: fn(&Execution) -> u64| {
        Arc::new(UInt64Array::from_iter_values(all.iter().map(|(_, execution)| of(execution))))
    };
    let rows = UInt64Array::from_iter_values(all.iter().map(|(row, _)| *row));
    let cases = UInt32Array::from_iter_values(all.iter().map(|(_, execution)| execution.case));
    let flags = |of: fn(&Execution) -> bool| {
        Arc::new(BooleanArray::from_iter(all.iter().map(|(_, execution)| Some(of(execution)))))
    };
    Batch::from_columns(
        &schema::EXECUTIONS,
        vec![
            Arc::new(rows),
            Arc::new(cases),
            times(|execution| execution.took.0),
            times(|execution| execution.limit.0),
            flags(|execution| execution.correct),
            flags(|execution| execution.audited),
        ],
    )
}
