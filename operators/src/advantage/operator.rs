//! The advantage operator: subtracts the KL penalty, estimates advantages, and adds them as columns.

use std::collections::BTreeMap;

use arrow_array::types::{Float32Type, Float64Type, Int32Type, UInt64Type};
use arrow_array::{ArrayRef, RecordBatch};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::fault::{Fault, give_fault};
use rollpacker_dataflow::frontier::earliest;
use rollpacker_dataflow::operator::{Operator, Output};
use rollpacker_dataflow::route;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::shared_list::repeated_lists;
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_dataflow::timely::progress::frontier::MutableAntichain;
use rollpacker_stages::train::{Metrics, named_metrics};

use super::token_rewards::{Rewarded, rewarded};
use super::{
    Advantage, Estimate, EstimateError, Estimator, ScoredResponse, Trajectory, checked_advantages,
};
use crate::group::Groups;
use crate::kl_controller::{KlController, PART};
use crate::policy::metrics_batch;
use crate::report::statistics::spread;
use crate::resume::OperatorParts;
use crate::wire::columns::{empty_lists, owned_lists};
use crate::wire::rows::{gather_first, ids, sorted_by_id};

/// The name of the operator in metrics and faults.
const NAME: &str = "advantage";

/// Adds advantages to groups.
///
/// ```
/// # mod step {
/// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/step.rs"));
/// # }
/// # use step::{groups, lists, run};
/// use arrow_array::types::Float32Type;
/// use rollpacker_dataflow::schema::column;
/// use rollpacker_operators::AdvantageExt;
/// use rollpacker_operators::advantage::Rloo;
///
/// // Two groups. Each group has a response with one token and score 1, and a response with two tokens and score 2.
/// let groups = run(|scope, _| groups(scope).advantage(Rloo).groups);
/// let advantages = lists::<Float32Type>(&groups, column::ADVANTAGES);
/// assert_eq!(advantages, [vec![-1.0], vec![1.0, 1.0], vec![-1.0], vec![1.0, 1.0]]);
/// ```
pub trait AdvantageExt {
    /// Adds the advantages and returns of `estimator` as columns. The batches then have the schema [`schema::GROUPS`]. If the estimator
    /// violates its contract, the run ends with an error.
    ///
    /// Groups are passed on as they arrive, with two exceptions:
    ///
    /// - If the estimator needs all groups of a step, the groups wait for the end of their step.
    /// - If the KL coefficient adapts, the groups wait for the end of the previous step.
    #[must_use]
    fn advantage(self, estimator: impl Into<Estimator>) -> Self;
}

impl AdvantageExt for Groups<'_> {
    fn advantage(self, estimator: impl Into<Estimator>) -> Self {
        let estimator = estimator.into();
        let schema = if self.inferred { &schema::INFERRED } else { &schema::SCORED };
        // Sums over a step are computed on one worker, in one order, so that they do not depend on the arrival of groups. The groups are
        // then distributed to the training workers by prompt id.
        let central = estimator.whole_step() || self.reward_kl.is_some();
        let input = if central {
            route::gather_at_first("groups_to_first", self.groups, schema)
        } else {
            self.groups
        };
        let mut operator = Operator::new(NAME, input.scope());
        let mut input = operator.input(input, Pipeline, schema);
        let (mut output, groups) = operator.output(&schema::GROUPS, &[0]);
        let (mut measured, metrics) = operator.output(&schema::METRICS, &[0]);
        let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[0]);
        let groups = operator.end_spans_by(groups);
        let adapting = self.reward_kl.filter(KlController::adapts);
        let resumable = &self.streams.resumable;
        let known = adapting.and_then(|_| resumable.read());
        let parts = adapting.map(|_| resumable.register_first(PART, &mut operator));
        let mut estimating = AdvantageState {
            estimator,
            inferred: self.inferred,
            controller: known.or(self.reward_kl),
            open: BTreeMap::new(),
            parts,
            has_failed: false,
        };
        operator.build(move |capabilities| {
            if let Some(parts) = &mut estimating.parts {
                parts.start(&capabilities);
            }
            drop(capabilities);
            move |frontiers| {
                input.for_each(|capability, batch| {
                    let capabilities = Capabilities {
                        groups: capability.retain(output.index()),
                        metrics: capability.retain(measured.index()),
                        errors: capability.retain(errors.index()),
                    };
                    estimating.hold(capabilities, batch);
                });
                let advanced = estimating.advance(
                    |step| !frontiers[0].less_equal(&step),
                    &mut output,
                    &mut measured,
                );
                match advanced {
                    Ok(()) => estimating.advance_parts(frontiers),
                    Err(FailedStep { capability, error }) => {
                        give_fault(&mut errors, &capability, Fault::of(NAME, &error));
                    }
                }
            }
        });
        let groups = if central {
            route::exchange(
                "groups_to_workers",
                groups,
                route::by_key(column::PROMPT_ID),
                &schema::GROUPS,
            )
        } else {
            groups
        };
        let streams = self.streams.with_metrics(metrics).with_errors(error_stream);
        Self { groups, streams, redistributed: central, ..self }
    }
}

