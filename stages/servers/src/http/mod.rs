//! HTTP with JSON: connections, secrets, errors and server-sent events.

mod error;
mod events;

use std::fmt;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderName, LOCATION};
use reqwest::{Method, Response, Url};
use rollpacker_endpoint::{Address, chain, redact_url, retry_after};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use rollpacker_endpoint::AddressError;

pub use self::error::{RetryHint, ServerError};
pub(crate) use self::events::Events;

/// The maximum size of an answer in bytes. The log-probabilities of a long prompt take about 60 bytes per token.
const MAX_ANSWER: usize = 64 << 20;
/// The maximum number of characters of an answer that an error quotes.
const MAX_QUOTE: usize = 300;
/// The content type of server-sent events.
const EVENTS: &str = "text/event-stream";

/// The address of a server and the connections to it. Clones share the connections.
///
/// In errors, the API key and the credentials of the URL are redacted in texts of the server, because some servers repeat the headers of a
/// request.
#[derive(Clone)]
pub struct Endpoint(Address);

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.name()).finish()
    }
}

impl Endpoint {
    /// Creates a client of the server at `url`, without connecting to it. The API key is the value of the environment variable
    /// `api_key_env`, if given.
    ///
    /// # Errors
    /// Returns an error if the URL is invalid, has redacted credentials or is not `http` or `https`, or the HTTP client cannot start. Also
    /// returns an error if there is no usable key: `api_key_env` is not a valid name of a variable, or the variable is not set, is empty,
    /// is not valid UTF-8, or has characters that a header cannot contain.
    pub fn new(url: &str, api_key_env: Option<&str>) -> Result<Self, AddressError> {
        let address = Address::new(url, api_key_env, |client| {
            client.tcp_keepalive(Duration::from_secs(30)).tcp_nodelay(true)
        })?;
        let scheme = address.url.scheme();
        if !matches!(scheme, "http" | "https") {
            let reason = format!("expected `http` or `https`, found `{scheme}`");
            return Err(AddressError::Url { url: redact_url(url).to_owned(), reason });
        }
        Ok(Self(address))
    }

