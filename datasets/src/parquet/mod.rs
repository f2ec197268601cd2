//! Parquet files of prompts: verl's schema in all its variants.
//!
//! If the configuration does not name the prompt, the prompt is the column `messages`, and the messages of most of the first 64 rows end with
//! a message of the assistant, a column with the question as text is the prompt, if there is one.
//!
//! The Arrow schema that a writer stored in the footer is ignored. Text is then always `Utf8` and lists are always `List`, so pandas'
//! `large_string` needs no special case. Only the leaf columns in use are read.

mod records;
mod schema;

pub(crate) use records::ParquetRecords;
pub(crate) use schema::check_magic;

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder, RowSelection, RowSelector,
};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::{PageIndexPolicy, RowGroupMetaData};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, ListArray, RecordBatch, StringArray};
use arrow_select::nullif::nullif;

use crate::chunk::{Chunk, Chunks};
use crate::columns::{ColumnPath, ColumnRoles};
use crate::config::DatasetConfig;
use crate::defect::RowDefect;
use crate::error::{DatasetError, text_error};
use crate::json::{ExtraColumns, JsonColumn};
use crate::json_object::{NoObject, parse_object};
use crate::jsonl::COLUMN_ROWS;
use crate::messages::{Endings, Messages, NO_CALLS, text_messages};
use crate::parquet::schema::{check_types, projection, type_description};
use crate::segment::{CHUNK_BYTES, CHUNK_ROWS, RowNumbers, Segment, index_u32};

#[derive(Debug)]
pub(crate) struct ParquetFile {
    path: Arc<Path>,
    metadata: ArrowReaderMetadata,
    plan: Arc<ColumnRoles>,
    projection: ProjectionMask,
    segments: Vec<Segment>,
    chunk_rows: usize,
}

impl ParquetFile {
    pub(crate) fn open(path: Arc<Path>, config: &DatasetConfig) -> Result<Self, DatasetError> {
        check_magic(&path)?;
        let file = File::open(&path).map_err(DatasetError::io(&path, "open"))?;
        let options = ArrowReaderOptions::new()
            .with_skip_arrow_metadata(true)
            .with_offset_index_policy(PageIndexPolicy::Optional);
        let metadata = ArrowReaderMetadata::load(&file, options)
            .map_err(|source| DatasetError::Footer { file: path.to_path_buf(), source })?;
        let mut plan = ColumnRoles::resolve(&path, metadata.schema(), config)?;
        if let Some(config) = plan.with_question(metadata.schema(), config) {
            let chats = Self::with_plan(path.clone(), metadata.clone(), plan.prompt_only())?;
            if chats.first_rows_are_answers() {
                plan = ColumnRoles::resolve(&path, metadata.schema(), &config)?;
            }
        }
        Self::with_plan(path, metadata, plan)
    }

    fn with_plan(
        path: Arc<Path>,
        metadata: ArrowReaderMetadata,
        plan: ColumnRoles,
    ) -> Result<Self, DatasetError> {
        check_types(&path, metadata.schema(), &plan)?;
        let projection = projection(metadata.parquet_schema(), &plan);
        let segments = segments(metadata.metadata().row_groups(), &projection);
        let chunk_rows = chunk_rows(&segments);
        Ok(Self { path, metadata, plan: Arc::new(plan), projection, segments, chunk_rows })
    }

    /// Returns `true` if the messages of most of the first rows end with a message of the assistant. Ignores errors, since reading reports
    /// them.
    fn first_rows_are_answers(&self) -> bool {
        let rows = self.segments.last().map_or(0, |segment| segment.rows.end).min(COLUMN_ROWS);
        let mut endings = Endings::default();
        let first = std::iter::once(0..rows).collect();
        for chunk in self.read(first, 0).into_iter().flatten().flatten() {
            (0..chunk.len()).for_each(|row| {
                endings.add(chunk.messages.row(row).last().map(|message| message.role));
            });
        }
        endings.are_answers()
    }

    pub(crate) fn path(&self) -> &Arc<Path> {
        &self.path
    }

    pub(crate) fn plan(&self) -> &ColumnRoles {
        &self.plan
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    pub(crate) fn columns(&self) -> Vec<(String, String)> {
        self.metadata
            .schema()
            .fields()
            .iter()
            .map(|field| (field.name().clone(), type_description(field.data_type())))
            .collect()
    }

    pub(crate) fn read(
        &self,
        ranges: Vec<Range<u64>>,
        first_row: u64,
    ) -> Result<Chunks, DatasetError> {
        let reader = self.reader(&ranges)?;
        let rows = RowNumbers::new(ranges);
        Ok(Box::new(ParquetChunks {
            path: self.path.clone(),
            plan: self.plan.clone(),
            reader,
            rows,
            first_row,
        }))
    }

    fn reader(&self, ranges: &[Range<u64>]) -> Result<ParquetRecordBatchReader, DatasetError> {
        let file = File::open(&self.path).map_err(DatasetError::io(&self.path, "open"))?;
        let (groups, selection) = self.select(ranges);
        let mut builder =
            ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone())
                .with_batch_size(self.chunk_rows)
                .with_projection(self.projection.clone())
                .with_row_groups(groups);
        if let Some(selection) = selection {
            builder = builder.with_row_selection(selection);
        }
        let first = ranges.first().map_or(0, |range| range.start);
        builder.build().map_err(|source| self.damaged(first, source))
    }

