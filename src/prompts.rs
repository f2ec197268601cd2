//! Converts a dataset to the stream of prompts: applies the chat template and the tokenizer, and filters by length.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollpacker_dataflow::bridge::Emitter;
use rollpacker_dataflow::fault::{HasOrigin, Origin};
use rollpacker_dataflow::step::PromptId;
use rollpacker_datasets::{Cursor, Dataset, DatasetError, MessageRef, Prompt};
use rollpacker_model::{Encoded, Message, ModelError, PromptEncoder};
use rollpacker_operators::prompts::{PromptRow, prompt_batch};
use rollpacker_operators::schedule::snapshot::LastPrompt;
use rollpacker_stages::reward::{NoRoute, Router};

use crate::recipe::Truncation;

/// Maximum number of prompts in a batch of the stream. Only the last batch is smaller.
const BATCH_ROWS: usize = 64;

/// An error in reading the prompts of a run.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The dataset cannot be read.
    #[error(transparent)]
    Dataset(DatasetError),
    /// Every prompt is longer than `data.max_prompt_length`.
    #[error("key `data.max_prompt_length`: {0}")]
    AllTooLong(DatasetError),
    /// The dataset no longer has the prompt that a resumed run read last.
    #[error("the dataset has no row {row}, which the run read as prompt {prompt}")]
    Gone {
        /// The number of the row among all files of the dataset, from 0.
        row: u64,
        /// The id that the run gave to the prompt in this row.
        prompt: PromptId,
    },
    /// The prompt cannot be converted to tokens.
    #[error("{file}, row {row}: {error}")]
    Encode {
        /// The path of the dataset file.
        file: String,
        /// The row in the file, from 0.
        row: u64,
        /// The cause.
        error: Box<ModelError>,
    },
    /// A token id is outside of the vocabulary of the model, because the tokenizer belongs to another model.
    #[error(
        "{file}, row {row}: the tokenizer encodes the prompt with token {id}, but the model has a vocab_size of {vocab_size}"
    )]
    Vocabulary {
        /// The path of the dataset file.
        file: String,
        /// The row in the file, from 0.
        row: u64,
        /// The first token id of the prompt that is outside of the vocabulary.
        id: i32,
        /// The vocabulary size of the model.
        vocab_size: i64,
    },
    /// No reward is registered for the prompt's data source.
    #[error("{file}, row {row}: {error}; set `reward.routes`")]
    Reward {
        /// The path of the dataset file.
        file: String,
        /// The row in the file, from 0.
        row: u64,
        /// The cause.
        error: NoRoute,
    },
}

impl HasOrigin for PromptError {
    fn origin(&self) -> Origin {
        match self {
            Self::Dataset(DatasetError::Io { .. } | DatasetError::File(_)) => Origin::Environment,
            _ => Origin::User,
        }
    }
}

/// Returns a warning if a batch of `batch` prompts is larger than its dataset, which has `rows` rows. `key` is the recipe key that sets the
/// size of the batch, and `effect` describes the consequence.
#[must_use]
pub fn batch_larger_than_dataset(
    key: &str,
    batch: usize,
    rows: u64,
    effect: &str,
) -> Option<String> {
    (batch as u64 > rows).then(|| {
        format!(
            "warning: key `{key}`: expected at most the {rows} rows of the dataset, found {batch}: {effect}"
        )
    })
}

/// Returns a warning if `data.train_batch_size` exceeds the number of rows of the dataset. A round ends with the epoch, so a step then
/// trains on fewer prompts.
#[must_use]
pub fn training_batch_larger_than_dataset(batch: usize, rows: u64) -> Option<String> {
    batch_larger_than_dataset(
        "data.train_batch_size",
        batch,
        rows,
        "a step trains on at most the prompts of one epoch",
    )
}

impl From<DatasetError> for PromptError {
    fn from(error: DatasetError) -> Self {
        match error {
            DatasetError::AllFiltered { .. } => Self::AllTooLong(error),
            other => Self::Dataset(other),
        }
    }
}

/// The number of prompts that were left out because of their length. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct OverlongPrompts(Arc<AtomicU64>);

