//! Decoding of a response while it is sampled.

use super::{ModelError, Tokenizer};

/// The number of tokens for which text is held back because it ends in an incomplete character. A character has at most 4 bytes.
const MAX_HELD: usize = 3;
/// The length of the window, in tokens, at which it is cut although its text is incomplete or has not grown.
const MAX_WINDOW: usize = 24;
/// The number of tokens at the end of the window that remain when it is cut at [`MAX_WINDOW`].
const CUT_WINDOW: usize = 8;

/// The text of a response that grows by one token at a time.
///
/// The text of a token depends on its neighbors: a decoder may drop spaces, and a character may span several tokens. Each new token is
/// therefore decoded together with a window of the tokens before it. While the text of the window ends in an incomplete character, no text
/// is returned, for up to three tokens. After that, only the last replacement characters are held back, because the bytes before them are
/// invalid. The returned texts concatenate to the text of all tokens. With a decoder that replaces whole runs of bytes if a part of them is
/// invalid, the number of replacement characters may differ.
#[derive(Clone, Debug)]
pub struct TextStream {
    skip_special: bool,
    /// The tokens of the window.
    ids: Vec<i32>,
    /// The number of bytes of the window's text that have been returned.
    returned: usize,
    /// The number of tokens of the window after which its text last ended in a complete character.
    complete: usize,
}

impl TextStream {
    /// Creates a stream without tokens. With `skip_special`, special tokens are left out of the text.
    #[must_use]
    pub fn new(skip_special: bool) -> Self {
        Self { skip_special, ids: Vec::new(), returned: 0, complete: 0 }
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
        let text = tokenizer.decode(&self.ids, self.skip_special)?;
        let held = if to_end { 0 } else { incomplete_end(&text) };
        let is_late = self.ids.len() - self.complete > MAX_HELD;
        if held > 0 && !is_late {
            return Ok(String::new());
        }
        let end = text.len() - held;
        let begin = text.ceil_char_boundary(self.returned.min(end));
        let new = text[begin..end].to_owned();
        self.returned = self.returned.max(end);
        if held == 0 && !new.is_empty() {
            self.shorten(tokenizer, self.complete, 0)?;
            self.complete = self.ids.len();
        } else if self.ids.len() >= MAX_WINDOW {
            self.shorten(
                tokenizer,
                self.ids.len() - CUT_WINDOW,
                text.len().saturating_sub(self.returned),
            )?;
            self.complete = if held == 0 { self.ids.len() } else { 0 };
        }
        Ok(new)
    }

    /// Removes the first `tokens` tokens of the window. `left` is the number of bytes at the end of its text that have not been returned.
    fn shorten(
        &mut self,
        tokenizer: &Tokenizer,
        tokens: usize,
        left: usize,
    ) -> Result<(), ModelError> {
        self.ids.drain(..tokens);
        let text = tokenizer.decode(&self.ids, self.skip_special)?;
        self.returned = text.len().saturating_sub(left);
        Ok(())
    }
}

