//! Converts rows of a file to samples.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, ensure};
use rollpacker_datasets::{messages_in_text, without_position};
use rollpacker_stages::reward::{RewardError, Sample};
use rollpacker_stages::rollout::FinishReason;
use serde_json::{Map, Value};

use crate::code_list::code_list;

pub(super) type JsonObject = Map<String, Value>;

/// The columns of a file; a dot selects a field of an object. `None` selects the first of the usual names that a row has. For the response
/// and the group, the first row that needs the column determines its name for all rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScoreColumns {
    /// The response: a text, or messages of which the last counts. Usual names: `response`, `solution_str`, `completion`, `output`,
    /// `generation`, `response_text`.
    pub response: Option<String>,
    /// The data source of the prompt. Usual names: `data_source`, `source`.
    pub data_source: Option<String>,
    /// The reference answer. Usual names: `reward_model.ground_truth`, `reward_spec.ground_truth`, `ground_truth`, `answer`, `label`.
    pub ground_truth: Option<String>,
    /// The prompt: messages or a text. Usual names: `messages`, `prompt`, `question`, `problem`.
    pub prompt: Option<String>,
    /// Additional information: an object, or an object as JSON text. Usual name: `extra_info`.
    pub extra_info: Option<String>,
    /// The group of the row, for rewards of whole groups. Usual names: `uid`, `group_id`, `prompt_id`, `index`, `extra_info.index`.
    pub group: Option<String>,
    /// Further columns to pass on in `extra_info`. `*` selects all columns, and `None` all columns without another role.
    pub extra_columns: Option<Vec<String>>,
    /// The data source of rows that name none.
    pub default_data_source: String,
    /// The columns that at least one row must have. Any other named column may be absent from the whole file.
    pub required: BTreeSet<String>,
}

const RESPONSE: [&str; 6] =
    ["response", "solution_str", "completion", "output", "generation", "response_text"];
const DATA_SOURCE: [&str; 2] = ["data_source", "source"];
const GROUND_TRUTH: [&str; 5] =
    ["reward_model.ground_truth", "reward_spec.ground_truth", "ground_truth", "answer", "label"];
const PROMPT: [&str; 4] = ["messages", "prompt", "question", "problem"];
const EXTRA_INFO: [&str; 1] = ["extra_info"];
const GROUP: [&str; 5] = ["uid", "group_id", "prompt_id", "index", "extra_info.index"];

/// The reason why a row has no score.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct RowError {
    /// The kind of error: `input` if the row cannot be read, `group` if another row of its group has no score, else the name of the
    /// [`ErrorKind`](rollpacker_stages::reward::ErrorKind).
    pub kind: &'static str,
    /// The message of the error, for the user.
    pub reason: String,
}

impl RowError {
    pub(super) fn input(reason: impl std::fmt::Display) -> Self {
        Self { kind: "input", reason: reason.to_string() }
    }

    /// Returns the error of a row whose group contains the row `row` without a score.
    pub(super) fn incomplete(row: u64) -> Self {
        Self { kind: "group", reason: format!("row {row} of its group has no score") }
    }
}

impl From<RewardError> for RowError {
    fn from(error: RewardError) -> Self {
        Self { kind: error.kind.as_str(), reason: error.to_string() }
    }
}

impl ScoreColumns {
    /// Converts a row to a sample. If no column of the response is named, the first row determines it.
    ///
    /// # Errors
    /// If the first row has no column that can be the response. Errors of a single row are returned as the inner result.
    pub(super) fn sample(&mut self, row: JsonObject) -> anyhow::Result<Result<Sample, RowError>> {
        if self.response.is_none() {
            self.resolve_columns(&row)?;
        }
        Ok(self.read(&row))
    }

    fn resolve_columns(&mut self, row: &JsonObject) -> anyhow::Result<()> {
        self.response = Some(usual_column(row, "response", &RESPONSE)?);
        Ok(())
    }

