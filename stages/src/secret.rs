//! Secrets: keys and passwords, which must not be printed or written.
//!
//! A component that uses a secret [registers](register) it, and a component that prints or writes external text passes it through
//! [`redact`]. Servers repeat the headers of requests in their errors, and programs repeat their environment. Redaction therefore searches
//! for the text of the secret, wherever it comes from.

mod command;
mod credentials;

use std::borrow::Cow;
use std::sync::{PoisonError, RwLock};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::Value;
use url::Url;
use url::form_urlencoded::byte_serialize;

pub use self::command::{register_command, without_command_secrets};
pub use self::credentials::without_credentials;
use self::credentials::{name_of, redact_urls, without_named_values};

/// The replacement for a secret.
pub const REDACTED: &str = "[redacted]";
/// The minimum length of a secret in bytes. Shorter texts occur by chance in ordinary text.
const MIN_SECRET_BYTES: usize = 4;
/// The minimum length in bytes of a secret that is redacted everywhere. A shorter secret is redacted only in the answers of the server that
/// received it.
const MIN_GLOBAL_SECRET_BYTES: usize = 8;
/// The length in bytes from which a value in the query of a URL counts as a secret, regardless of the name of its parameter.
const MIN_KEY_VALUE_BYTES: usize = 20;

/// The characters that most encoders of URLs replace.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

static REGISTERED: RwLock<Secrets> = RwLock::new(Secrets(Vec::new()));

/// A set of secrets to redact.
#[derive(Clone, Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// Adds a secret, also in the forms that it has in JSON, encoded in a URL and decoded from a URL. Forms of fewer than 4 bytes are
    /// ignored.
    pub fn add(&mut self, secret: &str) {
        let json = Value::from(secret).to_string();
        let forms: [Cow<'_, str>; 6] = [
            secret.into(),
            json[1..json.len() - 1].into(),
            utf8_percent_encode(secret, NON_ALPHANUMERIC).into(),
            utf8_percent_encode(secret, RESERVED).into(),
            byte_serialize(secret.as_bytes()).collect(),
            percent_decode_str(secret).decode_utf8_lossy(),
        ];
        self.add_forms(forms.iter().map(AsRef::as_ref), MIN_SECRET_BYTES);
    }

    fn add_forms<'a>(&mut self, forms: impl Iterator<Item = &'a str>, min_bytes: usize) {
        for form in forms.filter(|form| form.len() >= min_bytes) {
            if !self.0.iter().any(|known| known == form) {
                self.0.push(form.to_owned());
            }
        }
        // A secret may be part of another one: replace the longer one first.
        self.0.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
    }

    /// Adds the credentials of a URL: the password, or the user name if there is no password, and the values of the query that look like
    /// keys.
    pub fn add_url(&mut self, url: &Url) {
        self.add(url.password().unwrap_or(url.username()));
        let written = url.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        for ((name, value), written) in url.query_pairs().zip(written) {
            if is_secret_parameter(&name) || value.len() >= MIN_KEY_VALUE_BYTES {
                self.add(&value);
                // The parser reads `+` as a space, but a server may repeat what was written, or leave `+` as it is.
                self.add(&written[name_of(written).len()..]);
            }
        }
    }

    /// Registers the secrets of at least 8 bytes for the lifetime of the process: [`redact`](redact()) replaces them everywhere.
    pub fn register(&self) {
        let mut known = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
        known.add_forms(self.0.iter().map(String::as_str), MIN_GLOBAL_SECRET_BYTES);
    }

    /// Replaces every secret in a text by [`REDACTED`].
    #[must_use]
    pub fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.0.iter().fold(Cow::Borrowed(text), |text, secret| {
            if text.contains(secret) { text.replace(secret, REDACTED).into() } else { text }
        })
    }

    /// Replaces every secret in the texts and keys of a JSON value.
    #[must_use]
    pub fn redact_json(&self, value: Value) -> Value {
        if self.0.is_empty() {
            return value;
        }
        match value {
            Value::String(text) => self.redact(&text).into(),
            Value::Array(values) => {
                values.into_iter().map(|value| self.redact_json(value)).collect()
            }
            Value::Object(entries) => {
                let redacted = |(key, value): (String, Value)| {
                    (self.redact(&key).into_owned(), self.redact_json(value))
                };
                Value::Object(entries.into_iter().map(redacted).collect())
            }
            plain => plain,
        }
    }
}

/// Registers a secret for the lifetime of the process, in each of its [forms](Secrets::add) that has at least 8 bytes.
pub fn register(secret: &str) {
    let mut secrets = Secrets::default();
    secrets.add(secret);
    secrets.register();
}

/// Replaces every registered secret in a text. All other text is unchanged, so the function is suitable for data.
#[must_use]
pub fn redact_known(text: &str) -> Cow<'_, str> {
    REGISTERED.read().unwrap_or_else(PoisonError::into_inner).redact(text)
}

