//! The documentation of entries and of their options.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::options::{Options, read};
use crate::documented::{Documented, Field};
use crate::shape::{Shape, field_shapes};

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

/// A function that returns the types of the fields of a struct by name.
type Shapes = fn() -> Vec<(&'static str, Shape)>;

/// The documentation of the options of an entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptionDocs {
    /// The options in the order of their declaration, without serde aliases.
    pub fields: Vec<Field>,
    /// The defaults of the options, as JSON. A type with a required option adds none, and [`without_defaults`](Self::without_defaults)
    /// removes them.
    pub defaults: Options,
    shapes: Vec<Shapes>,
}

impl OptionDocs {
    /// Returns the documentation of the fields of `O`.
    #[must_use]
    pub fn of<O: DeserializeOwned + Serialize + Documented>() -> Self {
        Self::new::<O>(O::FIELDS)
    }

    /// Returns the documentation of the options of type `O`, whose fields `fields` documents. Use this for types of other crates that do
    /// not implement [`Documented`].
    #[must_use]
    pub fn new<O: DeserializeOwned + Serialize>(fields: &[Field]) -> Self {
        let defaults = read::<O>(Options::new()).ok().map(serde_json::to_value);
        let defaults = match defaults {
            Some(Ok(Value::Object(defaults))) => defaults,
            _ => Options::new(),
        };
        Self { fields: fields.to_vec(), defaults, shapes: vec![field_shapes::<O>] }
    }

    /// Removes the defaults. Lists of options then show the defaults that the documentation of the fields states.
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

    /// Returns the types of the options by name, serde aliases included.
    #[must_use]
    pub fn shapes(&self) -> Vec<(&'static str, Shape)> {
        self.shapes.iter().flat_map(|shapes| shapes()).collect()
    }
}
