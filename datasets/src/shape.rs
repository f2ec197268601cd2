//! Inference of the Arrow type that fits some JSON values, and conversion of the values to it.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, ListArray, NullArray, StringArray,
    StructArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, Field, Fields};
use serde_json::{Map, Value};

/// The type that fits some JSON values. Values without a common type are kept as JSON text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Only nulls.
    #[default]
    Null,
    /// `Boolean`.
    Bool,
    /// `Int64`.
    Int,
    /// `Float64`.
    Float,
    /// `Utf8`: text as it is, other values as JSON.
    Text,
    /// `List` of items of one shape.
    List(Box<Shape>),
    /// `Struct`, with its fields in the order of their first occurrence. Objects that have more than 1,024 different fields, alone or
    /// together, have the shape [`Text`](Self::Text).
    Struct(Vec<(String, Shape)>),
}

impl Shape {
    /// Returns the shape of one value. Integers above `i64::MAX` become text, which keeps all digits.
    #[must_use]
    pub fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Bool,
            Value::Number(number) if number.is_i64() => Self::Int,
            Value::Number(number) if number.is_u64() => Self::Text,
            Value::Number(_) => Self::Float,
            Value::String(_) => Self::Text,
            Value::Array(items) => {
                Self::List(Box::new(items.iter().map(Self::of).fold(Self::Null, Self::join)))
            }
            Value::Object(object) => Self::of_object(object),
        }
    }

    /// Returns the shape of one object.
    #[must_use]
    pub fn of_object(object: &Map<String, Value>) -> Self {
        if object.len() > MAX_FIELDS {
            return Self::Text;
        }
        Self::Struct(object.iter().map(|(name, value)| (name.clone(), Self::of(value))).collect())
    }

    /// Returns the shape that fits the values of both shapes: [`Text`](Self::Text) if they have no common type.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::Null, shape) | (shape, Self::Null) => shape,
            (Self::Int, Self::Float) | (Self::Float, Self::Int) => Self::Float,
            (Self::List(a), Self::List(b)) => Self::List(Box::new(a.join(*b))),
            (Self::Struct(a), Self::Struct(b)) => join_fields(a, b),
            (a, b) if a == b => a,
            _ => Self::Text,
        }
    }

    /// Returns the Arrow type. A struct without fields becomes JSON text, because Parquet does not support it.
    #[must_use]
    pub fn data_type(&self) -> DataType {
        match self {
            Self::Null => DataType::Null,
            Self::Bool => DataType::Boolean,
            Self::Int => DataType::Int64,
            Self::Float => DataType::Float64,
            Self::Text => DataType::Utf8,
            Self::List(item) => {
                DataType::List(Arc::new(Field::new("element", item.data_type(), true)))
            }
            Self::Struct(fields) if fields.is_empty() => DataType::Utf8,
            Self::Struct(fields) => DataType::Struct(arrow_fields(fields)),
        }
    }

    /// Converts values of this shape to an array. Missing values and values that do not fit become null.
    pub(crate) fn array(&self, values: &[Option<&Value>]) -> Result<ArrayRef, ArrowError> {
        let each = || values.iter().copied();
        Ok(match self {
            Self::Null => Arc::new(NullArray::new(values.len())),
            Self::Bool => Arc::new(each().map(|value| value?.as_bool()).collect::<BooleanArray>()),
            Self::Int => Arc::new(each().map(|value| value?.as_i64()).collect::<Int64Array>()),
            Self::Float => Arc::new(each().map(|value| value?.as_f64()).collect::<Float64Array>()),
            Self::List(item) => item.list(values)?,
            Self::Struct(fields) if !fields.is_empty() => structs(fields, values)?,
            Self::Text | Self::Struct(_) => Arc::new(each().map(text).collect::<StringArray>()),
        })
    }

    fn list(&self, values: &[Option<&Value>]) -> Result<ArrayRef, ArrowError> {
        let lists = || values.iter().map(|value| value.and_then(Value::as_array));
        let items: Vec<Option<&Value>> = lists().flatten().flatten().map(Some).collect();
        let offsets = OffsetBuffer::from_lengths(lists().map(|list| list.map_or(0, Vec::len)));
        let nulls: NullBuffer = lists().map(|list| list.is_some()).collect();
        let field = Arc::new(Field::new("element", self.data_type(), true));
        Ok(Arc::new(ListArray::try_new(field, offsets, self.array(&items)?, Some(nulls))?))
    }
}

