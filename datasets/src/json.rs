//! Conversion of Arrow values to JSON text, one row at a time.

use std::borrow::Cow;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int64Type, UInt64Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Float64Array, Int64Array, MapArray, StringArray, StructArray,
    UInt64Array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_cast::cast;
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{ArrowError, DataType};
use serde_json::{Map, Value};

use crate::json_object::parse_object;
use crate::message::MessageRef;

/// Widens a float and keeps its shortest decimal digits: 0.1 becomes 0.1, and not 0.10000000149011612.
fn widen(narrow: f32) -> f64 {
    narrow.to_string().parse().unwrap_or_else(|_| f64::from(narrow))
}

/// A column whose values can be written as JSON. Integers, floats, booleans, text, lists, structs and maps become their JSON equivalents.
/// Infinite floats count as null, and so does NaN, with which pandas marks missing values. Binary values become hexadecimal text. Dates,
/// times, decimals and all other types become text as Arrow displays them; a value that Arrow cannot display, such as a date after the year
/// 262142, counts as null.
#[derive(Clone, Debug)]
pub(crate) enum JsonColumn {
    Null,
    Text(StringArray),
    /// Values that are JSON text already.
    Raw(StringArray),
    Bool(BooleanArray),
    Int(Int64Array),
    Uint(UInt64Array),
    Float(Float64Array),
    List(OffsetBuffer<i64>, Option<NullBuffer>, Box<JsonColumn>),
    Struct(Vec<(String, JsonColumn)>, Option<NullBuffer>),
    Map(OffsetBuffer<i32>, Option<NullBuffer>, Box<(JsonColumn, JsonColumn)>),
    Formatted(ArrayRef),
}

impl JsonColumn {
    pub(crate) fn of(array: &ArrayRef) -> Result<Self, ArrowError> {
        use DataType as T;
        Ok(match array.data_type() {
            T::Null => Self::Null,
            T::Utf8 => Self::Text(array.as_string().clone()),
            T::LargeUtf8 | T::Utf8View => Self::Text(cast(array, &T::Utf8)?.as_string().clone()),
            T::Dictionary(_, value) => Self::of(&cast(array, value)?)?,
            T::Boolean => Self::Bool(array.as_boolean().clone()),
            T::Int8 | T::Int16 | T::Int32 | T::Int64 => {
                Self::Int(cast(array, &T::Int64)?.as_primitive::<Int64Type>().clone())
            }
            T::UInt8 | T::UInt16 | T::UInt32 | T::UInt64 => {
                Self::Uint(cast(array, &T::UInt64)?.as_primitive::<UInt64Type>().clone())
            }
            T::Float16 | T::Float32 => {
                let narrow = cast(array, &T::Float32)?;
                Self::Float(narrow.as_primitive::<Float32Type>().unary(widen))
            }
            T::Float64 => Self::Float(array.as_primitive::<Float64Type>().clone()),
            T::List(item) | T::LargeList(item) | T::FixedSizeList(item, _) => {
                let list = cast(array, &T::LargeList(item.clone()))?;
                let list = list.as_list::<i64>();
                Self::List(
                    list.offsets().clone(),
                    list.nulls().cloned(),
                    Box::new(Self::of(list.values())?),
                )
            }
            T::Struct(_) => Self::of_struct(array.as_struct())?,
            T::Map(..) => Self::of_map(array.as_map())?,
            _ => Self::Formatted(array.clone()),
        })
    }

    pub(crate) fn of_struct(array: &StructArray) -> Result<Self, ArrowError> {
        let fields = array.fields().iter().zip(array.columns());
        let fields = fields.map(|(field, column)| Ok((field.name().clone(), Self::of(column)?)));
        Ok(Self::Struct(fields.collect::<Result<_, ArrowError>>()?, array.nulls().cloned()))
    }

    fn of_map(array: &MapArray) -> Result<Self, ArrowError> {
        let entries = (Self::of(array.keys())?, Self::of(array.values())?);
        Ok(Self::Map(array.offsets().clone(), array.nulls().cloned(), Box::new(entries)))
    }

