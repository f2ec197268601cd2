//! Fields of samples, as sent to external scorers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{RewardError, Sample};

/// A part of a sample that a request to an external scorer can contain. Recipes use the names in snake case, such as `ground_truth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// The data source of the prompt.
    DataSource,
    /// The prompt as an array of `{role, content}`.
    Messages,
    /// The contents of the prompt's messages, joined by line breaks. A content that is not text is written as JSON.
    Prompt,
    /// The text of [`Prompt`](Self::Prompt), directly followed by the response.
    Query,
    /// The text of the response.
    Response,
    /// The response as token ids.
    ResponseIds,
    /// The reference answer, as text, or null.
    GroundTruth,
    /// The extra fields of the dataset row, as an object; empty if there are none.
    ExtraInfo,
    /// The reason why the response ended, such as `stop` or `length`.
    FinishReason,
}

/// The fields to send, by the names that the scorer expects.
pub type Fields = BTreeMap<String, Field>;

pub(super) fn fields<const N: usize>(fields: [(&str, Field); N]) -> Fields {
    fields.map(|(name, field)| (name.to_owned(), field)).into()
}

/// Returns the values of `fields` for a sample as a JSON object. Returns an error if [`Field::of`] does for one of them.
pub(super) fn object(fields: &Fields, sample: &Sample) -> Result<Map<String, Value>, RewardError> {
    fields.iter().map(|(name, field)| Ok((name.clone(), field.of(sample)?))).collect()
}

impl Field {
    /// Returns the value of this field for a sample.
    ///
    /// # Errors
    /// If the field requires `messages` or `extra_info`, and the dataset's value is not a JSON array or object, respectively.
    pub fn of(self, sample: &Sample) -> Result<Value, RewardError> {
        Ok(match self {
            Self::DataSource => sample.data_source.as_str().into(),
            Self::Messages => messages(sample)?.into(),
            Self::Prompt => prompt(sample)?.into(),
            Self::Query => format!("{}{}", prompt(sample)?, sample.response).into(),
            Self::Response => sample.response.as_str().into(),
            Self::ResponseIds => sample.response_ids.as_slice().into(),
            Self::GroundTruth => sample.ground_truth.as_deref().into(),
            Self::ExtraInfo => sample.extra()?.into(),
            Self::FinishReason => sample.finish_reason.as_str().into(),
        })
    }
}

pub(super) fn messages(sample: &Sample) -> Result<Vec<Value>, RewardError> {
    serde_json::from_str(&sample.messages).map_err(|error| {
        RewardError::fatal(format_args!("field `messages`: expected a JSON array, found {error}"))
    })
}

/// Returns the content of a message, or the JSON of the content if it is not text.
pub(super) fn content(message: &Value) -> String {
    let content = &message["content"];
    content.as_str().map_or_else(|| content.to_string(), str::to_owned)
}

fn prompt(sample: &Sample) -> Result<String, RewardError> {
    let contents: Vec<_> = messages(sample)?.iter().map(content).collect();
    Ok(contents.join("\n"))
}
