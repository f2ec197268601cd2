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

impl PromptEncoder {
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
}
