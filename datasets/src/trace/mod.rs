//! Traces: recorded response lengths of a run, from this program or another.
//!
//! A trace is read from a file or a folder of files, in Parquet (the `rollouts/` of this program, TRL's completions), JSON lines (verl's
//! rollout dumps) or CSV (the Azure request traces). Lengths come from a numeric column, otherwise from a list column of token ids,
//! otherwise from text whose tokens the caller counts. Text without a tokenizer is rejected, because neither words nor characters are
//! tokens.

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
use crate::reopen::check_reopens;
use plan::{LengthSource, TraceColumns};

/// Response lengths and their source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// One row per response, in the order of files and rows. Several recorded rows with the same prompt and sample number become one row in
    /// two cases. If the earlier row is that of a paused response, the later row continues it, and only the later row is kept. If the later
    /// row repeats a response whose tokens were all sampled in earlier steps, only the earlier row is kept.
    pub rows: Vec<TraceRow>,
    /// The source of the rows.
    pub source: TraceSource,
}

/// A recorded response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRow {
    /// The number of the prompt; `None` if no prompt key is recorded. Keys are compared as text, so the number 1 and the text `1` are
    /// equal, and `01` is different. A key that is a non-negative whole number is kept. Other keys get the smallest unused numbers, in the
    /// order of their first occurrence.
    pub prompt: Option<u64>,
    /// The index of the response among the responses to the prompt; `None` if it is not recorded or not a whole number.
    pub sample: Option<u32>,
    /// The step in which the response was sampled; `None` if it is not recorded or not a whole number.
    pub step: Option<u64>,
    /// The length of the prompt in tokens, if recorded.
    pub prompt_tokens: Option<u32>,
    /// The length of the response in tokens.
    pub tokens: u32,
    /// `false` if the recorded finish reason says that the response was dropped or paused, so that `tokens` is a lower bound (censored).
    /// `true` otherwise, also if no finish reason is recorded.
    pub is_complete: bool,
}

/// The source of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSource {
    /// The files, in the order in which they were read.
    pub files: Vec<PathBuf>,
    /// The length column of the first file.
    pub length_column: String,
    /// The prompt column of the first file, if it has one.
    pub prompt_column: Option<String>,
    /// The prompt length column of the first file, if it has one.
    pub prompt_length_column: Option<String>,
}

/// A function that counts the tokens of a text, or returns the reason why it cannot.
pub type CountTokens<'a> =
    dyn Fn(&str) -> Result<usize, Box<dyn std::error::Error + Send + Sync>> + 'a;

/// Options for reading a trace.
#[derive(Default)]
pub struct TraceOptions<'a> {
    /// The column of response lengths. Default: a column with a common name, compared without case and underscores. Lengths such as
    /// `response_length` or `completion_tokens` are preferred to token ids such as `response_ids`, and these to text such as `completion`.
    /// A column of CSV is text if it has a common name of texts and [`count_tokens`](Self::count_tokens) is given.
    pub length_column: Option<String>,
    /// The column that identifies the prompt of a response. Default: a column with a common name, such as `prompt_id`, `uid` or `prompt`.
    pub prompt_column: Option<String>,
    /// The column of prompt lengths, which may have the same types as the column of response lengths. Default: a column with a common name,
    /// such as `prompt_length`, `input_tokens` or `prompt_ids`.
    pub prompt_length_column: Option<String>,
    /// Counts the tokens of responses and prompts that are recorded as text only. Default: response lengths from text are rejected, and
    /// prompt lengths from text are rejected if their column is requested and ignored otherwise.
    pub count_tokens: Option<&'a CountTokens<'a>>,
}

