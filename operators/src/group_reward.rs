//! The operator for group rewards: scores complete groups, during the rollout, between [`group`](crate::group) and
//! [`advantage`](crate::advantage).
//!
//! A group that arrives here is admitted, so its scoring is cancelled only if the run ends. Executions that a group reward reports do not
//! affect time limits: limits are derived from single responses.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::types::UInt64Type;
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::bridge::{Panicked, Tasks};
use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::fault::{
    Fault, HasOrigin, Origin, fault_stream, faults_batch, give_fault,
};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::{Capability, Concat};
use rollpacker_dataflow::timely::progress::frontier::MutableAntichain;
use rollpacker_dataflow::watchdog::{WaitGuard, WaitHandle};
use rollpacker_stages::reward::{Context, RewardError, Router, Sample, Score};

use crate::prompt_texts::TextsByStep;
use crate::reward::{
    ErrorEffect, GroupScoring, ScoreRow, Tallies, Timing, describe_last, error_effect, name_of,
    prompt_id, sample, scored_batch,
};
use crate::wire::rows::Row;

/// The name of the operator in metrics and faults.
const NAME: &str = "group_reward";

pub(crate) struct GroupRewardOutputs<'scope> {
    /// Batches of [`schema::SCORED`], in whole groups.
    pub(crate) groups: BatchStream<'scope>,
    pub(crate) errors: BatchStream<'scope>,
    pub(crate) warnings: BatchStream<'scope>,
}

/// Adds the scores of group rewards to whole groups. `texts` has the texts of the groups' prompts. Emits an error if the schedule decides
/// by rewards or there is a curriculum, because neither receives the scores of group rewards.
pub(crate) fn score_groups<'scope>(
    groups: BatchStream<'scope>,
    texts: BatchStream<'scope>,
    scoring: &GroupScoring,
) -> GroupRewardOutputs<'scope> {
    let scope = groups.scope();
    let mut operator = Operator::new(NAME, scope);
    let mut groups = operator.input(groups, Pipeline, &schema::SCORED);
    let mut texts = operator.input(texts, Pipeline, &schema::TEXTS);
    let (mut scored, scored_groups) = operator.output(&schema::SCORED, &[0]);
    let (mut failed, errors) = operator.output(&schema::ERRORS, &[0]);
    let (mut warned, warnings) = operator.output(&schema::ERRORS, &[0]);
    let scored_groups = operator.end_spans_by(scored_groups);
    let tasks = Tasks::new(scoring.executor.clone(), operator.activator());
    let mut scorer = GroupScorer {
        router: scoring.router.clone(),
        clock: scoring.clock.clone(),
        tallies: scoring.tallies.clone(),
        tasks,
        waiting: operator.wait_handle(),
        texts: TextsByStep::default(),
        held: BTreeMap::new(),
        pending: BTreeMap::new(),
        failed: Vec::new(),
    };
    operator.build(move |_capabilities| {
        move |frontiers| {
            texts.for_each(|capability, batch| scorer.texts.add(*capability.time(), &batch));
            groups.for_each(|capability, batch| {
                for rows in whole_groups(&batch) {
                    let capabilities = Capabilities {
                        scored: capability.retain(scored.index()),
                        errors: capability.retain(failed.index()),
                        warnings: capability.retain(warned.index()),
                    };
                    scorer.hold(*capability.time(), capabilities, rows);
                }
            });
            scorer.start_ready();
            scorer.emit_finished(|capabilities, settled| match settled {
                ScoredGroup::Scored { batch, warning } => {
                    scored.give(&capabilities.scored, batch);
                    warned.give(&capabilities.warnings, faults_batch(&Vec::from_iter(warning)));
                }
                ScoredGroup::Failed(fault) => give_fault(&mut failed, &capabilities.errors, fault),
            });
            scorer.drop_complete_steps(frontiers);
        }
    });
    let errors = match (scoring.wants_scores, scoring.has_curriculum) {
        (true, _) => errors.concat(fault_stream(scope, group_rewards_unsupported())),
        (_, true) => errors.concat(fault_stream(scope, curriculum_unsupported())),
        _ => errors,
    };
    GroupRewardOutputs { groups: scored_groups, errors, warnings }
}

