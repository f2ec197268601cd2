//! Validation of policies on held-out prompts.

use std::rc::Rc;

use rollpacker_dataflow::bridge::ServiceThread;
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
        let (clock, time) = (self.stages.clock.clone(), self.stages.clock.clone());
        let limits = self.recipe.reward.timeout.fixed_limits()?;
        let progress = self.progress_counter();
        let records = self.validation_records.clone();
        let thread = ServiceThread::spawn("validation", move || {
            let tries = |context: EngineContext, prompts: Vec<PromptRow>, samples: u32| {
                anyhow::Ok(
                    Validator::new(
                        engine.start(context)?.engine,
                        router.clone(),
                        handle.clone(),
                        time.clone(),
                        prompts,
                    )
                    .with_samples(samples)
                    .with_limits(limits.clone())
                    .with_progress(progress.clone()),
                )
            };
            let (mut sampled, mut greedy) =
                (tries(sampled, prompts.clone(), samples)?, tries(greedy, prompts, 1)?);
            // The last policy may be validated in its step and again after the run. The second time returns the known metrics.
            let mut last: Option<(PolicyVersion, Metrics)> = None;
            let validate = move |policy: &Policy| {
                if let Some((_, known)) =
                    last.as_ref().filter(|(version, _)| *version == policy.version)
                {
                    return Ok(known.clone());
                }
                let begun = clock.now();
                let (sampled, greedy) = (sampled.validate(policy)?, greedy.validate(policy)?);
                let mut all = metrics(&sampled, samples, &greedy);
                let took = clock.now().since(begun).as_secs_f64();
                all.insert("timing_s/testing".to_owned(), took);
                if let Some(records) = &records {
                    records.write(policy.version, &sampled, &greedy)?;
                }
                last = Some((policy.version, all.clone()));
                Ok(all)
            };
            anyhow::Ok(Box::new(validate) as ValidatePolicy)
        })?;
        Ok(Some((
            Rc::new(thread),
            ValidationPrompts { prompts: count, overlong_prompts: overlong },
        )))
    }
}

/// Returns the placeholder of a worker that does not validate.
fn placeholder() -> anyhow::Result<ValidatorThread> {
    ServiceThread::spawn("validation", || {
        let refuse = |_: &Policy| Err(ValidationError::OtherWorker);
        anyhow::Ok(Box::new(refuse) as ValidatePolicy)
    })
}
