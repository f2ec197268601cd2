//! Columns of chat messages, with several messages per row.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{Array, StringArray};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use serde_json::Value;

use crate::defect::{DefectKind, RowDefect};
use crate::error::text_error;
use crate::message::MessageRef;
use crate::segment::index_u32;

/// The chat messages of some rows.
#[derive(Debug)]
pub(crate) struct Messages {
    /// The name of the column, for errors.
    pub(crate) column: Arc<str>,
    pub(crate) offsets: OffsetBuffer<i32>,
    pub(crate) nulls: Option<NullBuffer>,
    /// If `None`, all messages have the role `user`.
    pub(crate) roles: Option<StringArray>,
    pub(crate) contents: StringArray,
}

const MESSAGES: &str = "at least one message with role and content";
const CONTENT: &str = "a role and a content in every message";
pub(crate) const NO_CALLS: &str = "messages without `tool_calls`, which are not supported";
const TEXT_CONTENT: &str =
    "messages whose `content` is text, or a list of parts of the type `text`";
const PROMPT: &str = "messages, JSON of messages, or text";

impl Messages {
    /// Returns the messages of a row. For a defective row, returns those that exist.
    pub(crate) fn row(
        &self,
        index: usize,
    ) -> impl ExactSizeIterator<Item = MessageRef<'_>> + Clone {
        self.range(index).map(|at| MessageRef {
            role: self.roles.as_ref().map_or("user", |roles| roles.value(at)),
            content: self.contents.value(at),
        })
    }

    /// Returns the defect of a row, if it cannot be a prompt.
    pub(crate) fn defect(&self, index: usize) -> Option<RowDefect> {
        let wrong =
            |kind, expected, found: &str| Some(RowDefect::new(kind, &self.column, expected, found));
        let range = self.range(index);
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(index)) {
            return wrong(DefectKind::NullPrompt, MESSAGES, "null");
        }
        if range.is_empty() {
            return wrong(DefectKind::EmptyPrompt, MESSAGES, "none");
        }
        if self.contents.null_count() > 0 && range.clone().any(|at| self.contents.is_null(at)) {
            return wrong(DefectKind::NullContent, CONTENT, "a null content");
        }
        if self
            .roles
            .as_ref()
            .is_some_and(|roles| range.clone().any(|at| roles.value(at).is_empty()))
        {
            return wrong(DefectKind::MissingRole, CONTENT, "no role");
        }
        let blank = range.clone().all(|at| is_blank(self.contents.value(at)));
        if blank {
            wrong(DefectKind::EmptyPrompt, "a prompt that is not blank", "only blank content")
        } else {
            None
        }
    }

    #[inline]
    fn range(&self, index: usize) -> std::ops::Range<usize> {
        self.offsets[index] as usize..self.offsets[index + 1] as usize
    }
}

/// The column whose texts must be JSON messages. A text of another column may be the prompt itself.
const JSON_COLUMN: &str = "messages";

/// Returns `true` for blank text. The first byte is a fast path that decides nearly every text.
fn is_blank(text: &str) -> bool {
    !text.as_bytes().first().is_some_and(u8::is_ascii_graphic) && text.trim_start().is_empty()
}

/// Converts a text column to messages. Also returns the rows whose text is rejected, each with its defect. Each text is converted as by
/// [`MessagesBuilder::push_text`]. The column is not copied if its name is not `messages` and no text begins with `[`: every text is then a
/// user message.
pub(crate) fn text_messages(
    text: &StringArray,
    column: &Arc<str>,
) -> (Messages, Vec<(u32, RowDefect)>) {
    let is_plain = |text: &str| !text.trim_start().starts_with('[');
    if &**column == JSON_COLUMN || !text.iter().flatten().all(is_plain) {
        return parsed_messages(text, column);
    }
    let messages = Messages {
        column: column.clone(),
        offsets: OffsetBuffer::from_lengths(std::iter::repeat_n(1, text.len())),
        nulls: text.nulls().cloned(),
        roles: None,
        contents: text.clone(),
    };
    (messages, Vec::new())
}

fn parsed_messages(text: &StringArray, column: &Arc<str>) -> (Messages, Vec<(u32, RowDefect)>) {
    let mut builder = MessagesBuilder::new(column.clone());
    let mut bad = Vec::new();
    for (index, text) in text.iter().enumerate() {
        let pushed = match text {
            Some(text) => builder.push_text(text),
            None => builder.push(&Value::Null),
        };
        bad.extend(pushed.err().map(|defect| (index_u32(index), defect)));
    }
    (builder.finish(), bad)
}

#[derive(Debug)]
pub(crate) struct MessagesBuilder {
    column: Arc<str>,
    lengths: Vec<usize>,
    valid: Vec<bool>,
    roles: StringBuilder,
    contents: StringBuilder,
}

