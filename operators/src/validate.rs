//! Validation: measures a policy on prompts that are never trained on.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use futures::future::join_all;
use rollpacker_dataflow::batch::BatchStream;
use rollpacker_dataflow::bridge::{CallError, Reply, ServiceThread};
use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::fault::{Fault, FaultKind, HasOrigin, Origin, give_fault};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema;
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::{Capability, Concat};
use rollpacker_dataflow::watchdog::{ProgressCounter, WaitGuard};
use rollpacker_stages::reward::{
    Context, Limits, MAX_TOLERATED, OnError, RewardError, Router, Sample, Score,
};
use rollpacker_stages::rollout::{
    CheckedEngine, Completion, Policy, Request, RolloutEngine, RolloutError, RolloutEvent,
};
use rollpacker_stages::train::Metrics;
use tokio::runtime::Handle;

use crate::policy::{metrics_batch, policy_batch, policy_of};
use crate::prompts::PromptRow;
use crate::reward::describe;
use crate::update::Updates;

/// The scores and lengths of a policy's responses to the validation prompts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValidationResult {
    /// Mean score over all responses, except responses that an error excludes ([`OnError::Tolerate`], [`OnError::DropGroup`]). `None` if no
    /// response is left.
    pub score: Option<f64>,
    /// Mean score per data source. A source whose responses are all excluded is missing.
    pub by_source: BTreeMap<String, f64>,
    /// Mean response length, in tokens; 0 if there are no responses.
    pub mean_length: f64,
    /// Length of the longest response, in tokens; 0 if there are no responses.
    pub longest: usize,
    /// The number of responses whose reward failed. Depending on `on_error` of the route, they count as 0 or are excluded.
    pub reward_errors: usize,
    /// The responses, sorted by prompt and then by sample.
    pub responses: Vec<ValidatedResponse>,
}

/// A response of a validation.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidatedResponse {
    /// The response, with the columns of its dataset row.
    pub sample: Sample,
    /// The score, or the error of the reward.
    pub score: Result<Score, RewardError>,
}

/// The reason why a policy cannot be validated.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ValidationError {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] RolloutError),
    /// A reward whose errors end the run failed, or a reward whose errors are tolerated failed too often.
    #[error("{prompt}: {}", describe(error, data_source))]
    Reward {
        /// The position of the prompt in the validation data, from 0.
        prompt: PromptId,
        /// The data source that selected the reward.
        data_source: String,
        /// The error of the reward.
        error: RewardError,
    },
    /// The file of the validated responses cannot be written.
    #[error("responses of the validation: {reason}")]
    Record {
        /// The cause, including the name of the file.
        reason: String,
    },
    /// This worker does not validate.
    #[error("another worker validates")]
    OtherWorker,
}

impl HasOrigin for ValidationError {
    fn origin(&self) -> Origin {
        match self {
            Self::Engine(error) => error.origin(),
            Self::Reward { error, .. } => error.origin(),
            Self::Record { .. } => Origin::Environment,
            Self::OtherWorker => Origin::Program,
        }
    }

    fn kind(&self) -> FaultKind {
        match self {
            Self::Engine(error) => error.kind(),
            _ => FaultKind::Failure,
        }
    }
}

/// A validator that measures policies on a fixed set of prompts, with an engine of its own.
///
/// Validation uses no random numbers of the training. Each response is seeded by its prompt and sample, so that two policies, or two
/// recipes, are compared on the same random numbers.
pub struct Validator {
    engine: CheckedEngine,
    router: Router,
    runtime: Handle,
    clock: Arc<dyn Clock>,
    prompts: Vec<PromptRow>,
    samples: u32,
    limits: Limits,
    progress: ProgressCounter,
}

impl Validator {
    /// Creates a validator that answers each of `prompts` once with `engine` and scores the responses with `router`. The rewards run on
    /// `runtime` and receive `clock`. Group rewards are not used: a score does not depend on the other responses to the prompt.
    #[must_use]
    pub fn new(
        engine: Box<dyn RolloutEngine>,
        router: Router,
        runtime: Handle,
        clock: Arc<dyn Clock>,
        prompts: Vec<PromptRow>,
    ) -> Self {
        Self {
            engine: CheckedEngine::new(engine),
            router,
            runtime,
            clock,
            prompts,
            samples: 1,
            limits: Limits::default(),
            progress: ProgressCounter::default(),
        }
    }

    /// Sets the number of responses to each prompt. Default: 1.
    #[must_use]
    pub fn with_samples(self, samples: u32) -> Self {
        Self { samples, ..self }
    }

    /// Sets the time limits of test cases. They are the same for every policy, so that the executions of one policy do not limit another.
    /// Default: `Limits::default()`.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Records progress in `progress` whenever a response is generated or scored, so that the watchdog detects it.
    #[must_use]
    pub fn with_progress(self, progress: ProgressCounter) -> Self {
        Self { progress, ..self }
    }

