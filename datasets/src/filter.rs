//! Leaving out prompts that are too long, counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::DatasetError;
use crate::order::Cursor;
use crate::prompt::Prompt;
use crate::prompts::Prompts;

/// What was left out, by `data_source`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Prompts left out.
    pub prompts: u64,
    /// The longest, in the unit of the measure.
    pub longest: usize,
    /// Prompts left out of each `data_source`.
    pub by_data_source: BTreeMap<String, u64>,
}

/// Prompts that are not too long, with their lengths. Made by [`Prompts::no_longer_than`].
#[derive(Debug)]
pub struct NoLongerThan<M> {
    prompts: Prompts,
    limit: usize,
    measure: M,
    left_out: LeftOut,
    /// The epoch that is read, and whether a prompt of it was let through or failed.
    epoch: (u32, bool),
}

impl Prompts {
    /// Leaves out prompts longer than `limit`, counted in [`NoLongerThan::left_out`]. What the length is, is the caller's: tokens after
    /// the chat template, as a rule. What `measure` returns beside the length is handed on, so that tokens need not be made twice.
    pub fn no_longer_than<T, M: FnMut(&Prompt) -> (usize, T)>(
        self,
        limit: usize,
        measure: M,
    ) -> NoLongerThan<M> {
        let epoch = (self.cursor().epoch, self.cursor().offset > 0);
        NoLongerThan { prompts: self, limit, measure, left_out: LeftOut::default(), epoch }
    }
}

impl<M> NoLongerThan<M> {
    /// What has been left out since it was made.
    #[must_use]
    pub fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    /// Where it is, as [`Prompts::cursor`].
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        self.prompts.cursor()
    }

    fn leave_out(&mut self, prompt: &Prompt, length: usize) {
        self.left_out.prompts += 1;
        self.left_out.longest = self.left_out.longest.max(length);
        *self.left_out.by_data_source.entry(prompt.data_source().to_owned()).or_default() += 1;
    }

    /// The end, or before it the error that the last epoch let nothing through.
    fn end<I>(&mut self) -> Option<Result<I, DatasetError>> {
        let (epoch, passed) = self.epoch;
        self.epoch.1 = true;
        let silent = passed || self.left_out.prompts == 0;
        (!silent).then(|| Err(DatasetError::AllFiltered { epoch, limit: self.limit }))
    }

    /// An error at the first prompt of an epoch behind one that let nothing through, which would otherwise go on for ever.
    fn enter(&mut self, epoch: u32) -> Result<(), DatasetError> {
        let (last, passed) = self.epoch;
        if epoch == last {
            return Ok(());
        }
        self.epoch = (epoch, false);
        if passed {
            Ok(())
        } else {
            Err(DatasetError::AllFiltered { epoch: last, limit: self.limit })
        }
    }
}

impl<T, M: FnMut(&Prompt) -> (usize, T)> Iterator for NoLongerThan<M> {
    type Item = Result<(Prompt, T), DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let prompt = match self.prompts.next() {
                None => return self.end(),
                Some(Ok(prompt)) => prompt,
                Some(Err(error)) => {
                    self.epoch.1 = true;
                    return Some(Err(error));
                }
            };
            if let Err(error) = self.enter(prompt.epoch()) {
                return Some(Err(error));
            }
            let (length, made) = (self.measure)(&prompt);
            if length <= self.limit {
                self.epoch.1 = true;
                return Some(Ok((prompt, made)));
            }
            self.leave_out(&prompt, length);
        }
    }
}
