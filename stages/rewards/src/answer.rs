//! Parsing of scores that servers and programs return.

use rollpacker_stages::secret::quote;
use serde_json::Value;

use super::{RewardError, Score};

/// The fields that may hold the score, in order of preference.
const VALUES: [&str; 4] = ["rewards", "reward", "scores", "score"];
/// The fields whose objects are flattened: their entries count as entries of the answer.
const NESTED: [&str; 3] = ["extra_logs", "components", "labels"];

/// Parses the answer for one sample.
///
/// The answer is a number, a boolean, null (the reward is not applicable), or an object with such a value at `field`. Without `field`, the
/// value is at the first of `rewards`, `reward`, `scores` and `score` that is present. The other numbers and booleans of the object become
/// components and its texts become labels, including the entries of `extra_logs`, `components` and `labels`. An object whose field `error`
/// is not null is an error. Its field `kind` selects the kind of the error: `retryable`, `timeout` or `not_applicable`; any other kind is
/// fatal. An answer without a value, or with a value of another type, is a fatal error.
pub(super) fn score(answer: &Value, field: Option<&str>) -> Result<Score, RewardError> {
    let Value::Object(entries) = answer else { return value(answer).map(Score::from) };
    if let Some(reason) = entries.get("error").filter(|reason| !reason.is_null()) {
        return Err(error(reason, entries.get("kind")));
    }
    let names = field.map_or(VALUES.as_slice(), |_| &[]);
    let name = field.or_else(|| names.iter().copied().find(|name| entries.contains_key(*name)));
    let found = name.and_then(|name| Some((name, entries.get(name)?)));
    let Some((name, found)) = found else {
        let expected = field.unwrap_or("score");
        return Err(unreadable(format_args!("expected a field `{expected}`, found {answer}")));
    };
    let others = entries.iter().filter(|(key, _)| *key != name);
    Ok(others.fold(value(found)?.into(), |score, (key, value)| part(score, key, value)))
}

/// Parses the answers for `count` samples: an array of answers, an object whose arrays have one entry for each sample, or an object with
/// the field `error`. Other entries of an object apply to all samples, except numbers and truth values, which are left out if there are
/// several samples. For one sample, any answer for a single sample is also accepted.
///
/// # Errors
/// If there are several samples, and the answer has none of these forms or is an array of another length. If only the answer for a sample
/// is invalid, the result of this sample is an error.
#[cfg(feature = "http")]
pub(super) fn scores(
    answer: &Value,
    count: usize,
    field: Option<&str>,
) -> Result<Vec<Result<Score, RewardError>>, RewardError> {
    match answer {
        Value::Array(answers) if answers.len() == count => {
            Ok(answers.iter().map(|answer| score(answer, field)).collect())
        }
        Value::Object(entries)
            if count == 1
                || entries.get("error").is_some_and(|error| !error.is_null())
                || entries.values().any(Value::is_array) =>
        {
            let of = |row| score(&Value::Object(row_of(entries, row, count)), field);
            Ok((0..count).map(of).collect())
        }
        single if count == 1 => Ok(vec![score(single, field)]),
        other => Err(unreadable(format_args!("expected {count} scores, found {other}"))),
    }
}

/// Extracts the answer for the sample at `row` from an object: replaces each list of `count` entries by its entry at `row`, also within
/// nested objects. With several samples, numbers and truth values outside of lists are left out, because they belong to no sample.
#[cfg(feature = "http")]
fn row_of(
    entries: &serde_json::Map<String, Value>,
    row: usize,
    count: usize,
) -> serde_json::Map<String, Value> {
    let of = |value: &Value| match value {
        Value::Array(values) if values.len() == count => values[row].clone(),
        Value::Object(nested) => row_of(nested, row, count).into(),
        other => other.clone(),
    };
    let is_kept = |(key, value): &(&String, &Value)| {
        count == 1 || *key == "error" || !(value.is_number() || value.is_boolean())
    };
    let entries = entries.iter().filter(is_kept);
    entries.map(|(key, value)| (key.clone(), of(value))).collect()
}

fn value(value: &Value) -> Result<f64, RewardError> {
    match value {
        Value::Bool(right) => Ok(f64::from(*right)),
        Value::Number(number) if number.as_f64().is_some_and(f64::is_finite) => {
            Ok(number.as_f64().unwrap_or_default())
        }
        Value::Null => Err(RewardError::not_applicable("the scorer returned null")),
        other => Err(unreadable(format_args!("expected a score, found {other}"))),
    }
}

fn part(score: Score, key: &str, value: &Value) -> Score {
    match value {
        Value::Bool(is) => score.component(key, f64::from(*is)),
        Value::Number(number) => match number.as_f64() {
            Some(number) => score.component(key, number),
            None => score,
        },
        Value::String(text) => score.label(key, text.as_str()),
        Value::Object(nested) if NESTED.contains(&key) => {
            nested.iter().fold(score, |score, (key, value)| part(score, key, value))
        }
        _ => score,
    }
}

fn error(reason: &Value, kind: Option<&Value>) -> RewardError {
    let reason = reason.as_str().map_or_else(|| reason.to_string(), str::to_owned);
    match kind.and_then(Value::as_str) {
        Some("retryable") => RewardError::retryable(reason),
        Some("timeout") => RewardError::timeout(reason),
        Some("not_applicable") => RewardError::not_applicable(reason),
        _ => RewardError::fatal(reason),
    }
}

fn unreadable(reason: std::fmt::Arguments<'_>) -> RewardError {
    let reason = quote(&reason.to_string(), 500);
    RewardError::fatal(format_args!("the scorer's answer: {reason}"))
}
