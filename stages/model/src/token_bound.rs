//! A lower bound on the number of tokens of a text, computed from its length.
//!
//! Tokenization takes about 400 bytes of memory for each byte of text, so a prompt that is far too long should be detected before it is
//! tokenized. If every token covers at most `n` bytes, a text of `b` bytes has at least `b / n` tokens. Not every tokenizer has such an
//! `n`: a tokenizer that drops spaces, or that maps a word of any length to its unknown token, has none.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::{ModelWrapper, Tokenizer as Inner};

/// Bytes of a text that are assumed to need no token if the tokenizer has no maximum of bytes per token.
const FREE_BYTES: usize = 1 << 20;

/// Bytes beyond [`FREE_BYTES`] that are counted as one token if the tokenizer has no maximum of bytes per token.
const ASSUMED_BYTES: usize = 256;

/// The maximum number of bytes of text that one token covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenBound {
    Bytes(usize),
    /// No bound is known.
    None,
}

impl TokenBound {
    pub(super) fn of(tokenizer: &Inner) -> Self {
        bytes_per_token(tokenizer).map_or(Self::None, Self::Bytes)
    }

    /// Returns a lower bound on the number of tokens of a text of `bytes` bytes.
    ///
    /// For a tokenizer without a bound this is an assumption: one token for every 256 bytes beyond the first MiB.
    pub(super) fn min_tokens(self, bytes: usize) -> usize {
        match self {
            Self::Bytes(max) => bytes.div_ceil(max),
            Self::None => bytes.saturating_sub(FREE_BYTES) / ASSUMED_BYTES,
        }
    }
}

/// Returns the maximum number of bytes of text that one token covers; `None` if no bound is known.
///
/// The bound holds only if no byte of the text is lost on its way into tokens. Each component of the tokenizer is therefore checked: added
/// tokens must not strip spaces, texts must not be truncated, the pre-tokenizer must not remove text, and the model must turn every
/// character into tokens. The bound is the length of the longest token in the vocabulary, times the factor by which the normalizer may
/// shorten the text.
fn bytes_per_token(tokenizer: &Inner) -> Option<usize> {
    let vocabulary = tokenizer.get_vocab(true);
    let json = |part: Option<serde_json::Result<Value>>| part.map_or(Some(Value::Null), Result::ok);
    let normalizer = json(tokenizer.get_normalizer().map(serde_json::to_value))?;
    let pre_tokenizer = json(tokenizer.get_pre_tokenizer().map(serde_json::to_value))?;
    let added = tokenizer.get_added_tokens_decoder();
    // Such tokens absorb any number of adjacent spaces.
    let strips = added.values().any(|token| token.lstrip || token.rstrip);
    if strips || tokenizer.get_truncation().is_some() || !keeps_text(&pre_tokenizer) {
        return None;
    }
    let covers = match tokenizer.get_model() {
        ModelWrapper::BPE(model) => {
            let is_byte_level = has(&normalizer, "ByteLevel") || has(&pre_tokenizer, "ByteLevel");
            (is_byte_level && has_byte_characters(&vocabulary))
                || (model.byte_fallback && has_byte_tokens(&vocabulary))
                || (model.unk_token.is_some() && !model.fuse_unk)
        }
        ModelWrapper::WordLevel(_) => splits_characters(&pre_tokenizer),
        ModelWrapper::WordPiece(_) | ModelWrapper::Unigram(_) => false,
    };
    let longest = vocabulary.keys().map(String::len).max()?;
    // The unknown token covers one character.
    let longest = longest.max(char::MAX.len_utf8());
    covers.then(|| shrink_factor(&normalizer))?.map(|factor| longest.saturating_mul(factor))
}

/// Returns the factor by which a normalizer may shorten a text; `None` if no bound is known.
fn shrink_factor(normalizer: &Value) -> Option<usize> {
    match kind(normalizer) {
        None => normalizer.is_null().then_some(1),
        Some("ByteLevel" | "Prepend") => Some(1),
        // The 7 bytes of U+1FBE U+0308 U+0341 become U+0390, which has 2. No other composition of Unicode shrinks a text more, and no
        // letter shrinks more in lower case.
        Some("NFC" | "NFD" | "Lowercase") => Some(4),
        Some("Replace") => {
            let pattern = normalizer["pattern"]["String"].as_str()?;
            let content = normalizer["content"].as_str().filter(|content| !content.is_empty())?;
            Some(pattern.len().div_ceil(content.len()).max(1))
        }
        Some("Sequence") => normalizer["normalizers"]
            .as_array()?
            .iter()
            .try_fold(1_usize, |factor, part| Some(factor.saturating_mul(shrink_factor(part)?))),
        Some(_) => None,
    }
}

/// Returns `true` if a pre-tokenizer is known to drop no text.
fn keeps_text(pre_tokenizer: &Value) -> bool {
    match kind(pre_tokenizer) {
        None => pre_tokenizer.is_null(),
        Some("ByteLevel" | "Digits" | "Metaspace" | "UnicodeScripts") => true,
        Some("Split" | "Punctuation") => {
            pre_tokenizer["behavior"].as_str().is_some_and(|behavior| behavior != "Removed")
        }
        Some("Sequence") => {
            pre_tokenizer["pretokenizers"].as_array().is_some_and(|all| all.iter().all(keeps_text))
        }
        Some(_) => false,
    }
}

