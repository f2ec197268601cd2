//! The labels of the weights that sampled a response.

use rollpacker_stages::serving::ServedToken;

use crate::vllm::protocol::WeightVersionSpan;

/// The spans of the tokens of a response, one for each run of tokens with the same label.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans(Vec<WeightVersionSpan>);

impl Spans {
    pub(super) fn add(&mut self, token: &ServedToken) {
        let at = self.0.last().map_or(0, |span| span.end);
        match self.0.last_mut().filter(|span| *span.version == *token.version) {
            Some(span) => span.end += 1,
            None => {
                let version = token.version.to_string();
                self.0.push(WeightVersionSpan { version, start: at, end: at + 1 });
            }
        }
    }

    /// Removes and returns the spans.
    pub(super) fn take(&mut self) -> Vec<WeightVersionSpan> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_no_gaps() {
        let mut spans = Spans::default();
        for version in ["1", "1", "2", "1"] {
            spans.add(&ServedToken { id: 0, logprob: None, version: version.into() });
        }
        let found: Vec<_> =
            spans.take().into_iter().map(|span| (span.version, span.start, span.end)).collect();
        assert_eq!(found, [("1".to_owned(), 0, 2), ("2".to_owned(), 2, 3), ("1".to_owned(), 3, 4)]);
    }
}
