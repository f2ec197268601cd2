//! Secrets of commands: the values of flags and variables whose names indicate secrets.

use super::credentials::urls;
use super::{REDACTED, Secrets, is_secret_parameter, without_credentials};

/// Registers the secrets of a command for the lifetime of the process: those that [`without_command_secrets`] replaces.
pub fn register_command(command: &[String]) {
    let mut secrets = Secrets::default();
    command_secrets(command).iter().for_each(|secret| secrets.add(secret));
    command.iter().flat_map(|argument| urls(argument)).for_each(|url| secrets.add_url(&url));
    secrets.register();
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

#[cfg(test)]
mod tests {
    use super::super::redact;
    use super::*;

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
    fn the_secrets_of_a_command_are_registered_also_in_urls() {
        let url = "--peers=http://a,http://user:password-of-peer@b/?key=key+of+peer";
        register_command(&[url.to_owned(), "--api-key".to_owned(), "-key-of-command".to_owned()]);
        for text in ["password-of-peer", "key+of+peer", "key of peer", "-key-of-command"] {
            assert_eq!(redact(text), REDACTED);
        }
    }
}
