//! Starts, cancels and settles the scoring of responses.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use arrow_array::types::{Int32Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::bridge::{Panicked, Tasks};
use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::fault::{Fault, HasOrigin};
use rollpacker_dataflow::frontier::may_arrive;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_dataflow::timely::progress::frontier::MutableAntichain;
use rollpacker_dataflow::watchdog::{WaitGuard, WaitHandle};
use rollpacker_stages::reward::{Context, Execution, RewardError, Router, Sample, Score};

use super::load::ScoringSlot;
use super::needed_scores::{NeededScores, ScoringScope};
use super::reward_errors::{describe_last, error_effect};
use super::score_row::{ScoreRow, Timing};
use super::tally::{Tallies, Tally};
use crate::overlap::Scoring;
use crate::prompt_texts::TextsByStep;
use crate::time_limit::TimeLimit;
use crate::wire::finish_reason::finish_reason;
use crate::wire::rows::Row;

/// The name of the operator in metrics and faults.
pub(super) const NAME: &str = "reward";

/// The capabilities for the outputs that follow from a response.
pub(super) struct Capabilities {
    pub(super) scored: Capability<Step>,
    pub(super) executions: Capability<Step>,
    pub(super) errors: Capability<Step>,
    pub(super) warnings: Capability<Step>,
}

/// A response that is being scored. Dropping it marks the context of the reward as cancelled, for code that blocks a thread. The future of
/// the reward is dropped separately, by the tasks.
pub(super) struct Pending {
    pub(super) capabilities: Rc<Capabilities>,
    pub(super) id: SampleId,
    pub(super) row: Row,
    /// The dataset row of the response's prompt.
    pub(super) dataset_row: u64,
    context: Context,
    _awaited: WaitGuard,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.context.cancel();
    }
}

/// A response with its score, or with the value that replaces it after an error.
pub(super) struct FinishedScore {
    pub(super) pending: Pending,
    pub(super) score: ScoreRow,
    pub(super) executions: Vec<Execution>,
    pub(super) warning: Option<Fault>,
}

pub(super) type Outcome = (Result<Score, RewardError>, Timing);

/// The rewards, the time limits of their test cases, and the conditions under which a response is scored.
pub(super) struct ScorerConfig<L> {
    pub(super) router: Router,
    pub(super) limit: L,
    pub(super) scoring: Scoring,
    pub(super) scope: ScoringScope,
    pub(super) clock: Arc<dyn Clock>,
}

/// Scores the responses whose scores are needed, and cancels scorings that are no longer needed.
pub(super) struct Scorer<L> {
    rules: ScorerConfig<L>,
    tallies: Tallies,
    tasks: Tasks<SampleId, Outcome>,
    waiting: WaitHandle,
    rounds: BTreeMap<Step, NeededScores>,
    texts: TextsByStep,
    /// Responses that wait until their scoring is due and the text of their prompt has arrived.
    held: BTreeMap<Step, Vec<(Rc<Capabilities>, Row)>>,
    pending: BTreeMap<SampleId, Pending>,
    /// Responses whose errors end the run. Their capabilities are kept, so that their steps never complete.
    failed: Vec<Pending>,
}

impl<L: TimeLimit> Scorer<L> {
    pub(super) fn new(
        rules: ScorerConfig<L>,
        tallies: Tallies,
        tasks: Tasks<SampleId, Outcome>,
        waiting: WaitHandle,
    ) -> Self {
        Self {
            rules,
            tallies,
            tasks,
            waiting,
            rounds: BTreeMap::new(),
            texts: TextsByStep::default(),
            held: BTreeMap::new(),
            pending: BTreeMap::new(),
            failed: Vec::new(),
        }
    }

    /// Returns the state of the needed scores of a step. The first call for a step creates it.
    fn needed_scores(&mut self, step: Step) -> &mut NeededScores {
        let scope = self.rules.scope;
        self.rounds.entry(step).or_insert_with(|| NeededScores::new(scope))
    }

    pub(super) fn add_texts(&mut self, step: Step, batch: &Batch) {
        self.texts.add(step, batch);
    }

    /// Records the anchors of test cases from the ledger.
    pub(super) fn set_anchors(&mut self, batch: &Batch) {
        let rows = batch.values::<UInt64Type>(column::ROW).values();
        let cases = batch.values::<UInt32Type>(column::CASE).values();
        let longest = batch.values::<UInt64Type>(column::TOOK).values();
        for ((row, case), longest) in rows.iter().zip(cases).zip(longest) {
            self.rules.limit.set_anchor(*row, *case, Nanos(*longest));
        }
    }

