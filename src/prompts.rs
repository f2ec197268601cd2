//! From a dataset to the stream of prompts: chat template, tokenizer, and what is left out on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollpacker_dataflow::bridge::Emitter;
use rollpacker_dataflow::step::PromptId;
use rollpacker_datasets::{Cursor, Dataset, DatasetError, MessageRef, Prompt};
use rollpacker_operators::prompts::{PromptRow, prompt_batch};
use rollpacker_operators::resume::LastPrompt;
use rollpacker_stages::model::{Encoded, Message, ModelError, PromptEncoder};
use rollpacker_stages::reward::{NoRoute, Router};

/// Prompts in a batch of the stream.
const BATCH_ROWS: usize = 64;

/// Why a prompt cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The dataset cannot be read.
    #[error(transparent)]
    Dataset(DatasetError),
    /// Every prompt is too long.
    #[error("key `data.max_prompt_length`: {0}")]
    AllTooLong(DatasetError),
    /// The dataset does not have the prompt that a resumed run was last given.
    #[error("the dataset has no row {row}, which prompt {prompt} of the run was")]
    Gone {
        /// The row.
        row: u64,
        /// The prompt.
        prompt: PromptId,
    },
    /// The model cannot read the prompt.
    #[error("{file}, row {row}: {source}")]
    Encode {
        /// The file.
        file: String,
        /// Its row, from 0.
        row: u64,
        /// What is wrong.
        source: Box<ModelError>,
    },
    /// The tokenizer is not that of the model.
    #[error(
        "{file}, row {row}: the tokenizer makes token {id} of the prompt, and the model has a vocab_size of {vocab_size}"
    )]
    Vocabulary {
        /// The file.
        file: String,
        /// Its row, from 0.
        row: u64,
        /// The token.
        id: i32,
        /// Tokens that the model knows.
        vocab_size: i64,
    },
    /// No reward could score a response to it.
    #[error("{file}, row {row}: {source}")]
    Reward {
        /// The file.
        file: String,
        /// Its row, from 0.
        row: u64,
        /// What is wrong.
        source: NoRoute,
    },
}

/// Returns a warning if a batch is larger than its dataset. `effect` says what the batches have instead.
#[must_use]
pub fn too_large(key: &str, batch: usize, rows: u64, effect: &str) -> Option<String> {
    (batch as u64 > rows).then(|| {
        format!(
            "warning: key `{key}`: expected at most the {rows} rows of the dataset, found {batch}: {effect}"
        )
    })
}

/// Returns the warning for a run, whose rounds end with the epoch.
#[must_use]
pub fn too_large_for_training(batch: usize, rows: u64) -> Option<String> {
    too_large("data.train_batch_size", batch, rows, "a step has no more prompts than an epoch")
}

impl From<DatasetError> for PromptError {
    fn from(error: DatasetError) -> Self {
        match error {
            DatasetError::AllFiltered { .. } => Self::AllTooLong(error),
            other => Self::Dataset(other),
        }
    }
}

/// Prompts that were left out for their length. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct LeftOut(Arc<AtomicU64>);

impl LeftOut {
    /// How many so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Reads prompts for a run.
pub struct PromptReader {
    /// Where from.
    pub dataset: Dataset,
    /// To token ids.
    pub encoder: Arc<PromptEncoder>,
    /// Longest prompt in tokens.
    pub max_prompt_length: usize,
    /// Tokens that the model knows: ids are below it.
    pub vocab_size: i64,
    /// The rewards that will score responses: a prompt without one is refused before it is launched.
    pub router: Router,
    /// Prompts left out for their length.
    pub left_out: LeftOut,
}

impl PromptReader {
    /// Hands over the prompts of `epochs` epochs, those behind `last` if the run is resumed, as batches of `schema::PROMPTS`, until
    /// nobody wants more.
    ///
    /// # Errors
    /// At the first prompt that cannot be used; the message names file and row.
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
        // Whether the rest is still wanted makes no difference: it is all there is.
        let _wanted = rows.is_empty() || emitter.send(prompt_batch(&rows));
        Ok(())
    }