/// Returns the length, in bytes, of the end of a text that another token may change: up to three replacement characters.
fn incomplete_end(text: &str) -> usize {
    let replaced = text.chars().rev().take_while(|c| *c == char::REPLACEMENT_CHARACTER);
    replaced.take(3).map(char::len_utf8).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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

    /// Returns a tokenizer with a token for each byte, the token 256 for the bytes of [`CROSSING`], and the token [`WORD`].
    fn bytes(name: impl Fn(u8) -> String, decoder: &serde_json::Value) -> Tokenizer {
        let mut vocabulary: BTreeMap<String, u32> =
            (0..=255).map(|byte| (name(byte), u32::from(byte))).collect();
        vocabulary.insert(CROSSING.map(name).concat(), 256);
        vocabulary.insert("word".to_owned(), WORD as u32);
        let folder = tempfile::tempdir().unwrap();
        let file = serde_json::json!({
            "version": "1.0", "added_tokens": [], "decoder": decoder,
            "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
        });
        std::fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
        Tokenizer::from_folder(folder.path()).unwrap()
    }

    const WORD: i32 = 257;

    /// The end of a character of four bytes and the start of another one.
    const CROSSING: [u8; 4] = [0x98, 0x80, 0xf0, 0x9f];

    /// Returns a tokenizer of bytes as GPT-2 names them.
    fn byte_level() -> Tokenizer {
        let is_printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let name = |byte: u8| {
            let code = if is_printable(byte) {
                u32::from(byte)
            } else {
                256 + (0..byte).filter(|before| !is_printable(*before)).count() as u32
            };
            char::from_u32(code).unwrap().to_string()
        };
        let decoder = serde_json::json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false
        });
        bytes(name, &decoder)
    }

    /// Returns a tokenizer of bytes as SentencePiece names them.
    fn byte_fallback() -> Tokenizer {
        let decoders =
            [serde_json::json!({"type": "ByteFallback"}), serde_json::json!({"type": "Fuse"})];
        let decoder = serde_json::json!({ "type": "Sequence", "decoders": decoders });
        bytes(|byte| format!("<0x{byte:02X}>"), &decoder)
    }

    /// Returns the text of a stream. The window must stay short.
    fn streamed(tokenizer: &Tokenizer, ids: impl IntoIterator<Item = i32>) -> String {
        let mut stream = TextStream::new(true);
        let mut text = String::new();
        for id in ids {
            text += &stream.push(tokenizer, id).unwrap();
            assert!(stream.ids.len() <= MAX_WINDOW, "{} tokens", stream.ids.len());
        }
        text + &stream.finish(tokenizer).unwrap()
    }

    #[test]
    fn invalid_bytes_are_replaced_without_decoding_all_of_them_again() {
        let tokenizer = byte_level();
        let mut random = 1_u32;
        let mut noise = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 24) as u8
        };
        let noise: Vec<u8> = (0..2000).map(|_| noise()).collect();
        let high: Vec<u8> = noise.iter().map(|byte| 0x80 | byte).collect();
        for bytes in [&b"\x80".repeat(500), &b"\xe2\x82".repeat(500), &noise, &high] {
            let bytes = [b"a\xe2\x82\xac".as_slice(), bytes, "é😀 b".as_bytes()].concat();
            let text = streamed(&tokenizer, bytes.iter().map(|byte| i32::from(*byte)));
            assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
        let smile = "😀".as_bytes();
        let ids = [smile[0], smile[1]].map(i32::from).into_iter();
        let ids = ids.chain([256; 100]).chain([smile[2], smile[3]].map(i32::from));
        assert_eq!(streamed(&tokenizer, ids), "😀".repeat(101), "no token ends a character");
    }

    #[test]
    fn text_after_invalid_bytes_is_not_lost_by_a_byte_fallback() {
        let tokenizer = byte_fallback();
        let ids = |bytes: &[u8]| bytes.iter().map(|byte| i32::from(*byte)).collect::<Vec<_>>();
        let text = "aé€😀".repeat(20);
        assert_eq!(streamed(&tokenizer, ids(text.as_bytes())), text);
        let bytes = ["😀".as_bytes(), &[0x80; 40]].concat();
        let all = [ids(&bytes), vec![WORD], ids(text.as_bytes())].concat();
        let streamed = streamed(&tokenizer, all);
        let is_whole = streamed.ends_with(&format!("\u{fffd}word{text}"));
        assert!(streamed.starts_with("😀\u{fffd}") && is_whole, "{streamed}");
    }

    #[test]
    fn tokens_without_text_do_not_widen_the_window() {
        let tokenizer = byte_level();
        let ids = (0..500).map(|at| if at % 100 == 0 { i32::from(b'a') } else { 300 });
        assert_eq!(streamed(&tokenizer, ids), "aaaaa");
    }
}
