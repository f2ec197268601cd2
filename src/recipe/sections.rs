//! The sections of a recipe, with their aliases and ranges.

use rollpacker_operators::curriculum::CurriculumOptions;
use rollpacker_operators::reward::LimitOptions;

use super::Recipe;
use super::aliases::{ALIASES, Alias};
use super::keys::{Section, Sections};
use super::range;
use super::ranges::RANGES;
use super::raw::{
    Actor, Algorithm, Critic, Data, KlCtrl, Model, Pipeline, RawRecipe, Reward, Rollout,
    RolloutCorrection, Run, Serve, Sft, ValidationSampling,
};
use super::verl::entries;

impl Sections for RawRecipe {
    fn section(name: &str) -> Option<Section> {
        Some(match name {
            "" => Section::of::<Self>(),
            "data" => Section::of::<Data>(),
            "data.curriculum" => Section::of::<CurriculumOptions>(),
            "model" => Section::of::<Model>(),
            "rollout" => Section::of::<Rollout>(),
            "rollout.serve" => Section::of::<Serve>(),
            "rollout.val_kwargs" => Section::of::<ValidationSampling>(),
            "pipeline" => Section::of::<Pipeline>(),
            "reward" => Section::of::<Reward>(),
            "reward.timeout" => Section::of::<LimitOptions>(),
            "algorithm" => Section::of::<Algorithm>(),
            "algorithm.kl_ctrl" => Section::of::<KlCtrl>(),
            "algorithm.rollout_correction" => Section::of::<RolloutCorrection>(),
            "actor" => Section::of::<Actor>(),
            "critic" => Section::of::<Critic>(),
            "trainer" => Section::of::<Run>(),
            "sft" => Section::of::<Sft>(),
            // The keys of a schedule, a placement, an engine or a policy loss depend on its name and are checked when it is built.
            _ => return None,
        })
    }

    fn aliases() -> &'static [Alias] {
        ALIASES
    }

    fn range(key: &str) -> Option<String> {
        range::range_text(RANGES, key)
    }

    fn is_resumable(key: &str) -> bool {
        Recipe::is_resumable(key)
    }

    fn foreign_keys() -> Box<dyn Iterator<Item = &'static str>> {
        Box::new(entries::all().map(|entry| entry.verl))
    }
}
