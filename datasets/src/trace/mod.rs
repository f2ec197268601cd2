//! Traces: how long the responses of a run were, whoever recorded it.
//!
//! Read from a file, or from a folder of files, in Parquet (our own `rollouts/`, TRL's completions), JSON lines (verl's rollout dumps) or
//! CSV (the Azure request traces). A length is taken from a column of numbers, else from a list column of token ids, else from a text whose
//! tokens the caller counts. Text alone is refused: neither words nor characters are tokens.

mod csv;
mod jsonl;
mod parquet;
mod plan;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::error::{DatasetError, quoted};
use crate::file::check_reopens;
use plan::{How, Plan};

/// Response lengths, and where they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// One row a response, in the order of files and rows.
    pub rows: Vec<TraceRow>,
    /// What was read.
    pub source: TraceSource,
}

/// A recorded response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRow {
    /// Its prompt. Keys are told apart by their text, so that the number 1 and the text `1` are one, and `01` is another. A key that is a
    /// whole number is itself; the others are the least numbers that are no keys, in the order of their first appearance.
    pub prompt: Option<u64>,
    /// Which response of the prompt, where recorded.
    pub sample: Option<u32>,
    /// The step that it was sampled in, where recorded.
    pub step: Option<u64>,
    /// Tokens of its prompt, where recorded.
    pub prompt_tokens: Option<u32>,
    /// Tokens sampled.
    pub tokens: u32,
    /// Whether it ended by itself, or at its longest allowed length. Otherwise it was dropped and would have been at least so long.
    pub whole: bool,
}

/// Where a trace comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSource {
    /// The files, in the order read.
    pub files: Vec<PathBuf>,
    /// The column of lengths of the first.
    pub length_column: String,
    /// The column of prompt keys of the first.
    pub prompt_column: Option<String>,
    /// The column of prompt lengths of the first.
    pub prompt_length_column: Option<String>,
}

/// Counts the tokens of a text; `Err` says why it cannot.
pub type CountTokens<'a> = dyn Fn(&str) -> Result<usize, String> + 'a;

/// How to read a trace.
#[derive(Default)]
pub struct TraceOptions<'a> {
    /// The column of lengths; left out, found by the names that are in use.
    pub length_column: Option<String>,
    /// The column that says which prompt a response belongs to; left out, found by the names that are in use.
    pub prompt_column: Option<String>,
    /// The column of prompt lengths, of the same forms as that of response lengths; left out, found by the names that are in use.
    pub prompt_length_column: Option<String>,
    /// Counts the tokens of responses and prompts that are recorded as text only.
    pub count_tokens: Option<&'a CountTokens<'a>>,
}

impl Trace {
    /// Reads a file, a folder of files, or a run folder with `rollouts/` in it.
    ///
    /// # Errors
    /// If there is no such file, a file is a pipe, of another format or damaged, no column tells lengths, or a row cannot be used; the error names
    /// file, row and column.
    pub fn read(path: &Path, options: &TraceOptions<'_>) -> Result<Self, DatasetError> {
        let mut trace = Reading {
            options,
            keys: BTreeMap::new(),
            named: Vec::new(),
            rows: Vec::new(),
            columns: None,
        };
        let files = files(path)?;
        for file in &files {
            check_reopens(file)?;
            let before = trace.rows.len();
            match Format::of(file)? {
                Format::Parquet => parquet::read(file, &mut trace)?,
                Format::Jsonl => jsonl::read(file, &mut trace)?,
                Format::Csv { delimiter } => csv::read(file, delimiter, &mut trace)?,
            }
            if trace.rows.len() == before {
                return Err(DatasetError::NoRows { file: file.clone() });
            }
        }
        trace.number_keys();
        let Columns { length_column, prompt_column, prompt_length_column } =
            trace.columns.expect("invariant: a file with rows has a column of lengths");
        let source = TraceSource { files, length_column, prompt_column, prompt_length_column };
        Ok(Self { rows: trace.rows, source })
    }

    /// How many prompts are told apart; 0 if none is named.
    #[must_use]
    pub fn prompts(&self) -> usize {
        let prompts: BTreeSet<_> = self.rows.iter().filter_map(|row| row.prompt).collect();
        prompts.len()
    }

