//! The sections of a job, with their aliases and ranges.

use rollpacker_operators::curriculum::CurriculumOptions;
use rollpacker_simulated::cluster::Calibration;

use super::bounds::RANGES;
use super::calibration_bounds;
use super::raw::{
    Cluster, Data, Lengths, Model, Pipeline, Planner, RawJob, Rollout, Sim, Stream, Tasks, Training,
};
use crate::recipe::aliases::{Alias, alias};
use crate::recipe::keys::{Section, Sections};
use crate::recipe::range;

/// The aliases that jobs accept.
static ALIASES: [Alias; 4] = [
    alias("rollout", "num_generations", "n", "TRL"),
    alias("rollout", "n_samples_per_prompt", "n", "slime, SkyRL, OpenRLHF"),
    alias("rollout", "group_size", "n", "prime-rl"),
    alias("rollout", "tensor_model_parallel_size", "tensor_parallel", "verl"),
];

impl Sections for RawJob {
    fn section(name: &str) -> Option<Section> {
        Some(match name {
            "" => Section::of::<Self>(),
            "cluster" => Section::of::<Cluster>(),
            "model" => Section::of::<Model>(),
            "rollout" => Section::of::<Rollout>(),
            "training" => Section::of::<Training>(),
            "data" => Section::of::<Data>(),
            "data.curriculum" => Section::of::<CurriculumOptions>(),
            "lengths" => Section::of::<Lengths>(),
            "tasks" => Section::of::<Tasks>(),
            "pipeline" => Section::of::<Pipeline>(),
            "stream" => Section::of::<Stream>(),
            "planner" => Section::of::<Planner>(),
            "calibration" => Section::of::<Calibration>(),
            "sim" => Section::of::<Sim>(),
            _ => return None,
        })
    }

    fn aliases() -> &'static [Alias] {
        &ALIASES
    }

    fn range(key: &str) -> Option<String> {
        match key.strip_prefix("calibration.") {
            Some(constant) => calibration_bounds::range_of(constant),
            None => range::range_text(RANGES, key),
        }
    }
}