    /// Returns `true` for a struct with a field of that name.
    pub(crate) fn has_field(&self, name: &str) -> bool {
        matches!(self, Self::Struct(fields, _) if fields.iter().any(|(field, _)| field == name))
    }

    pub(crate) fn is_null(&self, row: usize) -> bool {
        match self {
            Self::Null => true,
            Self::Text(array) | Self::Raw(array) => array.is_null(row),
            Self::Bool(array) => array.is_null(row),
            Self::Int(array) => array.is_null(row),
            Self::Uint(array) => array.is_null(row),
            Self::Float(array) => array.is_null(row) || !array.value(row).is_finite(),
            Self::List(_, nulls, _) | Self::Struct(_, nulls) | Self::Map(_, nulls, _) => {
                nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))
            }
            Self::Formatted(array) => format_value(array, row).is_none(),
        }
    }

    /// Returns a description of a value that counts as null: `null`, or a float without a JSON equivalent. Returns `None` for any other
    /// value.
    pub(crate) fn missing(&self, row: usize) -> Option<String> {
        let float = match self {
            Self::Float(array) if array.is_valid(row) => Some(array.value(row).to_string()),
            _ => None,
        };
        self.is_null(row).then(|| float.unwrap_or_else(|| "null".to_owned()))
    }

    /// Returns text values as they are and other values as JSON; `None` for null.
    pub(crate) fn plain(&self, row: usize) -> Option<Cow<'_, str>> {
        match self {
            _ if self.is_null(row) => None,
            Self::Text(array) | Self::Raw(array) => Some(Cow::Borrowed(array.value(row))),
            Self::Formatted(array) => format_value(array, row).map(Cow::Owned),
            _ => {
                let mut out = Vec::new();
                self.write(row, &mut out);
                Some(Cow::Owned(into_text(out)))
            }
        }
    }

    /// Appends the value as JSON.
    pub(crate) fn write(&self, row: usize, out: &mut Vec<u8>) {
        match self {
            _ if self.is_null(row) => out.extend(b"null"),
            Self::Null => out.extend(b"null"),
            Self::Raw(array) => out.extend(array.value(row).as_bytes()),
            Self::Text(array) => write_text(array.value(row), out),
            Self::Bool(array) => scalar(&array.value(row), out),
            Self::Int(array) => scalar(&array.value(row), out),
            Self::Uint(array) => scalar(&array.value(row), out),
            Self::Float(array) => scalar(&array.value(row), out),
            Self::List(offsets, _, item) => write_list(item, span(offsets, row), out),
            Self::Struct(fields, _) => write_struct(fields, row, out),
            Self::Map(offsets, _, entries) => {
                write_map(&entries.0, &entries.1, span(offsets, row), out)
            }
            Self::Formatted(array) => {
                write_text(&format_value(array, row).unwrap_or_default(), out);
            }
        }
    }
}

fn span<O: arrow_array::OffsetSizeTrait>(
    offsets: &OffsetBuffer<O>,
    row: usize,
) -> std::ops::Range<usize> {
    offsets[row].as_usize()..offsets[row + 1].as_usize()
}

fn write_list(item: &JsonColumn, items: std::ops::Range<usize>, out: &mut Vec<u8>) {
    out.push(b'[');
    for index in items {
        separate(out);
        item.write(index, out);
    }
    out.push(b']');
}

fn write_struct(fields: &[(String, JsonColumn)], row: usize, out: &mut Vec<u8>) {
    out.push(b'{');
    write_fields(fields, row, out);
    out.push(b'}');
}

/// Appends `"name":value` for each field.
fn write_fields(fields: &[(String, JsonColumn)], row: usize, out: &mut Vec<u8>) {
    for (name, column) in fields {
        separate(out);
        write_text(name, out);
        out.push(b':');
        column.write(row, out);
    }
}

fn write_map(
    keys: &JsonColumn,
    values: &JsonColumn,
    entries: std::ops::Range<usize>,
    out: &mut Vec<u8>,
) {
    out.push(b'{');
    for index in entries {
        separate(out);
        write_text(&keys.plain(index).unwrap_or_default(), out);
        out.push(b':');
        values.write(index, out);
    }
    out.push(b'}');
}

