//! The update operator: applies the optimizer once per step, when the frontier has passed the step.

use std::collections::BTreeMap;

use rollpacker_dataflow::batch::BatchStream;
use rollpacker_dataflow::bridge::Reply;
use rollpacker_dataflow::fault::{Fault, give_fault};
use rollpacker_dataflow::frontier::{earliest, may_arrive};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema;
use rollpacker_dataflow::snapshot::{Draft, Part};
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::{Capability, Concat, InputCapability};
use rollpacker_dataflow::timely::progress::frontier::MutableAntichain;
use rollpacker_dataflow::watchdog::{WaitGuard, WaitHandle};
use rollpacker_stages::rollout::Policy;
use rollpacker_stages::train::{Metrics, TrainError};

use crate::gradient::Gradients;
use crate::policy::{metrics_batch, policy_batch};
use crate::streams::StepStreams;
use crate::trainer::{self, TrainerCallError, TrainerThread};

/// The output streams of an update: the published policies, and the metrics, errors and warnings of the step.
pub struct Updates<'scope> {
    /// Batches of [`schema::POLICIES`]: one row per step, at the step that produced it.
    pub policies: BatchStream<'scope>,
    /// Batches of [`schema::METRICS`]: the metrics of the update and of all operators before.
    pub metrics: BatchStream<'scope>,
    /// Batches of [`schema::ERRORS`]: the errors of the update and of all operators before, which end the run.
    pub errors: BatchStream<'scope>,
    /// Batches of [`schema::ERRORS`] that do not end the run; see [`fault::warn`](rollpacker_dataflow::fault::warn).
    pub warnings: BatchStream<'scope>,
}

/// Applies updates.
///
/// The example feeds the policies back, so that the round of the next step opens:
///
/// ```
/// # mod step {
/// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/step.rs"));
/// # }
/// # use step::{Engine, clock, initial_policy, lengths, numbers, prompts, rounds, run, trainer};
/// use arrow_array::types::UInt64Type;
/// use rollpacker_dataflow::bridge::Executor;
/// use rollpacker_dataflow::fault::raise;
/// use rollpacker_dataflow::feedback;
/// use rollpacker_dataflow::schema::column;
/// use rollpacker_operators::advantage::Grpo;
/// use rollpacker_operators::*;
/// use rollpacker_stages::reward::Limits;
///
/// // Six prompts are three rounds of two prompts with two responses each.
/// let (trainer, gradients) = trainer();
/// let policies = run(|scope, faults| {
///     let (policies, weights) = feedback::policies(scope, 0, initial_policy());
///     let updates = prompts(scope, 6)
///         .schedule(rounds())
///         .rollout(Engine::default(), &policies, clock())
///         .reward(lengths(), Limits::default(), Executor::Inline, clock())
///         .group()
///         .advantage(Grpo::default())
///         .gradient(trainer)
///         .update();
///     raise(updates.errors, faults);
///     weights.connect(updates.policies.clone());
///     updates.policies
/// });
/// assert_eq!(numbers::<UInt64Type>(&policies, column::POLICY_VERSION), [1, 2, 3]);
/// assert_eq!(gradients.iter().collect::<Vec<_>>(), [4, 4, 4], "responses per update");
/// ```
pub trait UpdateExt<'scope> {
    /// Updates the policy once per step, in the order of steps, including steps without admitted groups. If an update fails, the run ends
    /// with an error.
    fn update(self) -> Updates<'scope>;
}

struct Capabilities {
    policies: Capability<Step>,
    metrics: Capability<Step>,
    errors: Capability<Step>,
}

/// The new policy and the metrics of an update, or its error.
type UpdateResult = Result<(Policy, Metrics), TrainerCallError>;

struct RunningUpdate {
    capabilities: Capabilities,
    reply: Reply<Result<(Policy, Metrics), TrainError>>,
    _awaited: WaitGuard,
}

