//! A run of a job: the pipeline in virtual time, over simulated stages.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::bridge::Executor;
use rollpacker_dataflow::clock::VirtualClock;
use rollpacker_dataflow::step::PromptId;
use rollpacker_operators::advantage::Grpo;
use rollpacker_operators::prompts::{PromptRow, prompt_batch};
use rollpacker_operators::schedule::operator::Stop;
use rollpacker_operators::trainer::TrainerThread;
use rollpacker_stages::rollout::simulated::lengths::LengthModel;

use super::gantt::{Logged, TrainingLog};
use super::job::Job;
use super::outcome::{Outcome, Recorder};
use crate::pipeline::{Pipeline, PromptSource, Time};

/// Prompts of a batch of the source.
const PROMPTS_OF_A_BATCH: u64 = 256;

/// Runs the job with one seed. The same job and seed give the same outcome, bit for bit.
///
/// # Errors
/// If a stage cannot be set up, or fails; the error names operator, step and response.
pub fn run(job: &Job, seed: u64) -> anyhow::Result<Outcome> {
    let clock = VirtualClock::default();
    let lengths = job.lengths(seed)?;
    let training = TrainingLog::default();
    let trainer = Logged {
        trainer: job.trainer(lengths.clone(), clock.clone()),
        clock: Arc::new(clock.clone()),
        log: training.clone(),
    };
    let trainer = Rc::new(TrainerThread::in_virtual_time(clock.clone(), Box::new(trainer)));
    let initial = trainer.publish_initial().map_err(anyhow::Error::msg)?;
    let recorder =
        Rc::new(RefCell::new(Recorder::new(job.raw.sim.warmup_steps, job.charted, training)));
    let pipeline = Pipeline {
        prompts: PromptSource::Inline(Box::new(prompts(job, lengths.clone()))),
        prompts_ahead: 2 * job.raw.data.train_batch_size,
        schedule: Box::new(job.schedule()?),
        engine: Box::new(job.engine(lengths.clone(), clock.clone())?),
        placement: Some(job.placement()?),
        router: job.rewards(seed, lengths, &clock),
        scoring: job.scoring,
        advantage: Rc::new(Grpo::default()),
        trainer,
        fetch: job.fetch,
        validator: None,
        initial,
        staleness: job.raw.pipeline.staleness,
        rewards: Executor::Inline,
        time: Time::Virtual(clock),
        stop: Stop::default(),
    };
    pipeline.run(recorder.clone())?;
    let outcome = recorder.borrow_mut().take();
    Ok(outcome)
}

/// The prompts of the run, epoch after epoch. A prompt is known by its row, which is its only token id: all else follows from it.
fn prompts(job: &Job, lengths: Arc<dyn LengthModel>) -> impl Iterator<Item = Batch> + 'static {
    let (epoch, total) = (job.prompts(), job.prompts_of_run());
    let row = move |prompt: u64| {
        let row = prompt % epoch;
        let domain = lengths.prompt(row).domain;
        PromptRow {
            prompt: PromptId(prompt),
            epoch: u32::try_from(prompt / epoch).unwrap_or(u32::MAX),
            row,
            domain: domain.to_string(),
            prompt_ids: vec![i32::try_from(row).unwrap_or(i32::MAX)],
            data_source: domain.to_string(),
            ..PromptRow::default()
        }
    };
    (0..total.div_ceil(PROMPTS_OF_A_BATCH)).map(move |batch| {
        let from = batch * PROMPTS_OF_A_BATCH;
        let rows: Vec<PromptRow> =
            (from..total.min(from + PROMPTS_OF_A_BATCH)).map(&row).collect();
        prompt_batch(&rows)
    })
}