impl Trace {
    /// Reads a file, a folder of files, or a run folder that contains `rollouts/`.
    ///
    /// # Errors
    /// If the path does not exist; if a folder contains no trace; if a file is a pipe, has another format, has no rows or is damaged; if a
    /// requested column is absent or has a wrong type; if no column holds lengths; or if a row cannot be used. An error of a row
    /// names file, row and column.
    pub fn read(path: &Path, options: &TraceOptions<'_>) -> Result<Self, DatasetError> {
        let mut trace = TraceReader {
            options,
            keys: BTreeMap::new(),
            named: Vec::new(),
            paused: BTreeSet::new(),
            returned: BTreeSet::new(),
            rows: Vec::new(),
            columns: None,
        };
        let files = files(path)?;
        for file in &files {
            check_reopens(file)?;
            let before = trace.rows.len();
            match TraceFormat::of(file)? {
                TraceFormat::Parquet => parquet::read(file, &mut trace)?,
                TraceFormat::Jsonl => jsonl::read(file, &mut trace)?,
                TraceFormat::Csv { delimiter } => csv::read(file, delimiter, &mut trace)?,
            }
            if trace.rows.len() == before {
                return Err(DatasetError::NoRows { file: file.clone() });
            }
        }
        trace.number_keys();
        trace.drop_repeated();
        let TraceColumnNames { length_column, prompt_column, prompt_length_column } =
            trace.columns.expect("invariant: a file with rows has a column of lengths");
        let source = TraceSource { files, length_column, prompt_column, prompt_length_column };
        Ok(Self { rows: trace.rows, source })
    }

    /// Returns the number of distinct prompts, or 0 if none are recorded.
    #[must_use]
    pub fn prompts(&self) -> usize {
        let prompts: BTreeSet<_> = self.rows.iter().filter_map(|row| row.prompt).collect();
        prompts.len()
    }

    /// Returns the rows with an estimated full length for each dropped or paused response, drawn from the longer rows. All returned rows
    /// are marked as complete.
    ///
    /// This samples from the Kaplan-Meier estimate: a censored row passes its probability mass on equally to all rows that are longer. If
    /// the row drawn is itself censored, the draw is repeated from the rows that are longer than the row drawn, if there are any. A
    /// censored row that no other row exceeds keeps its length. `seed` is the seed of the draws.
    #[must_use]
    pub fn uncensored(&self, seed: u64) -> Vec<TraceRow> {
        let mut ascending: Vec<(u32, bool)> =
            self.rows.iter().map(|row| (row.tokens, row.is_complete)).collect();
        ascending.sort_unstable();
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut grown = |mut tokens: u32, mut whole: bool| {
            while !whole {
                let longer = &ascending[ascending.partition_point(|row| row.0 <= tokens)..];
                if longer.is_empty() {
                    break;
                }
                (tokens, whole) = longer[random.random_range(0..longer.len())];
            }
            tokens
        };
        let mut whole = |row: &TraceRow| TraceRow {
            tokens: grown(row.tokens, row.is_complete),
            is_complete: true,
            ..*row
        };
        self.rows.iter().map(&mut whole).collect()
    }

    /// Returns the length of the longest response in tokens, or 0 if there is none.
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

/// The value of a cell, as far as traces need it.
enum TraceCell<'a> {
    Null,
    Integer(i128),
    Float(f64),
    Text(Cow<'a, str>),
    /// The number of entries of a list.
    List(usize),
    Other(&'static str),
}

struct TraceReader<'a> {
    options: &'a TraceOptions<'a>,
    /// The keys that are not whole numbers, each with its index in the order of first occurrence.
    keys: BTreeMap<String, usize>,
    /// The rows whose key is not a whole number, each with the index of its key in `keys`.
    named: Vec<(usize, usize)>,
    /// The rows of paused responses.
    paused: BTreeSet<usize>,
    /// The rows of ended responses whose tokens were all sampled in earlier steps.
    returned: BTreeSet<usize>,
    rows: Vec<TraceRow>,
    columns: Option<TraceColumnNames>,
}

/// The column names of the first file.
struct TraceColumnNames {
    length_column: String,
    prompt_column: Option<String>,
    prompt_length_column: Option<String>,
}

impl TraceReader<'_> {
    /// Chooses the columns of a file. Those of the first file are named in the source of the trace.
    fn plan(
        &mut self,
        file: &Path,
        columns: &[(String, plan::TraceColumnKind)],
    ) -> Result<TraceColumns, DatasetError> {
        let plan = TraceColumns::of(file, columns, self.options)?;
        let name = |index: usize| columns[index].0.clone();
        self.columns.get_or_insert_with(|| TraceColumnNames {
            length_column: name(plan.length.0),
            prompt_column: plan.prompt.map(name),
            prompt_length_column: plan.prompt_length.map(|(index, _)| name(index)),
        });
        Ok(plan)
    }

