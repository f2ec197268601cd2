//! The trainer on libtorch. Unless a step has several updates, it accumulates the gradient as responses arrive, and divides it once by the
//! denominator of the loss.

mod held;
mod mini_batches;
mod models;
mod pass;
mod replica;
mod state;
mod threads;

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rollpacker_dataflow::step::{PolicyVersion, Step};
use rollpacker_dataflow::watchdog::ProgressCounter;
use rollpacker_stages::rollout::Policy;
use tch::Device;

use self::held::HeldStep;
use self::models::TrainerModels;
use self::pass::{Pass, Sums};
use self::threads::TrainerThreads;
use super::accumulation::Accumulation;
use super::config::TrainerConfig;
use super::critic::{Critic, ValueModel};
use super::head::Head;
use super::micro_batch::{PromptResponse, plan};
use super::mismatch;
use super::objective::Objective;
use super::optimizer::AdamW;
use super::step_updates::StepUpdates;
use super::tally::Unit;
use super::{Inferred, Metrics, Partial, Sequence, TrainError, Trainer};
use crate::model::{Decoder, WeightStore};

/// Minimum number of tokens of a micro-batch when micro-batches are made smaller so that every thread has one. Kernels on fewer tokens are
/// less efficient.
const MIN_MICRO_BATCH_TOKENS: usize = 512;

/// Policy-gradient training of a decoder.
///
/// The loss of a step is a sum over responses divided by a sum over responses ([`Aggregation`](super::config::Aggregation)). The gradient
/// of the numerator is accumulated as responses arrive, and the denominator in float64. [`update`](Trainer::update) divides the two. Up to
/// rounding, the result depends neither on the order of arrival nor on the micro-batches. With
/// [`deterministic`](TrainerConfig::deterministic), it is bit-identical for every order of arrival of the prompts.
///
/// With [`mini_batches`](TrainerConfig::mini_batches), responses are held until the step is over, with their log-probabilities under the
/// policy at the start of the step, and [`update`](Trainer::update) trains on one mini-batch after the other.
///
/// The reference is a copy of the initial weights. The critic starts from the same weights, unless [`with_critic`](Self::with_critic) sets
/// another model. Ratios are computed against log-probabilities of the engine or of the trainer
/// ([`OldLogprobs`](super::config::OldLogprobs)); the metrics `rollout_corr/*` and `training/rollout_*` report the difference between these
/// log-probabilities.
#[derive(Debug)]
pub struct TorchTrainer {
    config: TrainerConfig,
    objective: Objective,
    decoder: Decoder,
    /// The initial weights. Held only if a KL divergence from them is needed.
    reference: Option<Decoder>,
    critic: Option<Critic>,
    optimizer: AdamW,
    head: Head,
    store: WeightStore,
    /// The version that was published last.
    version: PolicyVersion,
    accumulated: Accumulation,
    /// The responses of a step with several updates.
    held: HeldStep,
    step_updates: StepUpdates,
    progress: ProgressCounter,
    threads: TrainerThreads,
}

impl TorchTrainer {
    /// Creates a trainer of `decoder`, on its device, that publishes to `store`.
    ///
    /// # Errors
    /// Returns an error if `config` names an unknown loss or estimator, or has a wrong option of one. Also returns the errors of
    /// [`with_objective`](Self::with_objective).
    pub fn new(
        decoder: Decoder,
        config: TrainerConfig,
        store: WeightStore,
    ) -> Result<Self, TrainError> {
        let objective = Objective::builtin(&config)?;
        Self::with_objective(decoder, config, store, objective)
    }

