//! The address of an HTTP server that exchanges JSON: the client, the API key, and error texts without secrets.
//!
//! The clients of inference servers and of rewards share [`Address`]. Each client defines its requests, its time limits and its reactions
//! to errors.

mod answer;
mod key;

use std::error::Error;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Url};
use rollpacker_stages::secret::{REDACTED, Secrets};

use self::answer::message;
pub use self::answer::retry_after;

const MAX_CONNECT_TIME: Duration = Duration::from_secs(10);

/// The address of a server and the connections to it. Clones share the connections.
///
/// [`quote`](Self::quote) redacts the API key and the credentials of the URL in a text of the server, because some servers repeat the
/// headers of a request.
///
/// ```
/// use rollpacker_endpoint::Address;
///
/// let address = Address::new("http://user:password@127.0.0.1:8000/v1?key=value", None, |client| client)?;
/// assert_eq!(address.display_url(), "http://127.0.0.1:8000/v1");
/// assert_eq!(address.quote("the password is wrong", 100), "the [redacted] is wrong");
/// # Ok::<_, rollpacker_endpoint::AddressError>(())
/// ```
#[derive(Clone)]
pub struct Address {
    /// The HTTP client, which holds the connections.
    pub client: Client,
    /// The URL, with its credentials. Error messages use [`display_url`](Self::display_url) instead.
    pub url: Url,
    /// The API key and the credentials of the URL.
    pub secrets: Secrets,
}

/// The reason why an address cannot be used. Its messages contain no secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The credentials in the URL were redacted, as in the recipe of a run folder.
    #[error(
        "the URL `{}`: expected credentials, found a redacted text; insert the credentials",
        redact_url(url)
    )]
    Redacted {
        /// The URL, whose secrets were redacted.
        url: String,
    },
    /// The URL is invalid.
    #[error("the URL `{url}`: {reason}")]
    Url {
        /// The URL; redacted if it may contain a password.
        url: String,
        /// The cause.
        reason: String,
    },
    /// The name of the environment variable for the API key is invalid, the variable is not set, or its value is not a usable key.
    #[error("{0}")]
    Key(String),
    /// The HTTP client cannot start.
    #[error("cannot start an HTTP client: {0}")]
    Client(String),
}

impl Address {
    /// Creates an HTTP client of the server at `url`. The function `limit` sets options of the client, such as timeouts. The client does
    /// not follow redirects, and gives up connecting after 10 s.
    ///
    /// The API key is the value of the environment variable `api_key_env`; with `None`, no key is sent. The key and the credentials of the
    /// URL are [registered](Secrets::register) as secrets.
    ///
    /// # Errors
    /// Returns an error if the URL is invalid or has redacted credentials, or the HTTP client cannot start. Also returns an error if there
    /// is no usable key: `api_key_env` is not a valid name of a variable, or the variable is not set, is empty, is not valid UTF-8, or has
    /// characters that a header cannot contain.
    pub fn new(
        url: &str,
        api_key_env: Option<&str>,
        limit: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Result<Self, AddressError> {
        let url = parse(url)?;
        let mut secrets = Secrets::default();
        secrets.add_url(&url);
        let headers = match api_key_env {
            Some(variable) => key::headers(variable, &mut secrets)?,
            None => HeaderMap::new(),
        };
        let client = limit(Client::builder())
            .redirect(Policy::none())
            .connect_timeout(MAX_CONNECT_TIME)
            .default_headers(headers);
        // Plain HTTP needs no certificates, so a machine without any must not cause an error.
        let client = if url.scheme() == "http" {
            client.tls_built_in_root_certs(false)
        } else {
            let settings = rollpacker_tls::client();
            client.use_preconfigured_tls(
                settings.map_err(|error| AddressError::Client(error.to_string()))?,
            )
        };
        let client =
            client.build().map_err(|error| AddressError::Client(chain(&error.without_url())))?;
        secrets.add(&encoded_user_info(&client, &url));
        secrets.register();
        Ok(Self { client, url, secrets })
    }

    /// Returns the scheme, host, port (unless it is the default of the scheme) and path of the URL. The user information, the query and the
    /// fragment are left out, because they may be secret.
    #[must_use]
    pub fn display_url(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        let port = self.url.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}://{host}{port}{}", self.url.scheme(), self.url.path())
    }

    /// Redacts the secrets in a text, removes white space at both ends, and returns the first `length` characters.
    #[must_use]
    pub fn quote(&self, text: &str, length: usize) -> String {
        self.secrets.redact(text).trim().chars().take(length).collect()
    }

    /// Returns the first `length` characters of the error message of an answer, without secrets. The message is the first of the fields
    /// `error.message`, `error`, `message` and `detail` that is a text, or else all of the JSON, or all of a body that is not JSON.
    ///
    /// ```
    /// use rollpacker_endpoint::Address;
    ///
    /// let address = Address::new("http://user:password@127.0.0.1:8000", None, |client| client)?;
    /// let quote = |body: &str| address.quote_error(body.as_bytes(), 100);
    /// assert_eq!(quote(r#"{"error": {"message": "the password is wrong"}}"#), "the [redacted] is wrong");
    /// assert_eq!(quote(r#"{"error": {"message": "busy"}}"#), "busy");
    /// assert_eq!(quote(r#"{"code": 1}"#), r#"{"code":1}"#);
    /// # Ok::<_, rollpacker_endpoint::AddressError>(())
    /// ```
    #[must_use]
    pub fn quote_error(&self, body: &[u8], length: usize) -> String {
        // In the text of the JSON, characters of a secret may be escaped.
        let json = serde_json::from_slice(body).map(|json| self.secrets.redact_json(json));
        let text = json.map_or_else(|_| String::from_utf8_lossy(body).into_owned(), message);
        self.quote(&text, length)
    }
}

/// Returns the URL for an error message. A URL with `@` or `?` is redacted as a whole, because an invalid URL may contain a password at any
/// position.
#[must_use]
pub fn redact_url(url: &str) -> &str {
    if url.contains(['@', '?']) { REDACTED } else { url }
}

fn parse(url: &str) -> Result<Url, AddressError> {
    if url.contains(REDACTED) {
        return Err(AddressError::Redacted { url: url.to_owned() });
    }
    let wrong = |reason: String| AddressError::Url { url: redact_url(url).to_owned(), reason };
    Url::parse(url).map_err(|error| wrong(error.to_string()))
}

/// Returns the user information of a URL in base64, as the client sends it in the authorization header; empty if the URL has none.
fn encoded_user_info(client: &Client, url: &Url) -> String {
    let request = client.post(url.clone()).build().ok();
    let header = request.and_then(|request| request.headers().get(AUTHORIZATION).cloned());
    let value =
        header.and_then(|value| Some(value.to_str().ok()?.strip_prefix("Basic ")?.to_owned()));
    value.unwrap_or_default()
}

/// Returns the messages of an error and of its causes, separated by `: `.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