impl OverlongPrompts {
    /// Returns the number of prompts left out so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Reads and tokenizes the prompts of a run, and leaves out or cuts prompts that are too long.
pub struct PromptReader {
    /// The dataset whose prompts are read.
    pub dataset: Dataset,
    /// The encoder that converts prompts to token ids.
    pub encoder: Arc<PromptEncoder>,
    /// Maximum prompt length in tokens.
    pub max_prompt_length: usize,
    /// The treatment of prompts longer than `max_prompt_length`.
    pub truncation: Truncation,
    /// The vocabulary size of the model. Token ids must be below it.
    pub vocab_size: i64,
    /// The rewards by data source. A prompt whose data source has no reward ends the reading with an error.
    pub router: Router,
    /// The number of prompts left out because of their length.
    pub overlong_prompts: OverlongPrompts,
}

impl PromptReader {
    /// Emits the prompts of `epochs` epochs as batches of `schema::PROMPTS`, until they are no longer needed. A resumed run continues after
    /// `last`, and `epochs` includes the epochs before it.
    ///
    /// # Errors
    /// If the dataset cannot be read or lacks the row of `last`, a prompt cannot be used, or every prompt of an epoch is too long. The
    /// error of a prompt names the file and the row.
    pub fn emit(
        &self,
        epochs: u32,
        last: Option<LastPrompt>,
        emitter: &Emitter,
    ) -> Result<(), PromptError> {
        let mut rows = Vec::with_capacity(BATCH_ROWS);
        for kept in self.rows(epochs, last)? {
            rows.push(kept?);
            if rows.len() == BATCH_ROWS && !emitter.send(prompt_batch(&std::mem::take(&mut rows))) {
                return Ok(());
            }
        }
        // This is the last batch. It does not matter whether the receiver accepts it.
        let _wanted = rows.is_empty() || emitter.send(prompt_batch(&rows));
        Ok(())
    }

    /// Returns all prompts of one epoch that are not too long, for validation.
    ///
    /// # Errors
    /// If the dataset cannot be read, a prompt cannot be used, or every prompt is too long.
    pub fn read_all(&self) -> Result<Vec<PromptRow>, PromptError> {
        self.rows(1, None)?.collect()
    }

    /// Returns the first `max` tokens of the prompts, concatenated in order, or all tokens if the dataset has fewer.
    ///
    /// # Errors
    /// If the dataset cannot be read, a prompt cannot be used, or every prompt is too long.
    pub fn first_tokens(&self, max: usize) -> Result<Vec<i32>, PromptError> {
        let mut tokens = Vec::with_capacity(max);
        for prompt in self.first_prompts(max)? {
            tokens.extend(prompt?);
            if tokens.len() >= max {
                break;
            }
        }
        tokens.truncate(max);
        Ok(tokens)
    }

    /// Returns the tokens of each of the first `max` prompts that are not left out because of their length.
    ///
    /// # Errors
    /// If the dataset cannot be read. The iterator returns the error of a prompt that cannot be used, and an error if every prompt is too
    /// long.
    pub(crate) fn first_prompts(
        &self,
        max: usize,
    ) -> Result<impl Iterator<Item = Result<Vec<i32>, PromptError>>, PromptError> {
        Ok(self.rows(1, None)?.take(max).map(|row| row.map(|row| row.prompt_ids)))
    }

    /// Returns the prompts after `last` that are not too long, with consecutive ids.
    fn rows(
        &self,
        epochs: u32,
        last: Option<LastPrompt>,
    ) -> Result<impl Iterator<Item = Result<PromptRow, PromptError>>, PromptError> {
        let measured = |prompt: &Prompt| match self.encode(prompt) {
            Ok(Encoded::Ids(ids)) => (ids.len(), Ok(ids)),
            Ok(Encoded::TooLong(min)) => (min, Ok(Vec::new())),
            // The filter measures only lengths. Length 0 lets a failed prompt pass the filter, and the map below returns its error.
            Err(error) => (0, Err(error)),
        };
        let ReadPosition { cursor, next, overlong_prompts } = self.start(last)?;
        let prompts = self.dataset.prompts(cursor)?.until_epoch(epochs);
        let mut kept = prompts.filter_by_length(self.max_prompt_length, measured);
        let mut ids = (next..).map(PromptId);
        Ok(std::iter::from_fn(move || {
            let next = kept.next();
            self.overlong_prompts
                .0
                .store(overlong_prompts + kept.stats().prompts, Ordering::Relaxed);
            Some(next?.map_err(PromptError::from).and_then(|(prompt, encoded)| {
                let id = ids.next().expect("invariant: no run reads 2^64 prompts");
                encoded.map(|prompt_ids| row(&prompt, id, prompt_ids))
            }))
        }))
    }

