//! Secrets: keys and passwords, which must not be printed or written.
//!
//! A component that uses a secret [registers](register) it, and a component that prints or writes external text passes it through
//! [`redact`]. Servers repeat the headers of requests in their errors, and programs repeat their environment. Redaction therefore searches
//! for the text of the secret, wherever it comes from.

use std::borrow::Cow;
use std::sync::{PoisonError, RwLock};

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::Value;
use url::Url;

/// The replacement for a secret.
pub const REDACTED: &str = "[redacted]";
/// The minimum length of a secret in bytes. Shorter texts occur by chance in ordinary text.
const MIN_SECRET_BYTES: usize = 4;
/// The minimum length in bytes of a secret that is redacted everywhere. A shorter secret is redacted only in the answers of the server that
/// received it.
const MIN_GLOBAL_SECRET_BYTES: usize = 8;
/// The length in bytes from which a value in the query of a URL counts as a secret, regardless of the name of its parameter.
const MIN_KEY_VALUE_BYTES: usize = 20;

static REGISTERED: RwLock<Secrets> = RwLock::new(Secrets(Vec::new()));

/// A set of secrets to redact.
#[derive(Clone, Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// Adds a secret, also in the forms that it has in JSON, encoded in a URL and decoded from a URL. Forms of fewer than 4 bytes are
    /// ignored.
    pub fn add(&mut self, secret: &str) {
        let json = Value::from(secret).to_string();
        let forms: [Cow<'_, str>; 4] = [
            secret.into(),
            json[1..json.len() - 1].into(),
            utf8_percent_encode(secret, NON_ALPHANUMERIC).into(),
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
        for (name, value) in url.query_pairs() {
            if is_secret_parameter(&name) || value.len() >= MIN_KEY_VALUE_BYTES {
                self.add(&value);
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
        self.0.iter().fold(Cow::Borrowed(text), |text, secret| match text.contains(secret) {
            true => text.replace(secret, REDACTED).into(),
            false => text,
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
        Cow::Borrowed(text) => without_secrets_of_urls(text),
        Cow::Owned(text) => without_secrets_of_urls(&text).into_owned().into(),
    }
}

/// Returns the first `length` characters of a text, trimmed and without secrets. A secret at the cut is replaced too, since the text is
/// redacted before it is cut.
#[must_use]
pub fn quote(text: &str, length: usize) -> String {
    redact(text).trim().chars().take(length).collect()
}

/// Returns a URL without its credentials: user information and the values of its query are replaced. A URL with such parts that cannot be
/// parsed is replaced as a whole. Any other text is unchanged.
///
/// ```
/// use rollpacker_stages::secret::without_credentials;
///
/// let url = "https://user:password@host/v1?key=value";
/// assert_eq!(without_credentials(url), "https://[redacted]@host/v1?key=[redacted]");
/// assert_eq!(without_credentials("https://host/v1"), "https://host/v1");
/// ```
#[must_use]
pub fn without_credentials(text: &str) -> Cow<'_, str> {
    let is_url = text.contains("://") && !text.contains(char::is_whitespace);
    if !is_url || !text.contains(['@', '?', '#']) {
        return text.into();
    }
    let Ok(url) = Url::parse(text) else { return REDACTED.into() };
    if url.username().is_empty() && url.password().is_none() && url.query().is_none() {
        return text.into();
    }
    let (before, query) = text.split_once('?').unwrap_or((text, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs: Vec<String> = pairs.map(|pair| format!("{}{REDACTED}", name_of(pair))).collect();
    let mark = if pairs.is_empty() { "" } else { "?" };
    format!("{}{mark}{}", without_secrets_of_urls(before), pairs.join("&")).into()
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

/// Returns a command without its secrets: the values of flags and variables whose names indicate secrets, and the credentials of URLs. An
/// argument of several words, such as a script, is treated like a command.
///
/// ```
/// use rollpacker_stages::secret::without_command_secrets;
///
/// let command = ["serve", "--api-key", "value", "--hf-token=value", "--port", "80"].map(str::to_owned);
/// let expected = ["serve", "--api-key", "[redacted]", "--hf-token=[redacted]", "--port", "80"];
/// assert_eq!(without_command_secrets(&command), expected);
/// ```
#[must_use]
pub fn without_command_secrets(command: &[String]) -> Vec<String> {
    let mut shown: Vec<String> = Vec::with_capacity(command.len());
    for (at, argument) in command.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| command[before].as_str());
        shown.push(match secret_of(before, argument) {
            Some(secret) => {
                let name = &argument[..argument.len() - secret.len()];
                format!("{name}{REDACTED}")
            }
            None if argument.contains(' ') => {
                without_command_secrets(&split_words(argument)).join(" ")
            }
            None => without_credentials(argument).into_owned(),
        });
    }
    shown
}

/// Returns the secrets that [`without_command_secrets`] replaces, except secrets in URLs.
#[must_use]
pub fn command_secrets(command: &[String]) -> Vec<String> {
    let mut secrets = Vec::new();
    for (at, argument) in command.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| command[before].as_str());
        match secret_of(before, argument) {
            Some(secret) => secrets.push(secret.trim_matches(['"', '\'']).to_owned()),
            None if argument.contains(' ') => {
                secrets.extend(command_secrets(&split_words(argument)))
            }
            None => {}
        }
    }
    secrets
}

fn split_words(argument: &str) -> Vec<String> {
    argument.split(' ').map(str::to_owned).collect()
}

/// Returns the part of an argument that is a secret: the value of `NAME=VALUE`, or the whole argument after the flag `--NAME`. `None` if
/// the argument has no secret.
fn secret_of<'a>(before: Option<&str>, argument: &'a str) -> Option<&'a str> {
    // The value of a flag may have several words. A script that begins with an assignment has other words after its value.
    let is_one = argument.starts_with('-') || !argument.contains(' ');
    let assigned = argument.split_once('=').filter(|(name, _)| is_one && !name.contains(' '));
    if let Some((_, value)) = assigned.filter(|(name, _)| is_secret_parameter(name)) {
        return Some(value).filter(|value| !value.is_empty());
    }
    let is_flag = |flag: &&str| flag.starts_with('-') && is_secret_parameter(flag);
    before.filter(is_flag).map(|_| argument).filter(|value| !value.starts_with('-'))
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

/// Returns the name of a parameter with its `=`; empty if the parameter has only a value.
fn name_of(pair: &str) -> &str {
    pair.find('=').map_or("", |end| &pair[..=end])
}

/// Replaces the user information in every URL of a text, and the values of query parameters whose names indicate secrets.
fn without_secrets_of_urls(text: &str) -> Cow<'_, str> {
    const SCHEME: &str = "://";
    let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '`' | '\'' | '<' | '>');
    let mut kept = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find(SCHEME) {
        let (before, after) = rest.split_at(begin + SCHEME.len());
        let (url, rest_of_line) = after.split_at(after.find(is_end).unwrap_or(after.len()));
        kept.push_str(before);
        kept.push_str(&without_user_information(url));
        rest = rest_of_line;
    }
    if kept.is_empty() {
        return text.into();
    }
    kept.push_str(rest);
    kept.into()
}

