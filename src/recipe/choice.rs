//! Builds the catalog entry that a recipe selects. Errors name the recipe key.

use rollpacker_stages::catalog::{Catalog, CatalogError, Choice, Options};
use rollpacker_stages::wrong_value::missing_field;
use serde_json::Value;
use toml::Table;

use super::error::{RecipeError, long_integer, one_of, out_of_bounds, reject, unknown_in};
use super::keys::dotted_name;

/// A catalog choice together with the recipe keys under which its options are written.
#[derive(Clone, Debug)]
pub(crate) struct KeyedChoice {
    /// The recipe key that names the entry.
    pub(crate) key: &'static str,
    /// The table that holds the options without a recipe key of their own; empty if a recipe cannot set such options.
    pub(crate) section: &'static str,
    /// The name of the entry and the options of `section`.
    pub(crate) choice: Choice,
    /// The options that have a recipe key of their own.
    pub(crate) keyed: Vec<KeyedOption>,
}

/// An option with a recipe key of its own.
#[derive(Clone, Debug)]
pub(crate) struct KeyedOption {
    /// The recipe key that sets the option.
    pub(crate) key: &'static str,
    /// The name of the option in the options of the entry.
    pub(crate) option: &'static str,
    pub(crate) value: Value,
}

impl KeyedChoice {
    /// Returns a choice without options.
    pub(crate) fn of(key: &'static str, name: &str) -> Self {
        Self { key, section: "", choice: Choice::of(name), keyed: Vec::new() }
    }

    #[cfg(feature = "torch")]
    pub(crate) fn name(&self) -> &str {
        &self.choice.name
    }

    /// Returns the choice with all its options, including the options in `keyed`.
    pub(crate) fn all(&self) -> Choice {
        self.keyed.iter().fold(self.choice.clone(), |choice, keyed| {
            choice.with(keyed.option, keyed.value.clone())
        })
    }

    /// Converts an error of the catalog into one that names the recipe key.
    fn error(&self, error: CatalogError) -> RecipeError {
        match error {
            CatalogError::Option { key: option, reason } => {
                let own = self.keyed.iter().find(|keyed| keyed.option == option);
                match own {
                    Some(own) => option_error("", own.key, reason),
                    None => option_error(self.section, &option, reason),
                }
            }
            other @ (CatalogError::Unknown { .. } | CatalogError::Start(_)) => {
                RecipeError::Type { key: self.key.to_owned(), reason: other.to_string() }
            }
        }
    }
}

/// Returns the choice of the entry `name` with the options of a table.
pub(crate) fn choice(name: &str, options: &Table) -> Choice {
    let options = match serde_json::to_value(options) {
        Ok(Value::Object(options)) => options,
        _ => Options::new(),
    };
    Choice { name: name.to_owned(), options }
}

/// Builds the chosen entry of a catalog. Errors name the recipe key.
pub(crate) fn make<T>(catalog: &Catalog<T>, written: &KeyedChoice) -> Result<T, RecipeError> {
    let KeyedChoice { key, section, choice, keyed } = written;
    let names: Vec<&str> = catalog.names().collect();
    let Some(known) = catalog.options(&choice.name) else {
        one_of(*key, &choice.name, &names)?;
        unreachable!("invariant: a name without an entry is rejected above");
    };
    let unknown = keyed.iter().filter(|keyed| !known.contains(&keyed.option)).map(|unknown| {
        let has =
            |name: &&str| catalog.options(name).is_some_and(|all| all.contains(&unknown.option));
        let having = names.iter().copied().filter(has).collect::<Vec<_>>().join(", ");
        let expected = format!("one of {having} when `{}` is set", unknown.key);
        out_of_bounds(*key, expected, format!("`{}`", choice.name))
    });
    let mut errors: Vec<RecipeError> = unknown.collect();
    // For an entry whose options are not listed, the check of types reports unknown options.
    if !known.is_empty() {
        errors.extend(unknown_in(section, choice.options.keys(), known));
    }
    errors.extend(type_errors(catalog, written));
    reject(errors)?;
    catalog.make(&written.all()).map_err(|error| written.error(error))
}

/// Returns an error for each option of a wrong type, or for the first missing option. Ignores the options in `keyed` that the entry does
/// not list. If the entry lists any options, ignores all other options that it does not list, too. If no entry has the name, returns only
/// the error about the name.
pub(crate) fn type_errors<T>(catalog: &Catalog<T>, written: &KeyedChoice) -> Vec<RecipeError> {
    let known = catalog.options(&written.choice.name).unwrap_or_default();
    let mut readable = written.all();
    // `make` reports the options that the entry does not have by their recipe keys.
    for keyed in written.keyed.iter().filter(|keyed| !known.contains(&keyed.option)) {
        readable.options.remove(keyed.option);
    }
    let errors = catalog.type_errors(&readable);
    errors.into_iter().map(|error| written.error(error)).collect()
}

/// Returns the error of an option that its entry rejects. `section` is the table of the options, and `option` is empty if the error
/// concerns the whole table.
pub(crate) fn option_error(section: &str, option: &str, reason: String) -> RecipeError {
    let key = if option.is_empty() { section.to_owned() } else { dotted_name(section, option) };
    match missing_field(&reason) {
        Some(missing) => out_of_bounds(dotted_name(&key, missing), "a value", "nothing"),
        None => RecipeError::Type { key, reason: long_integer(&reason, None).unwrap_or(reason) },
    }
}