    /// Returns the URL of the server without parts that may be secret.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.display_url().trim_end_matches('/').to_owned()
    }

    /// Sends a GET request and returns the parsed JSON body of the answer. The call must end within `limit`.
    pub(crate) async fn get<A: DeserializeOwned>(
        &self,
        path: &str,
        limit: Duration,
    ) -> Result<A, ServerError> {
        let answer = self.answer(Method::GET, path, None::<&()>, limit).await?;
        self.json(path, &answer)
    }

    /// Sends a GET request and returns the body of the answer as text. Invalid UTF-8 is replaced. The call must end within `limit`.
    pub(crate) async fn text(&self, path: &str, limit: Duration) -> Result<String, ServerError> {
        let answer = self.answer(Method::GET, path, None::<&()>, limit).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Sends a POST request with `body` as JSON and returns the parsed JSON body of the answer. The call must end within `limit`.
    pub(crate) async fn post<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        limit: Duration,
    ) -> Result<A, ServerError> {
        let call = self.post_unlimited(path, body);
        with_timeout(call, limit, || self.stall_error(path, limit)).await
    }

    /// Sends a request, with `body` as JSON if given, and ignores the body of a successful answer. The call must end within `limit`.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        limit: Duration,
    ) -> Result<(), ServerError> {
        self.answer(method, path, body, limit).await.map(drop)
    }

    /// Sends a POST request with `body` as JSON and returns the server-sent events of the answer. The caller limits the time.
    ///
    /// # Errors
    /// Returns an error if the call fails, or its answer has no events; the error then quotes the answer.
    pub(crate) async fn stream(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Events, ServerError> {
        let response = self.send(Method::POST, path, Some(body)).await?;
        let kind = header(&response, &CONTENT_TYPE).unwrap_or_default();
        if kind.trim_start().to_ascii_lowercase().starts_with(EVENTS) {
            return Ok(Events::new(self.clone(), path, response));
        }
        let answer = self.0.quote_error(&self.read(path, response).await?, MAX_QUOTE);
        let found = format_args!("`{kind}`: {answer}");
        Err(self.invalid_answer(path, &format!("the content type `{EVENTS}`"), found))
    }

    /// Sends a POST request with `body` as JSON and returns the parsed JSON body of the answer. The caller limits the time.
    pub(crate) async fn post_unlimited<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, ServerError> {
        let response = self.send(Method::POST, path, Some(body)).await?;
        let answer = self.read(path, response).await?;
        self.json(path, &answer)
    }

    async fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        limit: Duration,
    ) -> Result<Vec<u8>, ServerError> {
        let call = async {
            let response = self.send(method, path, body).await?;
            self.read(path, response).await
        };
        with_timeout(call, limit, || self.stall_error(path, limit)).await
    }

    /// Sends a request and waits for the headers of the answer. Fails if the status is not a success.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Response, ServerError> {
        let mut request = self.0.client.request(method, self.url(path));
        if let Some(body) = body {
            let body = serde_json::to_vec(body).map_err(|error| {
                self.invalid_answer(path, "a request that is valid JSON", error)
            })?;
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        let response = request.send().await.map_err(|error| self.connection_error(path, error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = retry_after(response.headers());
        let message = match header(&response, &LOCATION) {
            Some(location) if status.is_redirection() => {
                let location = redact_url(&location);
                self.quote(&format!(
                    "expected an answer, found a redirect to `{location}`; set the URL of the server itself"
                ))
            }
            _ => {
                let answer = self.read(path, response).await.unwrap_or_default();
                self.0.quote_error(&answer, MAX_QUOTE)
            }
        };
        let server = self.display_url(path);
        Err(ServerError::Status { server, status, message, retry_after })
    }

    async fn read(&self, path: &str, mut response: Response) -> Result<Vec<u8>, ServerError> {
        let mut body = Vec::new();
        while let Some(chunk) =
            response.chunk().await.map_err(|error| self.connection_error(path, error))?
        {
            if body.len() + chunk.len() > MAX_ANSWER {
                let expected = format!("an answer of at most {MAX_ANSWER} bytes");
                return Err(self.invalid_answer(path, &expected, "more"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    fn json<A: DeserializeOwned>(&self, path: &str, answer: &[u8]) -> Result<A, ServerError> {
        serde_json::from_slice(answer).map_err(|error| {
            let found = String::from_utf8_lossy(answer);
            self.invalid_answer(path, "the JSON of this call", format_args!("`{found}` ({error})"))
        })
    }

    /// Returns the URL of a call. The query string of the server's URL comes before the query string of `path`.
    fn url(&self, path: &str) -> Url {
        let mut url = self.0.url.clone();
        let (path, query) = path.split_once('?').map_or((path, None), |(p, q)| (p, Some(q)));
        url.set_path(&format!("{}{path}", self.0.url.path().trim_end_matches('/')));
        if let Some(query) = query {
            let queries: Vec<_> = self.0.url.query().into_iter().chain([query]).collect();
            url.set_query(Some(&queries.join("&")));
        }
        url
    }

    /// Returns the URL of a call without parts that may be secret.
    pub(crate) fn display_url(&self, path: &str) -> String {
        format!("{}{path}", self.name())
    }

    pub(crate) fn invalid_answer(
        &self,
        path: &str,
        expected: &str,
        found: impl fmt::Display,
    ) -> ServerError {
        let (server, found) = (self.display_url(path), self.quote(&found.to_string()));
        ServerError::InvalidAnswer { server, expected: expected.to_owned(), found }
    }

    pub(crate) fn stall_error(&self, path: &str, waited: Duration) -> ServerError {
        ServerError::Stalled { server: self.display_url(path), waited }
    }

    pub(crate) fn connection_error(&self, path: &str, error: reqwest::Error) -> ServerError {
        let reason = self.quote(&chain(&error.without_url()));
        ServerError::Connection { server: self.display_url(path), reason }
    }

    /// Redacts the secrets in a text and returns at most its first `MAX_QUOTE` characters.
    pub(crate) fn quote(&self, text: &str) -> String {
        self.0.quote(text, MAX_QUOTE)
    }
}

/// Returns the value of a header; `None` if the answer does not have the header or its value is not ASCII.
fn header(response: &Response, name: &HeaderName) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_owned)
}

async fn with_timeout<A>(
    call: impl Future<Output = Result<A, ServerError>>,
    limit: Duration,
    stalled: impl FnOnce() -> ServerError,
) -> Result<A, ServerError> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(stalled()))
}

#[cfg(test)]
mod tests;
