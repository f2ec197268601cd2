//! Writing of prompts as Parquet in verl's schema.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::{Compression as Codec, ZstdLevel};
use ::parquet::file::properties::WriterProperties;
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, StringArray, StructArray};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};
use rollpacker_files::NewFile;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::DatasetError;
use crate::prompt::PromptRow;
use crate::shape::Shape;

/// The compression of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// Snappy, which verl's own files use; fastest to read. The default.
    #[default]
    Snappy,
    /// Zstandard at level 3; smaller files.
    Zstd,
}

/// Options for writing Parquet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WriteOptions {
    /// The compression of pages. Default: Snappy.
    pub compression: Compression,
    /// The maximum number of rows per row group; 0 counts as 1. Default: 65,536. A row group is also closed at 64 MiB of encoded data.
    pub row_group_rows: usize,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { compression: Compression::Snappy, row_group_rows: 65_536 }
    }
}

/// A writer of prompts as Parquet in verl's schema: `data_source`, `prompt`, `ability` (the domain), `reward_model {style, ground_truth}`
/// and `extra_info`. It writes to a temporary file and renames it at the end, so an incomplete file never has the final name.
///
/// Memory: one encoded row group, and up to 1,024 prompts that are not encoded yet.
#[derive(Debug)]
pub struct PromptWriter {
    path: PathBuf,
    writer: ArrowWriter<NewFile>,
    layout: RowLayout,
    held: Vec<PromptRow>,
    written: u64,
}

/// The number of rows converted at once.
const BATCH: usize = 1024;
/// The encoded size at which a row group is closed, in bytes.
const GROUP_BYTES: usize = 64 << 20;
/// The maximum number of rows per page, which determines the cost of reading one row of a shuffled file.
const PAGE_ROWS: usize = 2048;
/// The size at which a dictionary stops growing, in bytes. A dictionary is read in full for any part of its row group, and text that seldom
/// repeats, such as prompts, only fills it.
const DICTIONARY_BYTES: usize = 64 << 10;

impl PromptWriter {
    /// Creates a file. `extra` is the shape of `extra_info`. With [`Shape::Text`], the column is JSON text. With [`Shape::Null`] or a
    /// struct without fields, the file has no column `extra_info`. Fields of rows that the shape does not contain are not written, and
    /// values that do not fit the shape become null.
    ///
    /// # Errors
    ///
    /// If the file cannot be created, or the path holds something that is not a regular file.
    pub fn create(path: &Path, extra: Shape, options: WriteOptions) -> Result<Self, DatasetError> {
        let layout = RowLayout::new(extra);
        let file = NewFile::create(path)?;
        let writer = ArrowWriter::try_new(file, layout.schema.clone(), Some(properties(options)));
        let writer = writer.map_err(|source| DatasetError::Write {
            file: path.to_owned(),
            row: 0,
            source,
        })?;
        let (path, held) = (path.to_owned(), Vec::with_capacity(BATCH));
        Ok(Self { path, writer, layout, held, written: 0 })
    }

    /// Adds a prompt without its `row` and `epoch`. Prompts are converted and written in batches of 1,024, so an error may concern an
    /// earlier prompt.
    ///
    /// # Errors
    ///
    /// If a value cannot be converted to Arrow, or the file cannot be written.
    pub fn write(&mut self, prompt: PromptRow) -> Result<(), DatasetError> {
        self.held.push(prompt);
        if self.held.len() == BATCH { self.flush() } else { Ok(()) }
    }

    /// Completes the file and returns the number of its prompts.
    ///
    /// # Errors
    ///
    /// If a value cannot be converted to Arrow, or the file cannot be written.
    pub fn finish(mut self) -> Result<u64, DatasetError> {
        self.flush()?;
        let Self { path, writer, written, .. } = self;
        let ended = writer.into_inner();
        let file =
            ended.map_err(|source| DatasetError::Write { file: path, row: written, source })?;
        file.finish()?;
        Ok(written)
    }

    fn flush(&mut self) -> Result<(), DatasetError> {
        let batch = self.layout.batch(&self.held);
        let batch =
            batch.map_err(|source| DatasetError::Layout { file: self.path.clone(), source })?;
        let failed =
            |source| DatasetError::Write { file: self.path.clone(), row: self.written, source };
        self.writer.write(&batch).map_err(failed)?;
        self.written += self.held.len() as u64;
        self.held.clear();
        Ok(())
    }
}

fn properties(options: WriteOptions) -> WriterProperties {
    let codec = match options.compression {
        Compression::Snappy => Codec::SNAPPY,
        Compression::Zstd => {
            Codec::ZSTD(ZstdLevel::try_new(3).expect("invariant: 3 is a level of zstd"))
        }
    };
    WriterProperties::builder()
        .set_compression(codec)
        .set_max_row_group_row_count(Some(options.row_group_rows.max(1)))
        .set_max_row_group_bytes(Some(GROUP_BYTES))
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_dictionary_page_size_limit(DICTIONARY_BYTES)
        .set_write_batch_size(256)
        .build()
}

/// The schema of the file, with the conversion of rows to it.
#[derive(Debug)]
struct RowLayout {
    schema: SchemaRef,
    extra: Shape,
}

impl RowLayout {
    fn new(extra: Shape) -> Self {
        let extra = if extra == Shape::Struct(Vec::new()) { Shape::Null } else { extra };
        let mut fields = vec![
            Field::new("data_source", DataType::Utf8, true),
            Field::new("prompt", prompt_shape().data_type(), true),
            Field::new("ability", DataType::Utf8, true),
            Field::new("reward_model", DataType::Struct(reward_fields()), true),
        ];
        if extra != Shape::Null {
            fields.push(Field::new("extra_info", extra.data_type(), true));
        }
        Self { schema: Arc::new(Schema::new(fields)), extra }
    }

    fn batch(&self, rows: &[PromptRow]) -> Result<RecordBatch, ArrowError> {
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.data_source))),
            prompts(rows)?,
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.domain))),
            reward_models(rows)?,
        ];
        if self.extra != Shape::Null {
            let values: Vec<Value> =
                rows.iter().map(|row| Value::Object(row.extra_info.clone())).collect();
            columns.push(self.extra.array(&values.iter().map(Some).collect::<Vec<_>>())?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
    }
}

fn prompt_shape() -> Shape {
    let message = vec![("role".to_owned(), Shape::Text), ("content".to_owned(), Shape::Text)];
    Shape::List(Box::new(Shape::Struct(message)))
}

fn prompts(rows: &[PromptRow]) -> Result<ArrayRef, ArrowError> {
    let values: Vec<Value> = rows.iter().map(|row| json!(row.messages)).collect();
    prompt_shape().array(&values.iter().map(Some).collect::<Vec<_>>())
}

fn reward_fields() -> Fields {
    ["style", "ground_truth"]
        .into_iter()
        .map(|name| Field::new(name, DataType::Utf8, true))
        .collect()
}

fn reward_models(rows: &[PromptRow]) -> Result<ArrayRef, ArrowError> {
    let style: ArrayRef = Arc::new(StringArray::from_iter_values(rows.iter().map(|_| "rule")));
    let truth: ArrayRef =
        Arc::new(rows.iter().map(|row| row.ground_truth.as_deref()).collect::<StringArray>());
    Ok(Arc::new(StructArray::try_new(reward_fields(), vec![style, truth], None)?))
}