    /// The rows, those that were dropped made whole: each as long as one drawn from the rows that are longer, as Kaplan and Meier
    /// estimate what it would have become. One that no other exceeds stays as it is.
    #[must_use]
    pub fn uncensored(&self, seed: u64) -> Vec<TraceRow> {
        let mut ascending: Vec<(u32, bool)> =
            self.rows.iter().map(|row| (row.tokens, row.whole)).collect();
        ascending.sort_unstable();
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut grown = |mut tokens: u32, mut whole: bool| {
            while !whole {
                let longer = &ascending[ascending.partition_point(|row| row.0 <= tokens)..];
                if longer.is_empty() {
                    break;
                }
                // One that was dropped itself is grown in turn: its share goes to those that are longer still.
                (tokens, whole) = longer[random.random_range(0..longer.len())];
            }
            tokens
        };
        let mut whole =
            |row: &TraceRow| TraceRow { tokens: grown(row.tokens, row.whole), whole: true, ..*row };
        self.rows.iter().map(&mut whole).collect()
    }

    /// The longest response.
    #[must_use]
    pub fn longest(&self) -> u32 {
        self.rows.iter().map(|row| row.tokens).max().unwrap_or(0)
    }
}

impl fmt::Display for TraceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.files.as_slice() {
            [file] => write!(f, "{}", file.display())?,
            [first, ..] => write!(f, "{} and {} more", first.display(), self.files.len() - 1)?,
            [] => f.write_str("nothing")?,
        }
        write!(f, " (column {})", self.length_column)
    }
}

/// A value of a row, as far as traces need it.
enum Cell<'a> {
    Null,
    Integer(i128),
    Float(f64),
    Text(Cow<'a, str>),
    /// Entries of a list.
    List(usize),
    Other(&'static str),
}

/// What has been read so far.
struct Reading<'a> {
    options: &'a TraceOptions<'a>,
    /// Keys that are no whole numbers, in the order of their first appearance.
    keys: BTreeMap<String, usize>,
    /// Rows that have such a key, and which.
    named: Vec<(usize, usize)>,
    rows: Vec<TraceRow>,
    columns: Option<Columns>,
}

/// Names of the columns of the first file.
struct Columns {
    length_column: String,
    prompt_column: Option<String>,
    prompt_length_column: Option<String>,
}

impl Reading<'_> {
    /// Chooses the columns of a file.
    fn plan(
        &mut self,
        file: &Path,
        columns: &[(String, plan::Kind)],
    ) -> Result<Plan, DatasetError> {
        let plan = Plan::of(file, columns, self.options)?;
        let name = |index: usize| columns[index].0.clone();
        self.columns.get_or_insert_with(|| Columns {
            length_column: name(plan.length.0),
            prompt_column: plan.prompt.map(name),
            prompt_length_column: plan.prompt_length.map(|(index, _)| name(index)),
        });
        Ok(plan)
    }

    /// Takes a row of which `cell` hands out the values by column.
    fn push<'c>(
        &mut self,
        at: &At<'_>,
        plan: &Plan,
        cell: impl Fn(usize) -> Cell<'c>,
    ) -> Result<(), DatasetError> {
        let tokens = self.tokens(at, plan.length, cell(plan.length.0))?;
        let prompt_tokens = match plan.prompt_length {
            Some(length) => self.recorded_tokens(at, length, cell(length.0))?,
            None => None,
        };
        let prompt = plan.prompt.and_then(|column| self.key(cell(column)));
        let whole = plan.finish_reason.map(&cell).is_none_or(|cell| match cell {
            Cell::Text(reason) => !DROPPED.contains(&reason.as_ref()),
            _ => true,
        });
        self.rows.push(TraceRow {
            prompt,
            sample: plan.sample.and_then(|column| cell(column).whole_number()),
            step: plan.step.and_then(|column| cell(column).whole_number()),
            prompt_tokens,
            tokens,
            whole,
        });
        Ok(())
    }

    /// Tokens of a prompt, unless the row leaves them out.
    fn recorded_tokens(
        &self,
        at: &At<'_>,
        length: (usize, How),
        cell: Cell<'_>,
    ) -> Result<Option<u32>, DatasetError> {
        match cell {
            Cell::Null => Ok(None),
            cell => self.tokens(at, length, cell).map(Some),
        }
    }

    /// Tokens of the text in a column.
    fn tokens(
        &self,
        at: &At<'_>,
        (column, how): (usize, How),
        cell: Cell<'_>,
    ) -> Result<u32, DatasetError> {
        let bad = |expected, found| at.bad(column, expected, found);
        match (how, cell) {
            (How::Number, cell) => {
                cell.whole_number().ok_or_else(|| bad("a whole number of tokens", cell.shown()))
            }
            (How::List, Cell::List(entries)) => u32::try_from(entries)
                .map_err(|_| bad("at most 4294967295 tokens", entries.to_string())),
            (How::List, cell) => Err(bad("a list of token ids", cell.shown())),
            (How::Text, Cell::Text(text)) => {
                let count = self.options.count_tokens.map_or(Err(String::new()), |of| of(&text));
                let tokens =
                    count.map_err(|reason| bad("text that the tokenizer reads", reason))?;
                u32::try_from(tokens)
                    .map_err(|_| bad("at most 4294967295 tokens", tokens.to_string()))
            }
            (How::Text, cell) => Err(bad("text", cell.shown())),
        }
    }

    /// The key of the row that is pushed next, if it is a number; otherwise it is numbered when all are known.
    fn key(&mut self, cell: Cell<'_>) -> Option<u64> {
        let text = cell.key()?;
        if let Some(number) = text.parse::<u64>().ok().filter(|number| number.to_string() == text) {
            return Some(number);
        }
        let next = self.keys.len();
        let order = *self.keys.entry(text.into_owned()).or_insert(next);
        self.named.push((self.rows.len(), order));
        None
    }

    /// Numbers the keys that are no whole numbers, beside those that are.
    fn number_keys(&mut self) {
        let taken: BTreeSet<u64> = self.rows.iter().filter_map(|row| row.prompt).collect();
        let free: Vec<u64> =
            (0..).filter(|number| !taken.contains(number)).take(self.keys.len()).collect();
        for &(row, order) in &self.named {
            self.rows[row].prompt = Some(free[order]);
        }
    }
}

