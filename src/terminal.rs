//! Prints the output of the program.
//!
//! All text for the terminal is printed by this module, except progress bars and the help and usage errors of `clap`. Text from other
//! sources, such as server responses, dataset strings and file names, may contain control sequences that move the cursor or change earlier
//! output. These sequences are escaped. Secrets are redacted, except in the lines of [`JsonRows`]. A closed standard output or standard
//! error, for example after `| head`, is not an error: the run continues. Only [`JsonRows`] returns the error of a closed standard output.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, BufWriter, ErrorKind, Stdout, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use rollpacker_dataflow::clock::unix_seconds;
use rollpacker_stages::secret::redact;
use serde_json::{Map, Value, json};

/// `true` if progress, warnings and errors are JSON lines.
static JSON: AtomicBool = AtomicBool::new(false);

/// Prints warnings, errors and the progress of a run as JSON lines from now on: objects with `unix_s`, `level`, `message` and, for some
/// messages, further fields.
pub fn use_json_lines() {
    JSON.store(true, Ordering::Relaxed);
}

/// Returns `true` if [`use_json_lines`] was called.
#[must_use]
pub fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Returns a message as a JSON line, with further fields. The prefix of the message determines the level and is removed: `error: `,
/// `warning: `, `note: `, `debug: ` or `trace: `. The level is `info` without a prefix.
#[must_use]
pub fn json_line(message: &str, fields: Map<String, Value>) -> String {
    const LEVELS: [(&str, &str); 5] = [
        ("error: ", "error"),
        ("warning: ", "warn"),
        ("note: ", "info"),
        ("debug: ", "debug"),
        ("trace: ", "trace"),
    ];
    let known = |(prefix, level)| Some((level, message.strip_prefix(prefix)?));
    let (level, message) = LEVELS.into_iter().find_map(known).unwrap_or(("info", message));
    let mut line = json!({"unix_s": unix_seconds(), "level": level, "message": message});
    if let Value::Object(line) = &mut line {
        line.extend(fields);
    }
    line.to_string()
}

/// Prints a line on standard output.
///
/// # Errors
///
/// If the line cannot be written, unless the reader has closed the stream.
pub fn print_line(line: &str) -> io::Result<()> {
    print(&format!("{line}\n"))
}

/// Prints text on standard output.
///
/// # Errors
///
/// If the text cannot be written, unless the reader has closed the stream.
pub fn print(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    let written = output.write_all(clean(text).as_bytes()).and_then(|()| output.flush());
    unless_closed(written)
}

/// Prints a line on standard error, as a JSON line if [`use_json_lines`] was called. Write errors are ignored, because there is no place
/// left to report them.
pub fn warn(line: &str) {
    let line = if is_json() { json_line(line, Map::new()) } else { line.to_owned() };
    drop(io::stderr().write_all(clean(&format!("{line}\n")).as_bytes()));
}

/// Prints an error and its causes on standard error, as a JSON line if [`use_json_lines`] was called.
pub fn error(error: &anyhow::Error) {
    warn(&format!("error: {}", with_causes(error)));
}

/// Returns the message of an error, followed by the messages of its causes. A message that the text already contains is left out.
#[must_use]
pub fn with_causes(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |text, cause| {
        let cause = cause.to_string();
        if text.is_empty() {
            cause
        } else if text.contains(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    })
}

/// Returns a text as it is printed, with secrets redacted and control characters escaped.
#[must_use]
pub fn clean(text: &str) -> String {
    escape(&redact(text)).into_owned()
}

/// Escapes control characters other than line feeds and tabs. Also escapes characters that change the text direction.
///
/// The form is `\u001b`, which JSON parsers read as the same character.
#[must_use]
pub fn escape(text: &str) -> Cow<'_, str> {
    escape_where(text, |c| is_control(c) && !matches!(c, '\n' | '\t'))
}

/// Escapes a text that is part of a line, including its line feeds and tabs.
#[must_use]
pub fn escape_line(text: &str) -> Cow<'_, str> {
    escape_where(text, is_control)
}

fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escape_where(text: &str, escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&escaped) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !escaped(c) => shown.push(c),
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            // Writing to a text cannot fail.
            c => drop(write!(shown, "\\u{:04x}", u32::from(c))),
        }
    }
    shown.into()
}

/// Standard output for JSON rows. Control characters are escaped in a form that does not change the JSON values.
#[derive(Debug)]
pub struct JsonRows(BufWriter<Stdout>);

impl JsonRows {
    /// Creates a writer to standard output.
    #[must_use]
    pub fn new() -> Self {
        Self(BufWriter::new(io::stdout()))
    }
}

impl Default for JsonRows {
    fn default() -> Self {
        Self::new()
    }
}

impl Write for JsonRows {
    /// Writes a piece of text with control characters escaped. No piece ends within a character, because formatting writes complete
    /// strings.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        self.0.write_all(escape(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Returns the result of a write, where a closed stream counts as success.
fn unless_closed(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOREIGN: &str = "a\u{1b}[2J\u{7}\u{9b}31m\r\n\tb\u{202e}c\u{7f}é";

    #[test]
    fn a_cause_is_printed_once() {
        let cause = || io::Error::other("no such file");
        let outer = |text: &'static str| anyhow::Error::new(cause()).context(text);
        assert_eq!(with_causes(&outer("key `model.path`")), "key `model.path`: no such file");
        let repeated = outer("cannot read a: no such file").context("key `model.path`");
        assert_eq!(with_causes(&repeated), "key `model.path`: cannot read a: no such file");
    }

    #[test]
    fn control_characters_are_escaped() {
        let expected = "a\\u001b[2J\\u0007\\u009b31m\\u000d\n\tb\\u202ec\\u007fé";
        assert_eq!(escape(FOREIGN), expected);
        assert!(matches!(escape("plain é\n"), Cow::Borrowed(_)));
        assert_eq!(escape_line("a\n\tb\r"), "a\\n\\tb\\u000d");
    }

    #[test]
    fn escaped_json_has_the_same_values() {
        let json = serde_json::json!({ FOREIGN: FOREIGN });
        let escaped = escape(&json.to_string()).into_owned();
        assert!(!escaped.contains(is_control));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).expect("JSON"), json);
    }

    #[test]
    fn secrets_are_redacted() {
        rollpacker_stages::secret::register("key-of-the-terminal");
        assert_eq!(clean("my key-of-the-terminal\r"), "my [redacted]\\u000d");
    }

    #[test]
    fn a_json_line_has_the_level_of_its_prefix() {
        let fields = Map::from_iter([("step".to_owned(), json!(3))]);
        let line = json_line("warning: a\nb: \"c\"", fields);
        assert!(!line.contains('\n'));
        let mut line: Value = serde_json::from_str(&line).expect("JSON");
        assert!(line["unix_s"].take().as_f64().is_some_and(|seconds| seconds > 1.6e9));
        let expected =
            json!({"unix_s": null, "level": "warn", "message": "a\nb: \"c\"", "step": 3});
        assert_eq!(line, expected);
        assert!(json_line("step", Map::new()).contains("\"level\":\"info\""));
    }

    #[test]
    fn a_closed_pipe_is_not_an_error() {
        assert!(unless_closed(Err(ErrorKind::BrokenPipe.into())).is_ok());
        assert!(unless_closed(Err(ErrorKind::StorageFull.into())).is_err());
    }
}