fn structs(fields: &[(String, Shape)], values: &[Option<&Value>]) -> Result<ArrayRef, ArrowError> {
    let column = |(name, shape): &(String, Shape)| {
        let field: Vec<_> =
            values.iter().map(|value| value.and_then(|value| value.get(name))).collect();
        shape.array(&field)
    };
    let columns = fields.iter().map(column).collect::<Result<_, _>>()?;
    let nulls: NullBuffer =
        values.iter().map(|value| value.is_some_and(Value::is_object)).collect();
    Ok(Arc::new(StructArray::try_new(arrow_fields(fields), columns, Some(nulls))?))
}

fn arrow_fields(fields: &[(String, Shape)]) -> Fields {
    fields.iter().map(|(name, shape)| Field::new(name, shape.data_type(), true)).collect()
}

/// The maximum number of fields of a struct. Objects whose keys are data, such as ids, would otherwise have a column per key.
const MAX_FIELDS: usize = 1024;

fn join_fields(mut a: Vec<(String, Shape)>, b: Vec<(String, Shape)>) -> Shape {
    for (name, shape) in b {
        match a.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = std::mem::take(known).join(shape),
            None => a.push((name, shape)),
        }
    }
    if a.len() > MAX_FIELDS { Shape::Text } else { Shape::Struct(a) }
}

fn text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::json::{JsonColumn, into_text};

    fn shape_of(values: &[Value]) -> Shape {
        values.iter().map(Shape::of).fold(Shape::Null, Shape::join)
    }

    fn round_trip(values: &[Value]) -> Vec<Value> {
        let array = shape_of(values).array(&values.iter().map(Some).collect::<Vec<_>>()).unwrap();
        let json = JsonColumn::of(&array).unwrap();
        let value = |row| {
            let mut out = Vec::new();
            json.write(row, &mut out);
            serde_json::from_str(&into_text(out)).unwrap()
        };
        (0..values.len()).map(value).collect()
    }

    #[test]
    fn values_of_one_type_round_trip() {
        let values =
            [json!({"a": [1, 2], "b": {"c": "x"}}), json!({"a": [], "b": null}), json!(null)];
        assert_eq!(round_trip(&values)[0], values[0]);
        assert_eq!(round_trip(&values)[1], json!({"a": [], "b": null}));
    }

    #[test]
    fn values_of_no_common_type_become_json_text() {
        assert_eq!(
            round_trip(&[json!(1), json!("x"), json!({"a": 1})]),
            [json!("1"), json!("x"), json!("{\"a\":1}")]
        );
        assert_eq!(round_trip(&[json!(1), json!(0.5)]), [json!(1.0), json!(0.5)]);
        assert_eq!(round_trip(&[json!({}), json!(null)]), [json!("{}"), json!(null)]);
    }

    #[test]
    fn objects_with_too_many_fields_are_json_text() {
        let object = |keys: std::ops::Range<usize>| {
            Value::Object(keys.map(|key| (key.to_string(), json!(key))).collect())
        };
        let is_text = |values: &[Value]| {
            let shapes =
                [values.to_vec(), vec![json!({"inner": values})]].map(|all| shape_of(&all));
            let inner = Shape::List(Box::new(shapes[0].clone()));
            assert_eq!(shapes[1], Shape::Struct(vec![("inner".to_owned(), inner)]));
            shapes[0] == Shape::Text
        };
        assert!(!is_text(&[object(0..1024)]) && is_text(&[object(0..1025)]));
        assert!(!is_text(&[object(0..600), object(500..1024)]));
        assert!(is_text(&[object(0..600), object(500..1025)]));
        assert!(is_text(&[object(0..1025), object(0..1)]));
    }

    fn flat() -> impl Strategy<Value = Value> {
        (
            any::<Option<i64>>(),
            any::<Option<String>>(),
            any::<Option<bool>>(),
            prop::collection::vec(".*", 0..3),
        )
            .prop_map(|(a, b, c, d)| json!({"a": a, "b": b, "c": c, "d": d}))
    }

    proptest! {
        #[test]
        fn records_round_trip(values in prop::collection::vec(flat(), 1..20)) {
            prop_assert_eq!(round_trip(&values), values);
        }
    }
}
