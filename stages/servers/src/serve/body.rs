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

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            ApiError::new(rejection.status(), format_args!("body: {}", rejection.body_text()))
        })?;
        parse(&bytes).map(Self)
    }
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
        let path = error.path().to_string();
        let location = if path == "." { String::new() } else { format!(" at `{path}`") };
        ApiError::bad_request(format_args!("body{location}: {}", error.inner()))
    })
}
