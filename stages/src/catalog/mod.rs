//! Catalogs: registries of constructors for the components that a recipe names, such as losses, rewards and schedules. Users add a name
//! with one call.

mod docs;
mod options;
#[cfg(test)]
mod tests;

pub use self::docs::{About, OptionDocs};
pub use self::options::{CatalogError, Options, check_range, read, take, type_errors};

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::documented::Documented;
use crate::fields::fields as option_names;

/// A name of a catalog entry, with the options given for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The name of the entry, or one of its aliases.
    pub name: String,
    /// The options. Options that are left out take their defaults.
    #[serde(default)]
    pub options: Options,
}

impl Choice {
    /// Returns a choice of the entry `name` with every option at its default.
    #[must_use]
    pub fn of(name: &str) -> Self {
        Self { name: name.to_owned(), options: Options::new() }
    }

    /// Adds an option, replacing the option of the same name.
    #[must_use]
    pub fn with(mut self, option: &str, value: impl Into<serde_json::Value>) -> Self {
        self.options.insert(option.to_owned(), value.into());
        self
    }
}

crate::documented! {
    /// The options of an entry that has none. Any option is an error.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct NoOptions {}
}

/// A catalog entry as [`Catalog::list`] returns it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ListedEntry<'a> {
    /// The name of the entry, not an alias.
    pub name: &'a str,
    /// The documentation; empty for an entry that was added with [`Catalog::with`].
    pub about: About,
    /// The names of the options, serde aliases included; empty if the type of the options does not list its fields.
    pub options: &'static [&'static str],
    /// The documentation of the options. It has no fields if the entry was added with [`Catalog::with`].
    pub docs: &'a OptionDocs,
}

type Make<T> = Box<dyn Fn(Options) -> Result<T, CatalogError> + Send + Sync>;

struct CatalogEntry<T> {
    about: About,
    options: &'static [&'static str],
    docs: OptionDocs,
    type_errors: fn(Options) -> Vec<CatalogError>,
    make: Make<T>,
}

/// A set of constructors of `T`, by the names that recipes use. Cloning is cheap: clones share the entries that exist
/// when they are made.
pub struct Catalog<T> {
    kind: &'static str,
    entries: BTreeMap<String, Arc<CatalogEntry<T>>>,
}

impl<T> Clone for Catalog<T> {
    fn clone(&self) -> Self {
        Self { kind: self.kind, entries: self.entries.clone() }
    }
}

impl<T> Catalog<T> {
    /// Returns an empty catalog. `kind` is the noun that errors use for an entry, such as `policy loss`.
    #[must_use]
    pub fn new(kind: &'static str) -> Self {
        Self { kind, entries: BTreeMap::new() }
    }

    /// Adds an entry that `make` constructs from its options. Replaces an entry of the same name.
    #[must_use]
    pub fn with<O: DeserializeOwned>(
        self,
        name: &str,
        make: impl Fn(O) -> Result<T, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        self.with_docs(name, About::default(), OptionDocs::default(), make)
    }

    /// Adds an entry with its documentation and the documentation of its options. Replaces an entry of the same name.
    #[must_use]
    pub fn described<O: DeserializeOwned + Serialize + Documented>(
        self,
        name: &str,
        about: About,
        make: impl Fn(O) -> Result<T, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        self.with_docs(name, about, OptionDocs::of::<O>(), make)
    }

    /// Adds an entry with the documentation `docs`, for types of options that are not [`Documented`]. Replaces an entry of the same name.
    #[must_use]
    pub fn with_docs<O: DeserializeOwned>(
        mut self,
        name: &str,
        about: About,
        docs: OptionDocs,
        make: impl Fn(O) -> Result<T, CatalogError> + Send + Sync + 'static,
    ) -> Self {
        let entry = CatalogEntry {
            about,
            options: option_names::<O>(),
            docs,
            type_errors: type_errors::<O>,
            make: Box::new(move |options| make(read(options)?)),
        };
        self.entries.insert(name.to_owned(), Arc::new(entry));
        self
    }

    /// Returns the names of the entries in alphabetical order, without aliases.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Returns the entries in the order of their names.
    pub fn list(&self) -> impl Iterator<Item = ListedEntry<'_>> {
        self.entries.iter().map(|(name, entry)| ListedEntry {
            name,
            about: entry.about,
            options: entry.options,
            docs: &entry.docs,
        })
    }

    /// Returns the names of the options of an entry, serde aliases included. The slice is empty if the option type does not list its
    /// fields. Returns `None` if no entry has this name or alias.
    #[must_use]
    pub fn options(&self, name: &str) -> Option<&'static [&'static str]> {
        self.find(name).map(|entry| entry.options)
    }

    /// Makes the chosen entry.
    ///
    /// # Errors
    /// Returns an error if no entry has this name or alias, an option is invalid or missing, or the entry fails to start.
    pub fn make(&self, choice: &Choice) -> Result<T, CatalogError> {
        (self.entry(choice)?.make)(choice.options.clone())
    }

    /// Returns the [`type_errors`] of the options, without making the entry, because that may start a process.
    ///
    /// If the entry lists its [`options`](Self::options), options that are not in the list are ignored. If there are unlisted options,
    /// errors that do not concern a single option, such as a missing option, are left out, too. If no entry has the name or alias, returns
    /// only the error about the unknown name.
    #[must_use]
    pub fn type_errors(&self, choice: &Choice) -> Vec<CatalogError> {
        let entry = match self.entry(choice) {
            Ok(entry) => entry,
            Err(unknown) => return vec![unknown],
        };
        let mut options = choice.options.clone();
        options.retain(|key, _| entry.options.is_empty() || entry.options.contains(&key.as_str()));
        let has_unknown = options.len() < choice.options.len();
        let mut errors = (entry.type_errors)(options);
        // A missing option may be one whose name is misspelt.
        errors.retain(|error| !has_unknown || error.has_option());
        errors
    }

    fn entry(&self, choice: &Choice) -> Result<&CatalogEntry<T>, CatalogError> {
        let unknown = || CatalogError::Unknown {
            kind: self.kind,
            name: choice.name.clone(),
            known: self.names().collect::<Vec<_>>().join(", "),
        };
        self.find(&choice.name).ok_or_else(unknown)
    }

    /// Finds an entry by name or alias. A name takes precedence over the same alias of another entry.
    fn find(&self, name: &str) -> Option<&CatalogEntry<T>> {
        let aliased =
            |entry: &&CatalogEntry<T>| entry.about.aliases.iter().any(|(alias, _)| *alias == name);
        let entry = self.entries.get(name).map(Arc::as_ref);
        entry.or_else(|| self.entries.values().map(Arc::as_ref).find(aliased))
    }
}