impl MessagesBuilder {
    pub(crate) fn new(column: Arc<str>) -> Self {
        let (roles, contents) = (StringBuilder::new(), StringBuilder::new());
        Self { column, lengths: Vec::new(), valid: Vec::new(), roles, contents }
    }

    /// Adds a row: an array of messages, text, or null. Any other value adds an empty row. The content of a message is text, or a list of
    /// OpenAI's parts of the type `text`, whose texts are joined.
    ///
    /// # Errors
    ///
    /// If the value is none of these, has a message with `tool_calls`, or is a text that [`push_text`](Self::push_text) rejects.
    pub(crate) fn push(&mut self, value: &Value) -> Result<(), RowDefect> {
        match value {
            Value::Null => self.end(false, 0),
            Value::String(text) => return self.push_text(text),
            Value::Array(messages) if messages.iter().all(is_message) => {
                return self.push_messages(messages);
            }
            Value::Array(messages) if messages.iter().all(Value::is_object) => {
                let wrong = messages.iter().find(|message| !has_text_content(message));
                let found = wrong.and_then(|message| message.get("content"));
                return match found {
                    Some(content) => self.refuse(TEXT_CONTENT, describe(content)),
                    None => self.refuse(PROMPT, describe(value)),
                };
            }
            _ => return self.refuse(PROMPT, describe(value)),
        }
        Ok(())
    }

    /// Adds a row of text. JSON of messages, as [`messages_in_text`] defines it, is parsed. Any other text becomes one user message.
    ///
    /// In a column named `messages`, every array of objects counts as messages, and any other text is rejected. Messages whose role or
    /// content is no text, and messages with `tool_calls`, are rejected in any column. A rejected text adds an empty row.
    pub(crate) fn push_text(&mut self, text: &str) -> Result<(), RowDefect> {
        if &*self.column == JSON_COLUMN {
            return match object_array(text) {
                Ok(messages) => self.push(&messages.into()),
                Err(found) => self.refuse("a JSON array of messages", found),
            };
        }
        if let Some(messages) = messages_in_text(text) {
            return self.push(&messages.into());
        }
        self.append(None, Some(text));
        self.end(true, 1);
        Ok(())
    }

    pub(crate) fn finish(self) -> Messages {
        let Self { column, lengths, valid, mut roles, mut contents } = self;
        let nulls = valid.contains(&false).then(|| NullBuffer::from(valid));
        let offsets = OffsetBuffer::from_lengths(lengths);
        Messages {
            column,
            offsets,
            nulls,
            roles: Some(roles.finish()),
            contents: contents.finish(),
        }
    }

    fn push_messages(&mut self, messages: &[Value]) -> Result<(), RowDefect> {
        // A message has a role and a content only. Without its calls, the text for the model would be another one.
        if let Some(calls) = messages.iter().find_map(tool_calls) {
            return self.refuse(NO_CALLS, describe(calls));
        }
        for message in messages {
            self.append(
                Some(message["role"].as_str().unwrap_or_default()),
                message.get("content").and_then(content_text).as_deref(),
            );
        }
        self.end(true, messages.len());
        Ok(())
    }

    fn append(&mut self, role: Option<&str>, content: Option<&str>) {
        self.roles.append_value(role.unwrap_or("user"));
        self.contents.append_option(content);
    }

    fn end(&mut self, valid: bool, length: usize) {
        self.lengths.push(length);
        self.valid.push(valid);
    }

    fn refuse(&mut self, expected: &'static str, found: String) -> Result<(), RowDefect> {
        self.end(true, 0);
        Err(RowDefect::value(&self.column, expected, found))
    }
}

/// Parses a prompt that is messages as JSON text, such as `[{"role": "user", "content": "2+2?"}]`. Returns `None` for any other text, which
/// is the question of a user itself.
///
/// Messages are an array of objects, of which at least one has a `role` or a `content`. The types of these fields are not checked.
///
/// ```
/// use rollpacker_datasets::messages_in_text;
///
/// assert!(messages_in_text(r#"[{"role": "user", "content": "2+2?"}]"#).is_some());
/// assert!(messages_in_text("[1, 2]").is_none());
/// ```
#[must_use]
pub fn messages_in_text(text: &str) -> Option<Vec<Value>> {
    object_array(text).ok().filter(|messages| messages.iter().any(has_message_field))
}

/// Counts the rows whose messages end with a message of the assistant, which usually contains the answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Endings {
    rows: u64,
    with_assistant: u64,
}