struct Capabilities {
    groups: Capability<Step>,
    metrics: Capability<Step>,
    errors: Capability<Step>,
}

struct AdvantageState {
    estimator: Estimator,
    inferred: bool,
    controller: Option<KlController>,
    open: BTreeMap<Step, AdvantageStep>,
    /// The snapshot parts of the KL coefficient; `None` if it does not adapt or there is no KL penalty.
    parts: Option<OperatorParts>,
    /// `true` once a step could not be estimated. The capabilities of the step are kept, so it does not complete, and no later group is
    /// passed on.
    has_failed: bool,
}

/// The error of a step that could not be estimated, and the capability to report it.
struct FailedStep {
    capability: Capability<Step>,
    error: EstimateError,
}

/// The groups of a step that is not complete.
struct AdvantageStep {
    capabilities: Capabilities,
    /// The groups whose advantages are not estimated yet.
    held: Vec<Batch>,
    /// Weight, divergence and reward of each response so far, by prompt and sample index. Empty without a KL penalty. The order of the map
    /// makes sums independent of the order of arrival.
    recorded: BTreeMap<(u64, u32), ResponseKl>,
}

/// The values of a response from which the KL and reward metrics of a step are computed.
#[derive(Clone, Copy)]
struct ResponseKl {
    weight: f64,
    kl: f64,
    reward: f64,
}

impl AdvantageState {
    fn hold(&mut self, capabilities: Capabilities, batch: Batch) {
        let open = AdvantageStep { capabilities, held: Vec::new(), recorded: BTreeMap::new() };
        let step = *open.capabilities.groups.time();
        self.open.entry(step).or_insert(open).held.push(batch);
    }

    /// Estimates and emits the groups that are due. `passed` returns `true` for a step that the frontier has passed.
    ///
    /// Steps are processed in order if the estimator needs whole steps. They are also processed in order if the KL coefficient adapts,
    /// because the coefficient of a step then depends on the divergence of the step before. A step that is processed in order waits until
    /// the frontier has passed the step before it, and so do all later steps. Otherwise groups of several steps are emitted as they arrive.
    /// A step ends when the frontier has passed it: its divergence is complete, and the coefficient may change.
    fn advance(
        &mut self,
        passed: impl Fn(Step) -> bool,
        output: &mut Output,
        measured: &mut Output,
    ) -> Result<(), FailedStep> {
        if self.has_failed {
            return Ok(());
        }
        let whole = self.estimator.whole_step();
        let in_order = whole || self.controller.is_some_and(|controller| controller.adapts());
        let steps: Vec<Step> = self.open.keys().copied().collect();
        for step in steps {
            let complete = passed(step);
            if in_order && !step.0.checked_sub(1).is_none_or(|before| passed(Step(before))) {
                return Ok(());
            }
            if let Some(mut open) = self.open.remove(&step) {
                if (!whole || complete)
                    && let Err(error) = self.estimate(&mut open, output)
                {
                    let capability = open.capabilities.errors.clone();
                    self.open.insert(step, open);
                    self.has_failed = true;
                    return Err(FailedStep { capability, error });
                }
                if complete {
                    self.end(&open, measured);
                } else {
                    self.open.insert(step, open);
                }
            }
        }
        Ok(())
    }

    fn advance_parts(&mut self, frontiers: &[MutableAntichain<Step>]) {
        if let (Some(parts), Some(controller)) = (&mut self.parts, &self.controller) {
            parts.advance_to(earliest(frontiers), |_| controller.part());
        }
    }