impl<'scope> UpdateExt<'scope> for Gradients<'scope> {
    fn update(self) -> Updates<'scope> {
        let Gradients { accumulated, streams, trainer, .. } = self;
        let StepStreams { decisions, warnings, resumable, .. } = streams;
        let (earlier_metrics, earlier) = (streams.metrics, streams.errors);
        let mut operator = Operator::new("update", accumulated.scope());
        let mut accumulated = operator.input(accumulated, Pipeline, &schema::GROUPS);
        let mut decisions = operator.input(decisions, Pipeline, &schema::DECISIONS);
        let (mut policies, policy_stream) = operator.output(&schema::POLICIES, &[0, 1]);
        let (mut metrics, metric_stream) = operator.output(&schema::METRICS, &[0, 1]);
        let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[0, 1]);
        let policy_stream = operator.end_spans_by(policy_stream);
        let mut parts = resumable.register_first(trainer::PART, &mut operator);
        let (wake, awaits) = (operator.waker(), operator.wait_handle());
        operator.build(move |capabilities| {
            parts.start(&capabilities);
            drop(capabilities);
            let mut open: BTreeMap<Step, Capabilities> = BTreeMap::new();
            let mut running: Option<RunningUpdate> = None;
            let mut failed = None;
            move |frontiers| {
                let retain = |capability: &InputCapability<Step>| Capabilities {
                    policies: capability.retain(policies.index()),
                    metrics: capability.retain(metrics.index()),
                    errors: capability.retain(errors.index()),
                };
                accumulated.for_each(|capability, _| {
                    open.entry(*capability.time()).or_insert_with(|| retain(&capability));
                });
                // Decisions open steps without admitted groups.
                decisions.for_each(|capability, _| {
                    open.entry(*capability.time()).or_insert_with(|| retain(&capability));
                });
                if let Some((done, outcome)) = take_reply(&mut running) {
                    match outcome {
                        Ok((policy, measured)) => {
                            trainer.record_update(*done.capabilities.policies.time());
                            metrics.give(&done.capabilities.metrics, metrics_batch(&measured));
                            policies.give(&done.capabilities.policies, policy_batch(&policy));
                        }
                        Err(error) => {
                            give_fault(
                                &mut errors,
                                &done.capabilities.errors,
                                Fault::of("update", &error),
                            );
                            // Keep the capabilities: the step must not complete.
                            failed = Some(done);
                        }
                    }
                }
                let state = |draft: &Draft<'_>| state(&trainer, draft);
                if running.is_none()
                    && failed.is_none()
                    && let Some(capabilities) = complete(&mut open, frontiers)
                {
                    let step = *capabilities.policies.time();
                    parts.begin_step(step, state);
                    running = Some(start(&trainer, capabilities, wake.clone(), &awaits));
                    // The state must be requested after this update and before the next one.
                    parts.advance_to(Some(step.next()), state);
                }
                parts.advance_to(first_open(&open, frontiers), state);
            }
        });
        Updates {
            policies: policy_stream,
            metrics: earlier_metrics.concat(metric_stream),
            errors: earlier.concat(error_stream),
            warnings,
        }
    }
}

/// Removes and returns the capabilities of the first open step, if the frontiers have passed it.
fn complete(
    open: &mut BTreeMap<Step, Capabilities>,
    frontiers: &[MutableAntichain<Step>],
) -> Option<Capabilities> {
    let first = open.first_entry()?;
    (!may_arrive(frontiers, first.key())).then(|| first.remove())
}

/// Returns the first step that may still be updated; `None` if the inputs have ended and no step is open.
fn first_open(
    open: &BTreeMap<Step, Capabilities>,
    frontiers: &[MutableAntichain<Step>],
) -> Option<Step> {
    earliest(frontiers).into_iter().chain(open.keys().next().copied()).min()
}

/// Returns a snapshot part with the trainer's state after the updates that were requested so far.
fn state(trainer: &TrainerThread, draft: &Draft<'_>) -> Part {
    draft.external("safetensors", |file| {
        let reply = trainer.save_state(file.to_owned(), || {});
        move || reply.wait_outcome()
    })
}

fn start(
    trainer: &TrainerThread,
    capabilities: Capabilities,
    wake: impl Fn() + Send + Sync + 'static,
    awaits: &WaitHandle,
) -> RunningUpdate {
    let step = *capabilities.policies.time();
    let _awaited = awaits.hold(step, || "the trainer to update");
    RunningUpdate { reply: trainer.update(step, wake), capabilities, _awaited }
}

fn take_reply(running: &mut Option<RunningUpdate>) -> Option<(RunningUpdate, UpdateResult)> {
    let outcome = running.as_ref()?.reply.poll_outcome()?;
    Some((running.take()?, outcome))
}
