//! A trainer that runs on its own thread.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::types::{Float32Type, Int32Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::bridge::{CallError, Reply, Service, ServiceThread};
use rollpacker_dataflow::clock::{Clock, Nanos, VirtualClock};
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::snapshot::RestoredSnapshot;
use rollpacker_dataflow::step::{PolicyVersion, PromptId, Step};
use rollpacker_stages::rollout::Policy;
use rollpacker_stages::train::{Inferred, Metrics, Partial, Sequence, TrainError, Trainer};

use crate::needed_outputs::NeededOutputs;
use crate::resume::ResumeError;

/// The name of the snapshot part with the trainer's state.
pub(crate) const PART: &str = "trainer";

/// Returns the file of the trainer's state in a snapshot.
///
/// # Errors
/// If the snapshot contains no trainer state.
pub fn state_file(restored: &RestoredSnapshot) -> Result<PathBuf, ResumeError> {
    let record = restored.records(PART).next();
    record.map(|record| restored.path(record)).ok_or_else(|| ResumeError::Refused {
        step: restored.step(),
        part: PART,
        reason: "the snapshot contains no trainer state".into(),
    })
}

/// Checks that the last of `policies`, which a trainer restored from a snapshot, is the policy that the next step trains.
///
/// # Errors
/// If `policies` is empty, or the version of the last policy is not the number of the next step.
pub fn check_current(restored: &RestoredSnapshot, policies: &[Policy]) -> Result<(), ResumeError> {
    let step = restored.step();
    let expected = PolicyVersion(step.next().0);
    let found = match policies.last() {
        Some(policy) if policy.version == expected => return Ok(()),
        Some(policy) => policy.version.to_string(),
        None => "no policy".to_owned(),
    };
    let reason =
        format!("expected the trainer to restore policies up to {expected}, found {found}");
    Err(ResumeError::Refused { step, part: PART, reason: reason.into() })
}

/// The error of a call of a trainer: an error that the trainer returned, or a panic of its thread.
pub type TrainerCallError = CallError<TrainError>;

/// A trainer and the service that runs its calls: a thread, or the caller itself in virtual time. The inference, gradient, reduce and
/// update operators share the trainer; their calls are executed in order.
pub struct TrainerThread {
    service: Service<TimedTrainer>,
    /// The step whose update comes next. It advances when the worker has received the policy of an update.
    next: Cell<Step>,
    /// Callbacks that run after every update.
    listeners: RefCell<Vec<Box<dyn Fn()>>>,
}

/// A trainer with its busy times, and the groups of later steps.
struct TimedTrainer {
    trainer: Box<dyn Trainer>,
    clock: Arc<dyn Clock>,
    /// The busy time of the inference since the last update.
    inferring: Nanos,
    /// The busy time of the accumulation since the last update.
    accumulating: Nanos,
    /// The last policy that was published, restored or produced by an update; `None` if there is none yet.
    published: Option<Policy>,
    /// The step whose update comes next.
    next: Step,
    /// Groups of steps after `next`. With staleness they may arrive before the update of `next`, and must not be accumulated into its
    /// gradient.
    early: Vec<(Step, Batch)>,
    /// An error of work that no caller waited for. The next inference, accumulation, update or removal of a gradient returns it.
    failed: Option<TrainError>,
}

