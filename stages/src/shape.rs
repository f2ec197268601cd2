//! The types of option values, read from the types that deserialize them.

use std::fmt::Display;

use serde::de::value::Error;
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, Visitor,
};

use crate::fields::fields;
use crate::wrong_value::{LONG_LIST, TAGGED_ENUM, one_of};

/// The type of a value, as documentation names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// A type whose deserialization requests none of the types below.
    #[default]
    Unknown,
    /// A type with a fixed name, such as `integer`.
    Named(&'static str),
    /// A list of a fixed number of values.
    Tuple(usize),
    /// One of several names.
    Choice(&'static [&'static str]),
    /// Several types, as the error for other values describes them.
    Several(String),
}

impl Shape {
    /// Returns the type in words.
    #[must_use]
    pub fn type_name(&self) -> &str {
        match self {
            Self::Unknown => "value",
            Self::Named(name) => name,
            Self::Tuple(_) => "list",
            Self::Choice(_) => "string",
            Self::Several(words) => words,
        }
    }

    /// Returns the reason why the value `found` is wrong. `of_serde` is the [`reason`](crate::wrong_value::reason) of serde. This reason
    /// lacks the expected names for an enum, the found value for a type that accepts several types of values, and the expected length for a
    /// list with too many values. This method adds them. `is_text` is `true` if the value is a string.
    #[must_use]
    pub fn reason(&self, of_serde: String, found: &dyn Display, is_text: bool) -> String {
        match self {
            Self::Choice(names) if !is_text => {
                format!("expected {}, found {found}", one_of(names, ""))
            }
            Self::Several(expected) if *expected == of_serde => {
                format!("expected {expected}, found {found}")
            }
            Self::Tuple(length) => match of_serde.strip_prefix(LONG_LIST) {
                Some(found) => format!("expected a list of {length} values{found}"),
                None => of_serde,
            },
            _ => of_serde,
        }
    }
}

/// Returns the types of the fields of a struct, in the order of [`fields`]. Empty for other types.
///
/// ```
/// use rollpacker_stages::shape::{Shape, field_shapes};
///
/// #[derive(serde::Deserialize)]
/// struct Timer {
///     wait: Option<u64>,
/// }
///
/// assert_eq!(field_shapes::<Timer>(), [("wait", Shape::Named("integer"))]);
/// ```
#[must_use]
pub fn field_shapes<'de, T: Deserialize<'de>>() -> Vec<(&'static str, Shape)> {
    let fields = fields::<T>();
    let of = |at| {
        let mut shape = Shape::default();
        // The probe answers each request with an error, which is discarded.
        drop(T::deserialize(OneField { at, shape: &mut shape }));
        shape
    };
    fields.iter().enumerate().map(|(at, field)| (*field, of(at))).collect()
}

/// Returns the type of the field `name` in the result of [`field_shapes`]; [`Shape::Unknown`] if there is no such field.
#[must_use]
pub fn shape_of(name: &str, shapes: &[(&str, Shape)]) -> Shape {
    shapes
        .iter()
        .find(|(field, _)| *field == name)
        .map(|(_, shape)| shape.clone())
        .unwrap_or_default()
}

/// A deserializer of a struct that contains only the field at index `at`.
struct OneField<'a> {
    at: usize,
    shape: &'a mut Shape,
}

impl<'de> Deserializer<'de> for OneField<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(FieldOf { field: fields[self.at], shape: self.shape })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("not a struct"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct FieldOf<'a> {
    field: &'static str,
    shape: &'a mut Shape,
}

impl<'de> MapAccess<'de> for FieldOf<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        seed.deserialize(self.field.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let value = seed.deserialize(Probe(self.shape));
        if let (Shape::Unknown, Err(error)) = (&*self.shape, &value) {
            let words = error.to_string();
            let expected = words.strip_prefix("invalid type: unit value, expected ");
            *self.shape = match expected.unwrap_or(&words) {
                expected if expected.starts_with(TAGGED_ENUM) => Shape::Named("table"),
                expected => Shape::Several(expected.to_owned()),
            };
        }
        value
    }
}

/// A deserializer that records the requested type.
struct Probe<'a>(&'a mut Shape);

impl Probe<'_> {
    fn found<T>(self, shape: Shape) -> Result<T, Error> {
        *self.0 = shape;
        Err(de::Error::custom("asked"))
    }
}

macro_rules! named {
    ($($method:ident($($argument:ty),*) => $name:literal,)*) => {
        $(fn $method<V: Visitor<'de>>(self, $(_: $argument,)* _: V) -> Result<V::Value, Error> {
            self.found(Shape::Named($name))
        })*
    };
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    /// Passes a unit to a type that requests any value. A type that accepts several types of values rejects the unit with an error that
    /// names these types.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Error> {
        self.found(Shape::Choice(variants))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, _: V) -> Result<V::Value, Error> {
        self.found(Shape::Tuple(length))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        length: usize,
        _visitor: V,
    ) -> Result<V::Value, Error> {
        self.found(Shape::Tuple(length))
    }

    named! {
        deserialize_bool() => "boolean",
        deserialize_i8() => "integer",
        deserialize_i16() => "integer",
        deserialize_i32() => "integer",
        deserialize_i64() => "integer",
        deserialize_i128() => "integer",
        deserialize_u8() => "integer",
        deserialize_u16() => "integer",
        deserialize_u32() => "integer",
        deserialize_u64() => "integer",
        deserialize_u128() => "integer",
        deserialize_f32() => "number",
        deserialize_f64() => "number",
        deserialize_char() => "string",
        deserialize_str() => "string",
        deserialize_string() => "string",
        deserialize_bytes() => "string",
        deserialize_byte_buf() => "string",
        deserialize_seq() => "list",
        deserialize_map() => "table",
        deserialize_struct(&'static str, &'static [&'static str]) => "table",
        deserialize_identifier() => "string",
    }

    serde::forward_to_deserialize_any! { unit unit_struct ignored_any }
}
