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
    /// Returns the error of a request that names something that does not exist.
    pub(super) fn not_found(text: String) -> Self {
        Self { status: StatusCode::NOT_FOUND, text }
    }

    pub(super) fn bad_request(text: String) -> Self {
        Self { status: StatusCode::BAD_REQUEST, text }
    }

    /// Returns the error of a request that the server refuses because of its `Host` header.
    pub(super) fn forbidden(text: String) -> Self {
        Self { status: StatusCode::FORBIDDEN, text }
    }

    /// Returns the error of a request that fails because of the server.
    pub(super) fn internal(text: String) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, text }
    }
}

impl From<ReadError> for ViewError {
    fn from(error: ReadError) -> Self {
        match &error {
            ReadError::NoRun { .. } | ReadError::NoResponses(_) => {
                Self::not_found(error.to_string())
            }
            ReadError::File { .. } => Self::internal(error.to_string()),
        }
    }
}

impl IntoResponse for ViewError {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.text }))).into_response()
    }
}
