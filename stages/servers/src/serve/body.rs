//! JSON bodies of requests.

use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use bytes::Bytes;
use serde::Deserializer;
use serde::de::DeserializeOwned;

use super::error::ApiError;

/// Maximum size of a body in bytes. A prompt of several million token ids fits.
pub(super) const MAX_BODY: usize = 64 << 20;

/// The JSON body of a request, whatever its content type.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned + Send + 'static, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            ApiError::new(rejection.status(), format_args!("body: {}", rejection.body_text()))
        })?;
        on_blocking_thread(move || parse(&bytes)).await.map(Self)
    }
}

/// Runs `work` on a thread for blocking work and returns its result, so that long work on a large request does not delay other calls.
/// Returns an error with status 500 if `work` panics. Work that has started continues if the future is dropped.
pub(super) async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| Err(ApiError::internal(panic)))
}

/// Reads JSON. An empty body reads as an empty object.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = read(&mut json)?;
    json.end()
        .map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, format_args!("body: {error}")))?;
    Ok(read)
}

/// Reads a value. An error names the field that is wrong.
pub(super) fn read<'de, T: DeserializeOwned>(
    json: impl Deserializer<'de, Error = serde_json::Error>,
) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(json).map_err(|error| {
        let path = Some(error.path().to_string()).filter(|path| path != "." && path != "?");
        let location = path.as_ref().map(|path| format!(" at `{path}`")).unwrap_or_default();
        let reason = in_words(&error.inner().to_string());
        ApiError::bad_request(format_args!("body{location}: {reason}")).with_parameter(path)
    })
}

/// Returns the message of an error with words in place of the Rust type that was expected.
fn in_words(message: &str) -> String {
    const WORDS: [(&str, &str); 4] = [
        ("u32", "an integer from 0 to 4294967295"),
        ("i32", "an integer from -2147483648 to 2147483647"),
        ("i64", "an integer from -9223372036854775808 to 9223372036854775807"),
        ("f64", "a number"),
    ];
    const MARK: &str = ", expected ";
    let Some((found, rest)) = message.rsplit_once(MARK) else { return message.to_owned() };
    let (expected, position) = rest.split_at(rest.find(" at line ").unwrap_or(rest.len()));
    let words = WORDS.into_iter().find(|(name, _)| *name == expected).map(|(_, words)| words);
    let words = words.or(expected.starts_with("struct ").then_some("an object"));
    format!("{found}{MARK}{}{position}", words.unwrap_or(expected))
}
