//! Secrets: keys and passwords, which must not be printed or written.
//!
//! A component that uses a secret [registers](register) it, and a component that prints or writes external text passes it through
//! [`redact`]. Servers repeat the headers of requests in their errors, and programs repeat their environment. Redaction therefore searches
//! for the text of the secret, wherever it comes from.

use std::borrow::Cow;
use std::sync::{PoisonError, RwLock};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::Value;
use url::Url;
use url::form_urlencoded::byte_serialize;

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
/// The text between the scheme of a URL and the rest of it.
const AFTER_SCHEME: &str = "://";

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

/// Registers the secrets of a command for the lifetime of the process: those that [`without_command_secrets`] replaces.
pub fn register_command(command: &[String]) {
    let mut secrets = Secrets::default();
    command_secrets(command).iter().for_each(|secret| secrets.add(secret));
    command.iter().flat_map(|argument| urls(argument)).for_each(|url| secrets.add_url(&url));
    secrets.register();
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

/// Returns a text without the credentials of its URLs. If the text has no spaces, the user information and all values of the queries are
/// replaced; a text with such parts is replaced as a whole if its first URL cannot be parsed. In another text, the user
/// information of URLs and the values of parameters whose names indicate secrets are replaced.
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
    if text.contains(char::is_whitespace) {
        return redact_urls(text, without_named_values);
    }
    let Some(scheme_end) = text.find(AFTER_SCHEME) else { return text.into() };
    if !text.contains(['@', '?', '#']) {
        return text.into();
    }
    if Url::parse(&text[without_scheme(&text[..scheme_end]).len()..]).is_err() {
        return REDACTED.into();
    }
    redact_urls(text, |query| {
        let Some(pairs) = query.strip_prefix('?') else { return without_named_values(query) };
        let pairs = pairs.split('&').filter(|pair| !pair.is_empty());
        let pairs: Vec<_> = pairs.map(|pair| format!("{}{REDACTED}", name_of(pair))).collect();
        format!("?{}", pairs.join("&"))
    })
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
                format!("{}{REDACTED}", without_credentials(name))
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
fn command_secrets(command: &[String]) -> Vec<String> {
    let mut secrets = Vec::new();
    for (at, argument) in command.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| command[before].as_str());
        match secret_of(before, argument) {
            Some(secret) => secrets.push(unquoted(secret).to_owned()),
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

/// Returns the part of an argument that is a secret: what follows the `=` or `:` after the name of a secret, or the whole argument after a
/// flag with such a name, a header or the name of an authentication scheme. `None` if the argument has no secret.
fn secret_of<'a>(before: Option<&str>, argument: &'a str) -> Option<&'a str> {
    let follows = before.filter(|before| is_before_secret(before)).filter(|_| !is_flag(argument));
    named_value(argument).or(follows.map(|_| argument))
}

/// Returns the text after the `=` or `:` that follows the first name of a secret; `None` if there is no such text.
fn named_value(argument: &str) -> Option<&str> {
    // The value of a flag may have several words. A script that begins with an assignment has other words after its value.
    if argument.contains(' ') && !argument.starts_with('-') {
        return None;
    }
    let value = |(at, separator): (usize, &str)| {
        let name = argument[..at].rsplit([',', ';', '{', '=', ':', ' ']).next()?;
        let value = &argument[at + separator.len()..];
        (is_secret_parameter(unquoted(name)) && !value.is_empty()).then_some(value)
    };
    argument.match_indices(['=', ':']).find_map(value)
}

/// Returns `true` if the argument after this one is a secret.
fn is_before_secret(argument: &str) -> bool {
    let word = unquoted(argument);
    let last = word.rsplit(['=', ':']).next().unwrap_or_default();
    last == "Basic"
        || last.eq_ignore_ascii_case("bearer")
        || (argument.starts_with('-') && is_secret_parameter(argument))
        || word.strip_suffix(':').is_some_and(|name| is_secret_parameter(unquoted(name)))
}

/// Returns `true` if an argument is a flag: `-` with one character, or `--` with words in lower case. Any other argument that begins with
/// `-` may be the value of a flag, such as a key.
fn is_flag(argument: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    match argument.strip_prefix("--") {
        Some(name) => name.split('=').next().is_some_and(|name| name.chars().all(is_part)),
        None => argument.strip_prefix('-').is_some_and(|name| name.chars().count() == 1),
    }
}

/// Returns a name or value without the quotes and braces around it.
fn unquoted(text: &str) -> &str {
    text.trim_matches(['"', '\'', '{', '}'])
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

/// Returns the URLs in a text.
fn urls(text: &str) -> impl Iterator<Item = Url> {
    text.match_indices(AFTER_SCHEME).filter_map(|(at, _)| {
        let begin = without_scheme(&text[..at]).len();
        let end = text[at..].find(is_url_end).map_or(text.len(), |length| at + length);
        Url::parse(&text[begin..end]).ok()
    })
}

/// Removes the scheme of a URL from the end of the text before its `://`.
fn without_scheme(before: &str) -> &str {
    before.trim_end_matches(|c: char| c.is_ascii_alphanumeric())
}

fn is_url_end(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '`' | '\'' | '<' | '>')
}