impl TrainerThread {
    /// Starts the thread, and creates the trainer on it, because a trainer's resources may be bound to their thread. `clock` measures the
    /// busy times in the metrics.
    ///
    /// # Errors
    /// If `make` fails.
    ///
    /// # Panics
    /// If the system cannot start the thread, or `make` panics.
    pub fn spawn<E: Send + 'static>(
        clock: Arc<dyn Clock>,
        make: impl FnOnce() -> Result<Box<dyn Trainer>, E> + Send + 'static,
    ) -> Result<Self, E> {
        let service =
            ServiceThread::spawn("trainer", move || Ok(TimedTrainer::new(make()?, clock)))?;
        Ok(Self::new(Service::Thread(service)))
    }

    /// Creates a trainer in virtual time. Its work takes the virtual time that it [spends](VirtualClock::spend).
    #[must_use]
    pub fn in_virtual_time(clock: VirtualClock, trainer: Box<dyn Trainer>) -> Self {
        let timed = TimedTrainer::new(trainer, Arc::new(clock.clone()));
        Self::new(Service::in_virtual_time(clock, timed))
    }

    fn new(service: Service<TimedTrainer>) -> Self {
        Self { service, next: Cell::new(Step(0)), listeners: RefCell::default() }
    }

    /// Returns the step whose update comes next.
    pub(crate) fn next(&self) -> Step {
        self.next.get()
    }

    /// Registers a callback that runs after every update.
    pub(crate) fn on_update(&self, wake: impl Fn() + 'static) {
        self.listeners.borrow_mut().push(Box::new(wake));
    }

    pub(crate) fn record_update(&self, step: Step) {
        self.next.set(step.next());
        self.listeners.borrow().iter().for_each(|wake| wake());
    }

    /// Sets the number of devices that the trainer uses from the next call on.
    pub(crate) fn set_devices(&self, devices: u32) {
        // The reply carries nothing. If the thread has ended, the next call reports it.
        drop(self.service.call(|| {}, move |timed| timed.trainer.place(devices)));
    }

    /// Publishes the initial weights as version 0. Blocks until done.
    ///
    /// # Errors
    /// If the trainer fails, or its thread panicked.
    pub fn publish_initial(&self) -> Result<Policy, TrainerCallError> {
        self.publish(PolicyVersion(0))
    }

    /// Publishes the current weights as `version`. Blocks until done.
    ///
    /// # Errors
    /// If the trainer fails, or its thread panicked.
    pub fn publish(&self, version: PolicyVersion) -> Result<Policy, TrainerCallError> {
        self.call_blocking(move |timed| timed.publish(version))
    }

    /// Returns the last policy that was published, restored or produced by an update; publishes version 0 if there is none. Blocks until
    /// done.
    ///
    /// # Errors
    /// If the trainer fails, or its thread panicked.
    pub fn policy(&self) -> Result<Policy, TrainerCallError> {
        self.call_blocking(|timed| {
            timed.published.clone().map_or_else(|| timed.publish(PolicyVersion(0)), Ok)
        })
    }

    /// Writes the trainer's [state](Trainer::save_state) to `file`, after the updates that were requested so far. The reply is an error if
    /// the trainer cannot save its state. Calls `wake` when the reply is ready.
    pub fn save_state(
        &self,
        file: PathBuf,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Reply<Result<(), TrainError>> {
        self.service.call(wake, move |timed| timed.trainer.save_state(&file))
    }

    /// Restores a [state](Trainer::load_state) from `file` before the first step, and returns its policies, with the current policy last.
    /// Blocks until done. The next update is then the update of the step whose number is the version of the current policy.
    ///
    /// # Errors
    /// If the trainer fails, or its thread panicked.
    pub fn load_state(&self, file: PathBuf) -> Result<Vec<Policy>, TrainerCallError> {
        let policies = self.call_blocking(move |timed| timed.load_state(&file))?;
        if let Some(policy) = policies.last() {
            self.next.set(Step(policy.version.0));
        }
        Ok(policies)
    }

    /// Writes the weights to `folder` in the layout of a Hugging Face model. Blocks until done.
    ///
    /// # Errors
    /// If the trainer fails, or its thread panicked.
    pub fn save(&self, folder: PathBuf) -> Result<(), TrainerCallError> {
        self.call_blocking(move |timed| timed.trainer.save(&folder))
    }

    /// Runs the trainer's models on `groups`. The reply has one output per response, in the order of the rows. The reply is an error if the
    /// trainer fails, or if an output that is `needed` is missing or has the wrong length. Calls `wake` when the reply is ready.
    pub(crate) fn infer(
        &self,
        step: Step,
        groups: Batch,
        needed: NeededOutputs,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Reply<Result<Vec<Inferred>, TrainError>> {
        self.service.call(wake, move |timed| timed.infer(step, &groups, needed))
    }

    /// Accumulates the gradient of `groups`. If updates of earlier steps are still to come, the groups are stored, and accumulated after
    /// the update of the step before `step`. The reply is an error if the trainer fails, or if groups that were stored earlier could not be
    /// accumulated. Calls `wake` when the groups are accumulated or stored.
    pub(crate) fn accumulate(
        &self,
        step: Step,
        groups: Batch,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Reply<Result<(), TrainError>> {
        self.service.call(wake, move |timed| timed.accumulate(step, &groups))
    }

    /// Updates the weights at the end of `step`. The reply has the new policy and the metrics of the step. The reply is an error if the
    /// update fails, or if groups that were stored earlier cannot be accumulated. It is also an error if the version of the new policy is
    /// not the number of the next step. Calls `wake` when the reply is ready.
    pub(crate) fn update(
        &self,
        step: Step,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Reply<Result<(Policy, Metrics), TrainError>> {
        let reply = self.service.call(wake, move |timed| timed.update(step));
        // A separate call, so that the caller need not wait for it. An error is returned by the next call.
        drop(self.service.call(|| {}, TimedTrainer::catch_up));
        reply
    }

    /// Removes and returns the gradient that was accumulated for `step` since the last call. The gradient is empty if the update of an
    /// earlier step is still to come. The reply is an error if the trainer fails, or if groups that were stored for the step could not be
    /// accumulated. Calls `wake` when the reply is ready.
    pub fn take_partial(
        &self,
        step: Step,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Reply<Result<Partial, TrainError>> {
        self.service.call(wake, move |timed| timed.take_partial(step))
    }

    /// Sets the gradient of `step` to `sum`, the sum over all replicas, before the update. The reply is an error if the trainer rejects the
    /// sum. Calls `wake` when the reply is ready.
    pub fn put_sum(
        &self,
        step: Step,
        sum: Partial,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Reply<Result<(), TrainError>> {
        self.service.call(wake, move |timed| timed.trainer.put_sum(step, sum))
    }

    fn call_blocking<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut TimedTrainer) -> Result<R, TrainError> + Send + 'static,
    ) -> Result<R, TrainerCallError> {
        self.service.call(|| {}, work).wait_outcome()
    }
}

impl TimedTrainer {
    fn new(trainer: Box<dyn Trainer>, clock: Arc<dyn Clock>) -> Self {
        Self {
            trainer,
            clock,
            inferring: Nanos::default(),
            accumulating: Nanos::default(),
            published: None,
            next: Step(0),
            early: Vec::new(),
            failed: None,
        }
    }

    fn publish(&mut self, version: PolicyVersion) -> Result<Policy, TrainError> {
        let policy = self.trainer.publish(version)?;
        self.published = Some(policy.clone());
        Ok(policy)
    }

    fn load_state(&mut self, file: &Path) -> Result<Vec<Policy>, TrainError> {
        let policies = self.trainer.load_state(file)?;
        self.published = policies.last().cloned();
        // Step `n` begins with the policy of version `n`.
        self.next = Step(self.published.as_ref().map_or(0, |policy| policy.version.0));
        Ok(policies)
    }

    /// Accumulates the stored groups of step `next`, and keeps those of later steps. Keeps the first error for the next call.
    fn catch_up(&mut self) {
        for (step, groups) in std::mem::take(&mut self.early) {
            let outcome = self.accumulate(step, &groups);
            self.failed = self.failed.take().or(outcome.err());
        }
    }

    fn infer(
        &mut self,
        step: Step,
        groups: &Batch,
        needed: NeededOutputs,
    ) -> Result<Vec<Inferred>, TrainError> {
        self.failed.take().map_or(Ok(()), Err)?;
        let begun = self.clock.now();
        let sequences = scored_sequences(groups);
        let inferred = self.trainer.infer(step, &sequences)?;
        self.inferring.0 += self.clock.now().since(begun).0;
        needed.check(&sequences, &inferred)?;
        Ok(inferred)
    }

    fn accumulate(&mut self, step: Step, groups: &Batch) -> Result<(), TrainError> {
        self.failed.take().map_or(Ok(()), Err)?;
        if step > self.next {
            self.early.push((step, groups.clone()));
            return Ok(());
        }
        let begun = self.clock.now();
        self.trainer.accumulate(step, &sequences(groups))?;
        self.accumulating.0 += self.clock.now().since(begun).0;
        Ok(())
    }

    /// Removes and returns the gradient of `step`; empty if the update of an earlier step is still to come.
    fn take_partial(&mut self, step: Step) -> Result<Partial, TrainError> {
        self.failed.take().map_or(Ok(()), Err)?;
        if step > self.next {
            return Ok(Partial::default());
        }
        self.trainer.take_partial(step)
    }

    /// Updates the weights. Adds the busy time of the step to the trainer's own metrics.
    fn update(&mut self, step: Step) -> Result<(Policy, Metrics), TrainError> {
        // Set `next` first: otherwise `catch_up` would store the groups of this step again.
        self.next = step;
        self.catch_up();
        self.failed.take().map_or(Ok(()), Err)?;
        let begun = self.clock.now();
        let (policy, mut metrics) = self.trainer.update(step)?;
        let expected = PolicyVersion(step.next().0);
        if policy.version != expected {
            let reason = format!("expected the policy {expected}, found {}", policy.version);
            return Err(TrainError::Backend { operation: "update", reason });
        }
        self.next = step.next();
        self.published = Some(policy.clone());
        let inferring = std::mem::take(&mut self.inferring).as_secs_f64();
        if inferring > 0.0 {
            metrics.insert("timing_s/inference".to_owned(), inferring);
        }
        metrics.insert(
            "timing_s/gradient".to_owned(),
            std::mem::take(&mut self.accumulating).as_secs_f64(),
        );
        metrics.insert("timing_s/update".to_owned(), self.clock.now().since(begun).as_secs_f64());
        Ok((policy, metrics))
    }
}

/// Returns the responses of a batch of [`GROUPS`](rollpacker_dataflow::schema::GROUPS) as sequences for a trainer.
#[must_use]
pub fn sequences(groups: &Batch) -> Vec<Sequence<'_>> {
    let [advantages, ref_logprobs, values, returns] =
        [column::ADVANTAGES, column::REF_LOGPROBS, column::VALUES, column::RETURNS]
            .map(|name| groups.lists::<Float32Type>(name));
    let scored = scored_sequences(groups).into_iter().enumerate();
    scored
        .map(|(row, sequence)| Sequence {
            advantages: advantages.get(row),
            ref_logprobs: ref_logprobs.get(row),
            values: values.get(row),
            returns: returns.get(row),
            ..sequence
        })
        .collect()
}

/// Returns the responses of a batch of [`SCORED`](rollpacker_dataflow::schema::SCORED), without advantages, reference log-probabilities,
/// values and returns.
fn scored_sequences(groups: &Batch) -> Vec<Sequence<'_>> {
    let prompts = groups.lists::<Int32Type>(column::PROMPT_IDS);
    let tokens = groups.values::<UInt32Type>(column::RESPONSE_LENGTH);
    let responses = groups.lists::<Int32Type>(column::RESPONSE_IDS);
    let logprobs = groups.lists::<Float32Type>(column::LOGPROBS);
    let weights = groups.values::<Float32Type>(column::WEIGHT);
    let (ids, samples) = (
        groups.values::<UInt64Type>(column::PROMPT_ID),
        groups.values::<UInt32Type>(column::SAMPLE),
    );
    (0..groups.num_rows())
        .map(|row| Sequence {
            prompt: PromptId(ids.value(row)),
            sample: samples.value(row),
            prompt_ids: prompts.get(row),
            response_length: tokens.value(row),
            response_ids: responses.get(row),
            logprobs: logprobs.get(row),
            weight: weights.value(row),
            ..Sequence::default()
        })
        .collect()
}
