//! The errors of requests.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::run_reader::ReadError;

/// The error of a request: a status and a text for the page.
#[derive(Debug)]
pub(super) struct ViewError {
    status: StatusCode,
    text: String,
}

impl ViewError {
    /// Something that the request names does not exist.
    pub(super) fn absent(text: String) -> Self {
        Self { status: StatusCode::NOT_FOUND, text }
    }

    /// The request itself is wrong.
    pub(super) fn bad_request(text: String) -> Self {
        Self { status: StatusCode::BAD_REQUEST, text }
    }

    /// The request comes from another site.
    pub(super) fn forbidden(text: String) -> Self {
        Self { status: StatusCode::FORBIDDEN, text }
    }

    /// The server failed.
    pub(super) fn internal(text: String) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, text }
    }
}

impl From<ReadError> for ViewError {
    fn from(error: ReadError) -> Self {
        match &error {
            ReadError::NoRun { .. } | ReadError::NoResponses(_) => Self::absent(error.to_string()),
            ReadError::File { .. } => Self::internal(error.to_string()),
        }
    }
}

impl IntoResponse for ViewError {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.text }))).into_response()
    }
}
