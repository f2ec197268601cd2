//! Tokenization of the prompts of a dataset.

use std::sync::Arc;

use super::{ChatTemplate, Message, ModelError, Tokenizer};

/// An encoder from chats to token ids: it applies the chat template, then the tokenizer. The prompts of all datasets are encoded with it.
#[derive(Debug)]
pub struct PromptEncoder {
    /// The tokenizer, from text to ids.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, from messages to text.
    pub template: ChatTemplate,
}

/// The result of encoding a chat of limited length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// The token ids of the chat.
    Ids(Vec<i32>),
    /// The chat was not tokenized, because its text has [at least](Tokenizer::min_tokens) this many tokens, which exceeds the limit.
    TooLong(usize),
}

impl PromptEncoder {
    /// Returns the token ids of a chat, the generation prompt included, or [`Encoded::TooLong`] if the length of the text implies more than
    /// `limit` tokens.
    ///
    /// A text that is too long is not tokenized, because tokenization would use much memory. The number of tokens is only estimated from
    /// below, so the token ids may still exceed `limit`.
    ///
    /// # Errors
    /// Returns the errors of [`encode`](Self::encode).
    pub fn encode_within(&self, messages: &[Message], limit: usize) -> Result<Encoded, ModelError> {
        let text = self.template.render(messages, true)?;
        let min = self.tokenizer.min_tokens(text.len());
        if min > limit {
            return Ok(Encoded::TooLong(min));
        }
        self.tokenizer.encode(&text).map(Encoded::Ids)
    }

    /// Returns the token ids of a chat, the generation prompt included.
    ///
    /// # Errors
    /// Returns an error if the template fails, the tokenizer cannot represent the text, or the text is longer than 16 MiB.
    pub fn encode(&self, messages: &[Message]) -> Result<Vec<i32>, ModelError> {
        self.tokenizer.encode(&self.template.render(messages, true)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_and_tokenizer_are_applied_in_turn() {
        let encoder = PromptEncoder {
            tokenizer: Arc::new(Tokenizer::characters("ab>").unwrap()),
            template: ChatTemplate::new(
                "{{ messages[0].content }}<|eos|>{% if add_generation_prompt %}>{% endif %}",
            )
            .unwrap(),
        };
        let message = Message { role: "user".to_owned(), content: "ba".to_owned() };
        assert_eq!(encoder.encode(&[message]).unwrap(), [4, 3, 1, 5]);
    }

    #[test]
    fn text_that_must_be_too_long_is_not_tokenised() {
        let encoder = PromptEncoder {
            tokenizer: Arc::new(Tokenizer::characters("ab").unwrap()),
            template: ChatTemplate::plain(),
        };
        let encode = |content: String, limit| {
            let message = Message { role: "user".to_owned(), content };
            encoder.encode_within(&[message], limit).unwrap()
        };
        assert_eq!(encode("ba".to_owned(), 1), Encoded::Ids(vec![4, 3]), "near the limit");
        // Tokenizing these 64 MiB would use 24 GB.
        assert_eq!(
            encode("a".repeat(1 << 26), 1 << 20),
            Encoded::TooLong((1_usize << 26).div_ceil(7))
        );
    }
}