    /// Creates a trainer with a custom objective instead of the functions that `config` names.
    ///
    /// # Errors
    /// Returns an error if `config` combines options that exclude each other, or is deterministic on a device other than the CPU. Also
    /// returns an error if the device runs out of memory for the optimizer, reference or critic.
    pub fn with_objective(
        mut decoder: Decoder,
        config: TrainerConfig,
        store: WeightStore,
        objective: Objective,
    ) -> Result<Self, TrainError> {
        let failed = || TrainError::backend("setting up");
        if config.deterministic && decoder.device() != Device::Cpu {
            let operation = "be deterministic on a device whose kernels add in no fixed order";
            return Err(TrainError::Unsupported { operation });
        }
        let normalizes = config.rollout_is.is_some_and(|is| is.batch_normalize);
        if normalizes && (config.kl_loss_coef > 0.0 || config.entropy_coeff > 0.0) {
            let operation = "divide importance weights by their mean over the step if the loss has a KL term or an entropy bonus";
            return Err(TrainError::Unsupported { operation });
        }
        if normalizes && config.mini_batches.is_some() {
            let operation = "divide importance weights by their mean over the step if the step has several updates";
            return Err(TrainError::Unsupported { operation });
        }
        decoder.set_precision(config.dtype);
        let copy =
            || decoder.duplicate().map_err(TrainError::backend("copying the initial weights"));
        let reference = config.needs_reference().then(copy).transpose()?;
        let critic = match config.critic {
            Some(critic) => {
                let model = ValueModel::over(copy()?)?;
                Some(Critic::new(model, critic.optimizer, config.deterministic).map_err(failed())?)
            }
            None => None,
        };
        decoder.set_requires_grad(true);
        let optimizer = AdamW::new(config.optimizer, decoder.parameters()).map_err(failed())?;
        let head = Head::new(&decoder, config.temperature, config.entropy_coeff > 0.0);
        let (version, accumulated) = (PolicyVersion(0), Accumulation::new(config.deterministic));
        let threads = TrainerThreads::new(config.threads, decoder.device(), config.deterministic);
        Ok(Self {
            config,
            objective,
            decoder,
            reference,
            critic,
            optimizer,
            head,
            store,
            version,
            accumulated,
            held: HeldStep::default(),
            step_updates: StepUpdates::default(),
            progress: ProgressCounter::default(),
            threads,
        })
    }

    /// Replaces the critic by one that starts from `model` instead of the policy's initial weights. Does nothing if the configuration has
    /// no critic. Call this before the first step.
    ///
    /// # Errors
    /// Returns an error if the device runs out of memory for the optimizer of the critic.
    pub fn with_critic(mut self, mut model: ValueModel) -> Result<Self, TrainError> {
        let Some(config) = self.config.critic else { return Ok(self) };
        model.set_precision(self.config.dtype);
        // Frees the memory of the replaced critic before the optimizer of the new one is allocated.
        self.critic = None;
        let critic = Critic::new(model, config.optimizer, self.config.deterministic)
            .map_err(TrainError::backend("setting up"))?;
        self.critic = Some(critic);
        Ok(self)
    }

    /// Records progress in `progress` before every micro-batch, so that the watchdog detects progress.
    #[must_use]
    pub fn with_progress(self, progress: ProgressCounter) -> Self {
        Self { progress, ..self }
    }

    /// Makes [`place`](Trainer::place) set the number of threads: `threads` for each device that trains, but at least
    /// [`TrainerConfig::threads`]. Without this, a placement does not change the number of threads.
    #[must_use]
    pub fn with_threads_per_device(self, threads: usize) -> Self {
        Self { threads: self.threads.with_threads_per_device(threads), ..self }
    }

    /// Returns the policy with its current weights.
    #[must_use]
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    fn publish_version(&mut self, version: PolicyVersion) -> Result<Policy, TrainError> {
        self.version = version;
        let weights = self.decoder.snapshot().map_err(TrainError::backend("publishing weights"))?;
        Ok(self.store.publish(version, weights))
    }

