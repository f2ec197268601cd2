//! Connects a [placement policy](PlacementPolicy) to streams.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::types::{UInt8Type, UInt32Type, UInt64Type};
use arrow_array::{StringArray, UInt32Array};
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::fault::{Fault, Origin, give_fault};
use rollpacker_dataflow::frontier::{earliest, may_arrive};
use rollpacker_dataflow::operator::{Operator, Output};
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::snapshot::Part;
use rollpacker_dataflow::snapshot::RestoredSnapshot;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::Capability;

use super::fixed::NO_LEARNED_STATE;
use super::{Decision, Event, PlacementPolicy};
use crate::resume::part::read_bytes;
use crate::resume::{Resumable, ResumeError};
use crate::wire::action::LAUNCH;
use crate::wire::decision::RoundKind;
use crate::wire::decision::{ADMIT, CLOSE, OPEN};
use crate::wire::finish_reason::finish_reason;

/// The name of the operator in metrics and faults.
const NAME: &str = "placement";

/// The name of the snapshot part with the learned state of a placement policy.
const PART: &str = "placement";

/// Restores the learned state of a newly created placement policy from a snapshot. Does nothing if the snapshot has no learned state: the
/// earlier run had no placement policy, or one that learns nothing.
///
/// # Errors
/// If the snapshot cannot be read, or the policy rejects the state.
pub fn restore(
    restored: &RestoredSnapshot,
    policy: &mut dyn PlacementPolicy,
) -> Result<(), ResumeError> {
    let learned = read_bytes(restored, PART)?.filter(|learned| learned != NO_LEARNED_STATE);
    let Some(learned) = learned else { return Ok(()) };
    let refused = |reason| ResumeError::Refused { step: restored.step(), part: PART, reason };
    policy.restore(&learned).map_err(refused)
}

pub(crate) struct PlacementInputs<'scope> {
    pub(crate) policies: BatchStream<'scope>,
    pub(crate) requests: BatchStream<'scope>,
    pub(crate) responses: BatchStream<'scope>,
    pub(crate) decisions: BatchStream<'scope>,
}

/// A placement policy, and the number of devices against which its decisions are checked.
pub(crate) struct CheckedPlacement {
    pub(crate) policy: Box<dyn PlacementPolicy>,
    /// The number of devices of the job; `None` if generation and training may share devices.
    pub(crate) devices: Option<u32>,
}

impl CheckedPlacement {
    /// Returns the next decision, an error if the decision uses too many devices, or `None` if there is no decision. Without the check, a
    /// trainer would start as many threads as the decision asks for.
    fn poll(&mut self) -> Option<Result<Decision, Fault>> {
        let decision = self.policy.poll()?;
        let used = u64::from(decision.rollout.instances)
            * u64::from(decision.rollout.tensor_parallel)
            + u64::from(decision.training_devices);
        let exceeded = self.devices.filter(|&devices| used > devices.into());
        Some(exceeded.map_or(Ok(decision.clone()), |devices| {
            let rule = format!("expected at most {devices} devices in all, found {decision}");
            let message = format!("the placement policy violates its contract: {rule}");
            Err(Fault::new(NAME, Origin::Program, message))
        }))
    }
}

