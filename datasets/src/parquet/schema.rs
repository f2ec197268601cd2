//! Checks of a Parquet file's schema, and the selection of the leaf columns to read.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use ::parquet::arrow::ProjectionMask;
use ::parquet::schema::types::SchemaDescriptor;
use arrow_schema::{DataType, Field, SchemaRef};

use crate::columns::{ColumnKind, ColumnRoles, FileLayout};
use crate::error::{DatasetError, head_description, quoted};
use crate::reopen::check_reopens;

const MAGIC: &[u8] = b"PAR1";
const PROMPT_TYPE: &str = "list<struct<role: string, content: string>> or string";

/// Checks the magic bytes of a Parquet file.
///
/// # Errors
///
/// If the file does not begin and end like a Parquet file, cannot be read, or can be read only once, such as a pipe.
pub(crate) fn check_magic(path: &Path) -> Result<(), DatasetError> {
    check_reopens(path)?;
    let failed = || DatasetError::io(path, "read");
    let mut file = File::open(path).map_err(DatasetError::io(path, "open"))?;
    let bytes = file.metadata().map_err(failed())?.len();
    let mut head = Vec::new();
    file.by_ref().take(4).read_to_end(&mut head).map_err(failed())?;
    if head != MAGIC {
        return Err(DatasetError::NotParquet {
            file: path.to_owned(),
            found: head_description(&head),
        });
    }
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(bytes.saturating_sub(4))).map_err(failed())?;
    file.read_to_end(&mut tail).map_err(failed())?;
    if tail == MAGIC && bytes >= 12 {
        Ok(())
    } else {
        Err(DatasetError::Truncated { file: path.to_owned(), found: quoted(&tail), bytes })
    }
}

/// Checks that every column in use has a unique name and a type that can be read.
pub(super) fn check_types(
    path: &Path,
    schema: &SchemaRef,
    plan: &ColumnRoles,
) -> Result<(), DatasetError> {
    let used = plan.parts().map(|(_, column)| &column.parts[0]);
    for name in used.chain(&plan.extra) {
        let same = schema.fields().iter().filter(|field| field.name() == name).count();
        if same > 1 {
            let (file, column) = (path.to_owned(), name.clone());
            let (expected, found) = ("one column of this name", same.to_string());
            return Err(DatasetError::WrongType { file, column, expected, found });
        }
    }
    for (part, column) in plan.parts() {
        let found = field(schema, &column.parts)
            .expect("invariant: a resolved path leads to a field")
            .data_type();
        let (fits, expected) = match part {
            "prompt" => (is_prompt(found), PROMPT_TYPE),
            "extra_info" => (
                matches!(found, DataType::Struct(_) | DataType::Utf8 | DataType::Null),
                "struct or JSON text",
            ),
            "ground_truth" => (true, "any"),
            _ => (matches!(found, DataType::Utf8), "string"),
        };
        if !fits {
            let (file, column) = (path.to_owned(), column.name.to_string());
            return Err(DatasetError::WrongType {
                file,
                column,
                expected,
                found: type_description(found),
            });
        }
    }
    Ok(())
}

fn is_prompt(data_type: &DataType) -> bool {
    let text = |fields: &arrow_schema::Fields, name| {
        fields.iter().any(|field| field.name() == name && *field.data_type() == DataType::Utf8)
    };
    match data_type {
        DataType::Utf8 => true,
        DataType::List(item) => match item.data_type() {
            DataType::Struct(fields) => text(fields, "role") && text(fields, "content"),
            _ => false,
        },
        _ => false,
    }
}

fn field<'a, S: AsRef<str>>(schema: &'a SchemaRef, parts: &[S]) -> Option<&'a Field> {
    let (root, rest) = parts.split_first()?;
    let root = schema.field_with_name(root.as_ref()).ok()?;
    rest.iter().try_fold(root, |field, part| match field.data_type() {
        DataType::Struct(fields) => fields.find(part.as_ref()).map(|(_, field)| field.as_ref()),
        _ => None,
    })
}

impl FileLayout for SchemaRef {
    fn roots(&self) -> Vec<String> {
        self.fields().iter().map(|field| field.name().clone()).collect()
    }

    fn kind<S: AsRef<str>>(&self, parts: &[S]) -> Option<ColumnKind> {
        Some(match field(self, parts)?.data_type() {
            DataType::List(_) => ColumnKind::List,
            DataType::Utf8 => ColumnKind::Text,
            DataType::Struct(_) => ColumnKind::Struct,
            _ => ColumnKind::Other,
        })
    }
}

/// Returns a mask of the leaf columns that `plan` uses. Of the prompt's messages, it selects only `role`, `content` and `tool_calls`.
pub(super) fn projection(schema: &SchemaDescriptor, plan: &ColumnRoles) -> ProjectionMask {
    let used = |leaf: &[String]| {
        let prompt = leaf.starts_with(&plan.prompt.parts)
            && (leaf.len() == plan.prompt.parts.len()
                || leaf.last().is_some_and(|name| name == "role" || name == "content")
                || leaf.iter().any(|name| name == "tool_calls"));
        let part = plan.parts().skip(1).any(|(_, path)| leaf.starts_with(&path.parts));
        prompt || part || plan.extra.contains(&leaf[0])
    };
    let leaves =
        schema.columns().iter().enumerate().filter(|(_, column)| used(column.path().parts()));
    ProjectionMask::leaves(schema, leaves.map(|(index, _)| index))
}

/// Formats a type for messages, such as `list<struct<role: string, content: string>>`.
pub(super) fn type_description(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 => "string".to_owned(),
        DataType::List(item) => format!("list<{}>", type_description(item.data_type())),
        DataType::Struct(fields) => {
            let fields: Vec<_> = fields
                .iter()
                .map(|field| format!("{}: {}", field.name(), type_description(field.data_type())))
                .collect();
            format!("struct<{}>", fields.join(", "))
        }
        other => other.to_string().to_lowercase(),
    }
}