/// Appends a comma unless a bracket was just opened. Only called where a value begins, so the last byte is unambiguous.
fn separate(out: &mut Vec<u8>) {
    if !matches!(out.last(), Some(b'[' | b'{')) {
        out.push(b',');
    }
}

fn scalar<T: serde::Serialize>(value: &T, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("invariant: a scalar into memory always serialises");
}

/// Appends text as a JSON string. Runs without characters to escape, which make up nearly all of a prompt, are copied as a whole.
fn write_text(text: &str, out: &mut Vec<u8>) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(end) = first_special(rest) {
        out.extend(&rest[..end]);
        escape(rest[end], out);
        rest = &rest[end + 1..];
    }
    out.extend(rest);
    out.push(b'"');
}

/// Returns the position of the first byte that JSON requires to be escaped. Whole blocks are examined without branches, which compiles to
/// vector code.
fn first_special(bytes: &[u8]) -> Option<usize> {
    let special = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
    let blocks = bytes.chunks_exact(32);
    let plain = blocks
        .take_while(|block| !block.iter().fold(false, |any, byte| any | special(byte)))
        .count()
        * 32;
    bytes[plain..].iter().position(special).map(|at| plain + at)
}

fn escape(byte: u8, out: &mut Vec<u8>) {
    match byte {
        b'"' => out.extend(b"\\\""),
        b'\\' => out.extend(b"\\\\"),
        b'\n' => out.extend(b"\\n"),
        b'\r' => out.extend(b"\\r"),
        b'\t' => out.extend(b"\\t"),
        _ => out.extend(format!("\\u{byte:04x}").as_bytes()),
    }
}

/// Returns the text of a value; `None` for null and for a value that Arrow cannot display.
fn format_value(array: &ArrayRef, row: usize) -> Option<String> {
    let formatter = ArrayFormatter::try_new(array, &FormatOptions::default()).ok()?;
    array.is_valid(row).then(|| formatter.value(row).try_to_string().ok()).flatten()
}

pub(crate) fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("invariant: JSON made of text is text")
}

/// Encodes messages as a JSON array of `{role, content}`.
pub(crate) fn messages_text<'a>(messages: impl Iterator<Item = MessageRef<'a>>) -> String {
    let mut out = vec![b'['];
    for message in messages {
        separate(&mut out);
        out.extend(b"{\"role\":");
        write_text(message.role, &mut out);
        out.extend(b",\"content\":");
        write_text(message.content, &mut out);
        out.push(b'}');
    }
    out.push(b']');
    into_text(out)
}

/// The further columns of a prompt: `extra_info` and the extra columns.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtraColumns {
    /// The column `extra_info`: structs, JSON objects as text, or nulls. `None` if there is no such column.
    pub(crate) info: Option<JsonColumn>,
    pub(crate) columns: Vec<(String, JsonColumn)>,
}

impl ExtraColumns {
    /// Returns the row's JSON object. If a name occurs twice, the field of `extra_info` comes last, and parsers keep the last field.
    pub(crate) fn text(&self, row: usize) -> String {
        let mut out = Vec::with_capacity(256);
        out.push(b'{');
        write_fields(&self.columns, row, &mut out);
        self.write_info(row, &mut out);
        out.push(b'}');
        into_text(out)
    }

    pub(crate) fn map(&self, row: usize) -> Map<String, Value> {
        parse_object(self.text(row).as_bytes()).unwrap_or_default()
    }

    fn write_info(&self, row: usize, out: &mut Vec<u8>) {
        match &self.info {
            Some(info) if info.is_null(row) => {}
            Some(JsonColumn::Struct(fields, _)) => write_fields(fields, row, out),
            Some(JsonColumn::Raw(objects)) => write_inner(objects.value(row), out),
            _ => {}
        }
    }
}

