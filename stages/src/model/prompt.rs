//! Prompts of a dataset as token ids.

use std::sync::Arc;

use super::{ChatTemplate, Message, ModelError, Tokenizer};

/// Turns chats into the token ids that a model answers: template, then tokenizer. The only place where prompts are tokenised.
#[derive(Debug)]
pub struct PromptEncoder {
    /// Text to ids.
    pub tokenizer: Arc<Tokenizer>,
    /// Messages to text.
    pub template: ChatTemplate,
}

/// What became of a chat of limited length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// Its token ids.
    Ids(Vec<i32>),
    /// It was not tokenised, since it has at least so many tokens, which are too many.
    TooLong(usize),
}

impl PromptEncoder {
    /// Token ids of a chat of at most about `limit` tokens, the generation prompt included. A text that is so long that it must have more
    /// is not tokenised, which would take much memory; one of slightly more tokens is.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_within(&self, messages: &[Message], limit: usize) -> Result<Encoded, ModelError> {
        let text = self.template.render(messages, true)?;
        let least = self.tokenizer.least_tokens(text.len());
        if least > limit {
            return Ok(Encoded::TooLong(least));
        }
        self.tokenizer.encode(&text).map(Encoded::Ids)
    }

    /// Token ids of a chat, the generation prompt included.
    ///
    /// # Errors
    /// If the template fails or the tokenizer cannot represent the text.
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
    fn what_must_be_too_long_is_not_tokenised() {
        let encoder = PromptEncoder {
            tokenizer: Arc::new(Tokenizer::characters("ab").unwrap()),
            template: ChatTemplate::plain(),
        };
        let encode = |content: String, limit| {
            let message = Message { role: "user".to_owned(), content };
            encoder.encode_within(&[message], limit).unwrap()
        };
        assert_eq!(encode("ba".to_owned(), 1), Encoded::Ids(vec![4, 3]), "near the limit");
        // 64 MiB, of which tokenising would take 24 GB.
        assert_eq!(
            encode("a".repeat(1 << 26), 1 << 20),
            Encoded::TooLong((1_usize << 26).div_ceil(7))
        );
    }
}
