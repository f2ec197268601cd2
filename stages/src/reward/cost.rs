//! The cost of a call.

use std::ops::Mul;

use crate::reward::Sample;

/// The cost of a call, which the budgets of a [`Limited`](super::Limited) must cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The number of requests to a server.
    pub requests: u32,
    /// The estimated number of tokens of all requests. A judge includes the maximum length of its answers;
    /// [`of_sample`](Self::of_sample) includes no answers.
    pub tokens: u64,
}

impl Cost {
    /// Returns the cost of one request that contains the prompt, the response and the reference answer of a sample. The number of tokens is
    /// [estimated](Self::tokens_of).
    #[must_use]
    pub fn of_sample(sample: &Sample) -> Self {
        let texts = [Some(&sample.response), sample.ground_truth.as_ref(), Some(&sample.messages)];
        let bytes = texts.into_iter().flatten().map(String::len).sum();
        Self { requests: 1, tokens: Self::tokens_of(bytes) }
    }

    /// Estimates the number of tokens of a text from its length in bytes: one token for every four bytes, as for English in current
    /// vocabularies.
    #[must_use]
    pub fn tokens_of(bytes: usize) -> u64 {
        bytes.div_ceil(4) as u64
    }
}

impl Mul<u32> for Cost {
    type Output = Self;

    fn mul(self, times: u32) -> Self {
        Self { requests: self.requests * times, tokens: self.tokens * u64::from(times) }
    }
}
