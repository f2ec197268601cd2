//! The group operator: gathers the admitted, scored responses of each prompt into one group.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::Float32Array;
use arrow_array::types::{Float32Type, Float64Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::frontier::may_arrive;
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::{Capability, Concat};
use rollpacker_dataflow::watchdog::{WaitGuard, WaitHandle};
use rustc_hash::FxHashMap;

use crate::group_reward::score_groups;
use crate::kl_controller::KlController;
use crate::overlap::GroupDelivery;
use crate::reward::{Scored, Tallies};
use crate::streams::StepStreams;
use crate::wire::decision::ADMIT;
use crate::wire::rows::{Row, gather_first};

/// The output of the group operator: the stream of complete groups, and the streams of the preceding operators. The inference and advantage
/// operators pass it on.
pub struct Groups<'scope> {
    /// Batches of [`schema::SCORED`] or, after inference, of [`schema::INFERRED`]. Each batch holds whole groups: the rows of a prompt are
    /// adjacent and sorted by sample.
    pub groups: BatchStream<'scope>,
    /// The streams that the next operators pass on. Their metrics include the scoring counts of each step, such as errors and dropped
    /// groups.
    pub streams: StepStreams<'scope>,
    pub(crate) delivery: GroupDelivery,
    /// `true` if batches have the schema [`schema::INFERRED`].
    pub(crate) inferred: bool,
    pub(crate) reward_kl: Option<KlController>,
    /// `true` if inference must return the predictions of a critic.
    pub(crate) needs_values: bool,
    /// `true` if groups were distributed to the workers by prompt id. A worker may then hold groups whose responses another worker
    /// generated.
    pub(crate) redistributed: bool,
}

impl Groups<'_> {
    /// Sets when groups are passed to the trainer. By default, groups are passed as they become complete.
    #[must_use]
    pub fn deliver_when(self, delivery: GroupDelivery) -> Self {
        Self { delivery, ..self }
    }

    /// Subtracts a KL penalty against the reference policy from rewards, with the coefficient of `controller`. The groups must go through
    /// [`infer`](crate::InferenceExt::infer) afterwards; otherwise no penalty is subtracted.
    #[must_use]
    pub fn with_kl_penalty(self, controller: KlController) -> Self {
        Self { reward_kl: Some(controller), ..self }
    }

    /// Requires the predictions of a critic for each response. The groups must go through [`infer`](crate::InferenceExt::infer) afterwards;
    /// otherwise the estimator receives no predictions.
    #[must_use]
    pub fn with_values(self) -> Self {
        Self { needs_values: true, ..self }
    }
}

/// Forms groups.
///
/// ```
/// # mod step {
/// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/step.rs"));
/// # }
/// # use step::{clock, lengths, numbers, rollouts, run};
/// use arrow_array::types::{Float64Type, UInt64Type};
/// use rollpacker_dataflow::bridge::Executor;
/// use rollpacker_dataflow::schema::column;
/// use rollpacker_operators::{GroupExt, RewardExt};
/// use rollpacker_stages::reward::Limits;
///
/// let groups = run(|scope, _| {
///     let scored = rollouts(scope).reward(lengths(), Limits::default(), Executor::Inline, clock());
///     scored.group().groups
/// });
/// // The responses of a prompt are adjacent and sorted by sample.
/// assert_eq!(numbers::<UInt64Type>(&groups, column::PROMPT_ID), [0, 0, 1, 1]);
/// assert_eq!(numbers::<Float64Type>(&groups, column::SCORE), [1.0, 2.0, 1.0, 2.0]);
/// ```
pub trait GroupExt<'scope> {
    /// Emits the group of a prompt as soon as the prompt is admitted and its admitted responses are scored. Responses that are not admitted
    /// are dropped, at the latest when the step ends.
    ///
    /// A group is dropped and counted if one of its responses cannot be trained on because of an error.
    ///
    /// If the router has group rewards, they score each group before it is emitted. A schedule or curriculum that decides by rewards does
    /// not receive the scores of group rewards, so a run with both ends with an error.
    fn group(self) -> Groups<'scope>;
}

impl<'scope> GroupExt<'scope> for Scored<'scope> {
    fn group(self) -> Groups<'scope> {
        let Self { samples, streams, scoring, .. } = self;
        let groups = group(samples, streams.decisions.clone(), scoring.tallies.clone());
        let (groups, streams) = if scoring.router.scores_groups() {
            let scored = score_groups(groups, streams.texts.clone(), &scoring);
            let warnings = streams.warnings.clone().concat(scored.warnings);
            (scored.groups, StepStreams { warnings, ..streams.with_errors(scored.errors) })
        } else {
            (groups, streams)
        };
        let metrics = scoring.tallies.report(groups.clone(), streams.decisions.clone());
        let streams = streams.with_metrics(metrics);
        Groups {
            groups,
            streams,
            delivery: GroupDelivery::default(),
            inferred: false,
            reward_kl: None,
            needs_values: false,
            redistributed: false,
        }
    }
}

