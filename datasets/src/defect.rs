//! Defects of datasets.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A kind of defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DefectKind {
    /// A file that cannot be opened or read: for example, a file that is absent, truncated, a pipe, or of another format.
    UnreadableFile,
    /// A file without rows.
    NoRows,
    /// A column that is absent.
    AbsentColumn,
    /// A column of a type that cannot be used, or several columns of one name.
    WrongType,
    /// Rows that cannot be decoded.
    Damaged,
    /// A line that is not a JSON object.
    BadJson,
    /// A value of the wrong kind for its column.
    WrongValue,
    /// A null or absent prompt.
    NullPrompt,
    /// A prompt without messages, or with only blank messages.
    EmptyPrompt,
    /// A message whose content is null or absent.
    NullContent,
    /// A message whose role is null, absent or empty.
    MissingRole,
    /// A role other than `system`, `user`, `assistant`, `tool` and `developer`.
    UnknownRole,
    /// A prompt whose last message is of the role `assistant` and may contain the answer.
    AssistantLast,
    /// A file without a column of reference answers, or a row without a reference answer in a file that has such a column.
    MissingGroundTruth,
    /// A prompt that is equal to an earlier one.
    DuplicatePrompt,
}

impl DefectKind {
    /// Returns `true` if rows with this defect can still be used for training.
    #[must_use]
    pub fn is_warning(self) -> bool {
        matches!(
            self,
            Self::UnknownRole
                | Self::AssistantLast
                | Self::MissingGroundTruth
                | Self::DuplicatePrompt
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowDefect {
    pub(crate) kind: DefectKind,
    pub(crate) column: Arc<str>,
    pub(crate) expected: &'static str,
    pub(crate) found: String,
}

impl RowDefect {
    pub(crate) fn new(
        kind: DefectKind,
        column: &Arc<str>,
        expected: &'static str,
        found: impl Into<String>,
    ) -> Self {
        Self { kind, column: column.clone(), expected, found: found.into() }
    }

    /// Creates a defect for a value of the wrong kind.
    pub(crate) fn value(
        column: &Arc<str>,
        expected: &'static str,
        found: impl Into<String>,
    ) -> Self {
        Self::new(DefectKind::WrongValue, column, expected, found)
    }
}
