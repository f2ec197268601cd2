//! Keys of other frameworks, and the keys of this project that they set. The documentation prints this table.

use toml::{Table, Value};

use super::error::RecipeError;

/// A key of another framework that recipes accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The section, which is the same for both keys.
    pub section: &'static str,
    /// The key of the other framework.
    pub alias: &'static str,
    /// The key of this project. It has verl's name if verl has such a key.
    pub key: &'static str,
    /// The frameworks that use `alias`, separated by commas.
    pub peers: &'static str,
}

pub(crate) const fn alias(
    section: &'static str,
    alias: &'static str,
    key: &'static str,
    peers: &'static str,
) -> Alias {
    Alias { section, alias, key, peers }
}

/// All aliases that recipes accept.
pub static ALIASES: &[Alias] = &[
    alias("data", "rollout_batch_size", "train_batch_size", "slime, ROLL"),
    alias("data", "max_completion_length", "max_response_length", "TRL"),
    alias("data", "response_length", "max_response_length", "ROLL"),
    alias("data", "max_new_tokens", "max_response_length", "AReaL, OpenRLHF"),
    alias("data", "input_key", "prompt_key", "slime, OpenRLHF"),
    alias("data", "label_key", "ground_truth_key", "slime, OpenRLHF"),
    alias("rollout", "num_generations", "n", "TRL"),
    alias("rollout", "n_samples_per_prompt", "n", "slime, SkyRL, OpenRLHF"),
    alias("rollout", "group_size", "n", "prime-rl"),
    alias("rollout", "num_return_sequences_in_group", "n", "ROLL"),
    alias("algorithm", "advantage_estimator", "adv_estimator", "slime, SkyRL"),
    alias("algorithm", "lambd", "lam", "ROLL, OpenRLHF"),
    alias("algorithm", "max_staleness", "staleness", "TRL"),
    alias("algorithm", "max_off_policy_steps", "staleness", "prime-rl"),
    alias("algorithm.kl_ctrl", "init_kl_coef", "kl_coef", "ROLL"),
    alias("algorithm.kl_ctrl", "init_coef", "kl_coef", "OpenRLHF"),
    alias("actor", "learning_rate", "lr", "TRL, ROLL"),
    alias("actor", "max_grad_norm", "grad_clip", "TRL"),
    alias("actor", "epsilon", "clip_ratio_low", "TRL"),
    alias("actor", "eps_clip", "clip_ratio_low", "slime, AReaL"),
    alias("actor", "eps_clip_low", "clip_ratio_low", "SkyRL"),
    alias("actor", "pg_clip_low", "clip_ratio_low", "ROLL"),
    alias("actor", "epsilon_high", "clip_ratio_high", "TRL"),
    alias("actor", "eps_clip_high", "clip_ratio_high", "slime, SkyRL"),
    alias("actor", "eps_clip_higher", "clip_ratio_high", "AReaL"),
    alias("actor", "pg_clip_high", "clip_ratio_high", "ROLL"),
    alias("actor", "eps_clip_c", "clip_ratio_c", "slime"),
    alias("actor", "c_clip", "clip_ratio_c", "AReaL"),
    alias("actor", "dual_clip", "clip_ratio_c", "OpenRLHF"),
    alias("actor", "delta", "clip_ratio_c", "TRL"),
    alias("actor", "beta", "kl_loss_coef", "TRL"),
    alias("actor", "num_iterations", "ppo_epochs", "TRL"),
    alias("actor", "entropy_coef", "entropy_coeff", "slime, OpenRLHF"),
    alias("trainer", "max_steps", "total_training_steps", "TRL"),
    alias("trainer", "num_train_epochs", "total_epochs", "TRL"),
    alias("trainer", "save_steps", "save_freq", "TRL, ROLL"),
    alias("trainer", "ckpt_interval", "save_freq", "SkyRL"),
    alias("trainer", "max_actor_ckpt_to_keep", "max_ckpt_to_keep", "verl"),
    alias("trainer", "max_ckpts_to_keep", "max_ckpt_to_keep", "SkyRL"),
    alias("trainer", "save_total_limit", "max_ckpt_to_keep", "TRL"),
    alias("trainer", "output_dir", "default_local_dir", "TRL, ROLL"),
];

/// TRL's coefficient of the KL divergence in the loss, as section and key. A value other than 0 sets `BETA_SWITCH` to `true`, unless the
/// recipe sets `BETA_SWITCH`.
const BETA: (&str, &str) = ("actor", "beta");
/// The key in the section of `BETA` that adds the KL divergence to the loss.
const BETA_SWITCH: &str = "use_kl_loss";

fn is_zero(value: &Value) -> bool {
    value.as_float() == Some(0.0) || value.as_integer() == Some(0)
}

/// Removes the entries of a table that write the setting `key` under another name. `key` may itself be an alias.
pub(super) fn remove_other_names(table: &mut Table, aliases: &[Alias], key: &str) {
    let (section, last) = key.rsplit_once('.').unwrap_or(("", key));
    let of_section = || aliases.iter().filter(|one| one.section == section);
    let own = of_section().find(|one| one.alias == last).map_or(last, |one| one.key);
    let names = of_section().filter(|one| one.key == own).map(|one| one.alias).chain([own]);
    if let Some(found) = section_of(table, section) {
        names.filter(|name| *name != last).for_each(|name| drop(found.remove(name)));
    }
}

/// Replaces each alias in `table` by its key. Returns an error for each further name of a key that is set under several names; the value of
/// the alias that comes last in `aliases` is kept.
pub(super) fn rename(table: &mut Table, aliases: &[Alias]) -> Vec<RecipeError> {
    let mut errors = Vec::new();
    for Alias { section, alias, key, .. } in aliases {
        let Some(found) = section_of(table, section) else { continue };
        let Some(value) = found.remove(*alias) else { continue };
        if (*section, *alias) == BETA && !is_zero(&value) {
            found.entry(BETA_SWITCH).or_insert(Value::Boolean(true));
        }
        if found.insert((*key).to_owned(), value).is_some() {
            let reason = format!("written twice, also as `{section}.{alias}`");
            errors.push(RecipeError::Type { key: format!("{section}.{key}"), reason });
        }
    }
    errors
}

fn section_of<'a>(table: &'a mut Table, section: &str) -> Option<&'a mut Table> {
    section
        .split('.')
        .try_fold(table, |table, key| table.get_mut(key).and_then(Value::as_table_mut))
}
