//! Validation of policies on held-out prompts.

use std::rc::Rc;
use std::sync::Arc;

use rollpacker_dataflow::bridge::ServiceThread;
use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_operators::prompts::PromptRow;
use rollpacker_operators::validate::{ValidatePolicy, ValidationError, Validator, ValidatorThread};
use rollpacker_stages::rollout::Policy;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::train::Metrics;

use super::shared_inputs::SharedInputs;
use crate::engines::EngineContext;
use crate::prompts::OverlongPrompts;
use crate::run_result::ValidationPrompts;
use crate::validation::metrics;
use crate::validation_records::ValidationRecords;

impl SharedInputs {
    /// Returns the validator and the number of its prompts, or `None` without validation data. Workers other than the first get a
    /// placeholder that is never called.
    pub(super) fn validator(
        &self,
        is_leader: bool,
    ) -> anyhow::Result<Option<(Rc<ValidatorThread>, ValidationPrompts)>> {
        let Some(dataset) = self.val_data.clone() else { return Ok(None) };
        if !is_leader {
            return Ok(Some((Rc::new(placeholder()?), ValidationPrompts::default())));
        }
        let overlong_prompts = OverlongPrompts::default();
        let prompts = self.reader(dataset, overlong_prompts.clone()).read_all()?;
        let overlong = overlong_prompts.count();
        let count = prompts.len();
        let sampled = self.validation_engine(self.recipe.val_sampling);
        let greedy = Sampling { temperature: 0.0, ..self.recipe.sampling };
        let greedy = self.validation_engine(greedy);
        let samples = self.recipe.val_samples;
        let engine = self.engine.clone();
        let (router, handle) = (self.stages.router.clone(), self.rewards.handle().clone());
        let clock = self.stages.clock.clone();
        let limits = self.recipe.reward.timeout.fixed_limits()?;
        let progress = self.progress_counter();
        let records = self.validation_records.clone();
        let thread = ServiceThread::spawn("validation", move || {
            let start = |context: EngineContext, prompts: Vec<PromptRow>| {
                let engine = engine.start(context)?.engine;
                let (router, handle) = (router.clone(), handle.clone());
                let validator = Validator::new(engine, router, handle, clock.clone(), prompts);
                anyhow::Ok(validator.with_limits(limits.clone()).with_progress(progress.clone()))
            };
            let mut validator = PolicyValidator {
                sampled: start(sampled, prompts.clone())?.with_samples(samples),
                greedy: start(greedy, prompts)?,
                samples,
                clock: clock.clone(),
                records,
                last: None,
            };
            anyhow::Ok(Box::new(move |policy: &Policy| validator.validate(policy)) as ValidatePolicy)
        })?;
        Ok(Some((
            Rc::new(thread),
            ValidationPrompts { prompts: count, overlong_prompts: overlong },
        )))
    }
}

/// A validator of policies, with sampled and with greedy responses.
struct PolicyValidator {
    sampled: Validator,
    greedy: Validator,
    /// The number of sampled responses to each prompt.
    samples: u32,
    clock: Arc<dyn Clock>,
    /// The writer of the responses, if they are kept.
    records: Option<ValidationRecords>,
    /// The version of the last validated policy, and its metrics.
    last: Option<(PolicyVersion, Metrics)>,
}

impl PolicyValidator {
    /// Validates a policy and returns its metrics. The last policy may be validated in its step and again after the run. The second time
    /// returns the known metrics.
    fn validate(&mut self, policy: &Policy) -> Result<Metrics, ValidationError> {
        if let Some((version, known)) = &self.last
            && *version == policy.version
        {
            return Ok(known.clone());
        }
        let begun = self.clock.now();
        let (sampled, greedy) = (self.sampled.validate(policy)?, self.greedy.validate(policy)?);
        let mut all = metrics(&sampled, self.samples, &greedy);
        let took = self.clock.now().since(begun).as_secs_f64();
        all.insert("timing_s/testing".to_owned(), took);
        if let Some(records) = &self.records {
            records.write(policy.version, &sampled, &greedy)?;
        }
        self.last = Some((policy.version, all.clone()));
        Ok(all)
    }
}

/// Returns the placeholder of a worker that does not validate.
fn placeholder() -> anyhow::Result<ValidatorThread> {
    ServiceThread::spawn("validation", || {
        let refuse = |_: &Policy| Err(ValidationError::OtherWorker);
        anyhow::Ok(Box::new(refuse) as ValidatePolicy)
    })
}