    fn damaged(&self, row: u64, source: ParquetError) -> DatasetError {
        DatasetError::Damaged { file: self.path.to_path_buf(), row, source }
    }

    /// Returns the row groups that contain the rows, and the selection within these row groups; `None` selects all of their rows.
    fn select(&self, ranges: &[Range<u64>]) -> (Vec<usize>, Option<RowSelection>) {
        let mut groups = Vec::new();
        let mut selectors = Vec::new();
        for (group, segment) in self.segments.iter().enumerate() {
            let first = ranges.partition_point(|range| range.end <= segment.rows.start);
            let near = ranges[first..].iter().take_while(|range| range.start < segment.rows.end);
            let inside = near
                .map(|range| range.start.max(segment.rows.start)..range.end.min(segment.rows.end));
            if select_within(&segment.rows, inside, &mut selectors) {
                groups.push(group);
            }
        }
        let all = selectors.iter().all(|selector: &RowSelector| !selector.skip);
        (groups, (!all).then(|| RowSelection::from(selectors)))
    }
}

/// Appends the selection of the ranges inside a row group. Returns `false` and appends nothing if there are none.
fn select_within(
    group: &Range<u64>,
    inside: impl Iterator<Item = Range<u64>>,
    selectors: &mut Vec<RowSelector>,
) -> bool {
    let length = |from: u64, to: u64| {
        usize::try_from(to - from).expect("invariant: a row group's rows fit an address space")
    };
    let mut at = group.start;
    let before = selectors.len();
    for range in inside.filter(|range| !range.is_empty()) {
        if range.start > at {
            selectors.push(RowSelector::skip(length(at, range.start)));
        }
        selectors.push(RowSelector::select(length(range.start, range.end)));
        at = range.end;
    }
    let any = selectors.len() > before;
    if any && at < group.end {
        selectors.push(RowSelector::skip(length(at, group.end)));
    }
    any
}

struct ParquetChunks {
    path: Arc<Path>,
    plan: Arc<ColumnRoles>,
    reader: ParquetRecordBatchReader,
    rows: RowNumbers,
    first_row: u64,
}

impl Iterator for ParquetChunks {
    type Item = Result<Chunk, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(match self.reader.next()? {
            Ok(batch) => self.chunk(&batch),
            Err(error) => {
                let source = ParquetError::ArrowError(error.to_string());
                Err(DatasetError::Damaged {
                    file: self.path.to_path_buf(),
                    row: self.rows.peek(),
                    source,
                })
            }
        })
    }
}

impl ParquetChunks {
    fn chunk(&mut self, batch: &RecordBatch) -> Result<Chunk, DatasetError> {
        let plan = &*self.plan;
        let text = |path: &Option<ColumnPath>| {
            descend(batch, &path.as_ref()?.parts)?.as_string_opt::<i32>().cloned()
        };
        let (messages, mut bad) = messages(batch, &plan.prompt);
        let extra = self.extra(batch, &mut bad)?;
        bad.sort_by_key(|(index, _)| *index);
        Ok(Chunk {
            file: self.path.clone(),
            first_row: self.first_row,
            messages,
            data_source: text(&plan.data_source),
            default_data_source: plan.default_data_source.clone(),
            domain: text(&plan.domain),
            ground_truth: plan
                .ground_truth
                .as_ref()
                .map(|path| self.json(batch, path))
                .transpose()?
                .flatten(),
            extra,
            bad,
            rows: self.rows.next_rows(batch.num_rows()),
        })
    }

    fn json(
        &self,
        batch: &RecordBatch,
        path: &ColumnPath,
    ) -> Result<Option<JsonColumn>, DatasetError> {
        let json = descend(batch, &path.parts).map(|array| JsonColumn::of(&array)).transpose();
        json.map_err(|source| DatasetError::Layout { file: self.path.to_path_buf(), source })
    }

    fn extra(
        &self,
        batch: &RecordBatch,
        bad: &mut Vec<(u32, RowDefect)>,
    ) -> Result<ExtraColumns, DatasetError> {
        let info = match &self.plan.extra_info {
            None => None,
            Some(path) => match self.json(batch, path)? {
                Some(JsonColumn::Text(text)) => {
                    Some(JsonColumn::Raw(objects(&text, &path.name, bad)))
                }
                info => info,
            },
        };
        let mut columns = Vec::new();
        for name in self
            .plan
            .extra
            .iter()
            .filter(|name| !info.as_ref().is_some_and(|info| info.has_field(name)))
        {
            let path = ColumnPath { name: name.as_str().into(), parts: vec![name.clone()] };
            columns.extend(self.json(batch, &path)?.map(|json| (name.clone(), json)));
        }
        Ok(ExtraColumns { info, columns })
    }
}

