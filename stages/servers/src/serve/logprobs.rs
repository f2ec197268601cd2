//! Log-probabilities in the formats of the different calls.

use std::collections::BTreeMap;

use rollpacker_model::{TextStream, Tokenizer};
use rollpacker_stages::serving::{ServedToken, TokenLogprob};
use serde_json::{Map, Value, json};

use crate::vllm::protocol::{
    CompletionLogprobs, LOWEST_LOGPROB, Logprob, Logprobs, PromptLogprob, PromptLogprobs,
};

/// Returns the log-probabilities of tokens in the format of `/inference/v1/generate`.
pub(super) fn by_id(tokens: &[ServedToken]) -> Logprobs {
    let entry = |token: &ServedToken| {
        let scored = token.logprob.as_ref();
        Logprob {
            token_id: token.id,
            logprob: scored.map_or(LOWEST_LOGPROB, |scored| sendable(scored.logprob)),
            rank: scored.map(|scored| scored.rank),
            top_logprobs: scored.map(top_by_id).unwrap_or_default(),
        }
    };
    Logprobs { content: Some(tokens.iter().map(entry).collect()) }
}

fn top_by_id(scored: &TokenLogprob) -> Vec<Logprob> {
    let ranked = (1..).zip(&scored.top);
    let entry = |(rank, (token, logprob)): (u32, &(i32, f32))| Logprob {
        token_id: *token,
        logprob: sendable(*logprob),
        rank: Some(rank),
        top_logprobs: Vec::new(),
    };
    ranked.map(entry).collect()
}

/// Returns the log-probabilities of the tokens of a prompt and of the most likely tokens at their positions, by token id. The entry of the
/// first token is `None`.
pub(super) fn of_prompt(
    tokenizer: &Tokenizer,
    prompt: &[i32],
    scored: &[TokenLogprob],
) -> PromptLogprobs {
    let entry = |id: i32, logprob: f32, rank: u32| {
        let decoded_token = Some(text_of(tokenizer, id));
        let logprob = sendable(logprob);
        (id.to_string(), PromptLogprob { logprob, rank: Some(rank), decoded_token })
    };
    let place = |(id, scored): (&i32, &TokenLogprob)| {
        let top = (1..).zip(&scored.top).map(|(rank, (id, logprob))| entry(*id, *logprob, rank));
        let own = entry(*id, scored.logprob, scored.rank);
        Some(top.chain([own]).collect::<BTreeMap<_, _>>())
    };
    let first = (!prompt.is_empty()).then_some(None);
    first.into_iter().chain(prompt.iter().skip(1).zip(scored).map(place)).collect()
}

/// The place of a token in the text of a prompt or a response.
///
/// The texts of single tokens do not add up to the text: a character may span several tokens, each of which is a replacement character on
/// its own, and special tokens may be left out. All tokens of a character have its place.
#[derive(Clone, Debug)]
pub(super) struct TokenPlace {
    /// The number of characters before the token.
    offset: u64,
    stream: TextStream,
}

impl TokenPlace {
    /// Creates the place of the first token of a text, which begins after `offset` characters. With `skip_special`, special tokens are not
    /// part of the text.
    pub(super) fn new(offset: u64, skip_special: bool) -> Self {
        Self { offset, stream: TextStream::new(skip_special) }
    }

    /// Moves to the token after the token `id`. A token that cannot be decoded has no text.
    fn advance(&mut self, tokenizer: &Tokenizer, id: i32) {
        let text = self.stream.push(tokenizer, id).unwrap_or_default();
        self.offset += text.chars().count() as u64;
    }
}

/// Formats tokens as text for OpenAI's calls.
#[derive(Clone, Copy)]
pub(super) struct TokenTexts<'t> {
    pub(super) tokenizer: &'t Tokenizer,
    /// `true` to write `token_id:5` in place of the text of token 5, as `return_tokens_as_token_ids` requests.
    pub(super) as_ids: bool,
}

impl TokenTexts<'_> {
    fn text(&self, id: i32) -> String {
        if self.as_ids { format!("token_id:{id}") } else { text_of(self.tokenizer, id) }
    }

    /// Adds the log-probabilities of tokens to `all`, in the format of `/v1/completions`. `place` is the place of the first token and
    /// becomes that of the token after the last one.
    pub(super) fn add_to_completion<'a>(
        &self,
        all: &mut CompletionLogprobs,
        tokens: impl Iterator<Item = (i32, Option<&'a TokenLogprob>)>,
        place: &mut TokenPlace,
    ) {
        for (id, scored) in tokens {
            let text = self.text(id);
            all.text_offset.push(place.offset);
            place.advance(self.tokenizer, id);
            all.token_logprobs.push(scored.map(|scored| sendable(scored.logprob)));
            all.top_logprobs.push(scored.map(|scored| self.top(&text, scored)));
            all.tokens.push(text);
        }
    }

    /// Returns the log-probabilities of the most likely tokens and of the token itself, whose text is `own`, by text. If several tokens
    /// have the same text, the log-probability of the most likely of these tokens is returned.
    fn top(&self, own: &str, scored: &TokenLogprob) -> Map<String, Value> {
        let mut top = Map::new();
        for (id, logprob) in &scored.top {
            top.entry(self.text(*id)).or_insert_with(|| number(*logprob));
        }
        top.entry(own.to_owned()).or_insert_with(|| number(scored.logprob));
        top
    }

    /// Returns the log-probabilities of tokens in the format of `/v1/chat/completions`.
    pub(super) fn of_chat(&self, tokens: &[ServedToken]) -> Value {
        let entry = |token: &ServedToken| {
            let scored = token.logprob.as_ref();
            let logprob = scored.map_or(LOWEST_LOGPROB, |scored| scored.logprob);
            let mut entry = self.chat_entry(token.id, logprob);
            let top = scored.into_iter().flat_map(|scored| &scored.top);
            entry["top_logprobs"] =
                top.map(|(id, logprob)| self.chat_entry(*id, *logprob)).collect();
            entry
        };
        json!({ "content": tokens.iter().map(entry).collect::<Vec<_>>() })
    }

    fn chat_entry(&self, id: i32, logprob: f32) -> Value {
        let text = self.text(id);
        let bytes = text.as_bytes().to_vec();
        json!({ "token": text, "logprob": number(logprob), "bytes": bytes })
    }
}

