//! The assignment of a trace's columns to their roles.

use std::path::Path;

use super::TraceOptions;
use crate::error::DatasetError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TraceColumnKind {
    Number,
    Text,
    /// Text that may be a number, like all fields of CSV.
    Field,
    List,
    /// No value in the rows that determine the columns.
    Null,
    Other,
}

/// The accepted types of the optional columns, such as `sample` and `step`.
const SCALARS: [TraceColumnKind; 4] =
    [TraceColumnKind::Number, TraceColumnKind::Text, TraceColumnKind::Field, TraceColumnKind::Null];

/// The way in which a length is derived from a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LengthSource {
    Number,
    List,
    Text,
}

/// The indices of the columns in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TraceColumns {
    pub(super) length: (usize, LengthSource),
    pub(super) prompt: Option<usize>,
    pub(super) prompt_length: Option<(usize, LengthSource)>,
    pub(super) sample: Option<usize>,
    pub(super) resumed: Option<usize>,
    pub(super) step: Option<usize>,
    pub(super) finish_reason: Option<usize>,
}

/// Names of columns with response lengths in tokens, compared without case and underscores: the names that this program, verl, request
/// traces and servers use.
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
/// Names of columns with the token ids of responses.
const LISTS: [&str; 6] =
    ["responseids", "completionids", "outputids", "responsetokenids", "tokenids", "responses"];
/// Names of columns with the text of responses: the names that TRL, verl and others use.
const TEXTS: [&str; 5] = ["completion", "output", "response", "responsetext", "generation"];
/// Names of columns with prompt keys.
const PROMPTS: [&str; 7] =
    ["promptid", "uid", "promptuid", "groupid", "promptindex", "prompt", "input"];

/// Names of columns with prompt lengths in tokens: the names that this program, verl, request traces and servers use.
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

impl TraceColumns {
    /// Chooses the columns.
    ///
    /// # Errors
    /// If no column holds lengths, or a requested column is absent, has a type without lengths, or cannot identify prompts.
    pub(super) fn of(
        file: &Path,
        columns: &[(String, TraceColumnKind)],
        options: &TraceOptions<'_>,
    ) -> Result<Self, DatasetError> {
        let table = Table { file, columns };
        let prompt = match &options.prompt_column {
            Some(name) => Some(table.key(table.named(name)?)?),
            None => table.find(
                &PROMPTS,
                &[TraceColumnKind::Number, TraceColumnKind::Text, TraceColumnKind::Field],
            ),
        };
        let scalar = |name: &str| table.find(&[name], &SCALARS);
        Ok(Self {
            length: table.length(options)?,
            prompt,
            prompt_length: table.prompt_length(options)?,
            sample: scalar("sample"),
            resumed: scalar("resumedlength"),
            step: scalar("step"),
            finish_reason: scalar("finishreason"),
        })
    }
}

struct Table<'a> {
    file: &'a Path,
    columns: &'a [(String, TraceColumnKind)],
}

impl Table<'_> {
    fn length(&self, options: &TraceOptions<'_>) -> Result<(usize, LengthSource), DatasetError> {
        if let Some(name) = &options.length_column {
            return self.length_source(self.named(name)?, options);
        }
        let numbers = self.find(&NUMBERS, &[TraceColumnKind::Number, TraceColumnKind::Field]);
        let lists = || self.find(&LISTS, &[TraceColumnKind::List]);
        if let Some(found) = numbers
            .map(|at| (at, LengthSource::Number))
            .or_else(|| lists().map(|at| (at, LengthSource::List)))
        {
            return Ok(found);
        }
        match self.find(&TEXTS, &[TraceColumnKind::Text, TraceColumnKind::Field]) {
            Some(text) if options.count_tokens.is_some() => Ok((text, LengthSource::Text)),
            Some(text) => Err(self.wrong_type(text, LENGTHS, "text")),
            None => Err(self.absent("response_length")),
        }
    }

    /// Returns the requested column of prompt lengths, otherwise the first column that has a common name and holds lengths. Returns `None`
    /// if there is no such column.
    fn prompt_length(
        &self,
        options: &TraceOptions<'_>,
    ) -> Result<Option<(usize, LengthSource)>, DatasetError> {
        if let Some(name) = &options.prompt_length_column {
            return self.length_source(self.named(name)?, options).map(Some);
        }
        let numbers =
            self.find(&PROMPT_NUMBERS, &[TraceColumnKind::Number, TraceColumnKind::Field]);
        let lists = || self.find(&PROMPT_LISTS, &[TraceColumnKind::List]);
        let texts = || self.find(&PROMPT_TEXTS, &[TraceColumnKind::Text, TraceColumnKind::Field]);
        let counted = || texts().filter(|_| options.count_tokens.is_some());
        Ok(numbers
            .map(|at| (at, LengthSource::Number))
            .or_else(|| lists().map(|at| (at, LengthSource::List)))
            .or_else(|| counted().map(|at| (at, LengthSource::Text))))
    }

    /// Returns a requested column and the way in which its lengths are derived.
    fn length_source(
        &self,
        index: usize,
        options: &TraceOptions<'_>,
    ) -> Result<(usize, LengthSource), DatasetError> {
        let (name, kind) = &self.columns[index];
        let is_counted = options.count_tokens.is_some();
        match kind {
            // A field of CSV has no type, so its name decides.
            TraceColumnKind::Field if is_counted && is_text(name) => {
                Ok((index, LengthSource::Text))
            }
            TraceColumnKind::Number | TraceColumnKind::Field => Ok((index, LengthSource::Number)),
            TraceColumnKind::List => Ok((index, LengthSource::List)),
            TraceColumnKind::Text if is_counted => Ok((index, LengthSource::Text)),
            TraceColumnKind::Text => Err(self.wrong_type(index, LENGTHS, "text")),
            TraceColumnKind::Null => Err(self.wrong_type(index, LENGTHS, "no values")),
            TraceColumnKind::Other => Err(self.wrong_type(index, LENGTHS, "another type")),
        }
    }

    /// Checks that the values of a requested column can be prompt keys.
    fn key(&self, index: usize) -> Result<usize, DatasetError> {
        let found = match self.columns[index].1 {
            TraceColumnKind::List => "lists",
            TraceColumnKind::Other => "another type",
            _ => return Ok(index),
        };
        Err(self.wrong_type(index, "a column of numbers or text that identifies prompts", found))
    }

    /// Returns the first column with one of `names` and one of `kinds`; earlier names take precedence.
    fn find(&self, names: &[&str], kinds: &[TraceColumnKind]) -> Option<usize> {
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
            named: true,
            found: self.columns.iter().map(|(name, _)| name.clone()).collect(),
        }
    }

    fn wrong_type(&self, column: usize, expected: &'static str, found: &str) -> DatasetError {
        DatasetError::WrongType {
            file: self.file.to_owned(),
            column: self.columns[column].0.clone(),
            expected,
            found: found.to_owned(),
        }
    }
}

/// Returns `true` for a common name of columns with the text of responses or prompts.
fn is_text(column: &str) -> bool {
    TEXTS.iter().chain(&PROMPT_TEXTS).any(|name| plain(column) == *name)
}

fn plain(column: &str) -> String {
    column.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect()
}