/// Installs the operator and returns batches of [`schema::PLACEMENTS`] and of [`schema::ERRORS`].
///
/// For progress tracking, the outputs depend only on policies, because requests, responses and decisions flow in a loop. The operator keeps
/// the capabilities of each step until no requests, responses or decisions of the step can arrive. It sends placements and errors with the
/// capabilities of the earliest step that it keeps.
pub(crate) fn place<'scope>(
    checked: CheckedPlacement,
    observed: PlacementInputs<'scope>,
    clock: Arc<dyn Clock>,
    resumable: &Resumable<'scope>,
) -> (BatchStream<'scope>, BatchStream<'scope>) {
    let mut operator = Operator::new(NAME, observed.policies.scope());
    let mut policies = operator.input(observed.policies, Pipeline, &schema::POLICIES);
    let mut requests = operator.input(observed.requests, Pipeline, &schema::REQUESTS);
    let mut responses = operator.input(observed.responses, Pipeline, &schema::RESPONSES);
    let mut decisions = operator.input(observed.decisions, Pipeline, &schema::DECISIONS);
    let (mut output, stream) = operator.output(&schema::PLACEMENTS, &[0]);
    let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[0]);
    let mut parts = resumable.register_first(PART, &mut operator);
    operator.build(move |capabilities| {
        parts.start(&capabilities);
        drop(capabilities);
        let (steps, decided) = (BTreeMap::new(), Vec::new());
        let mut driver = PlacementDriver { checked, clock, steps, decided, failed: None };
        move |frontiers| {
            policies.for_each(|capability, _| {
                // The policy of a step arrives from each worker; the first arrival begins the step.
                if !driver.steps.contains_key(capability.time()) {
                    let ports = [output.index(), errors.index()];
                    driver
                        .begin_step(*capability.time(), ports.map(|port| capability.retain(port)));
                }
            });
            // The order of the inputs matters: a round opens before it launches, and a response ends before it is admitted.
            let mut rounds = Vec::new();
            decisions.for_each(|capability, batch| rounds.push((*capability.time(), batch)));
            for (step, batch) in &rounds {
                // With snapshots, a round opens only when all events of the previous one have been delivered.
                parts.begin_step(*step, |_| driver.part());
                driver.deliver_opened(*step, batch);
            }
            requests
                .for_each(|capability, batch| driver.deliver_launches(*capability.time(), &batch));
            responses
                .for_each(|capability, batch| driver.deliver_responses(*capability.time(), &batch));
            rounds.iter().for_each(|(step, batch)| driver.deliver_decisions(*step, batch));
            driver.deliver_drained();
            driver.send_decisions(&mut output);
            driver.report_failure(&mut errors);
            // A step for which no requests, responses or decisions can arrive needs no further placement.
            driver.steps.retain(|step, _| may_arrive(&frontiers[1..], step));
            parts.advance_to(earliest(&frontiers[1..]), |_| driver.part());
        }
    });
    (stream, error_stream)
}

/// Delivers events to the policy, and collects its decisions.
struct PlacementDriver {
    checked: CheckedPlacement,
    clock: Arc<dyn Clock>,
    steps: BTreeMap<Step, RolloutProgress>,
    decided: Vec<Decision>,
    /// The violation that was not reported yet.
    failed: Option<Fault>,
}

/// The progress of a step's rollout, kept until none of its requests, responses or decisions can arrive.
struct RolloutProgress {
    /// The capabilities for placements and for errors.
    capabilities: [Capability<Step>; 2],
    launched: usize,
    ended: usize,
    closed: bool,
    drained: bool,
}

impl PlacementDriver {
    fn deliver(&mut self, event: Event) {
        self.checked.policy.on(self.clock.now(), event);
        while let Some(decision) = self.checked.poll() {
            match decision {
                Ok(decision) => self.decided.push(decision),
                Err(fault) => self.failed = self.failed.take().or(Some(fault)),
            }
        }
    }

    /// Returns the snapshot part with the learned state; empty if the policy cannot be saved.
    fn part(&self) -> Part {
        self.checked
            .policy
            .save()
            .map_or_else(Part::nothing, |learned| Part::bytes("json", learned))
    }

    fn begin_step(&mut self, step: Step, capabilities: [Capability<Step>; 2]) {
        let fresh =
            RolloutProgress { capabilities, launched: 0, ended: 0, closed: false, drained: false };
        self.steps.insert(step, fresh);
        self.deliver(Event::Policy { step });
    }

    fn deliver_opened(&mut self, step: Step, batch: &Batch) {
        let rounds = batch.text(column::ROUND);
        for (row, decision) in batch.text(column::DECISION).iter().enumerate() {
            if decision == Some(OPEN) {
                self.deliver(Event::Opened { step, round: round(rounds.value(row)) });
            }
        }
    }

    fn deliver_launches(&mut self, step: Step, batch: &Batch) {
        let actions = batch.values::<UInt8Type>(column::ACTION);
        let prompts = batch.values::<UInt64Type>(column::PROMPT_ID);
        let samples = batch.values::<UInt32Type>(column::SAMPLES);
        let prompt_lengths = batch.values::<UInt32Type>(column::PROMPT_LENGTH);
        for row in (0..batch.num_rows()).filter(|&row| actions.value(row) == LAUNCH) {
            let samples = samples.value(row);
            if let Some(progress) = self.steps.get_mut(&step) {
                progress.launched += samples as usize;
                progress.drained = false;
            }
            self.deliver(Event::Launched {
                step,
                prompt: PromptId(prompts.value(row)),
                samples,
                prompt_length: prompt_lengths.value(row),
            });
        }
    }