/// Replaces every registered secret in a message. In URLs, it also replaces the user information and the values of parameters whose names
/// indicate secrets.
#[must_use]
pub fn redact(text: &str) -> Cow<'_, str> {
    match redact_known(text) {
        Cow::Borrowed(text) => redact_urls(text, without_named_values),
        Cow::Owned(text) => redact_urls(&text, without_named_values).into_owned().into(),
    }
}

/// Returns the first `length` characters of a text, trimmed and without secrets. A secret at the cut is replaced too, since the text is
/// redacted before it is cut.
#[must_use]
pub fn quote(text: &str, length: usize) -> String {
    redact(text).trim().chars().take(length).collect()
}

/// Returns `true` if a setting of this name holds a secret. A name for an environment variable, such as `api_key_env`, does not.
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    const NAMES: [&str; 12] = [
        "api_key",
        "apikey",
        "secret_key",
        "access_key",
        "api_token",
        "auth_token",
        "access_token",
        "bearer_token",
        "secret",
        "password",
        "passwd",
        "authorization",
    ];
    ends_with(name, &NAMES)
}

/// Returns `true` if a parameter of this name, in the query of a URL, on a command line or in the environment, holds a secret.
#[must_use]
pub fn is_secret_parameter(name: &str) -> bool {
    is_secret_name(name) || ends_with(name, &["key", "token", "auth", "sig", "signature"])
}

/// Returns `true` if a name ends with one of the words. Case is ignored, and `-` or `_` separates words.
fn ends_with(name: &str, words: &[&str]) -> bool {
    let name = name.to_lowercase().replace('-', "_");
    let whole = |rest: &str| rest.is_empty() || rest.ends_with('_');
    words.iter().any(|word| name.strip_suffix(word).is_some_and(whole))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secrets(secret: &str) -> Secrets {
        let mut secrets = Secrets::default();
        secrets.add(secret);
        secrets
    }

    #[test]
    fn a_secret_is_replaced_in_all_its_forms() {
        let secrets = secrets("a\"/b+c=");
        for text in ["a\"/b+c=", r#"a\"/b+c="#, "a%22%2Fb%2Bc%3D"] {
            assert_eq!(secrets.redact(&format!("<{text}>")), "<[redacted]>");
        }
        let value = json!({"a\"/b+c=": ["x a\"/b+c=", 1], "y": {"z": "a\"/b+c="}});
        let expected = json!({"[redacted]": ["x [redacted]", 1], "y": {"z": "[redacted]"}});
        assert_eq!(secrets.redact_json(value), expected);
    }

    #[test]
    fn the_longer_of_two_secrets_is_replaced_first() {
        let mut secrets = secrets("secret");
        secrets.add("secret-key");
        assert_eq!(secrets.redact("secret-key secret"), "[redacted] [redacted]");
    }

    #[test]
    fn short_texts_are_not_secrets() {
        assert_eq!(secrets("abc").redact("abc"), "abc");
        register("short");
        register("long enough");
        assert_eq!(redact("short, and long enough"), "short, and [redacted]");
    }

    #[test]
    fn the_credentials_of_a_url_are_secrets() {
        let url = "http://user:p%40ssword@host/?v=2024-05-01&key=abcd&x=0123456789abcdefghij";
        let mut secrets = Secrets::default();
        secrets.add_url(&Url::parse(url).expect("a URL"));
        let text = "user p@ssword p%40ssword 2024-05-01 abcd 0123456789abcdefghij";
        let expected = "user [redacted] [redacted] 2024-05-01 [redacted] [redacted]";
        assert_eq!(secrets.redact(text), expected);
        let mut secrets = Secrets::default();
        secrets.add_url(&Url::parse("http://token@host").expect("a URL"));
        assert_eq!(secrets.redact("token"), REDACTED);
        let mut secrets = Secrets::default();
        secrets.add_url(&Url::parse("http://host/?key=ab+c/d-e&&").expect("a URL"));
        for text in ["ab+c/d-e", "ab c/d-e", "ab+c%2Fd-e", "ab%20c%2Fd-e", "ab%2Bc%2Fd-e"] {
            assert_eq!(secrets.redact(text), REDACTED);
        }
    }

    #[test]
    fn names_of_secrets_are_distinguished_from_names_of_settings() {
        let secrets = ["api_key", "Authorization", "my-access-token", "password"];
        assert!(secrets.into_iter().all(is_secret_name));
        let settings = ["api_key_env", "answer_key", "eos_token", "max_tokens", "notpassword"];
        assert!(!settings.into_iter().any(is_secret_name));
        assert!(["key", "x-token", "api_key"].into_iter().all(is_secret_parameter));
        assert!(!["monkey", "api-version"].into_iter().any(is_secret_parameter));
    }
}