/// Replaces the user information in every URL of a text, also in a URL that follows or is part of another one. `redact_query` redacts the
/// query and fragment of a URL, with the mark before them.
fn redact_urls(text: &str, redact_query: impl Fn(&str) -> String) -> Cow<'_, str> {
    let mut parts = text.split(AFTER_SCHEME).peekable();
    let mut kept = parts.next().unwrap_or_default().to_owned();
    if parts.peek().is_none() {
        return text.into();
    }
    while let Some(part) = parts.next() {
        let mut end = part.find(is_url_end).unwrap_or(part.len());
        if parts.peek().is_some() {
            // The part ends with the scheme of the next URL.
            end = end.min(without_scheme(part).trim_end_matches([',', ';']).len());
        }
        let (url, rest) = part.split_at(end);
        let (user, url) = url.split_at(user_information(url));
        let (host, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
        let user = if user.is_empty() { "" } else { REDACTED };
        for text in [AFTER_SCHEME, user, host, &redact_query(query), rest] {
            kept += text;
        }
    }
    kept.into()
}

/// Returns the length of the user information in a URL, which begins after the scheme; 0 if it has none. The user information ends at the
/// last `@` before the first `/`, `?` or `#`. If there is no such `@`, a password may contain one of these characters: if the host seems to
/// have a port that is not a number, the user information ends at the last `@` of the URL.
fn user_information(url: &str) -> usize {
    let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
    let port = authority.rsplit_once(':').filter(|_| !authority.starts_with('['));
    let is_host = port.is_none_or(|(_, port)| port.chars().all(|digit| digit.is_ascii_digit()));
    let searched = if is_host { authority } else { url };
    authority.rfind('@').or_else(|| searched.rfind('@')).unwrap_or(0)
}

/// Redacts the values of a query and a fragment whose names indicate secrets.
fn without_named_values(query: &str) -> String {
    let part = |part: &str| match part.split_once('=') {
        Some((name, value)) if is_secret_parameter(name) => {
            let end = value.trim_end_matches(is_separator).len();
            format!("{name}={REDACTED}{}", &value[end..])
        }
        _ => part.to_owned(),
    };
    query.split_inclusive(is_separator).map(part).collect()
}

fn is_separator(c: char) -> bool {
    matches!(c, '?' | '&' | '#' | ';')
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
        assert_eq!(shown(&["--auth", "-v", "--a_b=1"]), of("--auth|-v|--a_b=1", ""));
        for value in ["-abc", "--Abc", "--/abc="] {
            assert_eq!(shown(&["--api-key", value, "-v"]), of("--api-key|[redacted]|-v", value));
        }
        for (argument, expected, secrets) in [
            ("x-api-key:abc", "x-api-key:[redacted]", "abc"),
            ("X-Api-Key: abc", "X-Api-Key: [redacted]", "abc"),
            ("'Authorization: Bearer abc'", "'Authorization: [redacted] [redacted]", "Bearer|abc"),
            (
                "--header=Authorization: Bearer abc",
                "--header=Authorization:[redacted]",
                " Bearer abc",
            ),
            ("HEADERS=a=1,api-key=abc", "HEADERS=a=1,api-key=[redacted]", "abc"),
            (r#"{"a":1,"api_key":"abc"}"#, r#"{"a":1,"api_key":[redacted]"#, "abc"),
            (r#"{"api_key": "abc"}"#, r#"{"api_key": [redacted]"#, "abc"),
            ("--url=http://u:p@h,key=abc", "--url=http://[redacted]@h,key=[redacted]", "abc"),
            ("--peers=http://a,http://u:p@b", "--peers=http://a,http://[redacted]@b", ""),
        ] {
            assert_eq!(shown(&[argument]), of(expected, secrets));
        }
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
        let mut secrets = Secrets::default();
        secrets.add_url(&Url::parse("http://host/?key=ab+c/d-e&&").expect("a URL"));
        for text in ["ab+c/d-e", "ab c/d-e", "ab+c%2Fd-e", "ab%20c%2Fd-e", "ab%2Bc%2Fd-e"] {
            assert_eq!(secrets.redact(text), REDACTED);
        }
    }

    #[test]
    fn the_secrets_of_a_command_are_registered_also_in_urls() {
        let url = "--peers=http://a,http://user:password-of-peer@b/?key=key+of+peer";
        register_command(&[url.to_owned(), "--api-key".to_owned(), "-key-of-command".to_owned()]);
        for text in ["password-of-peer", "key+of+peer", "key of peer", "-key-of-command"] {
            assert_eq!(redact(text), REDACTED);
        }
    }

    #[test]
    fn user_information_is_left_out_of_every_url() {
        let text = "`http://u:p@a/x@y` and https://b/@me, at c://d@e:1?f, i://j?a=1&key=2 k";
        let expected = "`http://[redacted]@a/x@y` and https://b/@me, at c://[redacted]@e:1?f, i://j?a=1&key=[redacted] k";
        assert_eq!(redact(text), expected);
        for (text, expected) in [
            ("http://a,http://u:p@b", "http://a,http://[redacted]@b"),
            (
                "http://a?key=1,http://b?x=http://u:p@c",
                "http://a?key=[redacted],http://b?x=http://[redacted]@c",
            ),
            ("http://u:p/?#@w@h:1/x?key=1", "http://[redacted]@h:1/x?key=[redacted]"),
            ("http://h/#access_token=1&x=2", "http://h/#access_token=[redacted]&x=2"),
        ] {
            assert_eq!(redact(text), expected);
        }
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
            ("http://a?x=1,http://u:p@b", "http://a?x=[redacted],http://[redacted]@b"),
            ("see http://u:p@h?a=1", "see http://[redacted]@h?a=1"),
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
