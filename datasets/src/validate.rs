//! Validation: a check of every row of a dataset.
//!
//! Memory: one batch of rows, and 16 bytes per row for the detection of duplicates.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::chunk::Chunk;
use crate::columns::QUESTION;
use crate::config::DatasetConfig;
use crate::defect::RowDefect;
use crate::error::{DatasetError, expected_column, listed};
use crate::file::PromptFile;
use crate::messages::ASSISTANT;

pub use crate::defect::DefectKind;

/// The location of a defect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefectLocation {
    /// The path of the dataset file.
    pub file: PathBuf,
    /// The row of the file, from 0; `None` if the whole file is affected.
    pub row: Option<u64>,
    /// The finding, which depends on the kind of the defect: the value, the columns of the file, the location of the first occurrence, or
    /// the error of the reader.
    pub found: String,
}

/// All defects of one kind in one column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Defect {
    /// The kind of the defects.
    pub kind: DefectKind,
    /// `true` if rows with this defect can still be used for training.
    pub warning: bool,
    /// The column, if one is affected.
    pub column: Option<String>,
    /// The expected value at the first occurrence.
    pub expected: String,
    /// The number of occurrences.
    pub count: u64,
    /// The locations of the first occurrences, at most as many as were requested.
    pub first: Vec<DefectLocation>,
}

/// The result of [`validate()`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validation {
    /// The number of files checked.
    pub files: u64,
    /// The number of rows in all files that could be opened.
    pub rows: u64,
    /// The number of defects that prevent rows from being used for training.
    pub errors: u64,
    /// The number of other defects.
    pub warnings: u64,
    /// The defects, one entry per kind and column, in the order of [`DefectKind`].
    pub defects: Vec<Defect>,
}

/// Checks every row, regardless of `max_samples`. `first` is the maximum number of locations in each [`Defect`].
///
/// # Errors
///
/// If a setting is out of bounds, no file is configured, a path or glob is invalid or matches no file, or a folder on the way cannot be
/// read. All other errors are part of the report.
pub fn validate(config: &DatasetConfig, first: usize) -> Result<Validation, DatasetError> {
    config.check()?;
    let mut check = Validator { first, files: config.paths()?, ..Validator::default() };
    for path in check.files.clone() {
        check.starts.push(check.rows);
        match PromptFile::open_malformed(&path, config) {
            Err(error) => check.file_error(&path, &error),
            Ok(file) => check.file(&file),
        }
    }
    check.report_duplicates();
    Ok(check.finish())
}

#[derive(Default)]
struct Validator {
    first: usize,
    files: Vec<PathBuf>,
    /// The number of rows before each file.
    starts: Vec<u64>,
    rows: u64,
    defects: BTreeMap<(DefectKind, Option<String>), Defect>,
    /// The digest of every usable prompt, with its row of the dataset.
    prompts: Vec<(u64, u64)>,
    /// The expected end of the prompts of the current file.
    end: String,
}

impl Validator {
    fn file(&mut self, file: &PromptFile) {
        let path = file.path().clone();
        self.end = expected_end(file);
        if file.rows() == 0 {
            return self.file_error(&path, &DatasetError::NoRows { file: path.to_path_buf() });
        }
        if file.plan().ground_truth.is_none() && !file.columns().is_empty() {
            let columns: Vec<String> = file.columns().into_iter().map(|(name, _)| name).collect();
            self.record(
                DefectKind::MissingGroundTruth,
                None,
                "a column of reference answers, such as `answer`, or another one that `--ground-truth-key` or `data.ground_truth_key` names",
                location(&path, None, &listed(&columns)),
            );
        }
        self.prompts.reserve_exact(usize::try_from(file.rows()).unwrap_or(0));
        for range in file.independent_ranges() {
            if let Err(error) = self.check_range(file, range) {
                self.file_error(&path, &error);
            }
        }
        self.rows += file.rows();
    }

    /// Checks a range of rows that is read separately, so that damage in one row group does not hide defects in others.
    fn check_range(&mut self, file: &PromptFile, rows: Range<u64>) -> Result<(), DatasetError> {
        for chunk in file.read(vec![rows], self.rows)? {
            let chunk = chunk?;
            let truths = file.plan().ground_truth.as_ref().map(|column| column.name.clone());
            (0..chunk.len()).for_each(|index| self.row(&chunk, index, truths.as_deref()));
        }
        Ok(())
    }

    fn row(&mut self, chunk: &Chunk, index: usize, truths: Option<&str>) {
        let row = chunk.rows[index];
        let at = |found: &str| location(&chunk.file, Some(row), found);
        if let Some(defect) = chunk.defect(index) {
            let RowDefect { kind, column, expected, found } = defect;
            return self.record(kind, Some(&column), expected, at(&found));
        }
        if let Some(message) =
            chunk.messages.row(index).find(|message| !ROLES.contains(&message.role))
        {
            self.record(
                DefectKind::UnknownRole,
                Some(&chunk.messages.column),
                KNOWN_ROLES,
                at(message.role),
            );
        }
        if chunk.messages.row(index).last().is_some_and(|message| message.role == ASSISTANT) {
            let expected = self.end.clone();
            self.record(
                DefectKind::AssistantLast,
                Some(&chunk.messages.column),
                &expected,
                at("a message of the assistant"),
            );
        }
        let missing = match &chunk.ground_truth {
            None => Some("null".to_owned()),
            Some(truth) => truth.missing(index),
        };
        if let Some(found) = missing.filter(|_| truths.is_some()) {
            self.record(DefectKind::MissingGroundTruth, truths, "a reference answer", at(&found));
        }
        self.prompts.push((digest(chunk, index), chunk.first_row + row));
    }