    /// Adds a row; `cell` returns its values by column.
    fn push<'c>(
        &mut self,
        at: &RowLocation<'_>,
        plan: &TraceColumns,
        cell: impl Fn(usize) -> TraceCell<'c>,
    ) -> Result<(), DatasetError> {
        let tokens = self.tokens(at, plan.length, cell(plan.length.0))?;
        let prompt_tokens = match plan.prompt_length {
            Some(length) => self.recorded_tokens(at, length, cell(length.0))?,
            None => None,
        };
        let prompt = plan.prompt.and_then(|column| self.key(cell(column)));
        let is_one_of = |reasons: &[&str]| {
            let reason = plan.finish_reason.map(&cell);
            matches!(reason, Some(TraceCell::Text(reason)) if reasons.contains(&reason.as_ref()))
        };
        let is_paused = is_one_of(&PAUSED);
        let is_complete = !is_paused && !is_one_of(&DROPPED);
        if is_paused {
            self.paused.insert(self.rows.len());
        }
        let resumed = plan.resumed.and_then(|column| cell(column).whole_number::<u32>());
        if is_complete && tokens > 0 && resumed == Some(tokens) {
            self.returned.insert(self.rows.len());
        }
        self.rows.push(TraceRow {
            prompt,
            sample: plan.sample.and_then(|column| cell(column).whole_number()),
            step: plan.step.and_then(|column| cell(column).whole_number()),
            prompt_tokens,
            tokens,
            is_complete,
        });
        Ok(())
    }

    /// Returns the length of a prompt, or `None` if the row does not record it.
    fn recorded_tokens(
        &self,
        at: &RowLocation<'_>,
        length: (usize, LengthSource),
        cell: TraceCell<'_>,
    ) -> Result<Option<u32>, DatasetError> {
        match cell {
            TraceCell::Null => Ok(None),
            cell => self.tokens(at, length, cell).map(Some),
        }
    }

    /// Returns the number of tokens that a cell stands for.
    fn tokens(
        &self,
        at: &RowLocation<'_>,
        (column, source): (usize, LengthSource),
        cell: TraceCell<'_>,
    ) -> Result<u32, DatasetError> {
        let bad = |expected, found| at.bad(column, expected, found);
        match (source, cell) {
            (LengthSource::Number, cell) => {
                cell.whole_number().ok_or_else(|| bad("a whole number of tokens", cell.describe()))
            }
            (LengthSource::List, TraceCell::List(entries)) => u32::try_from(entries)
                .map_err(|_| bad("at most 4294967295 tokens", entries.to_string())),
            (LengthSource::List, cell) => Err(bad("a list of token ids", cell.describe())),
            (LengthSource::Text, TraceCell::Text(text)) => {
                let count = self.options.count_tokens.map_or(Err("".into()), |of| of(&text));
                let tokens = count.map_err(|error| {
                    bad("text that the tokenizer can encode", error.to_string())
                })?;
                u32::try_from(tokens)
                    .map_err(|_| bad("at most 4294967295 tokens", tokens.to_string()))
            }
            (LengthSource::Text, cell) => Err(bad("text", cell.describe())),
        }
    }

    /// Returns the key of the next row if it is a whole number. Records other keys, which get a number when all keys are known.
    fn key(&mut self, cell: TraceCell<'_>) -> Option<u64> {
        let text = cell.key()?;
        if let Some(number) = text.parse::<u64>().ok().filter(|number| number.to_string() == text) {
            return Some(number);
        }
        let next = self.keys.len();
        let order = *self.keys.entry(text.into_owned()).or_insert(next);
        self.named.push((self.rows.len(), order));
        None
    }

    /// Removes paused responses that continue in a later row, which has all of their tokens, and rows that repeat the whole response of an
    /// earlier row.
    fn drop_repeated(&mut self) {
        let mut last = BTreeMap::new();
        let mut repeated = BTreeSet::new();
        for (at, row) in self.rows.iter().enumerate() {
            let Some(before) = row.prompt.zip(row.sample).and_then(|id| last.insert(id, at)) else {
                continue;
            };
            if self.paused.contains(&before) {
                repeated.insert(before);
            } else if self.returned.contains(&at) {
                repeated.insert(at);
            }
        }
        let mut at = 0;
        self.rows.retain(|_| {
            at += 1;
            !repeated.contains(&(at - 1))
        });
    }

    /// Assigns unused numbers to the keys that are not whole numbers.
    fn number_keys(&mut self) {
        let taken: BTreeSet<u64> = self.rows.iter().filter_map(|row| row.prompt).collect();
        let free: Vec<u64> =
            (0..).filter(|number| !taken.contains(number)).take(self.keys.len()).collect();
        for &(row, order) in &self.named {
            self.rows[row].prompt = Some(free[order]);
        }
    }
}

