//! Prompts in JSON lines: ROLL's columns, with `messages` as JSON text, and files whose `messages` are real lists.
//!
//! Opening a file goes over it once to count its lines and keeps the place of every 64th. Blank lines do not count.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow::array::StringBuilder;
use serde_json::{Map, Value};

use crate::chunk::{Chunk, RowDefect, index_u32};
use crate::columns::{ColumnPath, Kind, Layout, Plan};
use crate::config::DatasetConfig;
use crate::error::DatasetError;
use crate::file::{CHUNK_BYTES, CHUNK_ROWS, Chunks, RowNumbers, Segment};
use crate::json::{Extra, Json};
use crate::messages::{MessagesBuilder, shown};
use crate::validate::DefectKind;

/// Lines between two places that are kept.
const STRIDE: u64 = 64;

type Object = Map<String, Value>;

/// A JSONL file of prompts.
#[derive(Debug)]
pub(crate) struct JsonlFile {
    path: Arc<Path>,
    plan: Arc<Plan>,
    columns: Vec<(String, String)>,
    /// Byte offset of rows 0, 64, 128, ...
    places: Arc<[u64]>,
    segments: Vec<Segment>,
}

impl JsonlFile {
    pub(crate) fn open(path: Arc<Path>, config: &DatasetConfig) -> Result<Self, DatasetError> {
        let mut lines = Lines::open(&path, 0)?;
        let (mut places, mut rows) = (Vec::new(), 0);
        let mut first = Object::new();
        while let Some(place) = lines.next_line()? {
            if rows == 0 {
                first = object(&lines.line).map_err(|found| bad_line(&path, found))?;
            }
            if rows % STRIDE == 0 {
                places.push(place);
            }
            rows += 1;
        }
        if rows == 0 {
            return Err(DatasetError::NoRows { file: path.to_path_buf() });
        }
        let plan = Arc::new(Plan::resolve(&path, &first, config)?);
        let columns =
            first.iter().map(|(name, value)| (name.clone(), type_name(value).to_owned())).collect();
        let segments = segments(rows, &places, lines.end);
        Ok(Self { path, plan, columns, places: places.into(), segments })
    }

    pub(crate) fn path(&self) -> &Arc<Path> {
        &self.path
    }

    pub(crate) fn plan(&self) -> &Plan {
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
        Ok(Box::new(JsonlChunks {
            plan: self.plan.clone(),
            places: self.places.clone(),
            lines: Lines::open(&self.path, 0)?,
            next_line: 0,
            rows: RowNumbers::new(ranges),
            first_row,
            failed: false,
        }))
    }
}

/// One segment for each kept place.
fn segments(rows: u64, places: &[u64], end: u64) -> Vec<Segment> {
    let ends = places.iter().skip(1).copied().chain([end]);
    let segment = |((index, start), end): ((u64, &u64), u64)| Segment {
        rows: index * STRIDE..rows.min((index + 1) * STRIDE),
        bytes: end - start,
    };
    (0..).zip(places).zip(ends).map(segment).collect()
}

fn bad_line(path: &Path, found: String) -> DatasetError {
    DatasetError::BadRow {
        file: path.to_owned(),
        row: 0,
        column: LINE.to_owned(),
        expected: OBJECT,
        found,
    }
}

const LINE: &str = "(the line)";
const OBJECT: &str = "a JSON object";

fn object(line: &[u8]) -> Result<Object, String> {
    match serde_json::from_slice(line) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(shown(&other)),
        Err(error) => Err(error.to_string()),
    }
}

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

impl Layout for Object {
    fn roots(&self) -> Vec<String> {
        self.keys().cloned().collect()
    }

    fn kind(&self, parts: &[String]) -> Option<Kind> {
        Some(match descend(self, parts)? {
            Value::Array(_) => Kind::List,
            Value::String(_) => Kind::Text,
            Value::Object(_) => Kind::Struct,
            _ => Kind::Other,
        })
    }
}

fn descend<'a>(object: &'a Object, parts: &[String]) -> Option<&'a Value> {
    let (root, rest) = parts.split_first()?;
    rest.iter().try_fold(object.get(root)?, |value, part| value.get(part))
}

/// The lines of a file that are not blank.
#[derive(Debug)]
struct Lines {
    path: Arc<Path>,
    reader: BufReader<File>,
    line: Vec<u8>,
    /// Where the line ends.
    end: u64,
}

impl Lines {
    fn open(path: &Arc<Path>, at: u64) -> Result<Self, DatasetError> {
        let file = File::open(path).map_err(DatasetError::io(path, "open"))?;
        let reader = BufReader::with_capacity(1 << 16, file);
        let mut lines = Self { path: path.clone(), reader, line: Vec::new(), end: 0 };
        lines.seek(at)?;
        Ok(lines)
    }

