//! The texts of tokens.

use std::path::Path;

#[cfg(feature = "tokenizer")]
use rollpacker_model::{TextStream, Tokenizer};

pub(super) enum Vocabulary {
    /// There is no tokenizer, for this reason.
    Unknown(String),
    /// A tokenizer in Hugging Face format.
    #[cfg(feature = "tokenizer")]
    Known(Box<Tokenizer>),
}

impl Vocabulary {
    /// Reads the tokenizer of a folder. Returns `Unknown` with the reason if it cannot be read.
    #[cfg(feature = "tokenizer")]
    pub(super) fn read(folder: &Path) -> Self {
        match Tokenizer::from_folder(folder) {
            Ok(tokenizer) => Self::Known(Box::new(tokenizer)),
            Err(error) => Self::Unknown(error.to_string()),
        }
    }

    /// Returns `Unknown`, because this program was built without tokenizers.
    #[cfg(not(feature = "tokenizer"))]
    pub(super) fn read(_folder: &Path) -> Self {
        Self::Unknown("this program was built without the feature `tokenizer`".to_owned())
    }

    /// Returns `true` if there is a tokenizer.
    pub(super) fn is_known(&self) -> bool {
        !matches!(self, Self::Unknown(_))
    }

    /// Returns the text of each token of a response, or the reason why there are no texts. Exactly one of the two values is `Some`.
    ///
    /// Without a tokenizer, a response with as many characters as tokens is taken to have one character per token, as with the models of
    /// the built-in task. If there is one token more than characters, the last token is taken to be the end-of-sequence
    /// token, and its text is empty.
    pub(super) fn pieces(
        &self,
        ids: &[i32],
        response: &str,
    ) -> (Option<Vec<String>>, Option<String>) {
        match self {
            Self::Unknown(reason) => match by_character(ids.len(), response) {
                Some(pieces) => (Some(pieces), None),
                None => (None, Some(reason.clone())),
            },
            #[cfg(feature = "tokenizer")]
            Self::Known(tokenizer) => match decoded(tokenizer, ids) {
                Some(pieces) => (Some(pieces), None),
                None => (None, Some("the tokenizer cannot decode the response".to_owned())),
            },
        }
    }
}

fn by_character(tokens: usize, response: &str) -> Option<Vec<String>> {
    let mut pieces: Vec<String> = response.chars().map(String::from).collect();
    if pieces.len() + 1 == tokens {
        pieces.push(String::new());
    }
    (pieces.len() == tokens).then_some(pieces)
}

/// Decodes token by token. A character of several tokens is in the piece of its last token; special tokens show their names.
#[cfg(feature = "tokenizer")]
fn decoded(tokenizer: &Tokenizer, ids: &[i32]) -> Option<Vec<String>> {
    let mut stream = TextStream::new(false);
    let mut pieces: Vec<String> =
        ids.iter().map(|id| stream.push(tokenizer, *id).ok()).collect::<Option<_>>()?;
    if let Some(last) = pieces.last_mut() {
        last.push_str(&stream.finish(tokenizer).ok()?);
    }
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_tokens_only_if_the_numbers_agree() {
        assert_eq!(by_character(2, "äb"), Some(vec!["ä".to_owned(), "b".to_owned()]));
        assert_eq!(by_character(3, "ab").expect("with an end").last(), Some(&String::new()));
        assert_eq!(by_character(2, "abc"), None);
    }
}
