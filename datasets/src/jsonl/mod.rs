//! JSONL files of prompts, with the columns that [`PromptColumns`](crate::PromptColumns) describes. The messages of a prompt are a list,
//! JSON text, or plain text.
//!
//! Opening a file scans it once to count its lines and records the position of every 64th line. Blank lines do not count. The first 64 rows
//! determine the columns of a file. If these rows have no column for a role, each later row is searched for one. If the configuration does
//! not name the prompt and the messages of most of these rows end with a message of the assistant, a column with the question as text is
//! the prompt, if there is one.

mod lines;
mod records;
mod rows;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::chunk::{Chunk, Chunks};
use crate::columns::{CHAT, ColumnKind, ColumnRoles, FileLayout};
use crate::config::DatasetConfig;
use crate::error::DatasetError;
use crate::json_object::{JsonObject, descend};
use crate::jsonl::lines::{LinePosition, Lines};
use crate::jsonl::rows::ChunkBuilder;
use crate::messages::Endings;
use crate::segment::{CHUNK_BYTES, CHUNK_ROWS, RowNumbers, Segment};

pub(crate) use lines::BYTE_ORDER_MARK;
pub(crate) use records::JsonlRecords;

/// The number of lines between two recorded positions.
const STRIDE: u64 = 64;

/// The number of rows that determine the columns of a file. A field may be missing or null in some rows.
pub(crate) const COLUMN_ROWS: u64 = 64;

#[derive(Debug)]
pub(crate) struct JsonlFile {
    path: Arc<Path>,
    plan: Arc<ColumnRoles>,
    columns: Vec<(String, String)>,
    /// The positions of rows 0, 64, 128, ...
    starts: Arc<[LinePosition]>,
    segments: Vec<Segment>,
}

impl JsonlFile {
    /// Opens a file. Its first row must be a JSON object.
    pub(crate) fn open(path: Arc<Path>, config: &DatasetConfig) -> Result<Self, DatasetError> {
        Self::open_with(path, config, false)
    }

    /// Opens a file of which any row may be malformed. Its columns are those of the objects among the first 64 rows, or else of the first
    /// object. A file without an object has no columns; its first row must then begin like an object.
    pub(crate) fn open_malformed(
        path: Arc<Path>,
        config: &DatasetConfig,
    ) -> Result<Self, DatasetError> {
        Self::open_with(path, config, true)
    }

    fn open_with(
        path: Arc<Path>,
        config: &DatasetConfig,
        malformed: bool,
    ) -> Result<Self, DatasetError> {
        let mut lines = Lines::open(&path, LinePosition::default())?;
        let (mut starts, mut rows, mut objects) = (Vec::new(), 0, 0);
        let mut first = JsonObject::new();
        let mut endings = Endings::default();
        let mut no_object = None;
        while let Some(start) = lines.next_line()? {
            if rows < COLUMN_ROWS || objects == 0 {
                match lines.object() {
                    Ok(row) => {
                        objects += 1;
                        endings.add_value(row.get(CHAT).unwrap_or(&Value::Null));
                        add_columns(&mut first, row);
                    }
                    Err(found) if rows == 0 => {
                        let error = bad_line(&path, 0, found);
                        if !malformed {
                            return Err(error);
                        }
                        no_object = (!lines.line.starts_with(b"{")).then_some(error);
                    }
                    Err(_) => {}
                }
            }
            if rows % STRIDE == 0 {
                starts.push(start);
            }
            rows += 1;
        }
        if rows == 0 {
            return Err(DatasetError::NoRows { file: path.to_path_buf() });
        }
        let plan = if objects == 0 {
            no_object.map_or_else(|| Ok(ColumnRoles::without_columns(config)), Err)?
        } else {
            let plan = ColumnRoles::resolve(&path, &first, config)?;
            match plan.with_question(&first, config).filter(|_| endings.are_answers()) {
                Some(config) => ColumnRoles::resolve(&path, &first, &config)?,
                None => plan,
            }
        };
        let plan = Arc::new(plan);
        let columns =
            first.iter().map(|(name, value)| (name.clone(), type_name(value).to_owned())).collect();
        let segments = segments(rows, &starts, lines.end.offset);
        Ok(Self { path, plan, columns, starts: starts.into(), segments })
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
        self.columns.clone()
    }