    /// Removes the columns of a row from the required ones.
    pub(super) fn mark_found(&mut self, row: &JsonObject) {
        self.required.retain(|name| find(row, name).is_none());
    }

    /// Checks that each required column was in at least one row of `file`. `last` are the columns of the last row, which the error
    /// lists.
    ///
    /// # Errors
    /// If a column was in no row.
    pub(super) fn check_found(&self, file: &Path, last: &[String]) -> anyhow::Result<()> {
        ensure!(
            self.required.is_empty(),
            "{}: no row has the column {}, which the command line names; the last row has {}",
            file.display(),
            code_list(&self.required),
            last.join(", ")
        );
        Ok(())
    }

    /// Determines the group column from a row, unless it is already known.
    ///
    /// # Errors
    /// If the row has no column that can be the group.
    pub(super) fn resolve_group_column(&mut self, row: &JsonObject) -> anyhow::Result<()> {
        if self.group.is_none() {
            self.group = Some(usual_column(row, "group", &GROUP)?);
        }
        Ok(())
    }

    /// Returns the text in the group column of a row. A value that is absent or null is an error.
    pub(super) fn group(&self, row: &JsonObject) -> Result<String, RowError> {
        let name = self.group.as_deref().unwrap_or("group");
        let value = find(row, name).filter(|value| !value.is_null());
        value.map(to_text).ok_or_else(|| type_error(name, "a group id", &Value::Null))
    }

    /// Returns the data source of a row, or the default data source if the row has none.
    pub(super) fn source<'a>(&'a self, row: &'a JsonObject) -> Result<&'a str, RowError> {
        let given = self.data_source.as_deref().map(|name| find(row, name));
        let found = given.unwrap_or_else(|| DATA_SOURCE.iter().find_map(|name| find(row, name)));
        let Some(source) = found.filter(|source| !source.is_null()) else {
            return Ok(&self.default_data_source);
        };
        let name = self.data_source.as_deref().unwrap_or("data_source");
        source.as_str().ok_or_else(|| type_error(name, "a text", source))
    }

    fn read(&self, row: &JsonObject) -> Result<Sample, RowError> {
        let mut used = Vec::new();
        let mut take = |given: &Option<String>, usual: &[&'static str]| {
            let name = match given {
                Some(name) => Some(name.clone()),
                None => usual.iter().find(|name| find(row, name).is_some()).map(|&n| n.to_owned()),
            };
            let value = name.as_deref().and_then(|name| find(row, name));
            used.extend(name.as_deref().map(|name| root_column(row, name)));
            value.filter(|value| !value.is_null())
        };
        let response = take(&self.response, &RESPONSE);
        take(&self.data_source, &DATA_SOURCE);
        let truth = take(&self.ground_truth, &GROUND_TRUTH);
        let prompt = take(&self.prompt, &PROMPT);
        let info = take(&self.extra_info, &EXTRA_INFO);
        let name = self.response.as_deref().unwrap_or("response");
        let response = response.ok_or_else(|| type_error(name, "a text", &Value::Null))?;
        let source = self.source(row)?;
        Ok(Sample {
            messages: prompt.map_or_else(|| "[]".to_owned(), messages),
            response_length: number(row, "response_length")?.unwrap_or(0),
            response_ids: ids(row)?,
            ground_truth: truth.map(to_text),
            extra_info: Some(self.extra(row, info, &used)?),
            finish_reason: finish_reason(row)?,
            ..Sample::of(
                source,
                &response_text(response).ok_or_else(|| type_error(name, "a text", response))?,
                None,
            )
        })
    }