fn group<'scope>(
    samples: BatchStream<'scope>,
    decisions: BatchStream<'scope>,
    tallies: Tallies,
) -> BatchStream<'scope> {
    let mut operator = Operator::new("group", samples.scope());
    let mut samples = operator.input(samples, Pipeline, &schema::SCORED);
    let mut decisions = operator.input(decisions, Pipeline, &schema::DECISIONS);
    let (mut groups, stream) = operator.output(&schema::SCORED, &[0, 1]);
    let stream = operator.end_spans_by(stream);
    let awaits = operator.wait_handle();
    operator.build(move |_capabilities| {
        let mut steps: BTreeMap<Step, (Capability<Step>, IncompleteGroups)> = BTreeMap::new();
        move |frontiers| {
            let index = groups.index();
            decisions.for_each(|capability, batch| {
                let step = *capability.time();
                steps
                    .entry(step)
                    .or_insert_with(|| (capability.retain(index), IncompleteGroups::default()))
                    .1
                    .admit(step, &batch, &awaits);
            });
            samples.for_each(|capability, batch| {
                let step = steps.entry(*capability.time());
                step.or_insert_with(|| (capability.retain(index), IncompleteGroups::default()))
                    .1
                    .score(&batch);
            });
            for (capability, gathering) in steps.values_mut() {
                let (batch, dropped) = gathering.complete();
                groups.give(capability, batch);
                if dropped > 0 {
                    tallies.with(*capability.time(), |tally| tally.dropped_groups += dropped);
                }
            }
            steps.retain(|step, (_, gathering)| {
                let open = may_arrive(frontiers, step);
                debug_assert!(
                    open || gathering.admitted.is_empty(),
                    "every admitted response is scored within its step"
                );
                open
            });
        }
    });
    stream
}

/// The incomplete groups of one step.
#[derive(Default)]
struct IncompleteGroups {
    /// The admitted prompts whose groups are not complete.
    admitted: FxHashMap<PromptId, Admitted>,
    /// The scored responses by prompt and sample. The responses to a prompt are removed when its group is complete.
    scored: FxHashMap<PromptId, BTreeMap<u32, Row>>,
    /// The prompts for which an admission or a score arrived since the last call of `complete`.
    touched: Vec<PromptId>,
}

impl IncompleteGroups {
    fn admit(&mut self, step: Step, batch: &Batch, awaits: &WaitHandle) {
        let (prompts, admitted, weights) = (
            batch.values::<UInt64Type>(column::PROMPT_ID),
            batch.lists::<UInt32Type>(column::ADMITTED),
            batch.lists::<Float32Type>(column::WEIGHTS),
        );
        for (row, decision) in batch.text(column::DECISION).iter().enumerate() {
            if decision == Some(ADMIT) {
                let prompt = PromptId(prompts.value(row));
                let admitted = Admitted {
                    samples: admitted.get(row).to_vec(),
                    weights: weights.get(row).to_vec(),
                    _awaited: awaits.hold((step, prompt), || "the scores of a group"),
                };
                self.admitted.insert(prompt, admitted);
                self.touched.push(prompt);
            }
        }
    }

    fn score(&mut self, batch: &Batch) {
        let (prompts, samples) = (
            batch.values::<UInt64Type>(column::PROMPT_ID),
            batch.values::<UInt32Type>(column::SAMPLE),
        );
        for row in Row::all(batch) {
            let prompt = PromptId(prompts.value(row.index));
            self.scored.entry(prompt).or_default().insert(samples.value(row.index), row);
            self.touched.push(prompt);
        }
    }

    /// Processes the groups that have become complete since the last call. Returns one batch of the groups that can be trained on, and the
    /// number of groups that were dropped because of an error. The batch may be empty.
    fn complete(&mut self) -> (Batch, u64) {
        let touched = std::mem::take(&mut self.touched);
        let complete: Vec<_> = touched.into_iter().filter_map(|prompt| self.take(prompt)).collect();
        let (trainable, dropped): (Vec<_>, Vec<_>) =
            complete.into_iter().partition(|group| group.iter().all(|(row, _)| is_scored(row)));
        (groups_batch(trainable), dropped.len() as u64)
    }

    /// Removes and returns the rows of a group with their weights, if it is complete.
    fn take(&mut self, prompt: PromptId) -> Option<Vec<(Row, f32)>> {
        let (admitted, scored) = (self.admitted.get(&prompt)?, self.scored.get(&prompt)?);
        let rows: Option<Vec<(Row, f32)>> = admitted
            .weighted()
            .map(|(sample, weight)| Some((scored.get(&sample)?.clone(), weight)))
            .collect();
        if rows.is_some() {
            self.admitted.remove(&prompt);
            self.scored.remove(&prompt);
        }
        rows
    }
}

/// Returns `true` if the response can be trained on. Its score is NaN after an error that drops the group.
fn is_scored(row: &Row) -> bool {
    !row.batch.values::<Float64Type>(column::SCORE).value(row.index).is_nan()
}

fn groups_batch(groups: Vec<Vec<(Row, f32)>>) -> Batch {
    let (rows, weights): (Vec<Row>, Vec<f32>) = groups.into_iter().flatten().unzip();
    if rows.is_empty() {
        return Batch::default();
    }
    let mut columns = gather_first(&rows, schema::SCORED.fields().len());
    let at =
        schema::SCORED.index_of(column::WEIGHT).expect("invariant: scored responses have a weight");
    columns[at] = Arc::new(Float32Array::from(weights));
    Batch::from_columns(&schema::SCORED, columns)
}

/// The admitted samples of a prompt.
struct Admitted {
    samples: Vec<u32>,
    /// The weight of each sample in the loss. Empty if all weights are 1.
    weights: Vec<f32>,
    _awaited: WaitGuard,
}

impl Admitted {
    fn weighted(&self) -> impl Iterator<Item = (u32, f32)> {
        let weights = self.weights.iter().copied().chain(std::iter::repeat(1.0));
        self.samples.iter().copied().zip(weights)
    }
}
