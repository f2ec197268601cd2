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
    /// The mean score of the trained responses; `None` if there are none.
    score: Option<f64>,
    /// The mean length of the trained responses, in tokens; `None` if there are none.
    length: Option<f64>,
    #[serde(skip)]
    /// The sums of the scores and of the lengths of the trained responses.
    sums: (f64, f64),
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
        let mean = |sum: f64| (self.trained > 0).then(|| sum / f64::from(self.trained));
        (self.score, self.length) = (mean(self.sums.0), mean(self.sums.1));
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
            sums: (0.0, 0.0),
        });
        (line.step, line.prompt) = (step, prompts.value(row));
        line.responses += 1;
        line.cut += u32::from(matches!(finish.value(row), "abort" | "pause"));
        if admitted.value(row) {
            line.trained += 1;
            line.sums.0 += number(scores, row).unwrap_or(0.0);
            line.sums.1 += f64::from(lengths.value(row));
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
    use super::*;

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
