//! Log-probabilities in the formats of the different calls.

use std::collections::BTreeMap;

use rollpacker_model::Tokenizer;
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

    /// Returns the log-probabilities of tokens in the format of `/v1/completions`. The first token has the position `offset` in the text,
    /// in characters.
    pub(super) fn of_completion<'a>(
        &self,
        tokens: impl Iterator<Item = (i32, Option<&'a TokenLogprob>)>,
        mut offset: u64,
    ) -> CompletionLogprobs {
        let mut all = CompletionLogprobs::default();
        for (id, scored) in tokens {
            let text = self.text(id);
            all.text_offset.push(offset);
            offset += text.chars().count() as u64;
            all.token_logprobs.push(scored.map(|scored| sendable(scored.logprob)));
            all.top_logprobs.push(scored.map(|scored| self.top(&text, scored)));
            all.tokens.push(text);
        }
        all
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
        let completion = texts.of_completion(listed.into_iter(), 3);
        assert_eq!(completion.tokens, ["é", "a"]);
        assert_eq!(completion.text_offset, [3, 4], "in characters");
        assert_eq!(completion.top_logprobs[0].as_ref().unwrap()["b"], -0.25);
        let chat = texts.of_chat(&[one]);
        assert_eq!(chat["content"][0]["bytes"], json!([195, 169]));
        assert_eq!(chat["content"][0]["top_logprobs"][1]["logprob"], -0.5);
        let as_ids = TokenTexts { as_ids: true, ..texts };
        assert_eq!(as_ids.text(5), "token_id:5");
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
