//! Keys whose values are names that neither a catalog nor a type lists.

use rollpacker_stages::train::config::RolloutRs;

use super::error::{RecipeError, one_of};

/// The keys, each with its allowed names.
static CHOICES: &[(&str, &[&str])] = &[
    ("algorithm.rollout_correction.rollout_rs", &RolloutRs::NAMES),
    ("trainer.logger", &["console", "file", "tensorboard"]),
];

/// Returns the allowed names of `key`; `None` if the key is not listed here.
pub(crate) fn choices_of(key: &str) -> Option<&'static [&'static str]> {
    CHOICES.iter().find(|(listed, _)| *listed == key).map(|(_, names)| *names)
}

/// Rejects a value that is not one of the allowed names of `key`.
pub(super) fn check_choice(key: &str, value: &str) -> Result<(), RecipeError> {
    one_of(key, value, choices_of(key).unwrap_or_default())
}
