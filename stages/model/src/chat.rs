//! Chat templates, which turn messages into the text that a model expects.

use std::io;
use std::path::Path;

use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, Value, context};
pub use rollpacker_stages::reward::chat::Message;

use super::ModelError;
use super::json::{MAX_BYTES, Object};

/// The template with which a model expects its chats to be formatted.
///
/// Jinja templates are rendered as in transformers: blocks are trimmed, `tojson` does not escape HTML, and most methods of Python's
/// strings, lists and dicts are available. Templates may use the special tokens `bos_token`, `eos_token`, `pad_token` and `unk_token`, the
/// function `raise_exception`, and the tags `generation` and `endgeneration` around texts of the model.
///
/// `strftime_now` is undefined, because a prompt that contains the current date would be tokenized differently on another day. Llama's
/// templates test whether `strftime_now` is defined and fall back to a fixed date. Rendering fails for templates that require it.
///
/// Rendering also fails if a chat takes more than ten million template instructions, or its text is more than 64 MiB longer than the
/// contents of its messages. The size of values that a template computes and does not write is not limited, except that the repetition of a
/// string fails above 100 MB.
///
/// Without a template, the contents of the messages are concatenated and the roles are left out. Base models and the built-in task use
/// this.
#[derive(Debug)]
pub struct ChatTemplate {
    origin: String,
    environment: Option<Environment<'static>>,
    special_tokens: Vec<(&'static str, String)>,
}

const NAME: &str = "chat";
/// The maximum number of template instructions for a chat, which take about a second. Published templates take some hundred instructions
/// for a message.
const FUEL: u64 = 10_000_000;
/// The maximum length that a template may add to the contents of the messages, in bytes.
const MAX_ADDED_BYTES: usize = 64 << 20;
const SPECIAL_TOKENS: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

impl ChatTemplate {
    /// Returns a template that concatenates the contents of the messages.
    #[must_use]
    pub fn plain() -> Self {
        Self { origin: "plain".to_owned(), environment: None, special_tokens: Vec::new() }
    }

    /// Compiles a template. The special tokens are undefined in it, because they are read from a model folder.
    ///
    /// # Errors
    /// Returns an error if `source` is not valid Jinja.
    pub fn new(source: &str) -> Result<Self, ModelError> {
        Self::compile("a string", source.to_owned(), Vec::new())
    }

    /// Reads the template of a model folder.
    ///
    /// The source is the file `chat_template.jinja`. If it is missing, the source is the key `chat_template` of `tokenizer_config.json`: a
    /// string, or a list whose entry named `default` is used. Without both, the template is [`plain`](Self::plain).
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, `tokenizer_config.json` is not a JSON object or has a `chat_template` of neither form, or
    /// the template is not valid Jinja.
    pub fn from_folder(folder: &Path) -> Result<Self, ModelError> {
        let path = folder.join("tokenizer_config.json");
        let config = if path.exists() { Some(Object::read(&path)?) } else { None };
        let special_tokens = config.as_ref().map_or_else(Vec::new, special_tokens);
        let file = folder.join("chat_template.jinja");
        if file.exists() {
            let source = rollpacker_files::read_to_string(&file, MAX_BYTES)
                .map_err(ModelError::read(&file))?;
            return Self::compile(&file.display().to_string(), source, special_tokens);
        }
        match config.as_ref().map(template).transpose()?.flatten() {
            Some(source) => Self::compile(&path.display().to_string(), source, special_tokens),
            None => Ok(Self::plain()),
        }
    }