impl Endings {
    /// Adds a row by the role of its last message. A row without messages does not count.
    pub(crate) fn add(&mut self, last_role: Option<&str>) {
        self.rows += u64::from(last_role.is_some());
        self.with_assistant += u64::from(last_role == Some(ASSISTANT));
    }

    /// Adds a row by its value: an array of messages, or an array of messages as text.
    pub(crate) fn add_value(&mut self, value: &Value) {
        let role = |messages: &[Value]| Some(messages.last()?.get("role")?.as_str()?.to_owned());
        let role = match value {
            Value::Array(messages) => role(messages),
            Value::String(text) => messages_in_text(text).and_then(|messages| role(&messages)),
            _ => None,
        };
        self.add(role.as_deref());
    }

    /// Returns `true` if more than half of the rows end with a message of the assistant.
    pub(crate) fn are_answers(self) -> bool {
        2 * self.with_assistant > self.rows
    }
}

/// The role of the model.
pub(crate) const ASSISTANT: &str = "assistant";

/// Parses a JSON array of objects. Returns a description of any other text.
fn object_array(text: &str) -> Result<Vec<Value>, String> {
    if !text.trim_start().starts_with('[') {
        return Err("text".to_owned());
    }
    let array: Vec<Value> = serde_json::from_str(text).map_err(|error| text_error(&error))?;
    let are_objects = array.iter().all(Value::is_object);
    are_objects.then_some(array).ok_or_else(|| "an array of other values".to_owned())
}

/// Returns the calls of tools in a message; `None` if it has none.
fn tool_calls(message: &Value) -> Option<&Value> {
    let calls = message.get("tool_calls").filter(|calls| !calls.is_null())?;
    calls.as_array().is_none_or(|calls| !calls.is_empty()).then_some(calls)
}

/// Returns `true` for an object whose role is text and whose content has a [text](content_text), if they are present. Nulls are reported
/// later.
fn is_message(value: &Value) -> bool {
    let is_role = |role: &Value| role.is_string() || role.is_null();
    value.is_object() && value.get("role").is_none_or(is_role) && has_text_content(value)
}

fn has_text_content(message: &Value) -> bool {
    let is_text = |content: &Value| content.is_null() || content_text(content).is_some();
    message.get("content").is_none_or(is_text)
}

/// Returns the text of a content: the content itself, or the joined texts of its parts. Returns `None` for other values, such as parts that
/// are images.
fn content_text(content: &Value) -> Option<Cow<'_, str>> {
    let part_text = |part: &'_ Value| -> Option<String> {
        part.get("type").filter(|kind| *kind == "text")?;
        Some(part.get("text")?.as_str()?.to_owned())
    };
    match content {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Array(parts) if !parts.is_empty() => {
            parts.iter().map(part_text).collect::<Option<String>>().map(Cow::Owned)
        }
        _ => None,
    }
}

fn has_message_field(value: &Value) -> bool {
    value.get("role").is_some() || value.get("content").is_some()
}

/// Formats a JSON value for an error message, truncated to 60 characters.
pub(crate) fn describe(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_parts_of_a_content_are_joined() {
        let mut builder = MessagesBuilder::new("messages".into());
        let with = |parts: Value| json!([{"role": "user", "content": parts}]);
        let text = |text: &str| json!({"type": "text", "text": text});
        builder.push(&with(json!([text("1+"), text("1?")]))).expect("text");
        builder.push_text(&with(json!([text("2?")])).to_string()).expect("text");
        for wrong in [json!([{"type": "image_url"}]), json!([text("a"), "b"]), json!([]), json!(3)]
        {
            let error = builder.push(&with(wrong.clone())).expect_err("no text");
            assert_eq!((error.expected, error.found), (TEXT_CONTENT, wrong.to_string()));
        }
        let messages = builder.finish();
        let contents = [0, 1].map(|row| messages.row(row).next().expect("a message").content);
        assert_eq!(contents, ["1+1?", "2?"]);
    }

    #[test]
    fn messages_with_tool_calls_are_refused() {
        let with =
            |calls: Value| json!([{"role": "assistant", "content": "", "tool_calls": calls}]);
        for column in ["prompt", "messages"] {
            let mut builder = MessagesBuilder::new(column.into());
            let call = json!([{"function": {"name": "add"}}]);
            for pushed in
                [builder.push(&with(call.clone())), builder.push_text(&with(call).to_string())]
            {
                let error = format!("{:?}", pushed.expect_err("has a call"));
                assert!(error.contains("without `tool_calls`"), "{error}");
            }
            for none in [Value::Null, json!([])] {
                builder.push(&with(none)).expect("no call");
            }
            let messages = builder.finish();
            assert_eq!((0..4).map(|row| messages.row(row).len()).collect::<Vec<_>>(), [0, 0, 1, 1]);
        }
    }
}