fn group_rewards_unsupported() -> Fault {
    Fault::new(
        NAME,
        Origin::User,
        "the schedule decides by rewards but does not receive those of whole groups: \
         choose a schedule that does not decide by rewards, or remove the group rewards",
    )
}

fn curriculum_unsupported() -> Fault {
    Fault::new(
        NAME,
        Origin::User,
        "the curriculum decides by the rewards of single responses but does not receive those of whole groups: \
         remove data.curriculum, or remove the group rewards",
    )
}

fn whole_groups(batch: &Batch) -> Vec<Vec<Row>> {
    let prompts = batch.values::<UInt64Type>(column::PROMPT_ID).values();
    let mut rows = Row::all(batch);
    let groups = prompts.chunk_by(|one, next| one == next);
    groups.map(|group| rows.by_ref().take(group.len()).collect()).collect()
}

struct Capabilities {
    scored: Capability<Step>,
    errors: Capability<Step>,
    warnings: Capability<Step>,
}

/// The result of a group reward and its timing. The result is `None` if the data source has no group reward.
type GroupRewardResult = (Option<Result<Vec<Score>, RewardError>>, Timing);

enum ScoredGroup {
    /// The group is scored. The batch has no rows if the group must not be trained on.
    Scored { batch: Batch, warning: Option<Fault> },
    /// The error ends the run.
    Failed(Fault),
}

/// A group that is being scored. Dropping it marks the context of the reward as cancelled, for code that blocks a thread. The future of the
/// reward is dropped separately, by the tasks.
struct PendingGroup {
    capabilities: Capabilities,
    rows: Vec<Row>,
    context: Context,
    _awaited: WaitGuard,
}

impl Drop for PendingGroup {
    fn drop(&mut self) {
        self.context.cancel();
    }
}

/// The key of a group: a prompt has one group per step.
type Key = (Step, PromptId);

struct GroupScorer {
    router: Router,
    clock: Arc<dyn Clock>,
    tallies: Tallies,
    tasks: Tasks<Key, GroupRewardResult>,
    waiting: WaitHandle,
    texts: TextsByStep,
    /// Groups that are not being scored yet, because the text of their prompt has not arrived.
    held: BTreeMap<Key, (Capabilities, Vec<Row>)>,
    pending: BTreeMap<Key, PendingGroup>,
    /// Groups whose errors end the run. Their capabilities are kept, so that their steps never complete.
    failed: Vec<PendingGroup>,
}

impl GroupScorer {
    fn hold(&mut self, step: Step, capabilities: Capabilities, rows: Vec<Row>) {
        if let Some(prompt) = rows.first().map(prompt_id) {
            self.held.insert((step, prompt), (capabilities, rows));
        }
    }

    /// Starts to score the held groups whose prompt texts have arrived.
    fn start_ready(&mut self) {
        let texts = &self.texts;
        let ready =
            self.held.extract_if(.., |(step, prompt), _| texts.get(*step, *prompt).is_some());
        for (key, (capabilities, rows)) in ready.collect::<Vec<_>>() {
            self.start(key, capabilities, rows);
        }
    }

    fn start(&mut self, (step, prompt): Key, capabilities: Capabilities, rows: Vec<Row>) {
        let Some(text) = self.texts.get(step, prompt) else { return };
        let samples: Vec<Sample> = rows.iter().map(|row| self.sample(step, row, text)).collect();
        let context = Context::new(self.clock.clone());
        self.tasks.spawn((step, prompt), timed(self.router.clone(), samples, context.clone()));
        let source = rows.first().and_then(|row| row.text(column::DATA_SOURCE)).unwrap_or_default();
        let name = || format!("a score by `{}`", name_of(self.router.group_reward_of(source)));
        let _awaited = self.waiting.hold((step, prompt), name);
        self.pending.insert((step, prompt), PendingGroup { capabilities, rows, context, _awaited });
    }

