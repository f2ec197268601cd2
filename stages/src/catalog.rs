//! Catalogs: registries that make the things a recipe names (losses, rewards, schedules) from their options. Users add a name with one
//! call.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::documented::{Documented, Field};
use crate::fields::fields as option_names;
use crate::shape::{Shape, field_shapes, shape_of};
use crate::wrong_value::{keys_to, missing_field, reason};

/// Options by name, as written in a recipe.
pub type Options = serde_json::Map<String, serde_json::Value>;

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

/// An error of a choice from a [`Catalog`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// The catalog has no entry of this name or alias.
    #[error("there is no {kind} `{name}`; there are {known}")]
    Unknown {
        /// The kind of entries that the catalog has.
        kind: &'static str,
        /// The requested name.
        name: String,
        /// The names of the catalog, separated by commas.
        known: String,
    },
    /// An option is invalid.
    #[error("{}{reason}", if key.is_empty() { String::new() } else { format!("`{key}`: ") })]
    Option {
        /// The option; empty if the error does not concern a single option.
        key: String,
        /// The reason: what was expected and what was found.
        reason: String,
    },
    /// The options are valid, but the chosen entry failed to start.
    #[error("{0}")]
    Start(String),
}

impl CatalogError {
    /// Returns the error of an entry that failed to start.
    #[must_use]
    pub fn start(error: impl std::fmt::Display) -> Self {
        Self::Start(error.to_string())
    }

    /// Returns the error for the option `key`, whose value is out of range.
    #[must_use]
    pub fn bound(key: &str, expected: &str, found: impl std::fmt::Display) -> Self {
        Self::Option { key: key.to_owned(), reason: format!("expected {expected}, found {found}") }
    }

    /// Returns `true` if the error concerns an option, and `false` if it concerns all of them, such as a missing one.
    fn has_option(&self) -> bool {
        matches!(self, Self::Option { key, .. } if !key.is_empty())
    }
}

/// Checks that the option `key` is finite and that `fits` accepts it.
///
/// # Errors
/// [`CatalogError::Option`] if not.
pub fn within(
    key: &str,
    value: f64,
    fits: impl Fn(f64) -> bool,
    expected: &str,
) -> Result<(), CatalogError> {
    if value.is_finite() && fits(value) {
        Ok(())
    } else {
        Err(CatalogError::bound(key, expected, value))
    }
}

crate::documented! {
    /// The options of an entry that has none. Any option is an error.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct NoOptions {}
}

/// The documentation of a catalog entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Other names of the entry, each with the project that uses it.
    pub aliases: &'static [(&'static str, &'static str)],
    /// A one-line summary of the entry.
    pub summary: &'static str,
    /// The source: a paper or a project.
    pub source: &'static str,
}

impl About {
    /// Returns the documentation of an entry.
    #[must_use]
    pub const fn new(
        aliases: &'static [(&'static str, &'static str)],
        summary: &'static str,
        source: &'static str,
    ) -> Self {
        Self { aliases, summary, source }
    }
}

/// Returns the types of the fields of a struct by name.
type Shapes = fn() -> Vec<(&'static str, Shape)>;

/// The documentation of the options of an entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptionDocs {
    /// The options in the order of their declaration, without serde aliases.
    pub fields: Vec<Field>,
    /// The defaults as JSON, without those of a type that has a required option.
    pub defaults: Options,
    shapes: Vec<Shapes>,
}

impl OptionDocs {
    /// Returns the documentation of the fields of `O`.
    #[must_use]
    pub fn of<O: DeserializeOwned + Serialize + Documented>() -> Self {
        Self::new::<O>(O::FIELDS)
    }

    /// Returns the documentation of the fields of `O`, which another crate defines.
    #[must_use]
    pub fn new<O: DeserializeOwned + Serialize>(fields: &[Field]) -> Self {
        let defaults = read::<O>(Options::new()).ok().map(serde_json::to_value);
        let defaults = match defaults {
            Some(Ok(Value::Object(defaults))) => defaults,
            _ => Options::new(),
        };
        Self { fields: fields.to_vec(), defaults, shapes: vec![field_shapes::<O>] }
    }

    /// Removes the defaults. Lists of options then show those that the documentation of the fields states.
    #[must_use]
    pub fn without_defaults(self) -> Self {
        Self { defaults: Options::new(), ..self }
    }

    /// Adds the documentation of a second type whose options the entry also accepts.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.fields.extend(other.fields);
        self.defaults.extend(other.defaults);
        self.shapes.extend(other.shapes);
        self
    }

    /// Returns the types of the options.
    #[must_use]
    pub fn shapes(&self) -> Vec<(&'static str, Shape)> {
        self.shapes.iter().flat_map(|shapes| shapes()).collect()
    }
}