/// Finish reasons of responses that would have been longer.
const DROPPED: [&str; 6] = ["abort", "aborted", "pause", "paused", "cancelled", "canceled"];

impl<'a> Cell<'a> {
    fn whole_number<T: TryFrom<i128>>(&self) -> Option<T> {
        let number = match self {
            Cell::Integer(number) => *number,
            Cell::Float(number) if number.fract() == 0.0 => *number as i128,
            Cell::Text(text) => text.trim().parse().ok()?,
            _ => return None,
        };
        T::try_from(number).ok()
    }

    /// As the text of a prompt's key.
    fn key(self) -> Option<Cow<'a, str>> {
        match self {
            Cell::Integer(number) => Some(number.to_string().into()),
            Cell::Float(number) => Some(number.to_string().into()),
            Cell::Text(text) => Some(text),
            Cell::Null | Cell::List(_) | Cell::Other(_) => None,
        }
    }

    fn shown(&self) -> String {
        match self {
            Cell::Null => "nothing".to_owned(),
            Cell::Integer(number) => number.to_string(),
            Cell::Float(number) => number.to_string(),
            Cell::Text(text) => quoted(text.chars().take(40).collect::<String>().as_bytes()),
            Cell::List(entries) => format!("a list of {entries}"),
            Cell::Other(kind) => (*kind).to_owned(),
        }
    }
}

/// A row, for messages.
struct At<'a> {
    file: &'a Path,
    row: u64,
    columns: &'a [(String, plan::Kind)],
}

impl At<'_> {
    fn bad(&self, column: usize, expected: &'static str, found: String) -> DatasetError {
        DatasetError::BadRow {
            file: self.file.to_owned(),
            row: self.row,
            column: self.columns[column].0.clone(),
            expected,
            found,
        }
    }
}

/// A line that is none of its format.
fn bad_line(file: &Path, row: u64, expected: &'static str, found: String) -> DatasetError {
    let column = "(the line)".to_owned();
    DatasetError::BadRow { file: file.to_owned(), row, column, expected, found }
}

enum Format {
    Parquet,
    Jsonl,
    Csv { delimiter: u8 },
}

impl Format {
    fn of(path: &Path) -> Result<Self, DatasetError> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("parquet" | "pq") => Ok(Self::Parquet),
            Some("jsonl" | "json" | "ndjson") => Ok(Self::Jsonl),
            Some("csv") => Ok(Self::Csv { delimiter: b',' }),
            Some("tsv") => Ok(Self::Csv { delimiter: b'\t' }),
            found => Err(DatasetError::UnknownFormat {
                file: path.to_owned(),
                expected: "a .parquet, .jsonl, .json, .csv or .tsv file",
                found: found.map_or("no extension".to_owned(), |found| format!("`.{found}`")),
            }),
        }
    }
}

/// The files of a path. Those of a folder by length of name, then by name, so that `2.jsonl` comes before `10.jsonl`.
fn files(path: &Path) -> Result<Vec<PathBuf>, DatasetError> {
    let rollouts = path.join("rollouts");
    let folder = if rollouts.is_dir() { &rollouts } else { path };
    if !folder.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(DatasetError::io(folder, "read"))? {
        let file = entry.map_err(DatasetError::io(folder, "read"))?.path();
        if Format::of(&file).is_ok() {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(DatasetError::NoMatch { pattern: folder.join("*").display().to_string() });
    }
    files.sort_by_cached_key(|file| (file.as_os_str().len(), file.clone()));
    Ok(files)
}
