//! The configuration of a dataset: the files to read and the order of their rows.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::DatasetError;

/// The files of a dataset and the order of their rows.
///
/// # Memory
///
/// In addition to the Parquet footers and page indexes (or 32 bytes for every 64 lines of a JSONL file), reading holds:
/// - with `shuffle = false`: one batch of at most 2,048 rows and about 4 MiB, and one page per column.
/// - with `shuffle = true`: one window of at most `window_rows` rows and about `window_bytes` bytes, and one page per column. The bytes of
///   Parquet are decoded sizes, estimated from the footer. If the footer has the sizes of texts, a text that a dictionary stores once
///   counts at each occurrence. The bytes of JSONL are the lengths of the lines. The order takes another 12 bytes per row of the window,
///   and about 40 bytes per block of the dataset.
/// - with `max_samples` and `shuffle`: 8 bytes per chosen row.
///
/// A [`Prompt`](crate::Prompt) that is kept keeps its batch in memory, not its window.
///
/// # Randomness of the order
///
/// The rows are cut into blocks, runs of at most `window_rows / 64` adjacent rows and about `window_bytes / 64` bytes. An epoch takes the
/// blocks in uniformly random order, fills a window with as many as fit, and returns the window's rows in uniformly random order. A dataset
/// that fits into one window is therefore shuffled uniformly. In a larger one, adjacent rows of a block stay within one window; otherwise a
/// row can appear anywhere. The order is a function of the files, `seed`, epoch, window and `max_samples`.
///
/// An alternative was rejected: a reservoir that emits a random row for every row read. It needs no blocks, but a row never appears much
/// before its position in the file, and resuming must replay the epoch.
///
/// # Cost of the order
///
/// If a file has a page index, as those written by this crate do, a window reads only the pages of its blocks. Without an index, pages are
/// skipped by decoding them. A file with few huge row groups is then decoded about once per window, still in bounded memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DatasetConfig {
    /// Paths or globs of Parquet and JSONL files, read in this order. The matches of a glob are read in alphabetical order. (verl:
    /// `data.train_files`)
    pub files: Vec<String>,
    /// The columns that hold the parts of a prompt, such as its messages and its reference answer.
    pub columns: PromptColumns,
    /// Further columns to return within `extra_info`, each under its own name; `*` stands for all columns that no role uses. If
    /// `extra_info` has a field of the same name, the field takes precedence. Default: none.
    pub extra_columns: Vec<String>,
    /// `true` to shuffle the rows, in a new order every epoch. Default: `false`. (verl: `data.shuffle`)
    pub shuffle: bool,
    /// The seed of the order and of the choice of `max_samples`. Default: 0. (verl: `data.seed`)
    pub seed: u64,
    /// The maximum number of rows to use: the first rows, or with `shuffle` a uniform choice that is the same in every epoch. At least 1;
    /// default: all rows. (verl: `data.train_max_samples`)
    pub max_samples: Option<u64>,
    /// The `data_source` of rows without one. Default: `unknown`.
    pub default_data_source: String,
    /// The maximum number of rows that are shuffled together. At least 64 and less than 4,294,967,295; default: 131,072.
    pub window_rows: u64,
    /// The maximum number of bytes that are shuffled together. At least 1 MiB; default: 256 MiB.
    pub window_bytes: u64,
}

/// The names of the columns; a dot selects a field of a struct. A column that is not set defaults to the first of its usual names that the
/// file has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PromptColumns {
    /// The prompt: chat messages `list<struct<role, content>>`, chat messages as JSON text, or plain text, which becomes one user message.
    /// Usual: `prompt` if it is a list, otherwise `messages`, `prompt`, `question`, `problem`. If most of the first 64 rows of
    /// `messages` end with a message of the assistant, a text in `prompt`, `question` or `problem` is used instead. (verl:
    /// `data.prompt_key`)
    pub prompt: Option<String>,
    /// The source of the prompt, by which rewards are routed. Usual: `data_source`, `source`. (verl: `data.reward_fn_key`)
    pub data_source: Option<String>,
    /// The reference answer, of any type. Usual: `reward_model.ground_truth`, `reward_spec.ground_truth`, `ground_truth`, `answer`,
    /// `label`.
    pub ground_truth: Option<String>,
    /// Further information about the prompt: a struct, or a JSON object as text. Usual: `extra_info`.
    pub extra_info: Option<String>,
    /// The kind of task; a row without one gets its `data_source`. Usual: `domain`, `ability`, `tag`, unless it is a list or a struct.
    pub domain: Option<String>,
}

impl Default for DatasetConfig {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            columns: PromptColumns::default(),
            extra_columns: Vec::new(),
            shuffle: false,
            seed: 0,
            max_samples: None,
            default_data_source: "unknown".to_owned(),
            window_rows: 1 << 17,
            window_bytes: 256 << 20,
        }
    }
}

impl DatasetConfig {
    /// Creates a configuration for these files with all other settings at their defaults: file order, every row once per epoch.
    pub fn of<F: Into<String>>(files: impl IntoIterator<Item = F>) -> Self {
        Self { files: files.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Returns the paths that `files` names.
    ///
    /// # Errors
    ///
    /// If `files` is empty, a path or glob matches no file, a glob is invalid, or a folder on the way cannot be read.
    pub fn paths(&self) -> Result<Vec<PathBuf>, DatasetError> {
        if self.files.is_empty() {
            return Err(DatasetError::NoFiles);
        }
        let each =
            self.files.iter().map(|pattern| expand(pattern)).collect::<Result<Vec<_>, _>>()?;
        Ok(each.concat())
    }

    pub(crate) fn check(&self) -> Result<(), DatasetError> {
        let within = |key, value: u64, range: RangeInclusive<u64>, expected| {
            if range.contains(&value) {
                Ok(())
            } else {
                Err(DatasetError::Setting { key, expected, found: value.to_string() })
            }
        };
        let rows = 64..=u64::from(u32::MAX) - 1;
        within("window_rows", self.window_rows, rows, "64 to 4294967294")?;
        within("window_bytes", self.window_bytes, 1 << 20..=u64::MAX, "at least 1048576")?;
        within("max_samples", self.max_samples.unwrap_or(1), 1..=u64::MAX, "at least 1")
    }
}

/// Expands a path or glob. An existing path is taken literally, regardless of its characters.
fn expand(pattern: &str) -> Result<Vec<PathBuf>, DatasetError> {
    let path = PathBuf::from(pattern);
    if path.exists() {
        return Ok(vec![path]);
    }
    let matches = glob::glob(pattern)
        .map_err(|source| DatasetError::Pattern { pattern: pattern.to_owned(), source })?;
    let paths = matches.collect::<Result<Vec<_>, _>>().map_err(|error| {
        let file = error.path().to_owned();
        DatasetError::Io { file, operation: "list", source: error.into() }
    })?;
    if paths.is_empty() {
        Err(DatasetError::NoMatch { pattern: pattern.to_owned() })
    } else {
        Ok(paths)
    }
}
