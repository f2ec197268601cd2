//! Decoding of a response while it is sampled.

use super::{ModelError, Tokenizer};

/// The text of a response that grows by one token at a time.
///
/// The text of a token depends on its neighbors: a decoder may drop spaces, and a character may span several tokens. With each new token, a
/// window of the last tokens is decoded. Text that ends in an incomplete character is held back. The returned texts concatenate to the text
/// of all tokens.
#[derive(Clone, Debug)]
pub struct TextStream {
    skip_special: bool,
    ids: Vec<i32>,
    /// Index of the first token of the window.
    start: usize,
    /// Number of tokens whose text was returned.
    returned: usize,
}

impl TextStream {
    /// Creates a stream without tokens. With `skip_special`, special tokens are left out of the text.
    #[must_use]
    pub fn new(skip_special: bool) -> Self {
        Self { skip_special, ids: Vec::new(), start: 0, returned: 0 }
    }

    /// Adds a token. Returns the text that this token completes, which may be empty.
    ///
    /// # Errors
    /// Returns an error if the tokenizer's decoder fails.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: i32) -> Result<String, ModelError> {
        // Without text, a token would only widen the window, which is decoded again with every token.
        if self.skip_special && tokenizer.is_special(id) {
            return Ok(String::new());
        }
        self.ids.push(id);
        self.advance(tokenizer, false)
    }

    /// Returns the text that is left, incomplete characters included.
    ///
    /// # Errors
    /// Returns an error if the tokenizer's decoder fails.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, ModelError> {
        self.advance(tokenizer, true)
    }

    fn advance(&mut self, tokenizer: &Tokenizer, to_end: bool) -> Result<String, ModelError> {
        let before = tokenizer.decode(&self.ids[self.start..self.returned], self.skip_special)?;
        let text = tokenizer.decode(&self.ids[self.start..], self.skip_special)?;
        let is_complete = to_end || !text.ends_with(char::REPLACEMENT_CHARACTER);
        let Some(new) = text.get(before.len()..).filter(|new| is_complete && !new.is_empty())
        else {
            return Ok(String::new());
        };
        (self.start, self.returned) = (self.returned, self.ids.len());
        Ok(new.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_concatenate_to_the_text() {
        let tokenizer = Tokenizer::characters("ab é").unwrap();
        let ids = tokenizer.encode("a bé<|eos|>b").unwrap();
        let mut stream = TextStream::new(true);
        let parts: Vec<String> =
            ids.iter().map(|id| stream.push(&tokenizer, *id).unwrap()).collect();
        assert_eq!(parts, ["a", " ", "b", "é", "", "b"]);
        assert_eq!(stream.finish(&tokenizer).unwrap(), "");
        let end = tokenizer.token_to_id("<|eos|>").unwrap();
        let before = stream.ids.len();
        (0..10).for_each(|_| assert_eq!(stream.push(&tokenizer, end).unwrap(), ""));
        assert_eq!(stream.ids.len(), before, "skipped tokens are not decoded again");
        let mut all = TextStream::new(false);
        assert_eq!(all.push(&tokenizer, end).unwrap(), "<|eos|>");
    }
}