    /// Returns `extra_info` and the further columns as one JSON object. Fields of `extra_info` have precedence.
    fn extra(
        &self,
        row: &JsonObject,
        info: Option<&Value>,
        used: &[String],
    ) -> Result<String, RowError> {
        let handed = |name: &String| match &self.extra_columns {
            None => !used.contains(name),
            Some(names) => names.iter().any(|one| one == "*" || one == name),
        };
        let mut extra: JsonObject = row
            .iter()
            .filter(|(name, _)| handed(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let name = self.extra_info.as_deref().unwrap_or("extra_info");
        match info {
            None => {}
            Some(Value::Object(info)) => extra.extend(info.clone()),
            Some(Value::String(text)) => {
                let info: JsonObject = serde_json::from_str(text).map_err(|error| {
                    let error = without_position(&error);
                    RowError::input(format_args!(
                        "column `{name}`: expected a JSON object, found text that is not one: {error}"
                    ))
                })?;
                extra.extend(info);
            }
            Some(other) => return Err(type_error(name, "an object", other)),
        }
        Ok(Value::Object(extra).to_string())
    }
}

/// Returns the first of the usual column names `names` that a row has.
fn usual_column(row: &JsonObject, part: &str, names: &[&str]) -> anyhow::Result<String> {
    let found = names.iter().find(|name| find(row, name).is_some());
    found.map(|name| (*name).to_owned()).with_context(|| {
        format!(
            "column `{part}` is absent: expected one of {}, or `--{part}-key`; found {}",
            names.join(", "),
            row.keys().cloned().collect::<Vec<_>>().join(", ")
        )
    })
}

/// Returns the value at a path: the column with exactly this name, dots included, or else the nested field.
fn find<'a>(row: &'a JsonObject, name: &str) -> Option<&'a Value> {
    let path = || {
        let mut parts = name.split('.');
        let root = row.get(parts.next()?)?;
        parts.try_fold(root, |value, part| value.get(part))
    };
    row.get(name).or_else(path)
}

fn root_column(row: &JsonObject, name: &str) -> String {
    let whole = row.contains_key(name).then_some(name);
    whole.or_else(|| name.split('.').next()).unwrap_or(name).to_owned()
}

/// Returns the text of a response: the response itself, or the content of its last message. `None` if there is no text.
fn response_text(response: &Value) -> Option<String> {
    match response {
        Value::String(text) => Some(text.clone()),
        Value::Array(messages) => Some(messages.last()?["content"].as_str()?.to_owned()),
        _ => None,
    }
}

/// Returns a prompt as JSON messages. A text that is not JSON of messages becomes one message of the user.
fn messages(prompt: &Value) -> String {
    match prompt {
        Value::String(text) if messages_in_text(text).is_some() => text.clone(),
        Value::String(text) => serde_json::json!([{"role": "user", "content": text}]).to_string(),
        other => other.to_string(),
    }
}

/// Returns a string as it is, and any other value as JSON.
fn to_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn number(row: &JsonObject, name: &str) -> Result<Option<u32>, RowError> {
    let Some(value) = row.get(name).filter(|value| !value.is_null()) else { return Ok(None) };
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.map(Some).ok_or_else(|| type_error(name, "a number of tokens", value))
}

fn finish_reason(row: &JsonObject) -> Result<FinishReason, RowError> {
    let Some(value) = row.get("finish_reason").filter(|value| !value.is_null()) else {
        return Ok(FinishReason::Stop);
    };
    let reason = value.as_str().and_then(|reason| reason.parse().ok());
    reason.ok_or_else(|| type_error("finish_reason", "`stop` or `length`", value))
}

fn ids(row: &JsonObject) -> Result<Vec<i32>, RowError> {
    let Some(value) = row.get("response_ids").filter(|value| !value.is_null()) else {
        return Ok(Vec::new());
    };
    serde_json::from_value(value.clone())
        .map_err(|_| type_error("response_ids", "a list of token ids", value))
}