    /// Returns the sample of a row, including the score of its response if the data source also has a reward for single responses. `prompt`
    /// is the row of its prompt's texts.
    fn sample(&self, step: Step, row: &Row, prompt: &Row) -> Sample {
        let sample = sample(step, row, prompt);
        let has_own = self.router.scores_samples(&sample.data_source).unwrap_or(false);
        Sample { own_score: has_own.then(|| ScoreRow::read(row).score), ..sample }
    }

    /// Drops the texts of steps that receive no more groups or texts and have no held group.
    fn drop_complete_steps(&mut self, frontiers: &[MutableAntichain<Step>]) {
        self.texts
            .drop_complete_steps(frontiers, |step| self.held.keys().any(|(held, _)| held == step));
    }

    /// Emits the groups whose scoring has ended.
    fn emit_finished(&mut self, mut give: impl FnMut(&Capabilities, ScoredGroup)) {
        while let Some((key, outcome)) = self.tasks.try_next() {
            let pending = self.pending.remove(&key).expect("invariant: a group answers once");
            let settled = self.finish(key, &pending, outcome);
            let is_failed = matches!(settled, ScoredGroup::Failed(_));
            give(&pending.capabilities, settled);
            if is_failed {
                self.failed.push(pending);
            }
        }
    }

    fn finish(
        &mut self,
        (step, prompt): Key,
        pending: &PendingGroup,
        outcome: Result<GroupRewardResult, Panicked>,
    ) -> ScoredGroup {
        let about = |fault: Fault| Fault { prompt: Some(prompt), ..fault };
        let (result, timing) = match outcome {
            Ok(outcome) => outcome,
            Err(lost) => return ScoredGroup::Failed(about(Fault::of(NAME, &lost))),
        };
        self.tallies.with(step, |tally| tally.add_metrics(pending.context.take_metrics()));
        let source = pending.rows[0].text(column::DATA_SOURCE).unwrap_or_default();
        let rows = pending.rows.iter().map(ScoreRow::read);
        match result {
            None => scored(&pending.rows, &rows.collect::<Vec<_>>(), None),
            Some(Ok(scores)) => {
                self.tallies.scored(name_of(self.router.group_reward_of(source)));
                let rows = rows.zip(&scores).map(|(row, score)| row.with_score(score, timing));
                scored(&pending.rows, &rows.collect::<Vec<_>>(), None)
            }
            Some(Err(error)) => {
                let Some(effect) = self.count_error(step, source, &error) else {
                    let on_error = self.router.on_error_of(source);
                    let message = describe_last(&error, source, on_error);
                    return ScoredGroup::Failed(about(Fault::new(NAME, error.origin(), message)));
                };
                let value = effect.value;
                let rows = rows.map(|row| row.with_error(&error, value, timing));
                let kept = if value.is_nan() { Vec::new() } else { rows.collect::<Vec<_>>() };
                scored(&pending.rows[..kept.len()], &kept, effect.warning.map(about))
            }
        }
    }

    /// Returns the effect of an error, or `None` if the error ends the run. Unless the error ends the run, counts the error, and counts the
    /// group as dropped if it must not be trained on.
    fn count_error(&self, step: Step, source: &str, error: &RewardError) -> Option<ErrorEffect> {
        let reward = name_of(self.router.group_reward_of(source));
        let on_error = self.tallies.effective_on_error(self.router.on_error_of(source), reward);
        self.tallies.with(step, |tally| {
            let effect = error_effect((error, source), on_error, NAME, tally)?;
            tally.dropped_groups += u64::from(effect.value.is_nan());
            Some(effect)
        })
    }
}

fn scored(rows: &[Row], scores: &[ScoreRow], warning: Option<Fault>) -> ScoredGroup {
    ScoredGroup::Scored { batch: scored_batch(rows, scores), warning }
}

async fn timed(router: Router, group: Vec<Sample>, context: Context) -> GroupRewardResult {
    let begun = context.clock().now();
    let scores = router.score_group(&group, &context).await;
    let done = context.clock().now();
    (scores, Timing { took: done.since(begun), done })
}