    fn seek(&mut self, at: u64) -> Result<(), DatasetError> {
        if at != self.end {
            self.reader.seek(SeekFrom::Start(at)).map_err(DatasetError::io(&self.path, "read"))?;
            self.end = at;
        }
        Ok(())
    }

    /// Reads the next line into `line` and says where it starts.
    fn next_line(&mut self) -> Result<Option<u64>, DatasetError> {
        loop {
            let start = self.end;
            self.line.clear();
            let read = self
                .reader
                .read_until(b'\n', &mut self.line)
                .map_err(DatasetError::io(&self.path, "read"))?;
            self.end += read as u64;
            match read {
                0 => return Ok(None),
                _ if self.line.iter().all(u8::is_ascii_whitespace) => {}
                _ => {
                    self.line.truncate(self.line.trim_ascii_end().len());
                    return Ok(Some(start));
                }
            }
        }
    }
}

/// The chunks of some rows.
struct JsonlChunks {
    plan: Arc<Plan>,
    places: Arc<[u64]>,
    lines: Lines,
    /// The row that the next line is.
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
            builder.push(row, &self.lines.line);
        }
        Ok((!builder.rows.is_empty())
            .then(|| builder.finish(self.lines.path.clone(), self.first_row)))
    }

    /// Reads the line of a row.
    fn line(&mut self, row: u64) -> Result<(), DatasetError> {
        if row / STRIDE > self.next_line / STRIDE || row < self.next_line {
            let stride =
                usize::try_from(row / STRIDE).expect("invariant: the kept places fit memory");
            self.lines.seek(self.places[stride])?;
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

/// Builds a chunk line by line.
struct ChunkBuilder {
    plan: Arc<Plan>,
    rows: Vec<u64>,
    messages: MessagesBuilder,
    data_source: StringBuilder,
    domain: StringBuilder,
    ground_truth: StringBuilder,
    extra: StringBuilder,
    bad: Vec<(u32, RowDefect)>,
    bytes: u64,
}

impl ChunkBuilder {
    fn new(plan: Arc<Plan>) -> Self {
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

    fn push(&mut self, row: u64, line: &[u8]) {
        let index = index_u32(self.rows.len());
        self.rows.push(row);
        self.bytes += line.len() as u64;
        let found = match object(line) {
            Ok(object) => self.push_object(&object).err(),
            Err(found) => {
                self.append(&Value::Null, [None, None, None], "{}").ok();
                Some(RowDefect::new(DefectKind::BadJson, &LINE.into(), OBJECT, found))
            }
        };
        self.bad.extend(found.map(|defect| (index, defect)));
    }

    fn push_object(&mut self, object: &Object) -> Result<(), RowDefect> {
        let plan = self.plan.clone();
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

    fn finish(mut self, file: Arc<Path>, first_row: u64) -> Chunk {
        Chunk {
            file,
            first_row,
            rows: self.rows,
            messages: self.messages.finish(),
            data_source: Some(self.data_source.finish()),
            default_data_source: self.plan.default_data_source.clone(),
            domain: Some(self.domain.finish()),
            ground_truth: Some(Json::Text(self.ground_truth.finish())),
            extra: Extra { info: Some(Json::Raw(self.extra.finish())), columns: Vec::new() },
            bad: self.bad,
        }
    }
}

/// Text as it is, everything else as JSON, null as nothing.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn text<'a>(object: &'a Object, path: Option<&ColumnPath>) -> Result<Option<&'a str>, RowDefect> {
    let Some(path) = path else { return Ok(None) };
    match descend(object, &path.parts) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(RowDefect::value(&path.name, "text", shown(other))),
    }
}

/// `extra_info` and the extra columns as one object.
fn extra(object: &Object, plan: &Plan) -> Result<String, RowDefect> {
    let mut all = match &plan.extra_info {
        None => Object::new(),
        Some(path) => info(descend(object, &path.parts).unwrap_or(&Value::Null), path)?,
    };
    for name in &plan.extra {
        if let (false, Some(value)) = (all.contains_key(name), object.get(name)) {
            all.insert(name.clone(), value.clone());
        }
    }
    Ok(Value::Object(all).to_string())
}

fn info(value: &Value, path: &ColumnPath) -> Result<Object, RowDefect> {
    let refuse = |found| RowDefect::value(&path.name, OBJECT, found);
    match value {
        Value::Null => Ok(Object::new()),
        Value::Object(object) => Ok(object.clone()),
        Value::String(text) => self::object(text.as_bytes()).map_err(refuse),
        other => Err(refuse(shown(other))),
    }
}
