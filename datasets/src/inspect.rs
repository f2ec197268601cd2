//! Inspection: a summary of a dataset.
//!
//! Memory: one batch of rows, the samples, and an entry for every distinct `data_source`, domain and prompt length.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chunk::Chunk;
use crate::config::DatasetConfig;
use crate::error::DatasetError;
use crate::file::PromptFile;
use crate::prompt::{Prompt, PromptRow};
use crate::segment::index_u32;

/// A summary of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    /// The files, in the order in which they are read.
    pub files: Vec<FileFacts>,
    /// The number of rows in all files.
    pub rows: u64,
    /// The number of rows that cannot be used; see [`validate()`](crate::validate()).
    pub bad_rows: u64,
    /// The number of usable rows of each `data_source`.
    pub data_sources: BTreeMap<String, u64>,
    /// The number of usable rows of each domain.
    pub domains: BTreeMap<String, u64>,
    /// The distribution of prompt lengths in characters; `None` if no row is usable.
    pub prompt_chars: Option<Percentiles>,
    /// The number of usable rows for each kind of reference answer: `text`, `json object`, `json array`, `number`, `none`.
    pub ground_truths: BTreeMap<String, u64>,
    /// The first usable prompts, at most as many as were requested.
    pub samples: Vec<PromptRow>,
}

/// A summary of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// The path of the file.
    pub path: PathBuf,
    /// `parquet` or `jsonl`.
    pub format: String,
    /// The length of the file in bytes.
    pub bytes: u64,
    /// The number of rows.
    pub rows: u64,
    /// The number of row groups; 0 for JSONL.
    pub row_groups: u64,
    /// The name and type of each column; for JSONL, of the fields of the first 64 rows.
    pub columns: Vec<(String, String)>,
    /// The names of the columns in use, by role: `prompt`, `data_source`, `ground_truth`, `extra_info`, `domain`.
    pub parts: BTreeMap<String, String>,
}

/// Percentiles and the mean of whole numbers. Each percentile is one of the numbers (nearest rank).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The minimum.
    pub min: u64,
    /// The 50th percentile.
    pub p50: u64,
    /// The 90th percentile.
    pub p90: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The maximum.
    pub max: u64,
    /// The arithmetic mean of all numbers.
    pub mean: f64,
}

/// Reads all rows, regardless of `max_samples`, and summarizes them. `samples` is the number of prompts to include.
///
/// # Errors
///
/// If a setting is out of bounds; if no file is configured, or a path or glob is invalid or matches no file; if a file cannot be opened or
/// decoded, can be read only once, has another format, or is a JSONL file without rows; or if a column is absent or has the wrong type. Bad
/// rows are counted and are no error.
pub fn inspect(config: &DatasetConfig, samples: usize) -> Result<Inspection, DatasetError> {
    config.check()?;
    let mut count =
        Inspector { inspection: Inspection::default(), lengths: BTreeMap::new(), samples };
    for path in config.paths()? {
        let file = PromptFile::open(&path, config)?;
        for chunk in file.read_all(count.inspection.rows)? {
            count.chunk(&Arc::new(chunk?));
        }
        count.inspection.rows += file.rows();
        count.inspection.files.push(facts(&file)?);
    }
    count.inspection.prompt_chars = percentiles(&count.lengths);
    Ok(count.inspection)
}

struct Inspector {
    inspection: Inspection,
    /// The number of prompts by length in characters.
    lengths: BTreeMap<u64, u64>,
    samples: usize,
}

impl Inspector {
    fn chunk(&mut self, chunk: &Arc<Chunk>) {
        for index in 0..chunk.len() {
            match chunk.defect(index) {
                Some(_) => self.inspection.bad_rows += 1,
                None => {
                    self.prompt(&Prompt { chunk: chunk.clone(), index: index_u32(index), epoch: 0 })
                }
            }
        }
    }

    fn prompt(&mut self, prompt: &Prompt) {
        let inspection = &mut self.inspection;
        add(&mut inspection.data_sources, prompt.data_source());
        add(&mut inspection.domains, prompt.domain());
        add(&mut inspection.ground_truths, answer_kind(prompt.ground_truth().as_deref()));
        *self.lengths.entry(prompt.chars() as u64).or_default() += 1;
        if inspection.samples.len() < self.samples {
            inspection.samples.push(prompt.to_row());
        }
    }
}

fn add(counts: &mut BTreeMap<String, u64>, key: &str) {
    match counts.get_mut(key) {
        Some(count) => *count += 1,
        None => drop(counts.insert(key.to_owned(), 1)),
    }
}

fn answer_kind(answer: Option<&str>) -> &'static str {
    let Some(answer) = answer else { return "none" };
    let structured = answer.starts_with(['{', '[']);
    match serde_json::from_str::<Value>(answer) {
        Ok(Value::Number(_)) => "number",
        Ok(Value::Object(_)) if structured => "json object",
        Ok(Value::Array(_)) if structured => "json array",
        _ => "text",
    }
}

fn facts(file: &PromptFile) -> Result<FileFacts, DatasetError> {
    let metadata = std::fs::metadata(file.path()).map_err(DatasetError::io(file.path(), "read"))?;
    let row_groups = if file.format() == "parquet" { file.segments().len() as u64 } else { 0 };
    Ok(FileFacts {
        path: file.path().to_path_buf(),
        format: file.format().to_owned(),
        bytes: metadata.len(),
        rows: file.rows(),
        row_groups,
        columns: file.columns(),
        parts: file
            .plan()
            .parts()
            .map(|(part, path)| (part.to_owned(), path.name.to_string()))
            .collect(),
    })
}

/// Computes the nearest-rank percentiles of counted values; `None` if there are none.
pub(crate) fn percentiles(counts: &BTreeMap<u64, u64>) -> Option<Percentiles> {
    let total: u64 = counts.values().sum();
    let at = |percent: u64| {
        let rank = (total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        counts.iter().find_map(|(value, count)| {
            seen += count;
            (seen >= rank).then_some(*value)
        })
    };
    let sum: u128 =
        counts.iter().map(|(value, count)| u128::from(*value) * u128::from(*count)).sum();
    let mean = sum as f64 / total.max(1) as f64;
    Some(Percentiles { min: at(0)?, p50: at(50)?, p90: at(90)?, p99: at(99)?, max: at(100)?, mean })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let counts = (1..=200).map(|value| (value, 1)).collect();
        let expected = Percentiles { min: 1, p50: 100, p90: 180, p99: 198, max: 200, mean: 100.5 };
        assert_eq!(percentiles(&counts), Some(expected));
        assert_eq!(percentiles(&BTreeMap::new()), None);
    }

    #[test]
    fn answers_are_classified() {
        let kinds = [None, Some("72"), Some("{\"a\":1}"), Some("[1]"), Some("x = 1"), Some("")]
            .map(answer_kind);
        assert_eq!(kinds, ["none", "number", "json object", "json array", "text", "text"]);
    }
}