    /// Renders a chat. `add_generation_prompt` appends the text that starts the model's answer.
    ///
    /// # Errors
    /// Returns an error if the template fails, raises an exception, or exceeds the limit on its instructions or on the length of its text.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ModelError> {
        let Some(environment) = &self.environment else {
            return Ok(messages.iter().map(|message| message.content.as_str()).collect());
        };
        let special: Value =
            self.special_tokens.iter().map(|(key, token)| (*key, token.as_str())).collect();
        let chat =
            context! { messages, add_generation_prompt, tools => (), documents => (), ..special };
        let template = environment.get_template(NAME).map_err(|error| self.failed(&error))?;
        let contents: usize = messages.iter().map(|message| message.content.len()).sum();
        let limit = contents + MAX_ADDED_BYTES;
        let mut text = LimitedText { text: Vec::new(), limit, is_exceeded: false };
        let rendered = template.render_captured_to(chat, &mut text);
        if text.is_exceeded {
            let reason = format!("expected a text of at most {limit} bytes, found more");
            return Err(ModelError::Template { origin: self.origin.clone(), reason });
        }
        rendered.map_err(|error| self.failed(&error))?;
        Ok(String::from_utf8(text.text).expect("invariant: a template writes UTF-8"))
    }

    fn compile(
        origin: &str,
        source: String,
        special_tokens: Vec<(&'static str, String)>,
    ) -> Result<Self, ModelError> {
        let mut environment = environment();
        let compiled = environment.add_template_owned(NAME, with_known_tags(&source));
        compiled.map_err(|error| ModelError::Template {
            origin: origin.to_owned(),
            reason: reason(&error),
        })?;
        Ok(Self { origin: origin.to_owned(), environment: Some(environment), special_tokens })
    }

    fn failed(&self, error: &minijinja::Error) -> ModelError {
        ModelError::Template { origin: self.origin.clone(), reason: reason(error) }
    }
}

/// A text that grows up to a limit, in bytes. Writing more fails.
struct LimitedText {
    text: Vec<u8>,
    limit: usize,
    is_exceeded: bool,
}

impl io::Write for LimitedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > self.limit {
            self.is_exceeded = true;
            return Err(io::Error::other("the text is too long"));
        }
        self.text.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns an environment with the settings of transformers, and a limit on the template instructions.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", raise_exception);
    environment
}

fn raise_exception(reason: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, reason))
}

/// Replaces the tags `{% generation %}` and `{% endgeneration %}` by `{% with %}` and `{% endwith %}`.
///
/// Templates of transformers mark the assistant's text with these tags, which minijinja does not know. A `with` block without variables
/// renders its content unchanged, in a scope of its own.
fn with_known_tags(source: &str) -> String {
    let mut parts = source.split("{%");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let tag = part.split("%}").next().unwrap_or_default();
        let name = tag.trim_matches(|c: char| c.is_whitespace() || "+-".contains(c));
        text += "{%";
        match name {
            "generation" | "endgeneration" => text += &part.replacen("generation", "with", 1),
            _ => text += part,
        }
    }
    text
}

/// Formats a value as the filter `tojson` of transformers does: a space follows each colon and, without `indent`, each comma. HTML
/// characters are not escaped. The options are those of Python's `json.dumps` that transformers accepts.
fn to_json(value: &Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let failed =
        |error| minijinja::Error::new(ErrorKind::BadSerialization, "not JSON").with_source(error);
    let format = JsonFormat::of(&options)?;
    let mut out = String::new();
    format.dump(&serde_json::to_value(value).map_err(failed)?, 0, &mut out);
    Ok(out)
}

/// The options of the filter `tojson`.
struct JsonFormat {
    /// `true` to escape all characters outside of ASCII.
    ensure_ascii: bool,
    /// The number of spaces per level; `None` for a single line.
    indent: Option<usize>,
    /// The texts between items and between key and value.
    separators: (String, String),
    /// `true` to write the keys of objects in ascending order.
    sort_keys: bool,
}

