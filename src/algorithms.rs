//! The algorithms that recipes can name: advantage estimators, policy losses and KL estimators.

#[cfg(test)]
mod page;

use rollpacker_operators::advantage::{Estimator, advantages};
use rollpacker_stages::catalog::Catalog;
use rollpacker_torch::train::Objective;
use rollpacker_torch::train::loss::{SharedKl, SharedPolicyLoss, kl_estimators, policy_losses};

use crate::recipe::choice::make;
use crate::recipe::error::{RecipeError, out_of_bounds};
use crate::recipe::{Choices, Recipe};

/// The algorithms that recipes can name. A program adds its own algorithms to these catalogs.
///
/// ```
/// use rollpacker::algorithms::Algorithms;
/// use rollpacker::prelude::*;
/// use rollpacker::stages::catalog::NoOptions;
///
/// struct Raw;
///
/// impl Advantage for Raw {
///     fn advantages(&self, group: &[ScoredResponse]) -> Vec<f64> {
///         group.iter().map(|one| one.score).collect()
///     }
/// }
///
/// let mut algorithms = Algorithms::default();
/// algorithms.advantages =
///     algorithms.advantages.with("raw", |_: NoOptions| Ok(Estimator::from(Raw)));
/// ```
#[derive(Clone)]
pub struct Algorithms {
    /// The advantage estimators: `algorithm.adv_estimator`.
    pub advantages: Catalog<Estimator>,
    /// The policy losses: `actor.policy_loss.loss_mode`.
    pub policy_losses: Catalog<SharedPolicyLoss>,
    /// The KL estimators: `actor.kl_loss_type` and `algorithm.kl_penalty`.
    pub kl_estimators: Catalog<SharedKl>,
}

impl Default for Algorithms {
    /// Returns the built-in algorithms.
    fn default() -> Self {
        Self {
            advantages: advantages(),
            policy_losses: policy_losses(),
            kl_estimators: kl_estimators(),
        }
    }
}

impl Algorithms {
    /// Returns the advantage estimator that a recipe names.
    ///
    /// # Errors
    /// If the name or an option is unknown, an option has a wrong value, or the recipe configures a critic that the estimator does not use.
    /// The message names the key.
    pub fn estimator(&self, recipe: &Recipe) -> Result<Estimator, RecipeError> {
        let chosen = &recipe.choices.estimator;
        let estimator = make(&self.advantages, chosen)?;
        if recipe.choices.sets_critic && !estimator.needs_values() {
            let expected =
                "an estimator with a critic when `[critic]` or trainer.critic_warmup is set";
            let found = format!("`{}`", chosen.name());
            return Err(out_of_bounds("algorithm.adv_estimator", expected, found));
        }
        Ok(estimator)
    }

    /// Returns the policy loss and the KL estimators that a recipe names.
    ///
    /// # Errors
    /// If a name or an option is unknown, an option has a wrong value, or `actor.loss_agg_mode` differs from the mode that the policy loss
    /// requires. The message names the key.
    pub fn objective(&self, recipe: &Recipe) -> Result<Objective, RecipeError> {
        let choices = &recipe.choices;
        let policy_loss = make(&self.policy_losses, &choices.policy_loss)?;
        if let (Some(own), Some(written)) = (policy_loss.aggregation(), choices.loss_agg_mode)
            && own != written
        {
            let expected = format!("{own}, which `{}` requires", choices.policy_loss.name());
            return Err(out_of_bounds("actor.loss_agg_mode", expected, written));
        }
        let penalty = make(&self.kl_estimators, &choices.kl_penalty)?;
        Ok(Objective {
            policy_loss,
            kl_loss: make(&self.kl_estimators, &choices.kl_loss)?,
            reward_kl: recipe.reward_kl.map(|_| penalty),
        })
    }

    /// Returns the errors in the names of algorithms in a recipe, and in their options.
    pub(crate) fn errors(&self, choices: &Choices) -> impl Iterator<Item = RecipeError> {
        let errors = [
            make(&self.advantages, &choices.estimator).err(),
            make(&self.policy_losses, &choices.policy_loss).err(),
            make(&self.kl_estimators, &choices.kl_loss).err(),
            make(&self.kl_estimators, &choices.kl_penalty).err(),
        ];
        errors.into_iter().flatten()
    }
}
