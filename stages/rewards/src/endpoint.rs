//! A client of servers that exchange JSON over HTTP.

use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Response, StatusCode};
use rollpacker_endpoint::{Address, AddressError, chain, retry_after};
use rollpacker_stages::catalog::CatalogError;
use rollpacker_stages::secret::REDACTED;
use serde_json::Value;

use super::RewardError;

/// A server that accepts and returns JSON. Connections are reused for later calls; the connection of a dropped call is closed.
///
/// The API key and the credentials of the URL are redacted in everything that the server returns, because some servers repeat the headers
/// of a request.
pub struct Endpoint(Address);

/// The timeout of every call, so that a server that never answers cannot block a run forever. [`Timeout`](super::Timeout) sets shorter
/// limits.
const MAX_CALL: Duration = Duration::from_secs(600);
/// The maximum size of an answer in bytes.
const MAX_ANSWER: usize = 16 << 20;
/// The maximum number of characters of a server's answer that an error quotes.
const MAX_QUOTE: usize = 500;

impl Endpoint {
    /// Creates a client for a URL. The API key is read from the environment variable `api_key_env`, if given, and is sent as a bearer
    /// token.
    ///
    /// # Errors
    /// If the URL is invalid or has redacted credentials, `api_key_env` is not a valid name, the variable is not set or its value cannot be
    /// sent in a header, or the HTTP client cannot start.
    pub fn new(url: &str, api_key_env: Option<&str>) -> Result<Self, CatalogError> {
        let address = Address::new(url, api_key_env, |client| client.timeout(MAX_CALL));
        address.map(Self).map_err(catalog_error)
    }

    /// Posts JSON and returns the JSON of the answer.
    ///
    /// # Errors
    /// If the server cannot be reached, closes the connection, or answers with status 408, 429 or 5xx, the error is retryable. If the
    /// server does not answer within 600 seconds, the error is a timeout. If the answer has any other status than 2xx, exceeds 16 MiB or is
    /// not JSON, the error is fatal; redirects are not followed. The error of a status quotes the server's message. If that error is
    /// retryable, it has the wait that the header `Retry-After` requests.
    pub async fn post(&self, body: &Value) -> Result<Value, RewardError> {
        let Address { client, url, secrets } = &self.0;
        let request = client.post(url.clone()).header(CONTENT_TYPE, "application/json");
        let sent = request.body(body.to_string()).send().await;
        let response = sent.map_err(|error| self.connection_error(error))?;
        let (status, wait) = (response.status(), retry_after(response.headers()));
        let body = self.read(response).await?;
        if status.is_success() {
            let json = serde_json::from_slice(&body).map(|json| secrets.redact_json(json));
            return json.map_err(|error| {
                let found = self.quote(&String::from_utf8_lossy(&body));
                self.answer_error(format_args!("expected JSON, found `{found}`: {error}"))
            });
        }
        let message = self.0.quote_error(&body, MAX_QUOTE);
        let reason = format!("{}: {status}: {message}", self.display_url());
        Err(if is_retryable(status) {
            RewardError::retryable(reason).retry_after(wait)
        } else {
            RewardError::fatal(reason)
        })
    }

    async fn read(&self, mut response: Response) -> Result<Vec<u8>, RewardError> {
        let mut body = Vec::new();
        while let Some(chunk) =
            response.chunk().await.map_err(|error| self.connection_error(error))?
        {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(
                    self.answer_error(format_args!("the answer exceeds {MAX_ANSWER} bytes"))
                );
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    fn answer_error(&self, reason: std::fmt::Arguments<'_>) -> RewardError {
        RewardError::fatal(format_args!("{}: {reason}", self.display_url()))
    }

    fn connection_error(&self, error: reqwest::Error) -> RewardError {
        let timeout = error.is_timeout() && !error.is_connect();
        let builder = error.is_builder();
        let reason = format!("{}: {}", self.display_url(), chain(&error.without_url()));
        match (timeout, builder) {
            (true, _) => RewardError::timeout(reason),
            (_, true) => RewardError::fatal(reason),
            _ => RewardError::retryable(reason),
        }
    }

    /// Redacts the secrets in a text and returns its first [`MAX_QUOTE`] characters, trimmed.
    fn quote(&self, text: &str) -> String {
        self.0.quote(text, MAX_QUOTE)
    }

    /// Returns the URL without parts that may be secret.
    fn display_url(&self) -> String {
        self.0.display_url()
    }
}

fn catalog_error(error: AddressError) -> CatalogError {
    CatalogError::Start(match error {
        AddressError::Redacted { url } => format!(
            "the URL `{url}`: expected credentials, found {REDACTED}; recipes in run folders are redacted, so insert the credentials"
        ),
        AddressError::Client(reason) => reason,
        error => error.to_string(),
    })
}

fn is_retryable(status: StatusCode) -> bool {
    let busy = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
    status.is_server_error() || busy.contains(&status)
}