/// Redacts the part of a URL after its scheme: the user information, and the values of parameters whose names indicate secrets.
fn without_user_information(url: &str) -> String {
    let (authority, path) = url.split_at(url.find(['/', '?', '#']).unwrap_or(url.len()));
    let host = authority.rfind('@').map(|at| format!("{REDACTED}{}", &authority[at..]));
    let pair = |pair: &str| match pair.split_once('=') {
        Some((name, _)) if is_secret_parameter(name) => format!("{name}={REDACTED}"),
        _ => pair.to_owned(),
    };
    let path = match path.split_once('?') {
        Some((path, query)) => {
            format!("{path}?{}", query.split('&').map(pair).collect::<Vec<_>>().join("&"))
        }
        None => path.to_owned(),
    };
    format!("{}{path}", host.as_deref().unwrap_or(authority))
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
    fn a_command_is_shown_without_secrets() {
        let shown = |command: &[&str]| {
            let command: Vec<String> = command.iter().map(|&text| text.to_owned()).collect();
            (without_command_secrets(&command).join("|"), command_secrets(&command).join("|"))
        };
        let of = |shown: &str, secrets: &str| (shown.to_owned(), secrets.to_owned());
        let script = "API_KEY=abc exec serve --hf-token 'def' http://u:p@h";
        let expected =
            "sh|-c|API_KEY=[redacted] exec serve --hf-token [redacted] http://[redacted]@h";
        assert_eq!(shown(&["sh", "-c", script]), of(expected, "abc|def"));
        assert_eq!(shown(&["--api-key-env", "NAME"]), of("--api-key-env|NAME", ""));
        assert_eq!(shown(&["--auth", "--port", "1"]), of("--auth|--port|1", ""));
        assert_eq!(shown(&["--api-key=a=b"]), of("--api-key=[redacted]", "a=b"));
        assert_eq!(shown(&["--api-key=", "x"]), of("--api-key=|x", ""));
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
    }

    #[test]
    fn user_information_is_left_out_of_every_url() {
        let text = "`http://u:p@a/x@y` and https://b/@me, at c://d@e:1?f, i://j?a=1&key=2 k";
        let expected = "`http://[redacted]@a/x@y` and https://b/@me, at c://[redacted]@e:1?f, i://j?a=1&key=[redacted] k";
        assert_eq!(redact(text), expected);
        for text in ["a@b", "://", "http://h?", "x://y/?&"] {
            assert_eq!(redact(text), text);
        }
    }

    #[test]
    fn a_recorded_url_has_no_credentials() {
        for (url, expected) in [
            ("http://u:p@h:1/v1", "http://[redacted]@h:1/v1"),
            ("http://h/v1?abc", "http://h/v1?[redacted]"),
            ("http://h/v1?a=b&c=d#e", "http://h/v1?a=[redacted]&c=[redacted]"),
            ("http://h/@me", "http://h/@me"),
            ("http://u:p/w@h:x/", REDACTED),
            ("see http://u:p@h", "see http://u:p@h"),
            ("data/train?.parquet", "data/train?.parquet"),
        ] {
            assert_eq!(without_credentials(url), expected);
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
