//! Conversion between text and token ids.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use tokenizers::models::wordlevel::WordLevel;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, SplitDelimiterBehavior, Tokenizer as Inner,
    decoders::fuse::Fuse,
};

use super::ModelError;
use super::json::MAX_BYTES;
use super::token_bound::TokenBound;

/// Maximum length of a text to tokenize, in bytes. Tokenization uses about 400 bytes of memory for each byte of the text, and no supported
/// model has a context of that length.
const MAX_TEXT: usize = 16 << 20;

/// A tokenizer in the format of Hugging Face's `tokenizer.json`.
///
/// Special tokens that occur in a text are recognized, because chat templates write them. Encoding adds no special tokens of its own,
/// because templates write all of them.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Inner,
    origin: String,
    bound: TokenBound,
}

/// The padding token of [`Tokenizer::characters`].
pub const PAD: &str = "<|pad|>";
/// The end-of-sequence token of [`Tokenizer::characters`], which ends a response.
pub const EOS: &str = "<|eos|>";
/// The token of [`Tokenizer::characters`] for characters outside the alphabet.
pub const UNKNOWN: &str = "<|unk|>";

const SPECIAL: [&str; 3] = [PAD, EOS, UNKNOWN];

impl Tokenizer {
    /// Reads `tokenizer.json` in `folder`. Its settings for truncation and padding are ignored.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not a tokenizer.
    pub fn from_folder(folder: &Path) -> Result<Self, ModelError> {
        let path = folder.join("tokenizer.json");
        let text = rollpacker_files::read(&path, MAX_BYTES).map_err(ModelError::read(&path))?;
        let origin = path.display().to_string();
        let mut inner = Inner::from_bytes(text).map_err(failed(&origin))?;
        // The file may have settings for truncation and padding. As in transformers, they are ignored: they would silently truncate or pad
        // prompts.
        inner.with_truncation(None).map_err(failed(&origin))?;
        inner.with_padding(None);
        Ok(Self { bound: TokenBound::of(&inner), inner, origin })
    }

    /// Creates a tokenizer with one token per character.
    ///
    /// Ids 0, 1 and 2 are [`PAD`], [`EOS`] and [`UNKNOWN`]. The characters of `alphabet` follow in their order. transformers can load the
    /// files that [`save`](Self::save) writes.
    ///
    /// # Errors
    /// Returns an error if a character appears twice in the alphabet.
    pub fn characters(alphabet: &str) -> Result<Self, ModelError> {
        let origin = "of characters";
        let vocabulary = numbered(origin, alphabet)?;
        let model = WordLevel::builder()
            .vocab(vocabulary.into_iter().collect())
            .unk_token(UNKNOWN.to_owned())
            .build();
        let mut inner = Inner::new(model.map_err(failed(origin))?);
        let any = SplitPattern::Regex("[\\s\\S]".to_owned());
        inner.with_pre_tokenizer(Some(
            Split::new(any, SplitDelimiterBehavior::Isolated, false).map_err(failed(origin))?,
        ));
        inner.with_decoder(Some(DecoderWrapper::Fuse(Fuse::new())));
        inner
            .add_special_tokens(SPECIAL.map(|token| AddedToken::from(token, true)))
            .map_err(failed(origin))?;
        Ok(Self { bound: TokenBound::of(&inner), inner, origin: origin.to_owned() })
    }

    /// Returns a lower bound on the number of tokens of a text of `bytes` bytes, without tokenizing it.
    ///
    /// The bound is guaranteed for tokenizers whose tokens cover a limited number of bytes, such as byte-level tokenizers. For other
    /// tokenizers it is an assumption: one token for every 256 bytes beyond the first MiB.
    #[must_use]
    pub fn min_tokens(&self, bytes: usize) -> usize {
        self.bound.min_tokens(bytes)
    }

