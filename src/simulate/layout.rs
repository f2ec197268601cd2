//! Layout of a copy of the model over the trainer's devices.

use rollpacker_operators::placement::StepCost;
use rollpacker_simulated::cluster::{Cost, TrainingLayout};

use super::cost::{NOMINAL_SEQUENCE_TOKENS, PlacementCost};
use super::job::Job;
use super::raw::Training;
use crate::recipe::RecipeError;

/// The share of a device's memory that training may use; the rest is lost to fragmentation and communication buffers.
const USABLE_MEMORY_SHARE: f64 = 0.95;

/// Returns the layout as the job writes it.
#[must_use]
pub(super) fn written(training: &Training) -> TrainingLayout {
    TrainingLayout {
        tensor_parallel: training.tensor_parallel,
        pipeline: training.pipeline_parallel,
        context: training.context_parallel,
        micro_batch_tokens: training.micro_batch_tokens,
    }
}

/// Returns the layout that is predicted to train fastest, among the layouts that fit, use as many devices as the layout of the job, and
/// keep each tensor-parallel group within a server. Returns the layout of the job if none fits.
#[must_use]
pub(super) fn planned(job: &Job) -> TrainingLayout {
    let written = job.training_layout;
    let cost = job.cost();
    let sequences = job.raw.data.train_batch_size as f64 * f64::from(job.raw.rollout.n);
    let time = |layout: &TrainingLayout| {
        let modelled = PlacementCost::new(cost.clone(), *layout, job.longest_sequence());
        modelled.training(job.training_gpus, sequences * NOMINAL_SEQUENCE_TOKENS)
    };
    splits(written, job.hardware.devices_per_server)
        .filter(|layout| fits(&cost, job, *layout))
        .min_by(|a, b| time(a).total_cmp(&time(b)))
        .unwrap_or(written)
}

/// Checks that weights, gradient, optimizer state and activations fit on a device.
///
/// # Errors
/// If they do not fit; the error names the key.
pub(super) fn check(job: &Job) -> Result<(), RecipeError> {
    let (cost, layout) = (job.cost(), job.training_layout);
    if fits(&cost, job, layout) {
        return Ok(());
    }
    let TrainingLayout { tensor_parallel, pipeline, context, .. } = layout;
    let reason = format!(
        "expected a trainer that fits, found {:.1} GB for weights, gradient, optimizer state and activations on each {} of {:.1} GB: a copy of \
         {} is spread over {tensor_parallel} x {pipeline} x {context} GPUs (tensor, pipeline and context parallel); spread it over more GPUs",
        bytes(&cost, job, layout) * 1e-9,
        job.hardware.name,
        job.hardware.memory * 1e-9,
        job.model.name,
    );
    Err(RecipeError::Type { key: "training.tensor_parallel".to_owned(), reason })
}

fn fits(cost: &Cost, job: &Job, layout: TrainingLayout) -> bool {
    bytes(cost, job, layout) <= USABLE_MEMORY_SHARE * job.hardware.memory
}

fn bytes(cost: &Cost, job: &Job, layout: TrainingLayout) -> f64 {
    cost.training_bytes(job.training_gpus, layout, job.longest_sequence() as f64)
}

/// Returns the ways to split the devices of `written`, with tensor-parallel groups that stay within a server.
fn splits(written: TrainingLayout, of_a_server: u32) -> impl Iterator<Item = TrainingLayout> {
    let devices = written.devices();
    let divisors = |of: u32| (1..=of).filter(move |part| of.is_multiple_of(*part));
    divisors(devices).filter(move |parts| *parts <= of_a_server).flat_map(move |tensor_parallel| {
        let rest = devices / tensor_parallel;
        divisors(rest).map(move |context| TrainingLayout {
            tensor_parallel,
            context,
            pipeline: rest / context,
            ..written
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::raw::RawJob;

    fn job(settings: &[&str]) -> anyhow::Result<Job> {
        let mut table: toml::Table = include_str!("../../configs/sim/32b.toml").parse()?;
        for setting in settings {
            crate::recipe::overlay(&mut table, setting)?;
        }
        let raw: RawJob = crate::recipe::from_table(table)?;
        Job::resolve(raw, None)
    }

    #[test]
    fn a_trainer_that_does_not_fit_is_refused_by_its_key() {
        let one = ["tensor", "pipeline", "context"].map(|of| format!("training.{of}_parallel=1"));
        let one: Vec<&str> = one.iter().map(String::as_str).collect();
        let error = job(&one).expect_err("32B on one GPU").to_string();
        assert!(
            error.starts_with("key `training.tensor_parallel`: expected a trainer that fits"),
            "{error}"
        );
        assert!(error.contains("80.0 GB"), "{error}");
    }

    #[test]
    fn a_planned_layout_is_no_slower_than_the_written_one() {
        let time = |settings: &[&str]| {
            let job = job(settings).expect("valid");
            let layout = job.training_layout;
            assert_eq!(layout.devices(), 16);
            job.cost().training(64, layout, &vec![NOMINAL_SEQUENCE_TOKENS; 1024])
        };
        assert!(time(&["training.layout=planned"]) <= time(&[]));
    }
}
