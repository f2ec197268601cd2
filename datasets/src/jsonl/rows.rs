//! Conversion of JSON lines to rows.

use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use serde_json::Value;

use crate::chunk::Chunk;
use crate::columns::{ColumnPath, ColumnRoles};
use crate::defect::{DefectKind, RowDefect};
use crate::json::{ExtraColumns, JsonColumn};
use crate::json_object::{JsonObject, descend, parse_object};
use crate::jsonl::lines::Lines;
use crate::jsonl::{LINE, OBJECT};
use crate::messages::{MessagesBuilder, describe};
use crate::segment::index_u32;

pub(super) struct ChunkBuilder {
    plan: Arc<ColumnRoles>,
    pub(super) rows: Vec<u64>,
    messages: MessagesBuilder,
    data_source: StringBuilder,
    domain: StringBuilder,
    ground_truth: StringBuilder,
    extra: StringBuilder,
    bad: Vec<(u32, RowDefect)>,
    pub(super) bytes: u64,
}

impl ChunkBuilder {
    pub(super) fn new(plan: Arc<ColumnRoles>) -> Self {
        Self {
            rows: Vec::new(),
            messages: MessagesBuilder::new(plan.prompt.name.clone()),
            data_source: StringBuilder::new(),
            domain: StringBuilder::new(),
            ground_truth: StringBuilder::new(),
            extra: StringBuilder::new(),
            bad: Vec::new(),
            bytes: 0,
            plan,
        }
    }

    /// Adds the current line as a row.
    pub(super) fn push(&mut self, row: u64, lines: &Lines) {
        let index = index_u32(self.rows.len());
        self.rows.push(row);
        self.bytes += lines.line.len() as u64;
        let found = match lines.object() {
            Ok(object) => self.push_object(&object).err(),
            Err(found) => {
                self.append(&Value::Null, [None, None, None], "{}").ok();
                Some(RowDefect::new(DefectKind::BadJson, &LINE.into(), OBJECT, found))
            }
        };
        self.bad.extend(found.map(|defect| (index, defect)));
    }

    fn push_object(&mut self, object: &JsonObject) -> Result<(), RowDefect> {
        let plan = self.plan.clone();
        let plan = plan.of_row(object);
        let data_source = text(object, plan.data_source.as_ref());
        let domain = text(object, plan.domain.as_ref());
        let truth = plan
            .ground_truth
            .as_ref()
            .and_then(|path| descend(object, &path.parts))
            .and_then(plain);
        let extra = extra(object, &plan);
        let labels = [
            data_source.as_ref().ok().copied().flatten(),
            domain.as_ref().ok().copied().flatten(),
            truth.as_deref(),
        ];
        let prompt = descend(object, &plan.prompt.parts).unwrap_or(&Value::Null);
        self.append(prompt, labels, extra.as_deref().unwrap_or("{}"))?;
        data_source.and(domain).and(extra.map(|_| ()))
    }

    fn append(
        &mut self,
        prompt: &Value,
        labels: [Option<&str>; 3],
        extra: &str,
    ) -> Result<(), RowDefect> {
        let [data_source, domain, truth] = labels;
        self.data_source.append_option(data_source);
        self.domain.append_option(domain);
        self.ground_truth.append_option(truth);
        self.extra.append_value(extra);
        self.messages.push(prompt)
    }

    pub(super) fn finish(mut self, file: Arc<Path>, first_row: u64) -> Chunk {
        Chunk {
            file,
            first_row,
            rows: self.rows,
            messages: self.messages.finish(),
            data_source: Some(self.data_source.finish()),
            default_data_source: self.plan.default_data_source.clone(),
            domain: Some(self.domain.finish()),
            ground_truth: Some(JsonColumn::Text(self.ground_truth.finish())),
            extra: ExtraColumns {
                info: Some(JsonColumn::Raw(self.extra.finish())),
                columns: Vec::new(),
            },
            bad: self.bad,
        }
    }
}

/// Returns text as it is and other values as JSON; `None` for null.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn text<'a>(
    object: &'a JsonObject,
    path: Option<&ColumnPath>,
) -> Result<Option<&'a str>, RowDefect> {
    let Some(path) = path else { return Ok(None) };
    match descend(object, &path.parts) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(RowDefect::value(&path.name, "text", describe(other))),
    }
}

/// Merges `extra_info` and the extra columns into one JSON object. The fields of `extra_info` take precedence.
fn extra(object: &JsonObject, plan: &ColumnRoles) -> Result<String, RowDefect> {
    let mut all = match &plan.extra_info {
        None => JsonObject::new(),
        Some(path) => info(descend(object, &path.parts).unwrap_or(&Value::Null), path)?,
    };
    let later = object.keys().filter(|name| plan.all_extra && !plan.uses(name));
    for name in plan.extra.iter().chain(later) {
        if let (false, Some(value)) = (all.contains_key(name), object.get(name)) {
            all.insert(name.clone(), value.clone());
        }
    }
    Ok(Value::Object(all).to_string())
}

fn info(value: &Value, path: &ColumnPath) -> Result<JsonObject, RowDefect> {
    let refuse = |found| RowDefect::value(&path.name, OBJECT, found);
    match value {
        Value::Null => Ok(JsonObject::new()),
        Value::Object(object) => Ok(object.clone()),
        Value::String(text) => {
            parse_object(text.as_bytes()).map_err(|found| refuse(found.in_text()))
        }
        other => Err(refuse(describe(other))),
    }
}