/// Returns `true` if a pre-tokenizer is known to split a text into single characters.
fn splits_characters(pre_tokenizer: &Value) -> bool {
    pre_tokenizer["pattern"]["Regex"] == "[\\s\\S]"
        && pre_tokenizer["behavior"] == "Isolated"
        && pre_tokenizer["invert"] == false
}

/// Returns `true` if a component, or one of its direct parts, has the type `wanted`.
fn has(component: &Value, wanted: &str) -> bool {
    let parts = [&component["normalizers"], &component["pretokenizers"]];
    kind(component) == Some(wanted)
        || parts
            .into_iter()
            .filter_map(Value::as_array)
            .flatten()
            .any(|part| kind(part) == Some(wanted))
}

fn kind(component: &Value) -> Option<&str> {
    component["type"].as_str()
}

/// Returns `true` if a vocabulary has the characters that represent the 256 bytes.
fn has_byte_characters(vocabulary: &HashMap<String, u32>) -> bool {
    let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
    alphabet.into_iter().all(|character| vocabulary.contains_key(&character.to_string()))
}

/// Returns `true` if a vocabulary has the tokens `<0x00>` to `<0xFF>`.
fn has_byte_tokens(vocabulary: &HashMap<String, u32>) -> bool {
    (0..=u8::MAX).all(|byte| vocabulary.contains_key(&format!("<{byte:#04X}>")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a byte-level BPE tokenizer like those of Qwen and Llama 3, in which the parts of `with` replace its own.
    fn byte_level(with: Value) -> Inner {
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        let mut characters: Vec<String> = alphabet.into_iter().map(String::from).collect();
        characters.sort();
        let mut vocab: serde_json::Map<String, Value> =
            characters.into_iter().zip(0..).map(|(token, id)| (token, json!(id))).collect();
        vocab.insert("aa".to_owned(), json!(256));
        vocab.insert("aaaa".to_owned(), json!(257));
        let mut json = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "post_processor": null, "decoder": null,
            "normalizer": { "type": "NFC" },
            "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
                { "type": "Split", "pattern": { "Regex": "\\s+|\\S+" }, "behavior": "Isolated", "invert": false },
                { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false },
            ]},
            "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": [["a", "a"], ["aa", "aa"]] },
        });
        for (key, value) in with.as_object().expect("an object") {
            json[key] = value.clone();
        }
        Inner::from_bytes(json.to_string()).expect("a tokenizer")
    }

    #[test]
    fn no_text_has_fewer_tokens_than_its_bound() {
        let tokenizer = byte_level(json!({}));
        let bound = TokenBound::of(&tokenizer);
        assert_eq!(bound, TokenBound::Bytes(16), "four bytes, composed of four times as many");
        for text in [
            "",
            "a",
            "aaaa",
            &"a".repeat(1000),
            &"\u{1fbe}\u{308}\u{341}".repeat(1000),
            "à \u{0}é 語",
        ] {
            let tokens = tokenizer.encode_fast(text, false).expect("encoded").len();
            assert!(bound.min_tokens(text.len()) <= tokens, "{text:?}: {tokens}");
        }
        let long = bound.min_tokens(1 << 26);
        assert!(long > 4_000_000, "{long}");
    }

    #[test]
    fn tokenizers_that_may_drop_text_have_no_bound() {
        let whitespace = json!({ "pre_tokenizer": { "type": "WhitespaceSplit" } });
        let stripping = json!({ "added_tokens": [{ "id": 258, "content": "<x>", "single_word": false, "lstrip": true,
            "rstrip": false, "normalized": false, "special": true }] });
        let compatibility =
            json!({ "normalizer": { "type": "Strip", "strip_left": true, "strip_right": true } });
        let truncated = json!({ "truncation": { "direction": "Right", "max_length": 4, "strategy": "LongestFirst",
            "stride": 0 } });
        for with in [whitespace, stripping, compatibility, truncated] {
            assert_eq!(TokenBound::of(&byte_level(with.clone())), TokenBound::None, "{with}");
        }
        assert_eq!(TokenBound::None.min_tokens(1 << 20), 0);
        assert_eq!(TokenBound::None.min_tokens(1 << 26), (63 << 20) / 256);
    }

    #[test]
    fn replacements_shrink_by_the_ratio_of_their_lengths() {
        let replace = json!({ "normalizer": { "type": "Replace", "pattern": { "String": "abcdef" }, "content": "xyz" } });
        assert_eq!(TokenBound::of(&byte_level(replace)), TokenBound::Bytes(8));
        let erase = json!({ "normalizer": { "type": "Replace", "pattern": { "String": "a" }, "content": "" } });
        assert_eq!(TokenBound::of(&byte_level(erase)), TokenBound::None);
    }
}