    /// Returns the token ids of a text.
    ///
    /// # Errors
    /// Returns an error if the tokenizer cannot represent the text, or the text is longer than 16 MiB, which would take several GiB of
    /// memory.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, ModelError> {
        if text.len() > MAX_TEXT {
            let found = text.len();
            let reason = format!("expected a text of at most {MAX_TEXT} bytes, found {found}");
            return Err(ModelError::Tokenizer { origin: self.origin.clone(), reason });
        }
        let encoding = self.inner.encode_fast(text, false).map_err(failed(&self.origin))?;
        encoding
            .get_ids()
            .iter()
            .map(|&id| i32::try_from(id).map_err(failed(&self.origin)))
            .collect()
    }

    /// Returns the text of token ids, without special tokens if `skip_special` is `true`. Ids that are not tokens are skipped.
    ///
    /// # Errors
    /// Returns an error if the tokenizer's decoder fails.
    pub fn decode(&self, ids: &[i32], skip_special: bool) -> Result<String, ModelError> {
        let ids: Vec<u32> = ids.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
        self.inner.decode(&ids, skip_special).map_err(failed(&self.origin))
    }

    /// Returns `true` if `id` is a special token, which [`decode`](Self::decode) can skip.
    pub(crate) fn is_special(&self, id: i32) -> bool {
        let token = u32::try_from(id).ok().and_then(|id| self.inner.id_to_token(id));
        token.is_some_and(|token| self.inner.get_added_vocabulary().is_special_token(&token))
    }

    /// Returns the number of tokens, added tokens included.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Returns the id of a token; `None` if the vocabulary does not have the token.
    #[must_use]
    pub fn token_to_id(&self, token: &str) -> Option<i32> {
        self.inner.token_to_id(token).and_then(|id| i32::try_from(id).ok())
    }

    /// Returns the id and the name of the unknown token, which stands for text that the vocabulary cannot represent. `None` if the
    /// tokenizer has no unknown token, as in byte-level models.
    #[must_use]
    pub fn unknown(&self) -> Option<(i32, String)> {
        let name = match self.inner.get_model() {
            ModelWrapper::BPE(model) => model.unk_token.clone(),
            ModelWrapper::WordLevel(model) => Some(model.unk_token.clone()),
            ModelWrapper::WordPiece(model) => Some(model.unk_token.clone()),
            // The model does not report its unknown token, which has this name in tokenizers of SentencePiece.
            ModelWrapper::Unigram(_) => Some("<unk>".to_owned()),
        }?;
        Some((self.token_to_id(&name)?, name))
    }

    /// Writes `tokenizer.json`, and a `tokenizer_config.json` for transformers unless the folder already has one.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), ModelError> {
        let text = self.inner.to_string(true).map_err(failed(&self.origin))?;
        write(&folder.join("tokenizer.json"), &text)?;
        let config = folder.join("tokenizer_config.json");
        if config.exists() { Ok(()) } else { write(&config, &self.transformers_config()) }
    }

    fn transformers_config(&self) -> String {
        let mut config = serde_json::json!({ "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false });
        for (key, token) in [("pad_token", PAD), ("eos_token", EOS), ("unk_token", UNKNOWN)] {
            if self.token_to_id(token).is_some() {
                config[key] = token.into();
            }
        }
        format!("{config:#}\n")
    }
}

fn write(path: &Path, text: &str) -> Result<(), ModelError> {
    Ok(rollpacker_files::write(path, text.as_bytes())?)
}

/// Returns the special tokens, followed by the characters of the alphabet, with their ids. Returns an error if a character appears twice.
fn numbered(origin: &str, alphabet: &str) -> Result<Vec<(String, u32)>, ModelError> {
    let tokens =
        SPECIAL.iter().map(|&token| token.to_owned()).chain(alphabet.chars().map(String::from));
    let numbered: Vec<(String, u32)> = tokens.zip(0..).collect();
    let mut ids = BTreeMap::new();
    for (token, id) in &numbered {
        if let Some(earlier) = ids.insert(token, id) {
            let reason = format!("`{token}` appears twice, as ids {earlier} and {id}");
            return Err(ModelError::Tokenizer { origin: origin.to_owned(), reason });
        }
    }
    Ok(numbered)
}

fn failed<E: fmt::Display>(origin: &str) -> impl Fn(E) -> ModelError {
    move |error| ModelError::Tokenizer { origin: origin.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_tokens() {
        let tokenizer = Tokenizer::characters("0123456789+*=,: \n").unwrap();
        assert_eq!(tokenizer.vocab_size(), 20);
        assert_eq!(tokenizer.encode("3+ 4\n<|eos|>").unwrap(), [6, 13, 18, 7, 19, 1]);
        assert_eq!(tokenizer.decode(&[6, 13, 18, 7, 19, 1], true).unwrap(), "3+ 4\n");
        assert_eq!(tokenizer.decode(&[6, 1], false).unwrap(), "3<|eos|>");
        assert_eq!(tokenizer.token_to_id(EOS), Some(1));
    }

    #[test]
    fn a_text_has_a_token_for_every_few_bytes() {
        let tokenizer = Tokenizer::characters("ab").unwrap();
        // The longest token is `<|unk|>`.
        assert_eq!([0, 7, 8, 7000].map(|bytes| tokenizer.min_tokens(bytes)), [0, 1, 2, 1000]);
    }

    #[test]
    fn a_text_that_would_take_all_memory_is_refused() {
        let error = Tokenizer::characters("ab").unwrap().encode(&"a".repeat((16 << 20) + 1));
        let expected = "expected a text of at most 16777216 bytes, found 16777217";
        assert!(error.unwrap_err().to_string().ends_with(expected));
    }

    #[test]
    fn characters_outside_the_alphabet_are_unknown() {
        let tokenizer = Tokenizer::characters("ab").unwrap();
        assert_eq!(tokenizer.encode("acbé").unwrap(), [3, 2, 4, 2]);
    }

    #[test]
    fn a_repeated_character_is_refused() {
        let error = Tokenizer::characters("abca").unwrap_err();
        assert_eq!(error.to_string(), "tokenizer of characters: `a` appears twice, as ids 3 and 6");
    }

    #[test]
    fn a_saved_tokenizer_encodes_the_same() {
        let tokenizer = Tokenizer::characters("abc ").unwrap();
        let folder = tempfile::tempdir().unwrap();
        tokenizer.save(folder.path()).unwrap();
        let again = Tokenizer::from_folder(folder.path()).unwrap();
        for text in ["", "a  b", "<|pad|>c<|eos|>", "x"] {
            assert_eq!(again.encode(text).unwrap(), tokenizer.encode(text).unwrap(), "{text:?}");
        }
        assert_eq!(again.vocab_size(), tokenizer.vocab_size());
    }

    #[test]
    fn truncation_and_padding_of_the_file_do_not_apply() {
        let folder = tempfile::tempdir().unwrap();
        let tokenizer = Tokenizer::characters("ab").unwrap();
        tokenizer.save(folder.path()).unwrap();
        let path = folder.path().join("tokenizer.json");
        let mut file: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        file["truncation"] = serde_json::json!({
            "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0
        });
        file["padding"] = serde_json::json!({
            "strategy": { "Fixed": 9 }, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": PAD
        });
        std::fs::write(&path, file.to_string()).unwrap();
        let again = Tokenizer::from_folder(folder.path()).unwrap();
        assert_eq!(again.encode("abab").unwrap(), tokenizer.encode("abab").unwrap());
    }

    #[test]
    fn an_invalid_tokenizer_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Tokenizer::from_folder(folder.path()).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!(
                "cannot read {}",
                folder.path().join("tokenizer.json").display()
            )),
            "{error}"
        );
        std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
        let error = Tokenizer::from_folder(folder.path()).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!(
                "tokenizer {}",
                folder.path().join("tokenizer.json").display()
            )),
            "{error}"
        );
    }
}
