//! The catalogs of rewards, algorithms, engines and trainers in which a session looks up names.

use rollpacker_rewards::Registry;

use crate::algorithms::Algorithms;
use crate::engines::Engines;
use crate::recipe::{Choices, RecipeError, Reward};
use crate::rewards;
use crate::trainers::Trainers;

/// The catalogs in which a session looks up the names in its recipe, except the schedule and the placement, which the recipe resolves.
///
/// The default has the built-in entries.
#[derive(Clone)]
pub struct Catalogs {
    /// The rewards: `reward.routes`.
    pub rewards: Registry,
    /// The advantage estimators, policy losses and KL estimators.
    pub algorithms: Algorithms,
    /// The rollout engines: `rollout.engine`.
    pub engines: Engines,
    /// The trainers: `actor.strategy`.
    pub trainers: Trainers,
}

impl Default for Catalogs {
    fn default() -> Self {
        Self {
            rewards: Registry::builtin(),
            algorithms: Algorithms::default(),
            engines: Engines::default(),
            trainers: Trainers::default(),
        }
    }
}

impl Catalogs {
    /// Returns an error for each name in a recipe that these catalogs do not have, and for the options that an entry does not accept.
    pub(crate) fn errors(&self, choices: &Choices, section: &Reward) -> Vec<RecipeError> {
        let stages = [self.engines.chosen(choices).err(), self.trainers.chosen(choices).err()];
        let algorithms = self.algorithms.errors(choices);
        let rewards = rewards::errors(section, &self.rewards);
        stages.into_iter().flatten().chain(algorithms).chain(rewards).collect()
    }
}
