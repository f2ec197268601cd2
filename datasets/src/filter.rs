//! Filters that exclude and count prompts that are too long.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::DatasetError;
use crate::order::Cursor;
use crate::prompt::Prompt;
use crate::prompts::Prompts;

/// Counts of the excluded prompts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterStats {
    /// The number of excluded prompts.
    pub prompts: u64,
    /// The length of the longest one, in the unit of the measure.
    pub longest: usize,
    /// The number of excluded prompts of each `data_source`.
    pub by_data_source: BTreeMap<String, u64>,
}

/// An iterator over the prompts that are not too long, with their measured values. Created by [`Prompts::filter_by_length`].
#[derive(Debug)]
pub struct LengthFilter<M> {
    prompts: Prompts,
    limit: usize,
    measure: M,
    left_out: FilterStats,
    /// The current epoch, and `true` if one of its prompts has passed or failed.
    epoch: (u32, bool),
}

impl Prompts {
    /// Excludes prompts longer than `limit` and counts them in [`LengthFilter::stats`]. `measure` returns the length in any unit,
    /// usually tokens after the chat template, and a second value that is returned with the prompt, so that it need not be tokenized twice.
    /// (verl: `data.filter_overlong_prompts`)
    pub fn filter_by_length<T, M: FnMut(&Prompt) -> (usize, T)>(
        self,
        limit: usize,
        measure: M,
    ) -> LengthFilter<M> {
        let epoch = (self.cursor().epoch, self.cursor().offset > 0);
        LengthFilter { prompts: self, limit, measure, left_out: FilterStats::default(), epoch }
    }
}

impl<M> LengthFilter<M> {
    /// Returns the counts of the prompts excluded so far.
    #[must_use]
    pub fn stats(&self) -> &FilterStats {
        &self.left_out
    }

    /// Returns the position; see [`Prompts::cursor`].
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        self.prompts.cursor()
    }

    fn leave_out(&mut self, prompt: &Prompt, length: usize) {
        self.left_out.prompts += 1;
        self.left_out.longest = self.left_out.longest.max(length);
        *self.left_out.by_data_source.entry(prompt.data_source().to_owned()).or_default() += 1;
    }

    /// Returns `None`, the end of the iteration. If no prompt of the last epoch has passed the filter, the first call returns an error
    /// instead.
    fn end<I>(&mut self) -> Option<Result<I, DatasetError>> {
        let (epoch, passed) = self.epoch;
        self.epoch.1 = true;
        let silent = passed || self.left_out.prompts == 0;
        (!silent).then(|| Err(DatasetError::AllFiltered { epoch, limit: self.limit }))
    }

    /// Returns an error at the first prompt of an epoch if no prompt of the previous one has passed. Without it, the iteration would
    /// continue forever.
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

impl<T, M: FnMut(&Prompt) -> (usize, T)> Iterator for LengthFilter<M> {
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