    /// Returns the position after `last`, or the beginning of the dataset. Rows before the position that have no id were left out because
    /// of their length.
    fn start(&self, last: Option<LastPrompt>) -> Result<ReadPosition, PromptError> {
        let Some(LastPrompt { prompt, epoch, row }) = last else {
            return Ok(ReadPosition::default());
        };
        let cursor =
            self.dataset.cursor_after(epoch, row).ok_or(PromptError::Gone { row, prompt })?;
        let (read, next) = (u64::from(epoch) * self.dataset.len() + cursor.offset, prompt.0 + 1);
        Ok(ReadPosition { cursor, next, overlong_prompts: read.saturating_sub(next) })
    }

    /// Returns the tokens of a prompt, cut according to `truncation`, or `TooLong` if the length of its text alone shows that it has too
    /// many tokens.
    fn encode(&self, prompt: &Prompt) -> Result<Encoded, PromptError> {
        let location = || (prompt.file().display().to_string(), prompt.file_row());
        self.router.check(prompt.data_source()).map_err(|error| {
            let (file, row) = location();
            PromptError::Reward { file, row, error }
        })?;
        let max = self.max_prompt_length;
        // The encoder rejects a long text without encoding it, which is wrong for a prompt that is cut.
        let limit = if self.truncation == Truncation::Skip { max } else { usize::MAX };
        let encoded = self.encoder.encode_within(&chat_messages(prompt), limit);
        let encoded = encoded.map_err(|error| {
            let (file, row) = location();
            PromptError::Encode { file, row, error: Box::new(error) }
        })?;
        if let Some(id) = self.out_of_vocabulary(&encoded) {
            let ((file, row), vocab_size) = (location(), self.vocab_size);
            return Err(PromptError::Vocabulary { file, row, id, vocab_size });
        }
        Ok(match encoded {
            Encoded::Ids(ids) => Encoded::Ids(truncate_ids(ids, self.truncation, max)),
            long @ Encoded::TooLong(_) => long,
        })
    }

    /// Returns the first token id that is outside of the model's vocabulary, or `None` if all ids are in it or the prompt is too long.
    fn out_of_vocabulary(&self, encoded: &Encoded) -> Option<i32> {
        let Encoded::Ids(ids) = encoded else { return None };
        ids.iter().copied().find(|&id| !(0..self.vocab_size).contains(&i64::from(id)))
    }
}

/// Cuts the tokens of a prompt to `max` tokens. Returns them unchanged with [`Truncation::Skip`].
fn truncate_ids(mut ids: Vec<i32>, truncation: Truncation, max: usize) -> Vec<i32> {
    let surplus = ids.len().saturating_sub(max);
    let from = match truncation {
        Truncation::Left => 0,
        Truncation::Middle => max / 2,
        Truncation::Right => max,
        Truncation::Skip => return ids,
    };
    if surplus > 0 {
        ids.drain(from..from + surplus);
    }
    ids
}

#[derive(Default)]
struct ReadPosition {
    cursor: Cursor,
    /// The id of the next prompt.
    next: u64,
    /// The number of prompts before the position that were left out.
    overlong_prompts: u64,
}

/// Returns the messages of a prompt in the form that the chat template takes.
pub(crate) fn chat_messages(prompt: &Prompt) -> Vec<Message> {
    let owned = |message: MessageRef<'_>| Message {
        role: message.role.to_owned(),
        content: message.content.to_owned(),
    };
    prompt.messages().map(owned).collect()
}

/// Returns the row that the stream and the validation use for a prompt.
fn row(prompt: &Prompt, id: PromptId, prompt_ids: Vec<i32>) -> PromptRow {
    PromptRow {
        prompt: id,
        epoch: prompt.epoch(),
        row: prompt.row(),
        domain: prompt.domain().to_owned(),
        prompt_length: u32::try_from(prompt_ids.len()).unwrap_or(u32::MAX),
        prompt_ids,
        data_source: prompt.data_source().to_owned(),
        messages: prompt.messages_json(),
        ground_truth: prompt.ground_truth().map(|truth| truth.into_owned()),
        extra_info: Some(prompt.extra_info_json()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_cut_where_the_setting_says() {
        let cut = |truncation, max| truncate_ids(vec![1, 2, 3, 4, 5], truncation, max);
        assert_eq!(cut(Truncation::Left, 2), [4, 5]);
        assert_eq!(cut(Truncation::Right, 2), [1, 2]);
        assert_eq!(cut(Truncation::Middle, 3), [1, 4, 5]);
        for truncation in [Truncation::Left, Truncation::Right, Truncation::Middle] {
            assert_eq!(cut(truncation, 5), [1, 2, 3, 4, 5]);
            assert!(cut(truncation, 0).is_empty());
        }
        assert_eq!(cut(Truncation::Skip, 2), [1, 2, 3, 4, 5]);
    }
}