fn type_error(column: &str, expected: &str, found: &Value) -> RowError {
    let found: String = found.to_string().chars().take(80).collect();
    RowError::input(format_args!("column `{column}`: expected {expected}, found {found}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(mut columns: ScoreColumns, row: Value) -> Result<Sample, String> {
        let Value::Object(row) = row else { panic!("an object") };
        columns.default_data_source = "unknown".to_owned();
        columns.sample(row).map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }

    #[test]
    fn the_usual_columns_are_found_and_the_rest_is_extra() {
        let row = json!({
            "solution_str": "x", "reward_model": {"ground_truth": {"a": 1}, "style": "rule"},
            "prompt": "why", "extra_info": "{\"index\": 3}", "index": 4, "choices": ["a"],
            "response_ids": [1, 2], "finish_reason": "length",
        });
        let sample = read(ScoreColumns::default(), row).expect("a sample");
        assert_eq!((sample.response.as_str(), sample.data_source.as_str()), ("x", "unknown"));
        assert_eq!(sample.ground_truth.as_deref(), Some("{\"a\":1}"));
        assert_eq!(sample.messages, r#"[{"role":"user","content":"why"}]"#);
        assert_eq!(sample.response_ids, [1, 2]);
        assert_eq!(sample.finish_reason, FinishReason::Length);
        let extra = sample.extra().expect("an object");
        assert_eq!((&extra["index"], &extra["choices"]), (&json!(3), &json!(["a"])));
        assert!(!extra.contains_key("solution_str") && !extra.contains_key("reward_model"));
    }

    #[test]
    fn columns_can_be_named_also_within_objects() {
        let columns = ScoreColumns {
            response: Some("extra_info.said".to_owned()),
            ground_truth: Some("a.b".to_owned()),
            extra_columns: Some(Vec::new()),
            ..ScoreColumns::default()
        };
        let row = json!({"extra_info": {"said": "x"}, "a.b": "dotted", "a": {"b": "path"}, "c": 1});
        let sample = read(columns, row).expect("a sample");
        assert_eq!(
            (sample.response.as_str(), sample.ground_truth.as_deref()),
            ("x", Some("dotted"))
        );
        assert_eq!(sample.extra_info.as_deref(), Some(r#"{"said":"x"}"#));
    }

    #[test]
    fn a_response_may_be_messages() {
        let messages = json!([{"role": "assistant", "content": "x"}]);
        assert_eq!(
            read(ScoreColumns::default(), json!({"completion": messages})).expect("read").response,
            "x"
        );
    }

    #[test]
    fn an_unreadable_value_names_its_column() {
        let error = |row| read(ScoreColumns::default(), row).expect_err("unreadable");
        assert!(
            error(json!({"text": 1}))
                .starts_with("column `response` is absent: expected one of response, ")
        );
        assert_eq!(error(json!({"response": 1})), "column `response`: expected a text, found 1");
        assert_eq!(
            error(json!({"response": null})),
            "column `response`: expected a text, found null"
        );
        assert!(error(json!({"response": "", "extra_info": 3})).contains("`extra_info`"));
        assert!(error(json!({"response": "", "response_ids": ["a"]})).contains("`response_ids`"));
        assert!(error(json!({"response": "", "data_source": 3})).contains("`data_source`"));

        let named = ScoreColumns {
            data_source: Some("origin".to_owned()),
            extra_info: Some("info".to_owned()),
            ..ScoreColumns::default()
        };
        let error = |row| read(named.clone(), row).expect_err("unreadable");
        assert!(error(json!({"response": "", "origin": 3})).contains("column `origin`"));
        assert!(error(json!({"response": "", "info": 3})).contains("column `info`"));
        assert_eq!(
            error(json!({"response": "", "info": "x"})),
            "column `info`: expected a JSON object, found text that is not one: expected value"
        );
    }

    #[test]
    fn a_prompt_that_is_json_but_no_messages_is_text() {
        for prompt in ["[]", "[{\"a\": 1}]", "[1]"] {
            let sample = read(ScoreColumns::default(), json!({"response": "", "prompt": prompt}));
            let expected = json!([{"role": "user", "content": prompt}]).to_string();
            assert_eq!(sample.expect("a sample").messages, expected);
        }
        for prompt in [r#"[{"role":"user","content":"x"}]"#, r#"[{"content":"x"}]"#] {
            let sample = read(ScoreColumns::default(), json!({"response": "", "prompt": prompt}));
            assert_eq!(sample.expect("a sample").messages, prompt);
        }
    }
}