    pub(crate) fn read(
        &self,
        ranges: Vec<Range<u64>>,
        first_row: u64,
    ) -> Result<Chunks, DatasetError> {
        Ok(Box::new(self.chunks(ranges, first_row)?))
    }

    fn chunks(&self, ranges: Vec<Range<u64>>, first_row: u64) -> Result<JsonlChunks, DatasetError> {
        Ok(JsonlChunks {
            plan: self.plan.clone(),
            starts: self.starts.clone(),
            lines: Lines::open(&self.path, LinePosition::default())?,
            next_line: 0,
            rows: RowNumbers::new(ranges),
            first_row,
            failed: false,
        })
    }
}

/// Adds the fields of `row` that `columns` lacks or has as null, also within objects.
pub(crate) fn add_columns(columns: &mut JsonObject, row: JsonObject) {
    for (name, value) in row {
        match (columns.entry(name).or_insert(Value::Null), value) {
            (Value::Object(known), Value::Object(more)) => add_columns(known, more),
            (known @ Value::Null, value) => *known = value,
            _ => {}
        }
    }
}

/// Returns one segment of up to [`STRIDE`] rows for each of `starts`. `end` is the byte offset after the last row.
fn segments(rows: u64, starts: &[LinePosition], end: u64) -> Vec<Segment> {
    let ends = starts.iter().skip(1).map(|start| start.offset).chain([end]);
    let segment = |((index, start), end): ((u64, &LinePosition), u64)| Segment {
        rows: index * STRIDE..rows.min((index + 1) * STRIDE),
        bytes: end - start.offset,
    };
    (0..).zip(starts).zip(ends).map(segment).collect()
}

fn bad_line(path: &Path, row: u64, found: String) -> DatasetError {
    DatasetError::BadRow {
        file: path.to_owned(),
        row,
        column: LINE.to_owned(),
        expected: OBJECT,
        found,
    }
}

const LINE: &str = "(the line)";
const OBJECT: &str = "a JSON object";

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

impl FileLayout for JsonObject {
    fn roots(&self) -> Vec<String> {
        self.keys().cloned().collect()
    }

    fn kind<S: AsRef<str>>(&self, parts: &[S]) -> Option<ColumnKind> {
        Some(match descend(self, parts)? {
            Value::Array(_) => ColumnKind::List,
            Value::String(_) => ColumnKind::Text,
            Value::Object(_) => ColumnKind::Struct,
            _ => ColumnKind::Other,
        })
    }
}

struct JsonlChunks {
    plan: Arc<ColumnRoles>,
    starts: Arc<[LinePosition]>,
    lines: Lines,
    /// The row number of the next line.
    next_line: u64,
    rows: RowNumbers,
    first_row: u64,
    failed: bool,
}

impl Iterator for JsonlChunks {
    type Item = Result<Chunk, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let chunk = self.chunk().transpose();
        self.failed = matches!(chunk, Some(Err(_)));
        chunk
    }
}

impl JsonlChunks {
    fn chunk(&mut self) -> Result<Option<Chunk>, DatasetError> {
        let mut builder = ChunkBuilder::new(self.plan.clone());
        while builder.rows.len() < CHUNK_ROWS && builder.bytes < CHUNK_BYTES {
            let Some(row) = self.rows.next() else { break };
            self.line(row)?;
            builder.push(row, &self.lines);
        }
        Ok((!builder.rows.is_empty())
            .then(|| builder.finish(self.lines.path.clone(), self.first_row)))
    }

    /// Reads the line of a row. First seeks to the recorded position of the row's stride if the row lies in a later stride or before the
    /// next line of the reader.
    fn line(&mut self, row: u64) -> Result<(), DatasetError> {
        if row / STRIDE > self.next_line / STRIDE || row < self.next_line {
            let stride =
                usize::try_from(row / STRIDE).expect("invariant: the kept positions fit memory");
            self.lines.seek(self.starts[stride])?;
            self.next_line = row / STRIDE * STRIDE;
        }
        while self.next_line <= row {
            if self.lines.next_line()?.is_none() {
                let source = std::io::ErrorKind::UnexpectedEof.into();
                return Err(DatasetError::Io {
                    file: self.lines.path.to_path_buf(),
                    operation: "read all lines of",
                    source,
                });
            }
            self.next_line += 1;
        }
        Ok(())
    }
}
