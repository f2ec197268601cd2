//! Errors of calls, in the shape that OpenAI and vLLM use.

use std::fmt;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rollpacker_stages::serving::ServingError;

use crate::vllm::protocol::{ErrorDetail, ErrorResponse};

/// Maximum number of characters of a message. Messages quote values of requests, which may be long.
const MAX_MESSAGE: usize = 2000;

#[derive(Clone, Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    message: String,
    /// The parameter of the request that is wrong; `None` if the error concerns no single parameter.
    param: Option<String>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, message: impl fmt::Display) -> Self {
        let mut message = message.to_string();
        if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE) {
            message.truncate(end);
            message += "...";
        }
        Self { status, message, param: None }
    }

    /// Returns an error of the request as a whole, with status 400.
    pub(super) fn bad_request(message: impl fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Returns an error of a parameter, with status 400.
    pub(super) fn parameter(
        name: &str,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        let message = format!("parameter `{name}`: expected {expected}, found {found}");
        Self::bad_request(message).with_parameter(Some(name.to_owned()))
    }

    /// Sets the parameter of the request that is wrong.
    pub(super) fn with_parameter(self, param: Option<String>) -> Self {
        Self { param, ..self }
    }

    pub(super) fn internal(message: impl fmt::Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    pub(super) fn body(&self) -> ErrorResponse {
        ErrorResponse {
            error: ErrorDetail {
                message: self.message.clone(),
                kind: kind(self.status).to_owned(),
                param: self.param.clone(),
                code: self.status.as_u16(),
            },
        }
    }
}

/// Returns the class of an error, as vLLM names it.
fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => "BadRequestError",
        StatusCode::UNAUTHORIZED => "AuthenticationError",
        StatusCode::FORBIDDEN => "PermissionDeniedError",
        StatusCode::NOT_FOUND => "NotFoundError",
        StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowedError",
        StatusCode::CONFLICT => "ConflictError",
        StatusCode::NOT_IMPLEMENTED => "NotImplementedError",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailableError",
        _ => "InternalServerError",
    }
}

impl From<ServingError> for ApiError {
    fn from(error: ServingError) -> Self {
        let status = match error {
            ServingError::Resumed => StatusCode::CONFLICT,
            ServingError::Load { .. } | ServingError::Stopped(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        Self::new(status, error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}
