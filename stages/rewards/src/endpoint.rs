//! A client of servers that exchange JSON over HTTP.

use std::error::Error;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url};
use rollpacker_stages::catalog::CatalogError;
use rollpacker_stages::secret::{REDACTED, Secrets};
use serde_json::Value;

use super::RewardError;

/// A server that accepts and returns JSON. Connections are reused for later calls; the connection of a dropped call is closed.
///
/// The API key and the credentials of the URL are redacted in everything that the server returns, because some servers repeat the headers
/// of a request.
pub struct Endpoint {
    client: Client,
    url: Url,
    secrets: Secrets,
}

/// The timeout of every call, so that a server that never answers cannot block a run forever. [`Timeout`](super::Timeout) sets shorter
/// limits.
const LONGEST_CALL: Duration = Duration::from_secs(600);
const LONGEST_CONNECT: Duration = Duration::from_secs(10);
/// The maximum size of an answer in bytes.
const LARGEST_ANSWER: usize = 16 << 20;
/// The maximum number of characters of a server's answer that an error quotes.
const LONGEST_QUOTE: usize = 500;

impl Endpoint {
    /// Creates a client for a URL. The key is read from the environment variable `api_key_env`, if given.
    ///
    /// # Errors
    /// If the URL is invalid or the key is missing.
    pub fn new(url: &str, api_key_env: Option<&str>) -> Result<Self, CatalogError> {
        let url = parse(url)?;
        let mut secrets = Secrets::default();
        secrets.add_url(&url);
        let key = api_key_env.map(key).transpose()?;
        if let Some(key) = &key {
            secrets.add(key);
            // Secrets of few characters are not redacted by themselves, but are recognized after this prefix.
            secrets.add(&format!("Bearer {key}"));
        }
        let headers = key.zip(api_key_env).map(|(key, name)| authorization(&key, name));
        let mut client = Client::builder()
            .redirect(Policy::none())
            .connect_timeout(LONGEST_CONNECT)
            .timeout(LONGEST_CALL)
            .default_headers(headers.transpose()?.unwrap_or_default());
        client = if url.scheme() == "http" {
            // Plain HTTP needs no certificates, so a machine without any must not cause an error.
            client.tls_built_in_root_certs(false)
        } else {
            client.use_preconfigured_tls(rollpacker_tls::client().map_err(CatalogError::start)?)
        };
        let client = client.build();
        let client = client.map_err(|error| CatalogError::Start(chain(&error.without_url())))?;
        secrets.add(&basic(&client, &url));
        secrets.keep();
        Ok(Self { client, url, secrets })
    }

    /// Posts JSON and returns the JSON of the answer.
    ///
    /// # Errors
    /// Retryable if the server cannot be reached, closes the connection, or answers with status 408, 429 or 5xx. A timeout if it does not
    /// answer in time. Otherwise fatal, with the server's error message.
    pub async fn post(&self, body: &Value) -> Result<Value, RewardError> {
        let request = self.client.post(self.url.clone()).header(CONTENT_TYPE, "application/json");
        let sent = request.body(body.to_string()).send().await;
        let response = sent.map_err(|error| self.broken(error))?;
        let (status, wait) = (response.status(), retry_after(response.headers()));
        let body = self.read(response).await?;
        let json = serde_json::from_slice(&body).map(|json| self.secrets.redact_json(json));
        if status.is_success() {
            return json.map_err(|error| {
                let found = self.quote(&String::from_utf8_lossy(&body));
                self.wrong(format_args!("expected JSON, found `{found}`: {error}"))
            });
        }
        let said = json.map_or_else(|_| String::from_utf8_lossy(&body).into_owned(), message);
        let reason = format!("{}: {status}: {}", self.place(), self.quote(&said));
        Err(if retryable(status) {
            RewardError::retryable(reason).retry_after(wait)
        } else {
            RewardError::fatal(reason)
        })
    }