    /// Validates a policy. Blocks until all responses are generated and scored.
    ///
    /// # Errors
    /// If the engine fails or violates its [contract](RolloutEngine), or if a reward whose errors end the run fails. Also if a reward whose
    /// errors are tolerated scores no response of a data source and fails [`MAX_TOLERATED`] times or more.
    ///
    /// # Panics
    /// If called from an asynchronous task, or if a reward panics.
    pub fn validate(&mut self, policy: &Policy) -> Result<ValidationResult, ValidationError> {
        let completions = self.generate(policy)?;
        let samples: Vec<Sample> =
            completions.iter().map(|completion| self.sample(completion)).collect();
        let scores = samples.iter().map(|sample| self.score(sample));
        let scores = self.runtime.block_on(join_all(scores));
        let mut outcome = ValidationResult::default();
        let mut sources: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        // The number of tolerated errors per data source, and the first of them.
        let mut tolerated: BTreeMap<&str, (u32, ValidationError)> = BTreeMap::new();
        for (sample, score) in samples.iter().zip(&scores) {
            let tokens = sample.response_length as usize;
            outcome.mean_length += tokens as f64 / samples.len() as f64;
            outcome.longest = outcome.longest.max(tokens);
            let on_error = self.router.on_error_of(&sample.data_source);
            outcome.reward_errors += usize::from(score.is_err());
            let value = match score {
                Ok(score) => score.total(),
                Err(_) if on_error == OnError::Zero => 0.0,
                Err(error) => {
                    let (prompt, data_source) = (sample.id.prompt, sample.data_source.clone());
                    let error = error.clone();
                    let error = ValidationError::Reward { prompt, data_source, error };
                    if on_error == OnError::Fail {
                        return Err(error);
                    }
                    if on_error == OnError::Tolerate {
                        tolerated.entry(&sample.data_source).or_insert((0, error)).0 += 1;
                    }
                    continue;
                }
            };
            let (sum, count) = sources.entry(&sample.data_source).or_default();
            (*sum, *count) = (*sum + value, *count + 1.0);
        }
        // A source with many errors and no score has a broken reward.
        let is_broken = |(source, (errors, _)): &(&str, (u32, ValidationError))| {
            *errors >= MAX_TOLERATED && !sources.contains_key(source)
        };
        if let Some((_, (_, error))) = tolerated.into_iter().find(is_broken) {
            return Err(error);
        }
        let all = sources.values().fold((0.0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1));
        outcome.score = (all.1 > 0.0).then(|| all.0 / all.1);
        outcome.by_source = sources
            .into_iter()
            .map(|(source, (sum, count))| (source.to_owned(), sum / count))
            .collect();
        let responses = samples.into_iter().zip(scores);
        outcome.responses =
            responses.map(|(sample, score)| ValidatedResponse { sample, score }).collect();
        Ok(outcome)
    }

    async fn score(&self, sample: &Sample) -> Result<Score, RewardError> {
        let context = Context::new(self.clock.clone()).with_limits(self.limits.clone());
        let score = self.router.score(sample, &context).await;
        self.progress.record();
        score
    }

    fn generate(&mut self, policy: &Policy) -> Result<Vec<Completion>, RolloutError> {
        let waiting = std::thread::current();
        self.engine.wake_by(Arc::new(move || waiting.unpark()));
        self.engine.load(policy);
        for (prompt, row) in (0..).map(PromptId).zip(&self.prompts) {
            let prompt_ids = row.prompt_ids.as_slice().into();
            self.engine.generate(Request {
                step: Step(0),
                prompt,
                samples: 0..self.samples,
                prompt_ids,
                resumed: Vec::new(),
            });
        }
        let all = self.prompts.len() * self.samples as usize;
        let mut completions = Vec::with_capacity(all);
        while completions.len() < all {
            match self.engine.poll() {
                Some(RolloutEvent::Completed(completion)) => {
                    self.progress.record();
                    completions.push(completion);
                }
                Some(RolloutEvent::Failed(error)) => return Err(error),
                None => std::thread::park(),
            }
        }
        completions.sort_unstable_by_key(|completion| completion.id);
        Ok(completions)
    }

    fn sample(&self, completion: &Completion) -> Sample {
        let index =
            usize::try_from(completion.id.prompt.0).expect("invariant: prompts are counted from 0");
        let row = &self.prompts[index];
        Sample {
            id: completion.id,
            row: row.row,
            data_source: row.data_source.clone(),
            messages: row.messages.clone(),
            response: completion.text.clone(),
            response_length: completion.response_length,
            response_ids: completion.response_ids.clone(),
            ground_truth: row.ground_truth.clone(),
            extra_info: row.extra_info.clone(),
            finish_reason: completion.finish_reason,
            own_score: None,
        }
    }
}

/// A function that validates a policy and returns metrics. It should return its duration in seconds as the metric `timing_s/testing`, which
/// is not counted as time of the step.
pub type ValidatePolicy = Box<dyn FnMut(&Policy) -> Result<Metrics, ValidationError>>;

/// A thread that validates policies with a function, usually one that calls a [`Validator`].
pub type ValidatorThread = ServiceThread<ValidatePolicy>;

