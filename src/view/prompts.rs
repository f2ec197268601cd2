//! The prompts of some steps, one line per row of the dataset.

use std::collections::BTreeMap;
use std::path::Path;

use arrow_array::types::{Float64Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::schema::column;
use serde::Serialize;
use serde_json::Value;

use super::lengths::read_steps;
use crate::run_reader::{ReadError, Rollouts, number, text};

/// The maximum number of characters of a prompt that the table shows.
const MAX_PREVIEW_CHARS: usize = 160;

const COLUMNS: [&str; 9] = [
    column::PROMPT_ID,
    column::ROW,
    column::DATA_SOURCE,
    column::PROMPT_LENGTH,
    column::MESSAGES,
    column::SCORE,
    column::RESPONSE_LENGTH,
    column::FINISH_REASON,
    "admitted",
];

#[derive(Debug, Serialize)]
pub(super) struct PromptTable {
    steps: Vec<u64>,
    prompts: Vec<PromptLine>,
    /// The errors of files that cannot be read, whose steps are left out.
    unreadable: Vec<String>,
}

/// A row of the dataset with its responses in these steps.
#[derive(Debug, Serialize)]
struct PromptLine {
    /// The row of the dataset.
    row: u64,
    data_source: Option<String>,
    /// The preview of the prompt's last message.
    text: String,
    /// The length of the prompt, in tokens.
    tokens: u32,
    /// The last of the steps that has the row.
    step: u64,
    /// The id of the prompt in that step.
    prompt: u64,
    responses: u32,
    /// The number of responses that were trained on.
    trained: u32,
    /// The number of responses that were aborted or paused.
    cut: u32,
    /// The mean score of the trained responses that have a score; `None` if there are none.
    score: Option<f64>,
    /// The mean length of the trained responses, in tokens; `None` if there are none.
    length: Option<f64>,
    /// The scores of the trained responses.
    #[serde(skip)]
    scores: Mean,
    /// The lengths of the trained responses.
    #[serde(skip)]
    lengths: Mean,
}

/// The mean of the values that were added.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    /// Returns the mean; `None` without values.
    fn value(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

impl PromptTable {
    /// Reads the prompts of steps. A step whose file cannot be read is left out.
    pub(super) fn read(folder: &Path, steps: &[u64]) -> Self {
        let mut lines = BTreeMap::new();
        let read = |step| collect(&Rollouts::read(folder, step, &COLUMNS)?, step, &mut lines);
        let (steps, unreadable) = read_steps(steps, read);
        let prompts = lines.into_values().map(PromptLine::with_means).collect();
        Self { steps, prompts, unreadable }
    }
}

impl PromptLine {
    fn with_means(mut self) -> Self {
        (self.score, self.length) = (self.scores.value(), self.lengths.value());
        self
    }
}

fn collect(
    rows: &Rollouts,
    step: u64,
    lines: &mut BTreeMap<u64, PromptLine>,
) -> Result<(), ReadError> {
    let long = |name: &str| rows.numbers::<UInt64Type>(name);
    let (prompts, dataset) = (long(column::PROMPT_ID)?, long(column::ROW)?);
    let (sources, messages) = (rows.texts(column::DATA_SOURCE)?, rows.texts(column::MESSAGES)?);
    let finish = rows.texts(column::FINISH_REASON)?;
    let tokens = rows.numbers::<UInt32Type>(column::PROMPT_LENGTH)?;
    let lengths = rows.numbers::<UInt32Type>(column::RESPONSE_LENGTH)?;
    let scores = rows.numbers::<Float64Type>(column::SCORE)?;
    let admitted = rows.flags("admitted")?;
    for row in 0..rows.len() {
        let line = lines.entry(dataset.value(row)).or_insert_with(|| PromptLine {
            row: dataset.value(row),
            data_source: text(sources, row).map(str::to_owned),
            text: text(messages, row).map(preview).unwrap_or_default(),
            tokens: tokens.value(row),
            step,
            prompt: 0,
            responses: 0,
            trained: 0,
            cut: 0,
            score: None,
            length: None,
            scores: Mean::default(),
            lengths: Mean::default(),
        });
        (line.step, line.prompt) = (step, prompts.value(row));
        line.responses += 1;
        line.cut += u32::from(matches!(finish.value(row), "abort" | "pause"));
        if admitted.value(row) {
            line.trained += 1;
            number(scores, row).into_iter().for_each(|score| line.scores.add(score));
            line.lengths.add(f64::from(lengths.value(row)));
        }
    }
    Ok(())
}

/// Returns the beginning of the last message, at most `MAX_PREVIEW_CHARS` characters, followed by an ellipsis if the message is longer. If
/// `messages` is not a list of messages, returns the beginning of `messages` itself.
fn preview(messages: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(messages).ok();
    let last =
        parsed.as_ref().and_then(|parsed| parsed.as_array()?.last()?.get("content")?.as_str());
    let text = last.unwrap_or(messages);
    let mut shown: String = text.chars().take(MAX_PREVIEW_CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::sync::Arc;

    use arrow_array::{
        ArrayRef, BooleanArray, Float64Array, RecordBatch, StringArray, UInt32Array, UInt64Array,
    };
    use parquet::arrow::ArrowWriter;

    use super::*;
    use crate::run_files;

    #[test]
    fn a_response_without_a_score_does_not_count_in_the_mean_score() {
        let folder = tempfile::tempdir().expect("a folder");
        let ids = || Arc::new(UInt64Array::from(vec![7, 7])) as ArrayRef;
        let texts = || Arc::new(StringArray::from(vec!["x", "x"])) as ArrayRef;
        let lengths = || Arc::new(UInt32Array::from(vec![2, 4])) as ArrayRef;
        let columns: Vec<(&str, ArrayRef)> = vec![
            (column::PROMPT_ID, ids()),
            (column::ROW, ids()),
            (column::DATA_SOURCE, texts()),
            (column::PROMPT_LENGTH, lengths()),
            (column::MESSAGES, texts()),
            (column::SCORE, Arc::new(Float64Array::from(vec![Some(0.5), None]))),
            (column::RESPONSE_LENGTH, lengths()),
            (column::FINISH_REASON, texts()),
            ("admitted", Arc::new(BooleanArray::from(vec![true, true]))),
        ];
        let rows = RecordBatch::try_from_iter(columns).expect("rows");
        let path = run_files::rollouts(folder.path(), 1);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        let file = File::create(path).expect("a file");
        let mut writer = ArrowWriter::try_new(file, rows.schema(), None).expect("a writer");
        writer.write(&rows).expect("written");
        writer.close().expect("closed");
        let table = PromptTable::read(folder.path(), &[1]);
        let [line] = &table.prompts[..] else { panic!("one prompt: {table:?}") };
        assert_eq!((line.trained, line.score, line.length), (2, Some(0.5), Some(3.0)));
    }

    #[test]
    fn the_last_message_is_shown_up_to_a_length() {
        assert_eq!(
            preview(r#"[{"role":"system","content":"s"},{"role":"user","content":"u"}]"#),
            "u"
        );
        assert_eq!(preview("plain"), "plain");
        assert_eq!(preview(&"ä".repeat(500)).chars().count(), MAX_PREVIEW_CHARS + 1);
    }
}