impl JsonFormat {
    /// Reads the options. Returns an error if one is unknown or has another type.
    fn of(options: &Kwargs) -> Result<Self, minijinja::Error> {
        let indent: Option<usize> = options.get("indent")?;
        let separators: Option<Vec<String>> = options.get("separators")?;
        let separators = match separators.as_deref() {
            None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
            Some([item, key]) => (item.clone(), key.clone()),
            Some(_) => {
                let expected = "tojson: expected two texts as separators";
                return Err(minijinja::Error::new(ErrorKind::InvalidOperation, expected));
            }
        };
        let flag =
            |name| Ok::<_, minijinja::Error>(options.get::<Option<bool>>(name)? == Some(true));
        let format = Self {
            ensure_ascii: flag("ensure_ascii")?,
            indent,
            separators,
            sort_keys: flag("sort_keys")?,
        };
        options.assert_all_used().map(|()| format)
    }

    fn dump(&self, value: &serde_json::Value, depth: usize, out: &mut String) {
        match value {
            serde_json::Value::Array(items) if !items.is_empty() => {
                let item =
                    |item: &serde_json::Value, out: &mut String| self.dump(item, depth + 1, out);
                self.dump_items(('[', ']'), items.iter(), depth, out, item);
            }
            serde_json::Value::Object(fields) if !fields.is_empty() => {
                let field = |(key, value): (&String, &serde_json::Value), out: &mut String| {
                    self.dump(&serde_json::Value::from(key.as_str()), depth, out);
                    *out += &self.separators.1;
                    self.dump(value, depth + 1, out);
                };
                let mut fields: Vec<_> = fields.iter().collect();
                if self.sort_keys {
                    fields.sort_by_key(|(key, _)| *key);
                }
                self.dump_items(('{', '}'), fields.into_iter(), depth, out, field);
            }
            serde_json::Value::String(text) if self.ensure_ascii => {
                let escape = |unit: u16| match u8::try_from(unit) {
                    Ok(byte @ b' '..=b'~') => char::from(byte).to_string(),
                    _ => format!("\\u{unit:04x}"),
                };
                let quoted = serde_json::Value::from(text.as_str()).to_string();
                out.extend(quoted.encode_utf16().map(escape));
            }
            other => *out += &other.to_string(),
        }
    }

    fn dump_items<T>(
        &self,
        (open, close): (char, char),
        items: impl Iterator<Item = T>,
        depth: usize,
        out: &mut String,
        each: impl Fn(T, &mut String),
    ) {
        let line = |depth: usize| {
            self.indent.map_or_else(String::new, |width| format!("\n{}", " ".repeat(width * depth)))
        };
        out.push(open);
        for (index, item) in items.enumerate() {
            *out += if index > 0 { &self.separators.0 } else { "" };
            *out += &line(depth + 1);
            each(item, out);
        }
        *out += &line(depth);
        out.push(close);
    }
}

fn template(config: &Object) -> Result<Option<String>, ModelError> {
    let Some(value) = config.get("chat_template") else { return Ok(None) };
    if let Some(source) = value.as_str() {
        return Ok(Some(source.to_owned()));
    }
    let named = value.as_array().into_iter().flatten().find(|item| item["name"] == "default");
    let source = named.and_then(|item| item["template"].as_str());
    source.map(|source| Some(source.to_owned())).ok_or_else(|| {
        config.wrong("chat_template", "a template, or a list with one named `default`")
    })
}

/// Returns the special tokens that the configuration names; each is a string, or an object with its text as `content`. Tokens of another
/// form are left out.
fn special_tokens(config: &Object) -> Vec<(&'static str, String)> {
    let text = |key: &'static str| {
        let token = config.get(key)?;
        let text = token.as_str().or_else(|| token["content"].as_str())?;
        Some((key, text.to_owned()))
    };
    SPECIAL_TOKENS.into_iter().filter_map(text).collect()
}

/// Returns the details of a template error, or its kind if it has none, with the line number if that is known.
fn reason(error: &minijinja::Error) -> String {
    let line = error.line().map_or_else(String::new, |line| format!(" (line {line})"));
    match error.detail() {
        Some(detail) => format!("{detail}{line}"),
        None => format!("{}{line}", error.kind()),
    }
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