/// Appends the text between the braces of an object.
fn write_inner(object: &str, out: &mut Vec<u8>) {
    let inner = object
        .trim()
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
        .unwrap_or_default()
        .trim();
    if !inner.is_empty() {
        separate(out);
        out.extend(inner.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int32Type;
    use arrow_array::{
        BinaryArray, Date32Array, Decimal128Array, Int32Array, ListArray, NullArray,
    };
    use arrow_schema::Field;
    use expect_test::{Expect, expect};

    use super::*;

    fn check(array: ArrayRef, expect: Expect) {
        let json = JsonColumn::of(&array).unwrap();
        let mut out = Vec::new();
        for row in 0..array.len() {
            json.write(row, &mut out);
            out.push(b' ');
        }
        expect.assert_eq(&into_text(out));
    }

    #[test]
    fn narrow_floats_keep_their_digits() {
        let numbers = arrow_array::Float32Array::from(vec![0.1, 2.5, 1e-7, 16_777_216.0]);
        check(Arc::new(numbers), expect!["0.1 2.5 1e-7 16777216.0 "]);
    }

    #[test]
    fn every_type_is_json() {
        check(
            Arc::new(StringArray::from(vec![Some("a \"b\"\\\n\u{1}é"), None])),
            expect![[r#""a \"b\"\\\n\u0001é" null "#]],
        );
        check(Arc::new(Int32Array::from(vec![Some(-3), None])), expect!["-3 null "]);
        check(Arc::new(UInt64Array::from(vec![u64::MAX])), expect!["18446744073709551615 "]);
        check(Arc::new(Float64Array::from(vec![0.5, f64::NAN])), expect!["0.5 null "]);
        check(Arc::new(BooleanArray::from(vec![true])), expect!["true "]);
        check(Arc::new(NullArray::new(1)), expect!["null "]);
        check(Arc::new(BinaryArray::from_vec(vec![b"\x00\xff"])), expect![[r#""00ff" "#]]);
        check(
            Arc::new(Date32Array::from(vec![19_000, i32::MAX])),
            expect![[r#""2022-01-08" null "#]],
        );
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(1), None]),
            None,
            Some(vec![]),
        ]);
        check(Arc::new(lists), expect!["[1,null] null [] "]);
    }

    #[test]
    fn plain_text_has_no_quotes() {
        let plain = |array: ArrayRef| JsonColumn::of(&array).unwrap().plain(0).map(String::from);
        let decimals = Decimal128Array::from(vec![150]).with_precision_and_scale(5, 2).unwrap();
        assert_eq!(plain(Arc::new(decimals)).as_deref(), Some("1.50"));
        assert_eq!(plain(Arc::new(Date32Array::from(vec![19_000]))).as_deref(), Some("2022-01-08"));
        assert_eq!(plain(Arc::new(Date32Array::from(vec![i32::MAX]))), None);
        assert_eq!(plain(Arc::new(Int32Array::from(vec![7]))).as_deref(), Some("7"));
    }

    #[test]
    fn text_of_any_length_is_escaped() {
        for at in 0..70 {
            let text = format!("{}\"{}\n", "x".repeat(at), "é".repeat(70 - at));
            let mut out = Vec::new();
            write_text(&text, &mut out);
            assert_eq!(into_text(out), serde_json::to_string(&text).unwrap());
        }
    }

    #[test]
    fn a_struct_is_an_object() {
        let inner: ArrayRef = Arc::new(StringArray::from(vec![Some("x"), None]));
        let field = Arc::new(Field::new("target", DataType::Utf8, true));
        let array =
            StructArray::new(vec![field].into(), vec![inner], Some(vec![true, false].into()));
        check(Arc::new(array), expect![[r#"{"target":"x"} null "#]]);
    }

    #[test]
    fn extra_info_and_columns_make_one_object() {
        let info = JsonColumn::Raw(StringArray::from(vec![Some(r#" {"a":1} "#), Some("{}"), None]));
        let column = JsonColumn::Int(Int64Array::from(vec![7, 8, 9]));
        let extra = ExtraColumns { info: Some(info), columns: vec![("b".to_owned(), column)] };
        let texts: Vec<_> = (0..3).map(|row| extra.text(row)).collect();
        assert_eq!(texts, [r#"{"b":7,"a":1}"#, r#"{"b":8}"#, r#"{"b":9}"#]);
    }
}