/// Finish reasons of responses that were dropped before their end.
const DROPPED: [&str; 4] = ["abort", "aborted", "cancelled", "canceled"];
/// Finish reasons of paused responses, which may continue in a later row.
const PAUSED: [&str; 2] = ["pause", "paused"];

impl<'a> TraceCell<'a> {
    fn whole_number<T: TryFrom<i128>>(&self) -> Option<T> {
        let number = match self {
            TraceCell::Integer(number) => *number,
            TraceCell::Float(number) if number.fract() == 0.0 => *number as i128,
            // A CSV writer of floating-point numbers, such as pandas for a column with missing values, writes 374 as 374.0.
            TraceCell::Text(text) => match text.trim().parse() {
                Ok(number) => number,
                Err(_) => return TraceCell::Float(text.trim().parse().ok()?).whole_number(),
            },
            _ => return None,
        };
        T::try_from(number).ok()
    }

    /// Converts the cell to the text of a prompt key.
    fn key(self) -> Option<Cow<'a, str>> {
        match self {
            TraceCell::Integer(number) => Some(number.to_string().into()),
            TraceCell::Float(number) => Some(number.to_string().into()),
            TraceCell::Text(text) => Some(text),
            TraceCell::Null | TraceCell::List(_) | TraceCell::Other(_) => None,
        }
    }

    fn describe(&self) -> String {
        match self {
            TraceCell::Null => "nothing".to_owned(),
            TraceCell::Integer(number) => number.to_string(),
            TraceCell::Float(number) => number.to_string(),
            TraceCell::Text(text) => quoted(text.chars().take(40).collect::<String>().as_bytes()),
            TraceCell::List(entries) => format!("a list of {entries}"),
            TraceCell::Other(kind) => (*kind).to_owned(),
        }
    }
}

/// The location of a row, for error messages.
struct RowLocation<'a> {
    file: &'a Path,
    row: u64,
    columns: &'a [(String, plan::TraceColumnKind)],
}

impl RowLocation<'_> {
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

/// Creates the error for a line that does not have the format of its file.
fn bad_line(file: &Path, row: u64, expected: &'static str, found: String) -> DatasetError {
    let column = "(the line)".to_owned();
    DatasetError::BadRow { file: file.to_owned(), row, column, expected, found }
}

enum TraceFormat {
    Parquet,
    Jsonl,
    Csv { delimiter: u8 },
}

impl TraceFormat {
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

/// Returns the files to read: the files in the folder `rollouts` of `path` if it exists, otherwise the files in the folder `path`,
/// otherwise `path` itself. Files in a folder that do not have the extension of a trace are skipped. The others are sorted by length of
/// path, then by path, so that `2.jsonl` comes before `10.jsonl`.
fn files(path: &Path) -> Result<Vec<PathBuf>, DatasetError> {
    let rollouts = path.join("rollouts");
    let folder = if rollouts.is_dir() { &rollouts } else { path };
    if !folder.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(DatasetError::io(folder, "read"))? {
        let file = entry.map_err(DatasetError::io(folder, "read"))?.path();
        if TraceFormat::of(&file).is_ok() {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(DatasetError::NoMatch { pattern: folder.join("*").display().to_string() });
    }
    files.sort_by_cached_key(|file| (file.as_os_str().len(), file.clone()));
    Ok(files)
}
