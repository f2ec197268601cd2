//! The parts of an answer that clients of all servers read.

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};
use serde_json::Value;

/// The maximum time that [`retry_after`] returns. A server that asks for more would make a run idle.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// Returns the time after which the client may retry, which the header `Retry-After` states in seconds; at most ten minutes. `None` if the
/// header is missing or is not a number of seconds. A date is ignored, because it would require synchronized clocks.
#[must_use]
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::try_from_secs_f64(seconds).ok()?.min(MAX_WAIT))
}

/// Returns the error message of an answer: the first of the fields `error.message`, `error`, `message` and `detail` that is a text, or else
/// all of the JSON.
pub(crate) fn message(json: Value) -> String {
    let candidates = [&json["error"]["message"], &json["error"], &json["message"], &json["detail"]];
    let candidates = candidates.into_iter().find_map(Value::as_str);
    candidates.map_or_else(|| json.to_string(), str::to_owned)
}