/// Keeps the texts that are JSON objects. Other texts become null and are added to `bad`.
fn objects(text: &StringArray, column: &Arc<str>, bad: &mut Vec<(u32, RowDefect)>) -> StringArray {
    let mut object = |(index, text): (usize, Option<&str>)| -> Option<String> {
        let text = text?;
        match serde_json::from_str::<serde_json::Map<_, _>>(text) {
            Ok(_) => Some(text.to_owned()),
            Err(error) => {
                bad.push((
                    index_u32(index),
                    RowDefect::value(column, "a JSON object", object_error(text, &error)),
                ));
                None
            }
        }
    };
    text.iter().enumerate().map(&mut object).collect()
}

/// Describes a text that is not a JSON object.
fn object_error(text: &str, error: &serde_json::Error) -> String {
    let syntax = if error.is_syntax() { parse_object(text.as_bytes()).err() } else { None };
    syntax.map_or_else(|| text_error(error), NoObject::in_text)
}

/// Returns the column at the end of a path, or `None` if there is no such column. A value is null if any value on the path to it is null.
fn descend(batch: &RecordBatch, parts: &[String]) -> Option<ArrayRef> {
    let (root, fields) = parts.split_first()?;
    fields.iter().try_fold(batch.column_by_name(root)?.clone(), |array, field| child(&array, field))
}

fn child(array: &ArrayRef, field: &str) -> Option<ArrayRef> {
    let child = array.as_struct_opt()?.column_by_name(field)?;
    match array.nulls() {
        None => Some(child.clone()),
        Some(valid) => nullif(child, &BooleanArray::new(!valid.inner(), None)).ok(),
    }
}

fn messages(batch: &RecordBatch, path: &ColumnPath) -> (Messages, Vec<(u32, RowDefect)>) {
    let array = descend(batch, &path.parts).expect("invariant: the prompt's column is projected");
    if let Some(text) = array.as_string_opt::<i32>() {
        return text_messages(text, &path.name);
    }
    let list = array.as_list::<i32>();
    let field = |name| {
        child(list.values(), name)
            .expect("invariant: the prompt's type was checked")
            .as_string::<i32>()
            .clone()
    };
    let messages = Messages {
        column: path.name.clone(),
        offsets: list.offsets().clone(),
        nulls: list.nulls().cloned(),
        roles: Some(field("role")),
        contents: field("content"),
    };
    let defect = || RowDefect::value(&path.name, NO_CALLS, "calls of tools".to_owned());
    let bad = rows_with_calls(list).into_iter().map(|row| (index_u32(row), defect())).collect();
    (messages, bad)
}

/// Returns the rows with a message that has calls of tools.
fn rows_with_calls(list: &ListArray) -> Vec<usize> {
    let Some(calls) = child(list.values(), "tool_calls") else { return Vec::new() };
    let has_calls = |message| {
        let is_empty = |lists: &ListArray| lists.value_length(message) == 0;
        !calls.is_null(message) && !calls.as_list_opt().is_some_and(is_empty)
    };
    let offsets = list.offsets();
    let calls_tools =
        |&row: &usize| (offsets[row] as usize..offsets[row + 1] as usize).any(has_calls);
    (0..list.len()).filter(calls_tools).collect()
}

fn segments(groups: &[RowGroupMetaData], projection: &ProjectionMask) -> Vec<Segment> {
    let mut start = 0;
    let segment = |group: &RowGroupMetaData| {
        let rows = start..start + group.num_rows().unsigned_abs();
        start = rows.end;
        Segment { rows, bytes: decoded_bytes(group, projection) }
    };
    groups.iter().map(segment).collect()
}

/// Estimates the decoded size of the projected columns in bytes. The size of a column is the larger of two sizes in the footer, plus 8
/// bytes per value: the size of its decoded text, which counts as 0 if it is missing, and the uncompressed size of its pages.
fn decoded_bytes(group: &RowGroupMetaData, projection: &ProjectionMask) -> u64 {
    let used =
        group.columns().iter().enumerate().filter(|(leaf, _)| projection.leaf_included(*leaf));
    let bytes = used.map(|(_, column)| {
        let text =
            column.unencoded_byte_array_data_bytes().unwrap_or(0).max(column.uncompressed_size());
        text.unsigned_abs() + 8 * column.num_values().unsigned_abs()
    });
    bytes.sum()
}

/// Returns the number of rows that take about [`CHUNK_BYTES`] in the row group with the largest rows: at least 1, at most [`CHUNK_ROWS`].
fn chunk_rows(segments: &[Segment]) -> usize {
    let fit = |segment: &Segment| {
        CHUNK_BYTES * (segment.rows.end - segment.rows.start) / segment.bytes.max(1)
    };
    let min = segments.iter().map(fit).min().unwrap_or(1);
    usize::try_from(min).unwrap_or(CHUNK_ROWS).clamp(1, CHUNK_ROWS)
}