/// Returns the text of a single token; empty if the token cannot be decoded. An incomplete character becomes a replacement character.
fn text_of(tokenizer: &Tokenizer, id: i32) -> String {
    tokenizer.decode(&[id], false).unwrap_or_default()
}

/// Returns the log-probability, raised to [`LOWEST_LOGPROB`] if it is lower, as in vLLM. NaN also becomes `LOWEST_LOGPROB`. JSON can
/// represent neither NaN nor negative infinity.
fn sendable(logprob: f32) -> f32 {
    if logprob.is_nan() { LOWEST_LOGPROB } else { logprob.max(LOWEST_LOGPROB) }
}

/// Returns [`sendable`] of the log-probability as a JSON number, which reads back as the same float32.
fn number(logprob: f32) -> Value {
    serde_json::to_value(sendable(logprob)).unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn token(id: i32) -> ServedToken {
        let logprob = TokenLogprob { logprob: -0.5, rank: 2, top: vec![(4, -0.25), (id, -0.5)] };
        ServedToken { id, logprob: Some(logprob), version: Arc::from("7") }
    }

    fn tokenizer() -> Tokenizer {
        Tokenizer::characters("abé").unwrap()
    }

    #[test]
    fn shapes_have_the_sampled_and_the_likeliest_tokens() {
        let by_id = by_id(&[token(5)]).content.unwrap().remove(0);
        assert_eq!((by_id.token_id, by_id.rank, by_id.top_logprobs[0].token_id), (5, Some(2), 4));
        let tokenizer = tokenizer();
        let texts = TokenTexts { tokenizer: &tokenizer, as_ids: false };
        let (one, two) = (token(5), token(3));
        let listed = [&one, &two].map(|token| (token.id, token.logprob.as_ref()));
        let mut completion = CompletionLogprobs::default();
        let mut place = TokenPlace::new(3, true);
        texts.add_to_completion(&mut completion, listed.into_iter(), &mut place);
        assert_eq!(completion.tokens, ["é", "a"]);
        assert_eq!(completion.text_offset, [3, 4], "in characters");
        assert_eq!(completion.top_logprobs[0].as_ref().unwrap()["b"], -0.25);
        let chat = texts.of_chat(&[one]);
        assert_eq!(chat["content"][0]["bytes"], json!([195, 169]));
        assert_eq!(chat["content"][0]["top_logprobs"][1]["logprob"], -0.5);
        let as_ids = TokenTexts { as_ids: true, ..texts };
        assert_eq!(as_ids.text(5), "token_id:5");
    }

    /// Returns a tokenizer whose tokens are the bytes of `é€` and the letter `a`.
    fn bytes() -> Tokenizer {
        let names = ["<0xC3>", "<0xA9>", "<0xE2>", "<0x82>", "<0xAC>", "a"];
        let vocabulary: BTreeMap<_, _> = names.into_iter().zip(0..).collect();
        let decoders = json!([{"type": "ByteFallback"}, {"type": "Fuse"}]);
        let file = json!({
            "version": "1.0", "added_tokens": [{
                "id": 6, "content": "<eos>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": true,
            }],
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
        Tokenizer::from_folder(folder.path()).unwrap()
    }

    #[test]
    fn the_tokens_of_a_character_have_its_place() {
        let tokenizer = bytes();
        let texts = TokenTexts { tokenizer: &tokenizer, as_ids: false };
        let ids = [5, 0, 1, 6, 2, 3, 4, 5, 5];
        let offsets = |skip_special| {
            let (mut all, mut place) =
                (CompletionLogprobs::default(), TokenPlace::new(0, skip_special));
            for id in ids {
                texts.add_to_completion(&mut all, [(id, None)].into_iter(), &mut place);
            }
            all.text_offset
        };
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), "aé€aa");
        assert_eq!(offsets(true), [0, 1, 1, 2, 2, 2, 2, 3, 4]);
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), "aé<eos>€aa");
        assert_eq!(offsets(false), [0, 1, 1, 2, 7, 7, 7, 8, 9]);
    }

    #[test]
    fn the_first_token_of_a_prompt_has_none() {
        let scored = TokenLogprob { logprob: f32::NEG_INFINITY, rank: 9, top: vec![(3, -0.1)] };
        let all = of_prompt(&tokenizer(), &[3, 4], &[scored]);
        assert_eq!(all[0], None);
        let second = all[1].as_ref().unwrap();
        assert_eq!((second["4"].logprob, second["4"].rank), (LOWEST_LOGPROB, Some(9)));
        assert_eq!(second["3"].decoded_token.as_deref(), Some("a"));
    }
}
