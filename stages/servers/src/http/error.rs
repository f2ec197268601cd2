//! Errors of calls to a server.

use std::time::Duration;

use reqwest::StatusCode;

/// The error of a call to a server. Its messages contain no secrets.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ServerError {
    /// The connection failed or broke, or the server ended a stream before the response was complete.
    #[error("{server}: {reason}")]
    Connection {
        /// The URL of the call.
        server: String,
        /// The cause.
        reason: String,
    },
    /// The server did not answer a call in time, or did not continue a stream in time.
    #[error("{server}: no progress for {waited:?}")]
    Stalled {
        /// The URL of the call.
        server: String,
        /// The time limit of the call, or the time without an event of the stream.
        waited: Duration,
    },
    /// The server answered with an error.
    #[error("{server}: {status}: {message}")]
    Status {
        /// The URL of the call.
        server: String,
        /// The HTTP status.
        status: StatusCode,
        /// The error message of the server.
        message: String,
        /// The time after which the client may retry; `None` if the server stated none.
        retry_after: Option<Duration>,
    },
    /// The answer breaks the protocol: it is not what a correct server sends.
    #[error("{server}: expected {expected}, found {found}")]
    InvalidAnswer {
        /// The URL of the call.
        server: String,
        /// A description of the expected answer.
        expected: String,
        /// The wrong part of the answer or a description of it; cut off if it is long.
        found: String,
    },
}

/// The decision on how to retry after a [`ServerError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryHint {
    /// The server is busy: retry later.
    Later,
    /// The server has a fault: retry on another server, or on this one after it has recovered.
    OtherServer,
    /// The request is wrong and would fail on every server of this kind.
    Never,
}

impl ServerError {
    /// Returns how to retry after this error.
    #[must_use]
    pub fn retry_hint(&self) -> RetryHint {
        match self {
            Self::Status { status, .. } if *status == StatusCode::TOO_MANY_REQUESTS => {
                RetryHint::Later
            }
            // A conflict is with another client of the server, such as one that resumes it during a pause.
            Self::Status { status, .. }
                if status.is_client_error()
                    && !matches!(*status, StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT) =>
            {
                RetryHint::Never
            }
            _ => RetryHint::OtherServer,
        }
    }

    /// Returns `true` if the same call may succeed later on the same server. A redirect is not followed, and the URL of the call stays the
    /// same.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        let is_permanent = match self {
            Self::InvalidAnswer { .. } => true,
            Self::Status { status, .. } => status.is_redirection(),
            Self::Connection { .. } | Self::Stalled { .. } => false,
        };
        self.retry_hint() != RetryHint::Never && !is_permanent
    }

    /// Returns `true` if the server does not have the call, or forbids it (status 404, 405 or 403).
    #[must_use]
    pub fn is_missing(&self) -> bool {
        let missing =
            [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::FORBIDDEN];
        matches!(self, Self::Status { status, .. } if missing.contains(status))
    }

    /// Returns the time after which the client may retry, if the server stated one.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