    /// Applies decisions and cancels the scorings that are no longer needed.
    pub(super) fn decide(&mut self, step: Step, batch: &Batch) {
        let concerned = self.needed_scores(step).decide(batch);
        let round = &self.rounds[&step];
        let is_unneeded = |id: &SampleId, _: &mut _| !round.wants(id.prompt, id.sample);
        let id = |prompt, sample| SampleId { step, prompt, sample };
        for prompts in concerned {
            let ids = id(*prompts.start(), 0)..=id(*prompts.end(), u32::MAX);
            for (id, pending) in self.pending.extract_if(ids, is_unneeded) {
                self.tasks.cancel(&id);
                self.tallies.with(step, |tally| {
                    tally.cancelled += 1;
                    tally.add_metrics(pending.context.take_metrics());
                });
            }
        }
    }

    /// Holds the responses of a batch that need a score. `capabilities` is called only if a response needs a score.
    pub(super) fn add_responses(
        &mut self,
        step: Step,
        batch: &Batch,
        capabilities: impl FnOnce() -> Capabilities,
    ) {
        let rows: Vec<Row> = Row::all(batch).filter(is_whole).collect();
        let rows = self.needed(step, rows, |row| row);
        if !rows.is_empty() {
            let capabilities = Rc::new(capabilities());
            let held = rows.into_iter().map(|row| (capabilities.clone(), row));
            self.held.entry(step).or_default().extend(held);
        }
    }

    /// Returns the rows of responses whose scores are needed, and counts the others as skipped.
    fn needed<T>(&mut self, step: Step, mut rows: Vec<T>, row: impl Fn(&T) -> &Row) -> Vec<T> {
        let all = rows.len();
        let round = self.needed_scores(step);
        rows.retain(|one| {
            let id = sample_id(step, row(one));
            round.wants(id.prompt, id.sample)
        });
        let skipped = (all - rows.len()) as u64;
        if skipped > 0 {
            self.tallies.with(step, |tally| tally.skipped += skipped);
        }
        rows
    }

    /// Starts the scorings that are due and whose prompt texts have arrived. `responses` is the frontier of the responses.
    pub(super) fn dispatch(&mut self, responses: &MutableAntichain<Step>) {
        let scoring = self.rules.scoring;
        let due = |step: &Step| match scoring {
            Scoring::Streamed => true,
            Scoring::AfterRollout => !responses.less_equal(step),
        };
        let due: Vec<_> = self.held.extract_if(.., |step, _| due(step)).collect();
        for (step, held) in due {
            for (capabilities, row) in self.needed(step, held, |(_, row)| row) {
                // With several workers, the text and the response come from different workers, so the response may arrive first.
                match self.texts.get(step, prompt_id(&row)).cloned() {
                    Some(text) => self.start(step, capabilities, row, text),
                    None => self.held.entry(step).or_default().push((capabilities, row)),
                }
            }
        }
    }

    /// Starts the scoring of one response. `text` is the row of its prompt's texts.
    fn start(&mut self, step: Step, capabilities: Rc<Capabilities>, row: Row, text: Row) {
        let (id, dataset_row) = (sample_id(step, &row), row.dataset_row());
        let ScorerConfig { router, limit, clock, .. } = &mut self.rules;
        let context = Context::new(clock.clone()).with_limits(limit.limits(id, dataset_row));
        let slot = self.tallies.with(step, |tally| tally.load.queue());
        let source = row.text(column::DATA_SOURCE).unwrap_or_default();
        let name = || format!("a score by `{}`", name_of(router.reward_of(source)));
        let _awaited = self.waiting.hold(id, name);
        // The task copies the texts and the tokens. Copies on this thread would delay all other responses.
        let sample = {
            let row = row.clone();
            move || sample(step, &row, &text)
        };
        self.tasks.spawn(id, timed(router.clone(), sample, context.clone(), slot));
        let pending = Pending { capabilities, id, row, dataset_row, context, _awaited };
        self.pending.insert(id, pending);
    }

    /// Returns the responses whose scoring has ended, and the faults that end the run, each with the capability to report it.
    pub(super) fn take_finished(
        &mut self,
    ) -> (Vec<FinishedScore>, Vec<(&Capability<Step>, Fault)>) {
        let mut arrived = Vec::new();
        let (mut faults, known) = (Vec::new(), self.failed.len());
        while let Some((id, outcome)) = self.tasks.try_next() {
            let pending =
                self.pending.remove(&id).expect("invariant: a cancelled call does not answer");
            match self.finish(&pending, outcome) {
                Ok((score, executions, warning)) => {
                    arrived.push(FinishedScore { pending, score, executions, warning });
                }
                Err(fault) => {
                    faults.push(fault);
                    self.failed.push(pending);
                }
            }
        }
        let failed = self.failed[known..].iter().map(|pending| &pending.capabilities.errors);
        (arrived, failed.zip(faults).collect())
    }

