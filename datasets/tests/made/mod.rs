//! Datasets made for the tests.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use rollpacker_datasets::{Message, Prompt, PromptRow, PromptWriter, Shape, WriteOptions};
use serde_json::{Map, Value, json};

pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Removes the folder from a message, because it differs from run to run.
    pub(crate) fn strip(&self, message: &str) -> String {
        message.replace(&format!("{}/", self.0.path().display()), "")
    }

    pub(crate) fn lines(&self, name: &str, lines: &[Value]) -> String {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        self.bytes(name, text.as_bytes())
    }

    pub(crate) fn bytes(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        shown(&self.path(name))
    }

    /// Writes files with the given numbers of rows, as JSONL if `jsonl` is `true`, otherwise as Parquet in row groups of 50 rows. Each
    /// prompt names its row of the dataset. Returns the paths.
    pub(crate) fn numbered(&self, sizes: &[usize], jsonl: bool) -> Vec<String> {
        let mut start = 0;
        let mut file = |(index, size): (usize, &usize)| {
            let rows = start..start + size;
            start += size;
            if jsonl {
                self.lines(
                    &format!("{index}.jsonl"),
                    &rows
                        .map(|row| json!({"prompt": format!("question {row}")}))
                        .collect::<Vec<_>>(),
                )
            } else {
                self.prompts(&format!("{index}.parquet"), rows.map(numbered))
            }
        };
        sizes.iter().enumerate().map(&mut file).collect()
    }

    pub(crate) fn prompts(&self, name: &str, rows: impl Iterator<Item = PromptRow>) -> String {
        let options = WriteOptions { row_group_rows: 50, ..WriteOptions::default() };
        let mut writer = PromptWriter::create(&self.path(name), Shape::Null, options).unwrap();
        rows.for_each(|row| writer.write(row).unwrap());
        writer.finish().unwrap();
        shown(&self.path(name))
    }

    /// Writes a Parquet file with the given columns, in row groups of 100 rows, without a page index, as pyarrow does.
    pub(crate) fn columns(&self, name: &str, columns: Vec<(&str, ArrayRef)>) -> String {
        self.grouped(name, columns, 100)
    }

    /// Writes a Parquet file as [`columns`](Self::columns) does, with row groups of the given length.
    pub(crate) fn grouped(
        &self,
        name: &str,
        columns: Vec<(&str, ArrayRef)>,
        group: usize,
    ) -> String {
        let fields: Vec<_> = columns
            .iter()
            .map(|(name, array)| Field::new(*name, array.data_type().clone(), true))
            .collect();
        let schema = Arc::new(Schema::new(fields));
        let rows = columns[0].1.len();
        let arrays = columns.into_iter().map(|(_, array)| array).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(schema.clone(), arrays, &options).unwrap();
        let file = std::fs::File::create(self.path(name)).unwrap();
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(group))
            .set_offset_index_disabled(true)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .build();
        let mut writer = ArrowWriter::try_new(file, schema, Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        shown(&self.path(name))
    }
}

fn shown(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

pub(crate) fn numbered(row: usize) -> PromptRow {
    prompt(&format!("question {row}"))
}

pub(crate) fn prompt(content: &str) -> PromptRow {
    PromptRow {
        row: 0,
        epoch: 0,
        data_source: "made".to_owned(),
        domain: "test".to_owned(),
        messages: vec![Message { role: "user".to_owned(), content: content.to_owned() }],
        ground_truth: Some("1".to_owned()),
        extra_info: Map::new(),
    }
}

pub(crate) fn text(prompt: &Prompt) -> String {
    prompt.messages().map(|message| message.content).collect()
}
