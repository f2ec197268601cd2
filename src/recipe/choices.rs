//! The names that keys of a recipe may have as values, where no catalog and no type lists them.

use rollpacker_stages::train::config::RolloutRs;

use super::error::{RecipeError, one_of};

/// The keys and their names.
static CHOICES: &[(&str, &[&str])] = &[
    ("algorithm.rollout_correction.rollout_rs", &RolloutRs::NAMES),
    ("trainer.logger", &["console", "file", "tensorboard"]),
];

/// Returns the names that the value of `key` may have, if they are listed here.
pub(crate) fn choices_of(key: &str) -> Option<&'static [&'static str]> {
    CHOICES.iter().find(|(listed, _)| *listed == key).map(|(_, names)| *names)
}

/// Rejects a value that is none of the names of its key.
pub(super) fn check_choice(key: &str, value: &str) -> Result<(), RecipeError> {
    one_of(key, value, choices_of(key).unwrap_or_default())
}
