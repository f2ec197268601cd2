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
    /// The length of the longest excluded prompt, in the unit of the measure; 0 if no prompt is excluded.
    pub longest: usize,
    /// The number of excluded prompts of each `data_source`.
    pub by_data_source: BTreeMap<String, u64>,
}

/// An iterator over the prompts that are not too long, each with the second value that the measure returned for it. Created by
/// [`Prompts::filter_by_length`].
#[derive(Debug)]
pub struct LengthFilter<M> {
    prompts: Prompts,
    limit: usize,
    measure: M,
    excluded: FilterStats,
    epoch: FilteredEpoch,
    /// The first prompt of an epoch, with the position before it, if [`DatasetError::AllFiltered`] was returned for the previous epoch
    /// instead of this prompt.
    next: Option<(Prompt, Cursor)>,
}

/// The progress of the filter within an epoch.
#[derive(Clone, Copy, Debug)]
struct FilteredEpoch {
    number: u32,
    /// `true` if the end of the epoch is no reason for [`DatasetError::AllFiltered`]: a prompt has passed, the filter began within the
    /// epoch, or it has returned another error or reached the end.
    passed: bool,
    /// The length of the shortest excluded prompt, in the unit of the measure.
    shortest: Option<usize>,
}

impl Prompts {
    /// Excludes prompts longer than `limit` and counts them in [`LengthFilter::stats`]. `measure` returns the length in any unit, usually
    /// tokens after the chat template, and a second value that is returned with the prompt, so that it need not be tokenized twice. An
    /// epoch of which every prompt is excluded returns [`DatasetError::AllFiltered`], unless the filter began within the epoch or has
    /// returned another error in it. (verl: `data.filter_overlong_prompts`)
    pub fn filter_by_length<T, M: FnMut(&Prompt) -> (usize, T)>(
        self,
        limit: usize,
        measure: M,
    ) -> LengthFilter<M> {
        let Cursor { epoch, offset, .. } = self.cursor();
        let epoch = FilteredEpoch { number: epoch, passed: offset > 0, shortest: None };
        let excluded = FilterStats::default();
        LengthFilter { prompts: self, limit, measure, excluded, epoch, next: None }
    }
}

impl<M> LengthFilter<M> {
    /// Returns the counts of the prompts excluded so far.
    #[must_use]
    pub fn stats(&self) -> &FilterStats {
        &self.excluded
    }

    /// Returns the position; see [`Prompts::cursor`].
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        self.next.as_ref().map_or_else(|| self.prompts.cursor(), |&(_, before)| before)
    }

    fn exclude(&mut self, prompt: &Prompt, length: usize) {
        self.excluded.prompts += 1;
        self.excluded.longest = self.excluded.longest.max(length);
        self.epoch.shortest = Some(self.epoch.shortest.map_or(length, |min| min.min(length)));
        *self.excluded.by_data_source.entry(prompt.data_source().to_owned()).or_default() += 1;
    }

    /// Returns [`DatasetError::AllFiltered`] if every prompt of the epoch so far was excluded. Returns `None` if none was excluded, or if
    /// `passed` of the epoch is `true`.
    fn all_filtered_error(&self) -> Option<DatasetError> {
        let FilteredEpoch { number, passed, shortest } = self.epoch;
        let shortest = shortest.filter(|_| !passed)?;
        Some(DatasetError::AllFiltered { epoch: number, limit: self.limit, shortest })
    }

    /// Begins the epoch `epoch` if it is not the current one. Returns an error if every prompt of the previous epoch was excluded: without
    /// it, the iteration would continue forever.
    fn enter(&mut self, epoch: u32) -> Option<DatasetError> {
        if epoch == self.epoch.number {
            return None;
        }
        let error = self.all_filtered_error();
        self.epoch = FilteredEpoch { number: epoch, passed: false, shortest: None };
        error
    }
}

impl<T, M: FnMut(&Prompt) -> (usize, T)> Iterator for LengthFilter<M> {
    type Item = Result<(Prompt, T), DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let before = self.cursor();
            let next = self.next.take().map(|(prompt, _)| Ok(prompt));
            let prompt = match next.or_else(|| self.prompts.next()) {
                None => {
                    let error = self.all_filtered_error();
                    self.epoch.passed = true;
                    return error.map(Err);
                }
                Some(Ok(prompt)) => prompt,
                Some(Err(error)) => {
                    self.epoch.passed = true;
                    return Some(Err(error));
                }
            };
            if let Some(error) = self.enter(prompt.epoch()) {
                self.next = Some((prompt, before));
                return Some(Err(error));
            }
            let (length, made) = (self.measure)(&prompt);
            if length <= self.limit {
                self.epoch.passed = true;
                return Some(Ok((prompt, made)));
            }
            self.exclude(&prompt, length);
        }
    }
}
