//! Conversion between formats, row by row.

use std::io::{BufWriter, Write};
use std::path::Path;

use rollpacker_files::{Inputs, NewFile, check_replaceable};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::config::DatasetConfig;
use crate::dataset::Dataset;
use crate::error::DatasetError;
use crate::json::messages_text;
use crate::message::MessageRef;
use crate::order::Cursor;
use crate::prompt::PromptRow;
use crate::shape::Shape;
use crate::writer::{PromptWriter, WriteOptions};

/// The format of a converted file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputFormat {
    /// Parquet in verl's schema. A structured reference answer becomes JSON text. Fields of `extra_info` whose values have no common type
    /// become text, and so does `extra_info` itself if it has more than 1,024 different fields.
    Verl,
    /// JSON lines with ROLL's columns; `messages` is JSON text. Fields of `extra_info` become columns, except those with the name of an
    /// existing column, which stay in `extra_info`.
    Roll,
    /// JSON lines with `data_source`, `domain`, `messages` (a list), `ground_truth` and `extra_info`.
    Messages,
}

/// Converts one epoch of a dataset, in its order, and returns the number of rows. Parquet takes two passes: the first finds the type of
/// `extra_info`. `options` apply to Parquet only.
///
/// # Errors
///
/// If the dataset cannot be opened, a row cannot be used, or the output cannot be written, is one of the inputs, or is not a regular file.
pub fn convert(
    config: &DatasetConfig,
    output: &Path,
    format: OutputFormat,
    options: WriteOptions,
) -> Result<u64, DatasetError> {
    Inputs::of(config.paths()?).check_output(output)?;
    check_replaceable(output)?;
    let dataset = Dataset::open(config.clone())?;
    match format {
        OutputFormat::Verl => to_verl(&dataset, output, options),
        OutputFormat::Roll => to_lines(&dataset, output, roll),
        OutputFormat::Messages => to_lines(&dataset, output, messages),
    }
}

fn rows(
    dataset: &Dataset,
) -> Result<impl Iterator<Item = Result<PromptRow, DatasetError>>, DatasetError> {
    let prompts = dataset.prompts(Cursor::default())?.until_epoch(1);
    Ok(prompts.map(|prompt| prompt.map(|prompt| prompt.to_row())))
}

fn to_verl(dataset: &Dataset, output: &Path, options: WriteOptions) -> Result<u64, DatasetError> {
    let mut extra = Shape::Null;
    for row in rows(dataset)? {
        extra = extra.join(Shape::of_object(&row?.extra_info));
    }
    let mut writer = PromptWriter::create(output, extra, options)?;
    for row in rows(dataset)? {
        writer.write(row?)?;
    }
    writer.finish()
}

fn to_lines(
    dataset: &Dataset,
    output: &Path,
    line: impl Fn(PromptRow) -> Value,
) -> Result<u64, DatasetError> {
    let failed = || DatasetError::io(output, "write");
    let mut file = BufWriter::new(NewFile::create(output)?);
    let mut written = 0;
    for row in rows(dataset)? {
        writeln!(file, "{}", line(row?)).map_err(failed())?;
        written += 1;
    }
    let file = file.into_inner().map_err(|error| failed()(error.into_error()))?;
    file.finish()?;
    Ok(written)
}

fn messages(row: PromptRow) -> Value {
    json!({
        "data_source": row.data_source,
        "domain": row.domain,
        "messages": row.messages,
        "ground_truth": row.ground_truth,
        "extra_info": row.extra_info,
    })
}

/// Builds a line with ROLL's columns. `id` and the columns that only some tasks have are taken from `extra_info`, where `extra_columns`
/// puts them when a file of this format is read.
fn roll(mut row: PromptRow) -> Value {
    let mut extra = std::mem::take(&mut row.extra_info);
    let mut take = |name: &str, default: Value| {
        extra.shift_remove(name).filter(|value| !value.is_null()).unwrap_or(default)
    };
    let question = row
        .messages
        .iter()
        .rev()
        .find(|message| message.role == "user")
        .map_or("", |message| &message.content);
    let text = messages_text(
        row.messages
            .iter()
            .map(|message| MessageRef { role: &message.role, content: &message.content }),
    );
    let mut line = Map::new();
    let mut put = |name: &str, value: Value| drop(line.insert(name.to_owned(), value));
    put("id", take("id", json!(row.row.to_string())));
    put("domain", json!(row.domain));
    put("source", json!(row.data_source));
    put("difficulty", take("difficulty", json!("")));
    put("prompt", take("prompt", json!(question)));
    put("messages", json!(text));
    put("ground_truth", json!(row.ground_truth));
    for name in ["case_type", "test_case_function", "test_cases"] {
        put(name, take(name, json!("")));
    }
    put("tag", take("tag", json!(row.domain)));
    let (inside, beside): (Map<_, _>, Map<_, _>) =
        extra.into_iter().partition(|(name, _)| line.contains_key(name) || name == "extra_info");
    line.extend(beside);
    if !inside.is_empty() {
        line.insert("extra_info".to_owned(), Value::Object(inside));
    }
    Value::Object(line)
}