/// Validates policies.
///
/// ```
/// # mod step {
/// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/step.rs"));
/// # }
/// # use step::{groups, metric, run, trainer};
/// use std::convert::Infallible;
/// use std::rc::Rc;
///
/// use rollpacker_operators::advantage::Grpo;
/// use rollpacker_operators::validate::{ValidateExt, ValidatePolicy, ValidatorThread};
/// use rollpacker_operators::{AdvantageExt, GradientExt, UpdateExt};
/// use rollpacker_stages::rollout::Policy;
/// use rollpacker_stages::train::Metrics;
///
/// // In place of a `Validator`, a function that reports the version of the policy as its score.
/// let validator = ValidatorThread::spawn("validate", || {
///     Ok::<_, Infallible>(Box::new(|policy: &Policy| {
///         Ok(Metrics::from([("val/score".to_owned(), policy.version.0 as f64)]))
///     }) as ValidatePolicy)
/// });
/// let validator = Rc::new(validator.expect("it always starts"));
///
/// let (trainer, _gradients) = trainer();
/// let metrics = run(|scope, _| {
///     let updates = groups(scope).advantage(Grpo::default()).gradient(trainer).update();
///     updates.validate(1, validator).metrics
/// });
/// assert_eq!(metric(&metrics, "val/score"), [1.0]);
/// ```
pub trait ValidateExt {
    /// Validates each new policy whose version is a multiple of `every` before passing it on, so that a round that needs the policy waits
    /// for the result. The initial policy is not validated. If `every` is 0, no policy is validated. A failed validation ends the run. With
    /// several workers, each worker validates its own policies, so `every` should be 0 on all workers but one.
    #[must_use]
    fn validate(self, every: u64, validator: Rc<ValidatorThread>) -> Self;
}

struct Capabilities {
    policies: Capability<Step>,
    metrics: Capability<Step>,
    errors: Capability<Step>,
}

/// A policy that is not passed on yet, with its running or ended validation if it is validated.
struct PendingPolicy {
    capabilities: Capabilities,
    policy: Policy,
    validation: Option<(Reply<Result<Metrics, ValidationError>>, WaitGuard)>,
}

impl PendingPolicy {
    /// Returns the result of the validation, or `None` while it is running. A policy without validation has empty metrics at once.
    fn outcome(&self) -> Option<Result<Metrics, CallError<ValidationError>>> {
        let outcome = self.validation.as_ref().map(|(reply, _)| reply.poll_outcome());
        outcome.unwrap_or_else(|| Some(Ok(Metrics::new())))
    }
}

impl ValidateExt for Updates<'_> {
    fn validate(self, every: u64, validator: Rc<ValidatorThread>) -> Self {
        let (policies, metrics, errors) = gate(self.policies, every, validator);
        Self {
            policies,
            metrics: self.metrics.concat(metrics),
            errors: self.errors.concat(errors),
            warnings: self.warnings,
        }
    }
}

fn gate<'scope>(
    policies: BatchStream<'scope>,
    every: u64,
    validator: Rc<ValidatorThread>,
) -> (BatchStream<'scope>, BatchStream<'scope>, BatchStream<'scope>) {
    let mut operator = Operator::new("validate", policies.scope());
    let mut input = operator.input(policies, Pipeline, &schema::POLICIES);
    let (mut policies, policy_stream) = operator.output(&schema::POLICIES, &[0]);
    let (mut metrics, metric_stream) = operator.output(&schema::METRICS, &[0]);
    let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[0]);
    let policy_stream = operator.end_spans_by(policy_stream);
    let (wake, awaits) = (operator.waker(), operator.wait_handle());
    operator.build(move |_capabilities| {
        // Policies in the order of steps: with staleness, the next policy may arrive before the previous one is validated.
        let mut passing: VecDeque<PendingPolicy> = VecDeque::new();
        let mut failed = false;
        move |_frontiers| {
            input.for_each(|capability, batch| {
                let capabilities = Capabilities {
                    policies: capability.retain(policies.index()),
                    metrics: capability.retain(metrics.index()),
                    errors: capability.retain(errors.index()),
                };
                let policy = policy_of(&batch, 0);
                let is_tried = every > 0 && policy.version.0.is_multiple_of(every);
                let validation = is_tried.then(|| {
                    let (candidate, step) = (policy.clone(), *capability.time());
                    let reply = validator.call(wake.clone(), move |validate| validate(&candidate));
                    (reply, awaits.hold(step, || "the validation of its policy"))
                });
                passing.push_back(PendingPolicy { capabilities, policy, validation });
            });
            // A failed validation is never removed from the queue, and neither are the policies after it: their steps must not complete.
            while !failed && let Some(outcome) = passing.front().and_then(PendingPolicy::outcome) {
                let Some(PendingPolicy { capabilities, policy, .. }) = passing.front() else {
                    break;
                };
                match outcome {
                    Ok(measured) => {
                        metrics.give(&capabilities.metrics, metrics_batch(&measured));
                        policies.give(&capabilities.policies, policy_batch(policy));
                        passing.pop_front();
                    }
                    Err(error) => {
                        give_fault(
                            &mut errors,
                            &capabilities.errors,
                            Fault::of("validate", &error),
                        );
                        failed = true;
                    }
                }
            }
        }
    });
    (policy_stream, metric_stream, error_stream)
}