    fn estimate(&self, open: &mut AdvantageStep, output: &mut Output) -> Result<(), EstimateError> {
        let held = std::mem::take(&mut open.held);
        let whole = self.estimator.whole_step();
        let batches = if whole { Vec::from_iter(ordered(&held)) } else { held };
        let coefficient = self.controller.map(|controller| controller.coefficient());
        for batch in batches {
            let estimates = match (&self.estimator, coefficient) {
                (Estimator::Group(estimator), None) => {
                    let advantages = repeated_advantages(&batch, estimator.as_ref())?;
                    [advantages, empty_lists::<Float32Type>(batch.num_rows())]
                }
                _ => {
                    let Rewarded { trajectories, divergences } =
                        rewarded(&batch, self.inferred, coefficient);
                    if coefficient.is_some() {
                        open.record(&batch, &trajectories, &divergences);
                    }
                    let estimates = self.estimator.estimate(&trajectories)?;
                    let column = |of: fn(&Estimate) -> &[f64]| {
                        let single =
                            |list: &[f64]| list.iter().map(|&value| value as f32).collect();
                        owned_lists::<Float32Type>(estimates.iter().map(|one| single(of(one))))
                    };
                    [column(|one| &one.advantages), column(|one| &one.returns)]
                }
            };
            output.give(&open.capabilities.groups, with_estimates(&batch, estimates));
        }
        Ok(())
    }

    fn end(&mut self, open: &AdvantageStep, measured: &mut Output) {
        if let Some(controller) = &mut self.controller {
            if let Some(parts) = &mut self.parts {
                parts.begin_step(*open.capabilities.groups.time(), |_| controller.part());
            }
            let (metrics, kl) = measure(&open.recorded, controller.coefficient());
            controller.observe(kl, open.recorded.len());
            measured.give(&open.capabilities.metrics, metrics_batch(&metrics));
        }
    }
}

impl AdvantageStep {
    fn record(&mut self, batch: &Batch, trajectories: &[Trajectory], divergences: &[f64]) {
        let weights = batch.values::<Float32Type>(column::WEIGHT).values();
        let recorded = trajectories.iter().zip(divergences).zip(weights);
        let recorded = recorded.map(|((one, &kl), &weight)| ResponseKl {
            weight: f64::from(weight),
            kl,
            reward: one.score,
        });
        self.recorded.extend(ids(batch).zip(recorded));
    }
}

/// Returns the metrics of a step, under verl's names, and the weighted mean of the responses' divergences. Without responses, the mean is
/// 0, and the coefficient is the only metric.
fn measure(recorded: &BTreeMap<(u64, u32), ResponseKl>, coefficient: f64) -> (Metrics, f64) {
    let weight: f64 = recorded.values().map(|one| one.weight).sum();
    let sum: f64 = recorded.values().map(|one| one.weight * one.kl).sum();
    let kl = sum / weight.max(f64::MIN_POSITIVE);
    let mut metrics = named_metrics([("actor/reward_kl_penalty_coeff", coefficient)]);
    if !recorded.is_empty() {
        metrics.insert("actor/reward_kl_penalty".to_owned(), kl);
    }
    spread(&mut metrics, "critic/rewards", recorded.values().map(|one| one.reward));
    (metrics, kl)
}

/// Returns all rows as one batch, ordered by prompt and sample; `None` if there are no rows. Sums over a step then do not depend on the
/// order of arrival.
fn ordered(held: &[Batch]) -> Option<Batch> {
    let rows = sorted_by_id(held, |_| true);
    let schema = rows.first()?.batch.rows()?.schema();
    Some(Batch::from_columns(&schema, gather_first(&rows, schema.fields().len())))
}