    /// All prompts of one epoch, to validate on.
    ///
    /// # Errors
    /// At the first prompt that cannot be used.
    pub fn read_all(&self) -> Result<Vec<PromptRow>, PromptError> {
        self.rows(1, None)?.collect()
    }

    /// The prompts that are not too long, numbered.
    fn rows(
        &self,
        epochs: u32,
        last: Option<LastPrompt>,
    ) -> Result<impl Iterator<Item = Result<PromptRow, PromptError>>, PromptError> {
        let measured = |prompt: &Prompt| match self.encode(prompt) {
            Ok(Encoded::Ids(ids)) => (ids.len(), Ok(ids)),
            Ok(Encoded::TooLong(least)) => (least, Ok(Vec::new())),
            // Of length 0 it is not left out, and comes up as an error.
            Err(error) => (0, Err(error)),
        };
        let Start { cursor, next, left_out } = self.start(last)?;
        let prompts = self.dataset.prompts(cursor)?.until_epoch(epochs);
        let mut kept = prompts.no_longer_than(self.max_prompt_length, measured);
        let mut ids = (next..).map(PromptId);
        Ok(std::iter::from_fn(move || {
            let next = kept.next();
            self.left_out.0.store(left_out + kept.left_out().prompts, Ordering::Relaxed);
            Some(next?.map_err(PromptError::from).and_then(|(prompt, encoded)| {
                let id = ids.next().expect("invariant: no run reads 2^64 prompts");
                encoded.map(|prompt_ids| row(&prompt, id, prompt_ids))
            }))
        }))
    }

    /// Where reading begins. What is behind the start and has no id was left out.
    fn start(&self, last: Option<LastPrompt>) -> Result<Start, PromptError> {
        let Some(LastPrompt { prompt, epoch, row }) = last else { return Ok(Start::default()) };
        let cursor = self.dataset.behind(epoch, row).ok_or(PromptError::Gone { row, prompt })?;
        let (read, next) = (u64::from(epoch) * self.dataset.len() + cursor.offset, prompt.0 + 1);
        Ok(Start { cursor, next, left_out: read.saturating_sub(next) })
    }

    /// The tokens of a prompt, unless its text is so long that it must have too many.
    fn encode(&self, prompt: &Prompt) -> Result<Encoded, PromptError> {
        let place = || (prompt.file().display().to_string(), prompt.file_row());
        self.router.check(prompt.data_source()).map_err(|source| {
            let (file, row) = place();
            PromptError::Reward { file, row, source }
        })?;
        let encoded = self.encoder.encode_within(&chat(prompt), self.max_prompt_length);
        let encoded = encoded.map_err(|source| {
            let (file, row) = place();
            PromptError::Encode { file, row, source: Box::new(source) }
        })?;
        match self.stranger(&encoded) {
            Some(id) => {
                let ((file, row), vocab_size) = (place(), self.vocab_size);
                Err(PromptError::Vocabulary { file, row, id, vocab_size })
            }
            None => Ok(encoded),
        }
    }

    /// A token that the tokenizer knows and the model does not.
    fn stranger(&self, encoded: &Encoded) -> Option<i32> {
        let Encoded::Ids(ids) = encoded else { return None };
        ids.iter().copied().find(|&id| !(0..self.vocab_size).contains(&i64::from(id)))
    }
}

/// Where reading begins.
#[derive(Default)]
struct Start {
    cursor: Cursor,
    /// The id of the next prompt.
    next: u64,
    /// Prompts that were left out before.
    left_out: u64,
}

/// The messages of a prompt, as the model's template takes them.
pub(crate) fn chat(prompt: &Prompt) -> Vec<Message> {
    let owned = |message: MessageRef<'_>| Message {
        role: message.role.to_owned(),
        content: message.content.to_owned(),
    };
    prompt.messages().map(owned).collect()
}

/// The rows that the stream and the validation carry of a prompt.
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