/// A catalog entry as [`Catalog::list`] returns it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Listed<'a> {
    /// The name.
    pub name: &'a str,
    /// The documentation; empty for an entry that was added with [`Catalog::with`].
    pub about: About,
    /// The names of the options, serde aliases included; empty if the type of the options does not list its fields.
    pub options: &'static [&'static str],
    /// The documentation of the options. It has no fields if the entry was added with [`Catalog::with`].
    pub docs: &'a OptionDocs,
}

type Make<T> = Box<dyn Fn(Options) -> Result<T, CatalogError> + Send + Sync>;

/// An entry: its documentation, its options, and its constructor.
struct CatalogEntry<T> {
    about: About,
    options: &'static [&'static str],
    docs: OptionDocs,
    type_errors: fn(Options) -> Vec<CatalogError>,
    make: Make<T>,
}

/// A set of constructors of `T`, by the names that recipes use. Clones share their entries.
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
        let docs = OptionDocs { shapes: vec![field_shapes::<O>], ..OptionDocs::default() };
        self.with_docs(name, About::default(), docs, make)
    }

    /// Adds an entry with its documentation and that of its options. Replaces an entry of the same name.
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
    pub fn list(&self) -> impl Iterator<Item = Listed<'_>> {
        self.entries.iter().map(|(name, entry)| Listed {
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
    /// If no entry has this name, an option is invalid, or the entry fails to start.
    pub fn make(&self, choice: &Choice) -> Result<T, CatalogError> {
        (self.entry(choice)?.make)(choice.options.clone())
    }

    /// Returns the [`type_errors`] of the options, without making the entry, which may start a process. Ignores options that
    /// [`options`](Self::options) does not list, if it lists any; then no error says that an option is missing. If no entry has the name,
    /// the result is that error.
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

/// Removes the options named by `keys` and returns them.
#[must_use]
pub fn take(options: &mut Options, keys: &[&str]) -> Options {
    keys.iter().filter_map(|key| options.remove_entry(*key)).collect()
}

/// Deserializes options.
///
/// # Errors
/// [`CatalogError::Option`] if an option is unknown, missing or has the wrong type.
pub fn read<O: DeserializeOwned>(options: Options) -> Result<O, CatalogError> {
    let options = Value::Object(options);
    serde_path_to_error::deserialize(&options).map_err(|error| option_error::<O>(&options, &error))
}

fn option_error<O: DeserializeOwned>(
    options: &Value,
    error: &serde_path_to_error::Error<serde_json::Error>,
) -> CatalogError {
    let path = error.path().to_string();
    let key = if path == "." { String::new() } else { path };
    let reason = reason(&error.inner().to_string());
    let reason = match options.get(&key) {
        Some(found) => {
            let shape = shape_of(&key, &field_shapes::<O>());
            shape.reason(reason, found, found.is_string())
        }
        None => reason,
    };
    CatalogError::Option { key, reason }
}

/// Returns an error for each option that is unknown or has a wrong type, those in nested tables included. A table without any has an error
/// for its first missing option.
#[must_use]
pub fn type_errors<O: DeserializeOwned>(options: Options) -> Vec<CatalogError> {
    let mut errors = Vec::new();
    let mut removed_from: Vec<Vec<String>> = Vec::new();
    let mut options = Value::Object(options);
    // serde stops at the first error. Therefore each value that causes one is removed, and the rest is read again.
    while let Err(error) = serde_path_to_error::deserialize::<_, O>(&options) {
        let mut keys: Vec<String> = keys_to(error.path()).map(str::to_owned).collect();
        // A field may be missing because it was removed, under its name or an alias.
        let is_missing = missing_field(&error.inner().to_string()).is_some();
        if !(is_missing && removed_from.contains(&keys)) {
            errors.push(option_error::<O>(&options, &error));
        }
        let Some(last) = keys.pop() else { break };
        let table = keys.iter().try_fold(&mut options, |table, key| table.get_mut(key));
        let table = table.and_then(Value::as_object_mut);
        if table.and_then(|table| table.shift_remove(&last)).is_none() {
            break;
        }
        removed_from.push(keys);
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    crate::documented! {
        /// A curve.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        struct Slope {
            /// The rise per unit.
            slope: f64,
        }
    }

    impl Default for Slope {
        fn default() -> Self {
            Self { slope: 2.0 }
        }
    }

    fn catalog() -> Catalog<Slope> {
        let about = About { aliases: &[("line", "peer")], summary: "a line", source: "Euclid" };
        Catalog::new("curve")
            .described("linear", about, |slope: Slope| {
                let wrong = CatalogError::bound("slope", "a number above 0", slope.slope);
                if slope.slope > 0.0 { Ok(slope) } else { Err(wrong) }
            })
            .with("flat", |_: NoOptions| Ok(Slope { slope: 0.0 }))
    }

    #[test]
    fn names_and_aliases_create_the_same() {
        let catalog = catalog();
        assert_eq!(catalog.make(&Choice::of("linear")), Ok(Slope { slope: 2.0 }));
        let steep = Choice::of("line").with("slope", 3.0);
        assert_eq!(catalog.make(&steep), Ok(Slope { slope: 3.0 }));
        assert_eq!(catalog.options("line"), Some(["slope"].as_slice()));
        let listed: Vec<_> = catalog
            .list()
            .map(|Listed { name, docs, .. }| {
                (name, docs.defaults.len(), docs.fields.first().map(Field::text))
            })
            .collect();
        let text = "The rise per unit.".to_owned();
        assert_eq!(listed, [("flat", 0, None), ("linear", 1, Some(text))]);
    }

    #[test]
    fn an_entry_that_cannot_be_created_is_named() {
        let error = |choice: Choice| catalog().make(&choice).expect_err("refused").to_string();
        assert_eq!(error(Choice::of("lin")), "there is no curve `lin`; there are flat, linear");
        let low = Choice::of("linear").with("slope", -1.0);
        assert_eq!(error(low.clone()), "`slope`: expected a number above 0, found -1");
        let text = Choice::of("linear").with("slope", "steep");
        assert_eq!(catalog().type_errors(&low), []);
        assert_eq!(
            catalog().type_errors(&text),
            catalog().make(&text).err().into_iter().collect::<Vec<_>>()
        );
        assert_eq!(error(text), "`slope`: expected a number, found \"steep\"");
        assert!(error(Choice::of("flat").with("slope", 1)).contains("unknown field `slope`"));
    }

    #[test]
    fn each_option_of_a_wrong_type_has_an_error() {
        #[derive(Deserialize)]
        #[expect(dead_code, reason = "only deserialized")]
        struct Line {
            name: String,
            points: Vec<f64>,
            #[serde(default)]
            slope: f64,
        }
        let catalog = Catalog::new("curve").with("line", |_: Line| Ok(()));
        let errors = |choice: Choice| -> Vec<String> {
            catalog.type_errors(&choice).iter().map(ToString::to_string).collect()
        };
        let line = Choice::of("line");
        assert_eq!(errors(line.clone()), ["missing field `name`"]);
        assert!(errors(line.clone().with("nam", "a")).is_empty());
        let line = line.with("name", 1).with("points", json!([0.0, "x"]));
        let wrong = [
            "`name`: expected a string, found 1",
            "`points[1]`: expected a number, found \"x\"",
            "`slope`: expected a number, found true",
        ];
        assert_eq!(errors(line.clone().with("slpe", 1).with("slope", true)), wrong);
        assert_eq!(errors(line.with("slope", 1.0)), wrong[..2]);
    }

    #[test]
    fn each_wrong_value_of_a_nested_table_has_an_error() {
        #[derive(Deserialize)]
        #[expect(dead_code, reason = "only deserialized")]
        struct Curve {
            axis: Axis,
            degree: u32,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "only deserialized")]
        struct Axis {
            low: f64,
            high: f64,
            #[serde(default)]
            label: String,
        }
        let errors = |options: Value| -> Vec<String> {
            let Value::Object(options) = options else { panic!("a table") };
            type_errors::<Curve>(options).iter().map(ToString::to_string).collect()
        };
        let wrong =
            json!({"axis": {"low": "a", "high": "b", "labels": 1, "label": 2}, "degree": "c"});
        let expected = [
            "`axis.low`: expected a number, found \"a\"",
            "`axis.high`: expected a number, found \"b\"",
            "`axis.labels`: unknown field `labels`, expected one of `low`, `high`, `label`",
            "`axis.label`: expected a string, found 2",
            "`degree`: expected an integer, found \"c\"",
        ];
        assert_eq!(errors(wrong), expected);
        let missing = json!({"axis": {"low": 0.0, "label": 2}, "degree": "c"});
        let expected = [
            "`axis.label`: expected a string, found 2",
            "`degree`: expected an integer, found \"c\"",
        ];
        assert_eq!(errors(missing), expected);
        let missing = json!({"axis": {"low": 0.0}, "degree": "c"});
        let expected =
            ["`axis`: missing field `high`", "`degree`: expected an integer, found \"c\""];
        assert_eq!(errors(missing), expected);
    }
}