    fn deliver_responses(&mut self, step: Step, batch: &Batch) {
        let prompts = batch.values::<UInt64Type>(column::PROMPT_ID);
        let samples = batch.values::<UInt32Type>(column::SAMPLE);
        let tokens = batch.values::<UInt32Type>(column::RESPONSE_LENGTH);
        let resumed = batch.values::<UInt32Type>(column::RESUMED_LENGTH);
        let preemptions = batch.values::<UInt32Type>(column::PREEMPTIONS);
        let reasons = batch.text(column::FINISH_REASON);
        if let Some(progress) = self.steps.get_mut(&step) {
            progress.ended += batch.num_rows();
        }
        for row in 0..batch.num_rows() {
            let (prompt, sample) = (PromptId(prompts.value(row)), samples.value(row));
            self.deliver(Event::Response {
                id: SampleId { step, prompt, sample },
                tokens: tokens.value(row),
                resumed: resumed.value(row),
                finish_reason: finish_reason(reasons.value(row)),
                preemptions: preemptions.value(row),
            });
        }
    }

    fn deliver_decisions(&mut self, step: Step, batch: &Batch) {
        let prompts = batch.values::<UInt64Type>(column::PROMPT_ID);
        let admitted = batch.lists::<UInt32Type>(column::ADMITTED);
        for (row, decision) in batch.text(column::DECISION).iter().enumerate() {
            match decision {
                Some(ADMIT) => self.deliver(Event::Admitted {
                    step,
                    prompt: PromptId(prompts.value(row)),
                    samples: u32::try_from(admitted.get(row).len()).unwrap_or(u32::MAX),
                }),
                Some(CLOSE) => {
                    if let Some(progress) = self.steps.get_mut(&step) {
                        progress.closed = true;
                    }
                    self.deliver(Event::Closed { step });
                }
                _ => {}
            }
        }
    }

    /// Delivers [`Event::Drained`] for the steps whose rollout has drained since the last call.
    fn deliver_drained(&mut self) {
        let ended = |progress: &RolloutProgress| {
            progress.closed && !progress.drained && progress.ended == progress.launched
        };
        let drained: Vec<Step> = self
            .steps
            .iter()
            .filter(|(_, progress)| ended(progress))
            .map(|(&step, _)| step)
            .collect();
        for step in drained {
            if let Some(progress) = self.steps.get_mut(&step) {
                progress.drained = true;
            }
            self.deliver(Event::Drained { step });
        }
    }

    /// Sends the pending decisions at the earliest step in progress.
    fn send_decisions(&mut self, output: &mut Output) {
        if self.decided.is_empty() {
            return;
        }
        let Some(progress) = self.steps.values().next() else { return };
        output.give(&progress.capabilities[0], placement_batch(&std::mem::take(&mut self.decided)));
    }

    /// Reports a violation at the earliest step in progress.
    fn report_failure(&mut self, errors: &mut Output) {
        let Some(progress) = self.steps.values().next() else { return };
        if let Some(fault) = self.failed.take() {
            give_fault(errors, &progress.capabilities[1], fault);
        }
    }
}

fn placement_batch(decided: &[Decision]) -> Batch {
    let numbers =
        |of: fn(&Decision) -> u32| Arc::new(UInt32Array::from_iter_values(decided.iter().map(of)));
    Batch::from_columns(
        &schema::PLACEMENTS,
        vec![
            numbers(|decision| decision.rollout.instances),
            numbers(|decision| decision.rollout.tensor_parallel),
            numbers(|decision| decision.training_devices),
            Arc::new(StringArray::from_iter_values(
                decided.iter().map(|decision| decision.reason.as_str()),
            )),
        ],
    )
}

fn round(written: &str) -> RoundKind {
    [RoundKind::Full, RoundKind::Short, RoundKind::Long]
        .into_iter()
        .find(|round| round.as_str() == written)
        .expect("invariant: the schedule writes kinds of rounds only")
}