    async fn read(&self, mut response: Response) -> Result<Vec<u8>, RewardError> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.broken(error))? {
            if body.len() + chunk.len() > LARGEST_ANSWER {
                return Err(self.wrong(format_args!("the answer exceeds {LARGEST_ANSWER} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    fn wrong(&self, reason: std::fmt::Arguments<'_>) -> RewardError {
        RewardError::fatal(format_args!("{}: {reason}", self.place()))
    }

    fn broken(&self, error: reqwest::Error) -> RewardError {
        let timeout = error.is_timeout() && !error.is_connect();
        let builder = error.is_builder();
        let reason = format!("{}: {}", self.place(), chain(&error.without_url()));
        match (timeout, builder) {
            (true, _) => RewardError::timeout(reason),
            (_, true) => RewardError::fatal(reason),
            _ => RewardError::retryable(reason),
        }
    }

    /// Returns the beginning of a text without secrets.
    fn quote(&self, text: &str) -> String {
        self.secrets.redact(text).trim().chars().take(LONGEST_QUOTE).collect()
    }

    /// Returns the URL without parts that may be secret.
    fn place(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        let port = self.url.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}://{host}{port}{}", self.url.scheme(), self.url.path())
    }
}

fn parse(url: &str) -> Result<Url, CatalogError> {
    if url.contains(REDACTED) {
        let reason = format!(
            "the URL `{url}`: expected credentials, found {REDACTED}; recipes in run folders are redacted, so insert the credentials"
        );
        return Err(CatalogError::Start(reason));
    }
    Url::parse(url).map_err(|error| {
        // An invalid URL may contain a password at any position.
        let shown = if url.contains(['@', '?']) { REDACTED } else { url };
        CatalogError::Start(format!("the URL `{shown}`: {error}"))
    })
}

/// Reads the key from an environment variable.
fn key(variable: &str) -> Result<String, CatalogError> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !variable.chars().all(is_part) || variable.starts_with(|c: char| c.is_ascii_digit()) {
        // The text is not repeated, since it may be the key itself.
        let reason = "`api_key_env`: expected the name of an environment variable that has the key, found a text that is not a valid name";
        return Err(CatalogError::Start(reason.to_owned()));
    }
    let key =
        std::env::var(variable).map_err(|_| wrong_key(variable, "with the key is not set"))?;
    Ok(key.trim().to_owned())
}

fn authorization(key: &str, variable: &str) -> Result<HeaderMap, CatalogError> {
    let value = HeaderValue::from_str(&format!("Bearer {key}"));
    let mut value =
        value.map_err(|_| wrong_key(variable, "has characters that a key cannot contain"))?;
    value.set_sensitive(true);
    Ok([(AUTHORIZATION, value)].into_iter().collect())
}

fn wrong_key(variable: &str, reason: &str) -> CatalogError {
    CatalogError::Start(format!("the environment variable `{variable}` {reason}"))
}

/// Returns the encoded user information of a URL, as the client sends it; empty if the URL has none.
fn basic(client: &Client, url: &Url) -> String {
    let request = client.post(url.clone()).build().ok();
    let header = request.and_then(|request| request.headers().get(AUTHORIZATION).cloned());
    let value =
        header.and_then(|value| Some(value.to_str().ok()?.strip_prefix("Basic ")?.to_owned()));
    value.unwrap_or_default()
}

fn retryable(status: StatusCode) -> bool {
    let busy = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
    status.is_server_error() || busy.contains(&status)
}

/// Parses the header as seconds. Its other form, a date, would require synchronized clocks and is ignored.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// Returns the error message of an answer: the field `error.message`, `error`, `message` or `detail`, or else all of the JSON.
fn message(json: Value) -> String {
    let said = [&json["error"]["message"], &json["error"], &json["message"], &json["detail"]];
    let said = said.into_iter().find_map(Value::as_str);
    said.map_or_else(|| json.to_string(), str::to_owned)
}

/// Returns an error and its causes in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
