//! What a call takes of a budget.

use std::ops::Mul;

use crate::reward::Sample;

/// What a call takes of the budgets of a [`Guard`](super::Guard).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Requests to a server.
    pub requests: u32,
    /// Tokens, prompt and answer together.
    pub tokens: u64,
}

impl Cost {
    /// One request with the texts of a sample.
    #[must_use]
    pub fn of_sample(sample: &Sample) -> Self {
        let texts = [Some(&sample.response), sample.ground_truth.as_ref(), Some(&sample.messages)];
        let bytes = texts.into_iter().flatten().map(String::len).sum();
        Self { requests: 1, tokens: Self::tokens_of(bytes) }
    }

    /// About how many tokens a text of so many bytes has: one in four, as English has in the vocabularies of today.
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