    fn file_error(&mut self, path: &Path, error: &DatasetError) {
        use DatasetError as E;
        let (kind, column, expected, row, found) = match error {
            E::NoRows { .. } => {
                (DefectKind::NoRows, None, "at least one row", None, "0".to_owned())
            }
            E::AbsentColumn { column, named, found, .. } => (
                DefectKind::AbsentColumn,
                Some(column.as_str()),
                expected_column(*named),
                None,
                listed(found),
            ),
            E::WrongType { column, expected, found, .. } => {
                (DefectKind::WrongType, Some(column.as_str()), *expected, None, found.clone())
            }
            E::BadRow { row, column, expected, found, .. } => {
                (DefectKind::BadJson, Some(column.as_str()), *expected, Some(*row), found.clone())
            }
            E::Damaged { row, source, .. } => (
                DefectKind::Damaged,
                None,
                "rows that can be decoded",
                Some(*row),
                source.to_string(),
            ),
            other => (
                DefectKind::UnreadableFile,
                None,
                "a Parquet or JSONL file",
                None,
                with_causes(other),
            ),
        };
        self.record(kind, column, expected, location(path, row, &found));
    }

    fn record(
        &mut self,
        kind: DefectKind,
        column: Option<&str>,
        expected: &str,
        location: DefectLocation,
    ) {
        let column = column.map(str::to_owned);
        let defect = self.defects.entry((kind, column.clone())).or_insert_with(|| Defect {
            kind,
            warning: kind.is_warning(),
            column,
            expected: expected.to_owned(),
            count: 0,
            first: Vec::new(),
        });
        defect.count += 1;
        if defect.first.len() < self.first {
            defect.first.push(location);
        }
    }

    /// Reports prompts with equal digests. With 5 million prompts, the probability that two different prompts share a digest is below one
    /// in a million.
    fn report_duplicates(&mut self) {
        let mut prompts = std::mem::take(&mut self.prompts);
        prompts.sort_unstable();
        let mut doubles: Vec<(u64, u64)> = Vec::new();
        for equal in prompts.chunk_by(|a, b| a.0 == b.0).filter(|equal| equal.len() > 1) {
            doubles.extend(equal[1..].iter().map(|(_, row)| (*row, equal[0].1)));
        }
        doubles.sort_unstable();
        for (row, earlier) in doubles {
            let ((path, row), (earlier_path, earlier)) = (self.locate(row), self.locate(earlier));
            let found = format!("the prompt of {} row {earlier}", earlier_path.display());
            self.record(
                DefectKind::DuplicatePrompt,
                None,
                "prompts that differ",
                location(&path, Some(row), &found),
            );
        }
    }

    fn locate(&self, row: u64) -> (PathBuf, u64) {
        let file = self.starts.partition_point(|start| *start <= row) - 1;
        (self.files[file].clone(), row - self.starts[file])
    }

    fn finish(self) -> Validation {
        let defects: Vec<Defect> = self.defects.into_values().collect();
        let count = |warning| {
            defects
                .iter()
                .filter(|defect| defect.warning == warning)
                .map(|defect| defect.count)
                .sum()
        };
        Validation {
            files: self.files.len() as u64,
            rows: self.rows,
            errors: count(false),
            warnings: count(true),
            defects,
        }
    }
}

/// Describes the last message that the prompts of a file should have, and names the column of the questions, if there is one.
fn expected_end(file: &PromptFile) -> String {
    let expected =
        "a last message of the user, since the model continues the answer of the assistant";
    let columns = file.columns();
    let is_question = |name: &&&str| {
        !file.plan().uses(name)
            && columns.iter().any(|(column, kind)| column == *name && kind == "string")
    };
    match QUESTION.iter().find(is_question) {
        Some(name) => format!(
            "{expected}; to train on column `{name}` instead, set `--prompt-key {name}` or `data.prompt_key`"
        ),
        None => expected.to_owned(),
    }
}

const ROLES: [&str; 5] = ["system", "user", "assistant", "tool", "developer"];
const KNOWN_ROLES: &str = "system, user, assistant, tool or developer";

fn location(file: &Path, row: Option<u64>, found: &str) -> DefectLocation {
    DefectLocation { file: file.to_owned(), row, found: found.to_owned() }
}

fn digest(chunk: &Chunk, index: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    chunk.messages.row(index).for_each(|message| (message.role, message.content).hash(&mut hasher));
    hasher.finish()
}

fn with_causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", with_causes(cause)),
        None => error.to_string(),
    }
}
