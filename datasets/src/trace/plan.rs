//! The assignment of a trace's columns to their roles.

use std::path::Path;

use super::TraceOptions;
use crate::error::DatasetError;

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Number,
    Text,
    /// Text that may be a number, like all fields of CSV.
    Field,
    List,
    Other,
}

/// The way in which a length is derived from a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Number,
    List,
    Text,
}

/// The columns by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) length: (usize, How),
    pub(super) prompt: Option<usize>,
    pub(super) prompt_length: Option<(usize, How)>,
    pub(super) sample: Option<usize>,
    pub(super) step: Option<usize>,
    pub(super) finish_reason: Option<usize>,
}

/// Names of length columns in tokens, compared without case and underscores: ours, verl's, and those of request traces and servers.
const NUMBERS: [&str; 14] = [
    "responselength",
    "responselen",
    "responsetokens",
    "generatedtokens",
    "completionlength",
    "completiontokens",
    "outputtokens",
    "outputlength",
    "outputlen",
    "numoutputtokens",
    "numgeneratedtokens",
    "numtokens",
    "tokens",
    "length",
];
/// Names of columns with token ids.
const LISTS: [&str; 6] =
    ["responseids", "completionids", "outputids", "responsetokenids", "tokenids", "responses"];
/// Names of text columns: TRL's, verl's and others.
const TEXTS: [&str; 5] = ["completion", "output", "response", "responsetext", "generation"];
/// Names of columns with prompt keys.
const PROMPTS: [&str; 7] =
    ["promptid", "uid", "promptuid", "groupid", "promptindex", "prompt", "input"];

/// Names of columns with prompt lengths in tokens: ours, verl's, and those of request traces and servers.
const PROMPT_NUMBERS: [&str; 11] = [
    "promptlength",
    "promptlen",
    "prompttokens",
    "inputtokens",
    "inputlength",
    "inputlen",
    "contexttokens",
    "numprompttokens",
    "numinputtokens",
    "promptnumtokens",
    "prefilltokens",
];
/// Names of columns with the token ids of prompts.
const PROMPT_LISTS: [&str; 4] = ["promptids", "prompttokenids", "inputids", "inputtokenids"];
/// Names of columns with the text of prompts.
const PROMPT_TEXTS: [&str; 3] = ["prompt", "input", "prompttext"];

const LENGTHS: &str = "a column of lengths in tokens such as `response_length`, token ids such as `response_ids`, or a tokenizer that \
                       counts the tokens of the text";

impl Plan {
    /// Chooses the columns.
    ///
    /// # Errors
    /// If no column holds lengths, or a requested column is absent.
    pub(super) fn of(
        file: &Path,
        columns: &[(String, Kind)],
        options: &TraceOptions<'_>,
    ) -> Result<Self, DatasetError> {
        let table = Table { file, columns };
        let prompt = match &options.prompt_column {
            Some(name) => Some(table.named(name)?),
            None => table.find(&PROMPTS, &[Kind::Number, Kind::Text, Kind::Field]),
        };
        let scalar = |name: &str| table.find(&[name], &[Kind::Number, Kind::Field]);
        Ok(Self {
            length: table.length(options)?,
            prompt,
            prompt_length: table.prompt_length(options)?,
            sample: scalar("sample"),
            step: scalar("step"),
            finish_reason: table.find(&["finishreason"], &[Kind::Text, Kind::Field]),
        })
    }
}

struct Table<'a> {
    file: &'a Path,
    columns: &'a [(String, Kind)],
}

impl Table<'_> {
    fn length(&self, options: &TraceOptions<'_>) -> Result<(usize, How), DatasetError> {
        if let Some(name) = &options.length_column {
            return self.how(self.named(name)?, options);
        }
        let numbers = self.find(&NUMBERS, &[Kind::Number, Kind::Field]);
        let lists = || self.find(&LISTS, &[Kind::List]);
        if let Some(found) =
            numbers.map(|at| (at, How::Number)).or_else(|| lists().map(|at| (at, How::List)))
        {
            return Ok(found);
        }
        match self.find(&TEXTS, &[Kind::Text, Kind::Field]) {
            Some(text) if options.count_tokens.is_some() => Ok((text, How::Text)),
            Some(text) => Err(self.not_lengths(text, "text")),
            None => Err(self.absent("response_length")),
        }
    }

    /// Returns the column of prompt lengths, or `None` if no column has one of the common names.
    fn prompt_length(
        &self,
        options: &TraceOptions<'_>,
    ) -> Result<Option<(usize, How)>, DatasetError> {
        if let Some(name) = &options.prompt_length_column {
            return self.how(self.named(name)?, options).map(Some);
        }
        let numbers = self.find(&PROMPT_NUMBERS, &[Kind::Number, Kind::Field]);
        let lists = || self.find(&PROMPT_LISTS, &[Kind::List]);
        let texts = || self.find(&PROMPT_TEXTS, &[Kind::Text, Kind::Field]);
        let counted = || texts().filter(|_| options.count_tokens.is_some());
        Ok(numbers
            .map(|at| (at, How::Number))
            .or_else(|| lists().map(|at| (at, How::List)))
            .or_else(|| counted().map(|at| (at, How::Text))))
    }

    /// Returns how lengths are derived from a requested column.
    fn how(&self, index: usize, options: &TraceOptions<'_>) -> Result<(usize, How), DatasetError> {
        match self.columns[index].1 {
            Kind::Number | Kind::Field => Ok((index, How::Number)),
            Kind::List => Ok((index, How::List)),
            Kind::Text if options.count_tokens.is_some() => Ok((index, How::Text)),
            Kind::Text => Err(self.not_lengths(index, "text")),
            Kind::Other => Err(self.not_lengths(index, "another type")),
        }
    }

    /// Returns the first column with one of `names` and one of `kinds`; earlier names take precedence.
    fn find(&self, names: &[&str], kinds: &[Kind]) -> Option<usize> {
        names.iter().find_map(|name| {
            self.columns
                .iter()
                .position(|(column, kind)| kinds.contains(kind) && plain(column) == *name)
        })
    }

    fn named(&self, name: &str) -> Result<usize, DatasetError> {
        let found = self.columns.iter().position(|(column, _)| column == name);
        found.ok_or_else(|| self.absent(name))
    }

    fn absent(&self, column: &str) -> DatasetError {
        DatasetError::AbsentColumn {
            file: self.file.to_owned(),
            column: column.to_owned(),
            found: self.columns.iter().map(|(name, _)| name.clone()).collect(),
        }
    }

    fn not_lengths(&self, column: usize, found: &str) -> DatasetError {
        DatasetError::WrongType {
            file: self.file.to_owned(),
            column: self.columns[column].0.clone(),
            expected: LENGTHS,
            found: found.to_owned(),
        }
    }
}

fn plain(column: &str) -> String {
    column.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect()
}
