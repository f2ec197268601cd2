//! What to read and in which order.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::DatasetError;

/// What to read and in which order.
///
/// # Memory
///
/// Besides what the Parquet footers and page indexes themselves take (or 8 bytes for every 64 lines of a JSONL file):
/// - `shuffle = false`: one batch, of at most 2,048 rows and about 4 MiB, and one page a column.
/// - `shuffle = true`: one window, of at most `window_rows` rows and about `window_bytes` bytes, and one page a column. Bytes are those
///   that the footer names, which leave out what a dictionary saves. A few bytes a row come on top of the data: 12 for the order, and
///   8 for every 2,048 rows of the dataset.
/// - `max_samples` with `shuffle`: 8 bytes a kept row.
///
/// A [`Prompt`](crate::Prompt) that is kept keeps its batch, not its window.
///
/// # Randomness of the order
///
/// The rows are cut into blocks, runs of at most `window_rows / 64` neighbours. An epoch takes the blocks in
/// uniformly random order, fills a window with as many as it holds, and hands out the window's rows in uniformly random order. A dataset
/// that fits one window is thus shuffled uniformly. In a larger one, neighbours that share a block share a window, and otherwise any row
/// can come anywhere. The order is a function of the files, `seed`, epoch, window and `max_samples`.
///
/// Rejected: a reservoir that emits a random row for every row read. It needs no blocks, but a row never comes much before its place in
/// the file, and resuming must replay the epoch.
///
/// # Cost of the order
///
/// A window reads the pages of its blocks only where the file has a page index, which ours have. Without one, pages are skipped by
/// decoding them: a file of few huge row groups is then decoded about once a window, in bounded memory still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DatasetConfig {
    /// Paths or globs of Parquet and JSONL files, read in this order; the matches of a glob in alphabetical order.
    pub files: Vec<String>,
    /// What the columns are called.
    pub columns: Columns,
    /// Further columns to hand out within `extra_info`, each under its own name; `*` stands for all. A field of `extra_info` of the
    /// same name wins.
    pub extra_columns: Vec<String>,
    /// Whether to shuffle, anew every epoch.
    pub shuffle: bool,
    /// Seed of the order, and of the choice of `max_samples`.
    pub seed: u64,
    /// Use only so many rows: the first, or with `shuffle` a uniform choice that is the same in every epoch.
    pub max_samples: Option<u64>,
    /// `data_source` of rows that name none.
    pub default_data_source: String,
    /// Rows that are shuffled together, at least 64.
    pub window_rows: u64,
    /// Bytes that are shuffled together, at least 1 MiB.
    pub window_bytes: u64,
}

/// What the columns are called; a dot leads into a struct. Left out, a column is the first of the usual names that the file has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Columns {
    /// The prompt: chat messages `list<struct<role, content>>`, the same as JSON text, or text, which becomes one message of the user's.
    /// Usual: `prompt` if it is a list, else `messages`, `prompt`, `question`, `problem`.
    pub prompt: Option<String>,
    /// Where the prompt comes from. Usual: `data_source`, `source`.
    pub data_source: Option<String>,
    /// The reference answer, of any type. Usual: `reward_model.ground_truth`, `reward_spec.ground_truth`, `ground_truth`, `answer`, `label`.
    pub ground_truth: Option<String>,
    /// A struct, or a JSON object as text. Usual: `extra_info`.
    pub extra_info: Option<String>,
    /// The kind of task; a row without one has its `data_source`. Usual: `domain`, `ability`, `tag`.
    pub domain: Option<String>,
}

impl Default for DatasetConfig {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            columns: Columns::default(),
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
    /// These files, everything else by default: in order, every row once an epoch.
    pub fn of<F: Into<String>>(files: impl IntoIterator<Item = F>) -> Self {
        Self { files: files.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// The files that `files` names.
    ///
    /// # Errors
    ///
    /// When it names none, when a path or glob matches none, and when a folder on the way cannot be read.
    pub fn paths(&self) -> Result<Vec<PathBuf>, DatasetError> {
        if self.files.is_empty() {
            return Err(DatasetError::NoFiles);
        }
        let each =
            self.files.iter().map(|pattern| expand(pattern)).collect::<Result<Vec<_>, _>>()?;
        Ok(each.concat())
    }

    pub(crate) fn check(&self) -> Result<(), DatasetError> {
        let bound = |key, value: u64, least: u64, expected| match value >= least {
            true => Ok(()),
            false => Err(DatasetError::Setting { key, expected, found: value.to_string() }),
        };
        bound("window_rows", self.window_rows, 64, "at least 64")?;
        bound(
            "window_rows",
            u64::from(u32::MAX) - self.window_rows.min(u64::from(u32::MAX)),
            1,
            "less than 4294967295",
        )?;
        bound("window_bytes", self.window_bytes, 1 << 20, "at least 1048576")?;
        bound("max_samples", self.max_samples.unwrap_or(1), 1, "at least 1")
    }
}

/// A path that exists is that file, whatever characters it has; otherwise it is a glob.
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
    match paths.is_empty() {
        true => Err(DatasetError::NoMatch { pattern: pattern.to_owned() }),
        false => Ok(paths),
    }
}