    /// Returns the score of a response, its executions, and a warning; or the fault that ends the run.
    fn finish(
        &mut self,
        pending: &Pending,
        outcome: Result<Outcome, Panicked>,
    ) -> Result<(ScoreRow, Vec<Execution>, Option<Fault>), Fault> {
        let about = |fault: Fault| fault.about(pending.id.prompt, pending.id.sample);
        let ScorerConfig { router, limit, .. } = &mut self.rules;
        let (result, timing) = outcome.map_err(|lost| about(Fault::of(NAME, &lost)))?;
        let metrics = pending.context.take_metrics();
        self.tallies.with(pending.id.step, |tally| tally.add_metrics(metrics));
        let source = pending.row.text(column::DATA_SOURCE).unwrap_or_default();
        let row = ScoreRow::new();
        match result {
            Ok(score) => {
                self.tallies.scored(name_of(router.reward_of(source)));
                if !score.executions.is_empty() {
                    limit.executed(pending.id, pending.dataset_row, &score.executions);
                }
                Ok((row.with_score(&score, timing), score.executions, None))
            }
            Err(error) => {
                let reward = name_of(router.reward_of(source));
                let on_error = self.tallies.effective_on_error(router.on_error_of(source), reward);
                let count =
                    |tally: &mut Tally| error_effect((&error, source), on_error, NAME, tally);
                let effect = self.tallies.with(pending.id.step, count);
                let effect = effect.ok_or_else(|| {
                    let message = describe_last(&error, source, router.on_error_of(source));
                    about(Fault::new(NAME, error.origin(), message))
                })?;
                let row = row.with_error(&error, effect.value, timing);
                Ok((row, Vec::new(), effect.warning.map(about)))
            }
        }
    }

    /// Drops the rounds and texts of steps that have no held responses and can receive no more responses, decisions and texts.
    pub(super) fn drop_complete_steps(&mut self, frontiers: &[MutableAntichain<Step>]) {
        self.rounds.retain(|step, _| may_arrive(frontiers, step) || self.held.contains_key(step));
        self.texts.drop_complete_steps(frontiers, |step| self.held.contains_key(step));
    }
}

/// Returns the name of a reward for messages; `no reward` if the data source has no such reward. The scoring reports the error of a data
/// source without any reward.
pub(crate) fn name_of<E>(named: Result<Option<&str>, E>) -> &str {
    named.ok().flatten().unwrap_or("no reward")
}

async fn timed(
    router: Router,
    sample: impl FnOnce() -> Sample,
    context: Context,
    mut slot: ScoringSlot,
) -> Outcome {
    slot.begin();
    let begun = context.clock().now();
    let score = router.score(&sample(), &context).await;
    let done = context.clock().now();
    (score, Timing { took: done.since(begun), done })
}

fn is_whole(row: &Row) -> bool {
    finish_reason(row.batch.text(column::FINISH_REASON).value(row.index)).is_whole()
}

fn sample_id(step: Step, row: &Row) -> SampleId {
    let sample = row.batch.values::<UInt32Type>(column::SAMPLE).value(row.index);
    SampleId { step, prompt: prompt_id(row), sample }
}

pub(crate) fn prompt_id(row: &Row) -> PromptId {
    PromptId(row.batch.values::<UInt64Type>(column::PROMPT_ID).value(row.index))
}

/// Returns a row of responses as the input of a reward. `prompt` is the row of its prompt's texts.
pub(crate) fn sample(step: Step, row: &Row, prompt: &Row) -> Sample {
    let (batch, index) = (&row.batch, row.index);
    let owned = |text: Option<&str>| text.unwrap_or_default().to_owned();
    Sample {
        id: sample_id(step, row),
        row: batch.values::<UInt64Type>(column::ROW).value(index),
        data_source: owned(row.text(column::DATA_SOURCE)),
        messages: owned(prompt.text(column::MESSAGES)),
        response: batch.shared_text(column::RESPONSE_TEXT).value(index).to_owned(),
        response_length: batch.values::<UInt32Type>(column::RESPONSE_LENGTH).value(index),
        response_ids: batch.lists::<Int32Type>(column::RESPONSE_IDS).get(index).to_vec(),
        ground_truth: prompt.text(column::GROUND_TRUTH).map(str::to_owned),
        extra_info: prompt.text(column::EXTRA_INFO).map(str::to_owned),
        finish_reason: finish_reason(batch.text(column::FINISH_REASON).value(index)),
        own_score: None,
    }
}
