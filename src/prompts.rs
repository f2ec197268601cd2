//! From a dataset to the stream of prompts: chat template, tokenizer, and what is left out on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollpacker_dataflow::bridge::Emitter;
use rollpacker_dataflow::step::PromptId;
use rollpacker_datasets::{Cursor, Dataset, DatasetError, Prompt};
use rollpacker_operators::prompts::{PromptRow, prompt_batch};
use rollpacker_stages::model::{Message, ModelError, PromptEncoder};
use rollpacker_stages::reward::{RewardError, Router};

/// Prompts in a batch of the stream.
const BATCH_ROWS: usize = 64;

/// Why a prompt cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The dataset cannot be read.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The model cannot read the prompt.
    #[error("{file}, row {row}: {source}")]
    Encode {
        /// The file.
        file: String,
        /// Its row, from 0.
        row: u64,
        /// What is wrong.
        source: ModelError,
    },
    /// No reward could score a response to it.
    #[error("{file}, row {row}: {source}")]
    Reward {
        /// The file.
        file: String,
        /// Its row, from 0.
        row: u64,
        /// What is wrong.
        source: RewardError,
    },
    /// Every prompt was too long.
    #[error("all {left_out} prompts have more than data.max_prompt_length = {limit} tokens")]
    AllTooLong {
        /// How many.
        left_out: u64,
        /// The limit.
        limit: usize,
    },
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
    /// The rewards that will score responses: a prompt without one is refused before it is launched.
    pub router: Router,
    /// Prompts left out for their length.
    pub left_out: LeftOut,
}

impl PromptReader {
    /// Hands over the prompts of `epochs` epochs, as batches of `schema::PROMPTS`, until nobody wants more.
    ///
    /// # Errors
    /// At the first prompt that cannot be used; the message names file and row.
    pub fn emit(&self, epochs: u32, emitter: &Emitter) -> Result<(), PromptError> {
        let mut read = 0;
        let mut rows = Vec::with_capacity(BATCH_ROWS);
        for prompt in self.dataset.prompts(Cursor::default())?.until_epoch(epochs) {
            let prompt = prompt?;
            if let Some(prompt_ids) = self.encode(&prompt)? {
                rows.push(row(&prompt, PromptId(read), prompt_ids));
                read += 1;
            }
            if rows.len() == BATCH_ROWS && !emitter.send(prompt_batch(&std::mem::take(&mut rows))) {
                return Ok(());
            }
        }
        // Whether the rest is still wanted makes no difference: it is all there is.
        let _wanted = rows.is_empty() || emitter.send(prompt_batch(&rows));
        self.refuse_none(read > 0)
    }

    /// All prompts of one epoch, to validate on.
    ///
    /// # Errors
    /// At the first prompt that cannot be used.
    pub fn read_all(&self) -> Result<Vec<PromptRow>, PromptError> {
        let mut rows = Vec::new();
        for prompt in self.dataset.prompts(Cursor::default())?.until_epoch(1) {
            let prompt = prompt?;
            let id = PromptId(rows.len() as u64);
            rows.extend(self.encode(&prompt)?.map(|prompt_ids| row(&prompt, id, prompt_ids)));
        }
        self.refuse_none(!rows.is_empty())?;
        Ok(rows)
    }

    fn refuse_none(&self, some: bool) -> Result<(), PromptError> {
        let limit = self.max_prompt_length;
        if some {
            Ok(())
        } else {
            Err(PromptError::AllTooLong { left_out: self.left_out.count(), limit })
        }
    }

    /// Token ids of a prompt; `None` if it is too long.
    fn encode(&self, prompt: &Prompt) -> Result<Option<Vec<i32>>, PromptError> {
        let place = || (prompt.file().display().to_string(), prompt.file_row());
        self.router.check(prompt.data_source()).map_err(|source| {
            let (file, row) = place();
            PromptError::Reward { file, row, source }
        })?;
        let messages: Vec<Message> = prompt
            .messages()
            .map(|message| Message {
                role: message.role.to_owned(),
                content: message.content.to_owned(),
            })
            .collect();
        let ids = self.encoder.encode(&messages).map_err(|source| {
            let (file, row) = place();
            PromptError::Encode { file, row, source }
        })?;
        if ids.len() <= self.max_prompt_length {
            return Ok(Some(ids));
        }
        self.left_out.0.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }
}

/// The rows that the stream and the validation carry of a prompt.
fn row(prompt: &Prompt, id: PromptId, prompt_ids: Vec<i32>) -> PromptRow {
    PromptRow {
        prompt: id,
        epoch: prompt.epoch(),
        row: prompt.row(),
        domain: prompt.domain().to_owned(),
        prompt_ids,
        data_source: prompt.data_source().to_owned(),
        messages: prompt.messages_json(),
        ground_truth: prompt.ground_truth().map(|truth| truth.into_owned()),
        extra_info: Some(prompt.extra_info_json()),
    }
}