/// Returns the column of advantages that a group estimator computes for the groups of `batch`. Each token has the advantage of its
/// response.
fn repeated_advantages(
    batch: &Batch,
    estimator: &dyn Advantage,
) -> Result<ArrayRef, EstimateError> {
    let prompts = batch.values::<UInt64Type>(column::PROMPT_ID).values();
    let scores = batch.values::<Float64Type>(column::SCORE).values();
    let tokens = batch.lists::<Int32Type>(column::RESPONSE_IDS);
    let mut responses = scores
        .iter()
        .enumerate()
        .map(|(row, &score)| ScoredResponse { score, tokens: tokens.get(row).len() });
    let mut rows = Vec::with_capacity(prompts.len());
    for members in prompts.chunk_by(|one, next| one == next) {
        let group: Vec<ScoredResponse> = responses.by_ref().take(members.len()).collect();
        let advantages = checked_advantages(estimator, members[0], &group)?;
        rows.extend(advantages.iter().zip(&group).map(|(one, of)| (*one as f32, of.tokens)));
    }
    Ok(repeated_lists(&rows))
}

/// Returns `batch` with the columns of the advantages and of the returns, which `estimates` holds in this order.
fn with_estimates(batch: &Batch, estimates: [ArrayRef; 2]) -> Batch {
    let rows = batch.rows().map(RecordBatch::columns).unwrap_or_default();
    // Without inference, the batch lacks the columns of inference. They are added with empty lists.
    let absent = schema::GROUPS.fields().len() - estimates.len() - rows.len();
    let nothing = (0..absent).map(|_| empty_lists::<Float32Type>(batch.num_rows()));
    let columns = rows.iter().cloned().chain(nothing).chain(estimates);
    Batch::from_columns(&schema::GROUPS, columns.collect())
}

#[cfg(test)]
mod tests {
    use arrow_array::{Float64Array, UInt64Array};
    use proptest::prelude::*;

    use super::*;
    use crate::advantage::Grpo;
    use crate::wire::blank;

    /// Generates short lengths, and lengths around 256, from which a list has its own buffer.
    fn lengths() -> impl Strategy<Value = usize> {
        prop_oneof![0_usize..5, 254_usize..258]
    }

    proptest! {
        #[test]
        fn repeated_advantages_are_those_of_the_estimates(
            groups in prop::collection::vec(
                prop::collection::vec((lengths(), -2.0_f64..2.0), 1..5),
                1..4,
            ),
        ) {
            let prompts = (0..).zip(&groups).flat_map(|(prompt, group)| group.iter().map(move |_| prompt));
            let prompts: ArrayRef = std::sync::Arc::new(UInt64Array::from_iter_values(prompts));
            let responses: Vec<(usize, f64)> = groups.concat();
            let scores = Float64Array::from_iter_values(responses.iter().map(|response| response.1));
            let ids = responses.iter().map(|response| vec![7; response.0]);
            let given = [
                (column::PROMPT_ID, prompts),
                (column::SCORE, std::sync::Arc::new(scores) as ArrayRef),
                (column::RESPONSE_IDS, owned_lists::<Int32Type>(ids)),
            ];
            let batch = blank::batch(&schema::SCORED, responses.len(), &given);
            let repeated = repeated_advantages(&batch, &Grpo::default()).expect("it keeps its contract");
            let empty = empty_lists::<Float32Type>(responses.len());
            let found = with_estimates(&batch, [repeated, empty]);
            let found = found.lists::<Float32Type>(column::ADVANTAGES);

            let trajectories = rewarded(&batch, false, None).trajectories;
            let estimates = Estimator::from(Grpo::default()).estimate(&trajectories);
            let estimates = estimates.expect("it keeps its contract");
            for (row, estimate) in estimates.iter().enumerate() {
                let expected: Vec<f32> = estimate.advantages.iter().map(|&one| one as f32).collect();
                prop_assert_eq!(found.get(row), expected.as_slice());
                prop_assert!(estimate.returns.is_empty());
            }
        }
    }

    #[test]
    fn a_step_without_responses_has_no_rewards() {
        let (metrics, kl) = measure(&BTreeMap::new(), 0.5);
        assert_eq!(metrics, [("actor/reward_kl_penalty_coeff".to_owned(), 0.5)].into());
        assert_eq!(kl, 0.0);
        let response = |reward| ResponseKl { weight: 1.0, kl: 0.25, reward };
        let recorded = [((0, 0), response(-1.0)), ((0, 1), response(3.0))].into();
        let (metrics, kl) = measure(&recorded, 0.5);
        let parts = ["mean", "max", "min"].map(|part| metrics[&format!("critic/rewards/{part}")]);
        assert_eq!((parts, kl), ([1.0, 3.0, -1.0], 0.25));
    }
}