    /// Calls `work` with each of `batches` on the threads of the trainer. Returns the results in the order of the batches.
    fn on_threads<T: Send, R: Send>(
        &mut self,
        batches: Vec<T>,
        work: impl Fn(Pass<'_>, T) -> Result<R, TrainError> + Sync,
    ) -> Result<Vec<R>, TrainError> {
        self.prepare_threads();
        let Self { config, objective, head, threads, .. } = self;
        let (config, objective, head) = (&*config, &*objective, *head);
        threads.run(batches, |models, batch| work(Pass { config, objective, head, models }, batch))
    }

    fn prepare_threads(&mut self) {
        let Self { decoder, reference, critic, .. } = self;
        self.threads
            .init_models(|| TrainerModels::of(decoder, reference.as_ref(), critic.as_ref()));
    }

    /// Returns the micro-batches of some sequences, with the indices of their sequences. Sequences without response tokens are left out.
    fn micro_batches<'a>(
        &self,
        sequences: &[Sequence<'a>],
    ) -> Vec<(Vec<usize>, Vec<Sequence<'a>>)> {
        let units = if self.config.deterministic {
            groups(sequences)
        } else {
            vec![(0..sequences.len()).collect()]
        };
        let budget = self.config.micro_batch_tokens;
        let batches = |unit: Vec<usize>| {
            let pairs: Vec<_> = unit.iter().map(|&at| PromptResponse::of(&sequences[at])).collect();
            let batches = plan(&pairs, budget, |tokens| self.micro_batch_count(tokens)).into_iter();
            batches.map(move |members| members.into_iter().map(|at| unit[at]).collect::<Vec<_>>())
        };
        let with_sequences = |members: Vec<usize>| {
            let sequences = members.iter().map(|&at| sequences[at]).collect();
            (members, sequences)
        };
        units.into_iter().flat_map(batches).map(with_sequences).collect()
    }

    /// Returns the number of micro-batches into which `tokens` tokens are divided: a multiple of the threads, or fewer if the micro-batches
    /// would be too small. Returns 1 with a single thread, and in deterministic mode, in which the number must not depend on the threads.
    fn micro_batch_count(&self, tokens: usize) -> usize {
        let threads = self.threads.micro_batch_threads();
        if threads == 1 || self.config.deterministic {
            return 1;
        }
        let batches = tokens.div_ceil(self.config.micro_batch_tokens.max(1));
        batches.next_multiple_of(threads).min((tokens / MIN_MICRO_BATCH_TOKENS).max(1))
    }

    /// Adds the gradient of some sequences, in micro-batches. `held` has the responses of a step with several updates; `None` in a step
    /// with one update.
    fn accumulate_all(
        &mut self,
        sequences: &[Sequence<'_>],
        step: Step,
        held: Option<&HeldStep>,
    ) -> Result<(), TrainError> {
        let batches = self.micro_batches(sequences);
        self.prepare_threads();
        let Self { config, objective, head, threads, progress, accumulated, critic, .. } = self;
        let (config, objective, head) = (&*config, &*objective, *head);
        let critic = critic.as_mut().map(|critic| &mut critic.accumulated);
        let sums = Mutex::new(Sums { policy: accumulated, critic });
        threads.run(batches, |models, (_, sequences)| {
            progress.record();
            let pass = Pass { config, objective, head, models };
            let of_batch = pass.accumulate(step, &sequences, held)?;
            let first = sequences.first().map_or_else(Unit::default, Unit::of);
            sums.lock().unwrap_or_else(PoisonError::into_inner).add(models, first, &of_batch)
        })?;
        Ok(())
    }

    /// Applies the accumulated gradients, first those of the critic and then those of the policy, and clears them. The policy does not
    /// change if no response carries loss. Returns an error if a gradient or the value loss is not finite, or an operation fails. Also
    /// returns the errors of [`Accumulation::tally`].
    fn apply(&mut self, step: Step) -> Result<(), TrainError> {
        let failed = || TrainError::backend("updating weights");
        self.threads.collect_gradients().map_err(failed())?;
        self.critic.as_mut().map_or(Ok(()), |critic| critic.update(step))?;
        let (tally, parameters) = (self.accumulated.tally()?, self.decoder.parameters());
        if tally.denominator() <= 0.0 {
            self.accumulated.clear(parameters).map_err(failed())?;
            self.step_updates.add(&tally, None);
            return Ok(());
        }
        let divisor = tally.policy_divisor();
        let gradient = self.accumulated.mean(parameters, divisor).map_err(failed())?;
        self.accumulated.clear(parameters).map_err(failed())?;
        let update = self.optimizer.update_by(parameters, gradient).map_err(failed())?;
        if !update.is_applied() {
            return Err(TrainError::NotFinite { step, quantity: "gradient" });
        }
        self.step_updates.add(&tally, Some(update));
        Ok(())
    }

    /// Ends a step, and advances the learning-rate schedules of the models that the step has changed. Returns the metrics of the step.
    fn end_step(&mut self) -> Metrics {
        let step_updates = std::mem::take(&mut self.step_updates);
        let mut metrics = self.critic.as_mut().map(Critic::end_step).unwrap_or_default();
        metrics.extend(step_updates.metrics("actor"));
        metrics.extend(mismatch::derived(step_updates.sums()));
        if self.config.mini_batches.is_some() {
            metrics.insert("actor/updates".to_owned(), step_updates.count() as f64);
        }
        if step_updates.is_updated() {
            self.optimizer.end_step();
            if self.config.kl_loss_coef > 0.0 {
                metrics.insert("actor/kl_coef".to_owned(), self.config.kl_loss_coef);
            }
        }
        metrics
    }

    fn check(&self, at: usize, sequence: &Sequence<'_>) -> Result<(), TrainError> {
        check(at, sequence)?;
        let tokens = sequence.response_ids.len();
        let wanted = self.critic.as_ref().map_or(0, |_| tokens);
        match sequence {
            s if s.advantages.len() != tokens => {
                refuse(at, "advantages", tokens.to_string(), s.advantages.len())
            }
            s if s.values.len() != wanted => {
                refuse(at, "values", wanted.to_string(), s.values.len())
            }
            s if wanted > 0 && s.returns.len() != wanted => {
                refuse(at, "returns", wanted.to_string(), s.returns.len())
            }
            _ => Ok(()),
        }
    }
}

impl Trainer for TorchTrainer {
    fn publish(&mut self, version: PolicyVersion) -> Result<Policy, TrainError> {
        self.publish_version(version)
    }

    fn infer(
        &mut self,
        step: Step,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<Inferred>, TrainError> {
        sequences.iter().enumerate().try_for_each(|(at, sequence)| check(at, sequence))?;
        // Responses without tokens are in no micro-batch.
        let mut all = vec![Inferred::default(); sequences.len()];
        let progress = self.progress.clone();
        let batches = self.micro_batches(sequences);
        let inferred = self.on_threads(batches, |pass, (members, sequences)| {
            progress.record();
            let inferred = pass.infer(&sequences).map_err(TrainError::backend("inference"))?;
            Ok(members.into_iter().zip(inferred).collect::<Vec<_>>())
        })?;
        for (at, one) in inferred.into_iter().flatten() {
            let mut numbers = one.reward_kl.iter().chain(&one.values);
            if !numbers.all(|number| number.is_finite()) {
                return Err(TrainError::NotFinite { step, quantity: "KL divergence or value" });
            }
            all[at] = one;
        }
        Ok(all)
    }

    fn accumulate(&mut self, step: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError> {
        sequences.iter().enumerate().try_for_each(|(at, sequence)| self.check(at, sequence))?;
        match self.config.mini_batches {
            Some(_) => self.hold(step, sequences),
            None => self.accumulate_all(sequences, step, None),
        }
    }

    fn update(&mut self, step: Step) -> Result<(Policy, Metrics), TrainError> {
        self.threads.set_operation_threads();
        match self.config.mini_batches {
            Some(mini_batches) => self.update_by_mini_batches(step, mini_batches)?,
            None => self.apply(step)?,
        }
        let mut metrics = self.end_step();
        metrics.extend(self.threads.take_metric());
        Ok((self.publish_version(PolicyVersion(step.next().0))?, metrics))
    }

    fn take_partial(&mut self, _step: Step) -> Result<Partial, TrainError> {
        self.threads.set_operation_threads();
        self.take()
    }

    fn put_sum(&mut self, _step: Step, sum: Partial) -> Result<(), TrainError> {
        self.put(sum)
    }

    fn place(&mut self, devices: u32) {
        self.threads.place(devices);
    }

    fn save(&mut self, folder: &Path) -> Result<(), TrainError> {
        self.decoder.save(folder)?;
        match &self.critic {
            Some(critic) => Ok(critic.save(&folder.join(ValueModel::FOLDER))?),
            None => Ok(()),
        }
    }

    fn save_state(&mut self, file: &Path) -> Result<(), TrainError> {
        self.write_state(file)
    }

    fn load_state(&mut self, file: &Path) -> Result<Vec<Policy>, TrainError> {
        self.read_state(file)
    }
}

/// Returns the indices of the sequences of each prompt, in the order of their samples. In deterministic mode, the sequences of a prompt are
/// computed together, independent of the other sequences of the call.
fn groups(sequences: &[Sequence<'_>]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..sequences.len()).collect();
    order.sort_by_key(|&at| Unit::of(&sequences[at]));
    order
        .chunk_by(|&a, &b| sequences[a].prompt == sequences[b].prompt)
        .map(<[usize]>::to_vec)
        .collect()
}

fn check(at: usize, sequence: &Sequence<'_>) -> Result<(), TrainError> {
    let tokens = sequence.response_ids.len();
    match sequence {
        s if s.prompt_ids.is_empty() => refuse(at, "prompt_ids", "at least 1".to_owned(), 0),
        s if s.response_length as usize != tokens => {
            refuse(at, "response_ids", s.response_length.to_string(), tokens)
        }
        s if s.logprobs.len() != tokens => {
            refuse(at, "logprobs", tokens.to_string(), s.logprobs.len())
        }
        _ => Ok(()),
    }
}

fn refuse(
    at: usize,
    field: &'static str,
    expected: String,
    found: usize,
) -> Result<(), TrainError> {
    Err(TrainError::Sequence { at, field, expected, found })
}

#[cfg(test)]
mod tests;
