//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use rollpacker_model::Message;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Service;
use super::body::{Body, on_blocking_thread};
use super::deltas::{Delta, Deltas};
use super::error::ApiError;
use super::events::{self, Chunks};
use super::generate::check_salt;
use super::job::{Choice, Job};
use super::neutral::refuse_unsupported;
use super::options::{Options, stream_usage, take};
use crate::vllm::protocol::StreamOptions;

/// The maximum length of the contents of all messages together, in bytes. The limit on the length of the prompt does not bound the memory
/// that the template needs: a template may build values many times as large as the contents, even if it leaves most of the contents out of
/// the prompt.
const MAX_CONTENTS: usize = 16 << 20;

#[derive(Debug, Deserialize)]
pub(super) struct ChatRequest {
    model: Option<String>,
    messages: Vec<ChatMessage>,
    max_tokens: Option<u32>,
    /// OpenAI's new name of `max_tokens`. If both are set, `max_tokens` is ignored.
    max_completion_tokens: Option<u32>,
    /// Requests the log-probability of each sampled token.
    logprobs: Option<bool>,
    /// Requests the log-probabilities of this number of most likely tokens at each sampled token. Requires `logprobs`, unless the number is
    /// 0.
    top_logprobs: Option<i64>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    cache_salt: Option<String>,
    return_token_ids: Option<bool>,
    /// Ends the prompt with the start of an answer of the assistant; `true` by default.
    add_generation_prompt: Option<bool>,
    /// All other options, such as the sampling options.
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
struct ChatMessage {
    role: String,
    #[serde(default)]
    content: Value,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// A call whose options have been checked.
struct Chat {
    job: Job,
    model: String,
    created: u64,
    return_token_ids: bool,
    tokens_as_ids: bool,
}

pub(super) async fn chat_completions(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    Body(request): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    service.check_model(request.model.as_deref())?;
    let include_usage = stream_usage(request.stream, request.stream_options)?;
    let parse = Arc::clone(&service);
    let call = on_blocking_thread(move || parse.parse_chat(&headers, request)).await?;
    let Some(include_usage) = include_usage else {
        return service.respond_chat(&call).await.map(|answer| Json(answer).into_response());
    };
    let deltas = Deltas::start(&service, &call.job, true)?;
    Ok(events::respond(deltas, ChatChunks { service, call }, include_usage))
}

impl Service {
    fn parse_chat(&self, headers: &HeaderMap, mut request: ChatRequest) -> Result<Chat, ApiError> {
        check_salt(request.cache_salt.as_deref())?;
        let request_id: Option<String> = take(&mut request.other, "request_id", "a text")?;
        let flag = "true or false";
        let tokens_as_ids = take(&mut request.other, "return_tokens_as_token_ids", flag)?;
        let add_generation_prompt = request.add_generation_prompt.unwrap_or(true);
        let messages = request.messages.iter().map(ChatMessage::read);
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        if messages.is_empty() {
            return Err(ApiError::parameter("messages", "at least one message", "none"));
        }
        let contents: usize = messages.iter().map(|message| message.content.len()).sum();
        if contents > MAX_CONTENTS {
            let expected = format!("contents of at most {MAX_CONTENTS} bytes");
            return Err(ApiError::parameter("messages", expected, contents));
        }
        let text = self.encoder.template.render(&messages, add_generation_prompt);
        let text = text.map_err(ApiError::bad_request)?;
        let prompt = self.encode(&text)?;
        let return_token_ids = request.return_token_ids == Some(true);
        let options = request.options()?;
        if options.prompt_logprobs.is_some() {
            return Err(ApiError::parameter("prompt_logprobs", "null in a chat", "a number"));
        }
        if options.only_scores() {
            return Err(ApiError::parameter("max_tokens", "at least 1 in a chat", 0));
        }
        let id = self.call_id("chatcmpl-", headers, request_id.as_deref())?;
        Ok(Chat {
            job: Job { id, prompts: vec![prompt], options },
            model: self.name().to_owned(),
            created: self.unix_time(),
            return_token_ids,
            tokens_as_ids: tokens_as_ids.unwrap_or(false),
        })
    }

    async fn respond_chat(self: &Arc<Self>, call: &Chat) -> Result<Value, ApiError> {
        let choices = self.generate_all(&call.job, true).await?.pop().unwrap_or_default().choices;
        let sampled = choices.iter().map(|choice| choice.tokens.len()).sum();
        let choices = choices.iter().enumerate();
        let choices: Vec<Value> =
            choices.map(|(index, choice)| call.choice(self, index, choice)).collect();
        let mut answer = call.answer("chat.completion", choices);
        answer["usage"] = json!(call.job.usage(sampled));
        if call.return_token_ids {
            answer["prompt_token_ids"] = json!(&*call.job.prompts[0]);
        }
        Ok(answer)
    }
}

impl ChatRequest {
    /// Returns the sampling options. Returns an error if one is out of range, or if `top_logprobs` is set without `logprobs`.
    fn options(mut self) -> Result<Options, ApiError> {
        if self.logprobs != Some(true) && self.top_logprobs.is_some_and(|top| top != 0) {
            return Err(ApiError::parameter("top_logprobs", "null without logprobs", "a number"));
        }
        let top = self.top_logprobs.unwrap_or(0);
        let max_tokens = self.max_completion_tokens.or(self.max_tokens);
        // The names of the parameters here and in `SamplingParams` are the same.
        for (name, value) in [
            ("max_tokens", max_tokens.map(Value::from)),
            ("logprobs", self.logprobs.filter(|wanted| *wanted).map(|_| top.into())),
        ] {
            self.other.insert(name.to_owned(), value.unwrap_or_default());
        }
        Options::of_text(self.other)
    }
}

impl ChatMessage {
    /// Reads a message whose content is a text, a list of parts of the type `text`, or null. The texts of the parts are joined by line
    /// breaks. A content that is null or missing is an empty text.
    ///
    /// # Errors
    /// Returns an error if the content has another form, or if another field of the message is unknown or has an effect that is not
    /// supported.
    fn read(&self) -> Result<Message, ApiError> {
        refuse_unsupported(&self.other)?;
        let part = |part: &Value| {
            let is_known = |(name, value): (&String, &Value)| {
                matches!(name.as_str(), "type" | "text") || value.is_null()
            };
            let is_text = part["type"] == "text" && part.as_object()?.iter().all(is_known);
            part["text"].as_str().filter(|_| is_text).map(str::to_owned)
        };
        let content = match &self.content {
            Value::Null => Some(String::new()),
            Value::String(text) => Some(text.clone()),
            Value::Array(parts) => {
                let parts: Option<Vec<String>> = parts.iter().map(part).collect();
                parts.map(|parts| parts.join("\n"))
            }
            _ => None,
        };
        let content = content.ok_or_else(|| {
            ApiError::parameter("messages", "contents that are texts", &self.content)
        })?;
        Ok(Message { role: self.role.clone(), content })
    }
}

impl Chat {
    fn answer(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": &*self.job.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    fn choice(&self, service: &Service, index: usize, choice: &Choice) -> Value {
        let wanted = self.job.options.logprobs;
        let texts = service.token_texts(self.tokens_as_ids);
        let mut answer = json!({
            "index": index,
            "message": { "role": "assistant", "content": choice.text },
            "logprobs": wanted.map(|_| texts.of_chat(&choice.tokens)),
            "finish_reason": choice.end.reason.as_str(),
            "stop_reason": choice.end.stop,
        });
        if self.return_token_ids {
            let ids: Vec<i32> = choice.tokens.iter().map(|token| token.id).collect();
            answer["token_ids"] = json!(ids);
        }
        answer
    }
}

struct ChatChunks {
    service: Arc<Service>,
    call: Chat,
}

impl Chunks for ChatChunks {
    type Chunk = Value;

    fn begin(&self, at: u32) -> Option<Value> {
        if at >= self.call.job.options.n {
            return None;
        }
        let choice = json!({
            "index": at, "delta": { "role": "assistant", "content": "" }, "logprobs": null, "finish_reason": null,
        });
        let mut answer = self.call.answer("chat.completion.chunk", vec![choice]);
        if self.call.return_token_ids {
            answer["prompt_token_ids"] = json!(&*self.call.job.prompts[0]);
        }
        Some(answer)
    }

    fn chunk(&mut self, delta: Delta) -> Option<Value> {
        let Delta { choice: index, token, text, end } = delta;
        let wants_tokens = self.call.job.options.logprobs.is_some() || self.call.return_token_ids;
        if text.is_empty() && end.is_none() && !(wants_tokens && token.is_some()) {
            return None;
        }
        let token: Vec<_> = token.into_iter().collect();
        let wanted = self.call.job.options.logprobs.filter(|_| !token.is_empty());
        let delta = if text.is_empty() { json!({}) } else { json!({ "content": text }) };
        let texts = self.service.token_texts(self.call.tokens_as_ids);
        let mut choice = json!({
            "index": index,
            "delta": delta,
            "logprobs": wanted.map(|_| texts.of_chat(&token)),
            "finish_reason": end.as_ref().map(|end| end.reason.as_str()),
        });
        if let Some(end) = end {
            choice["stop_reason"] = json!(end.stop);
        }
        if self.call.return_token_ids {
            choice["token_ids"] = token.iter().map(|token| Value::from(token.id)).collect();
        }
        Some(self.call.answer("chat.completion.chunk", vec![choice]))
    }

    fn usage(&self, sampled: usize) -> Value {
        let mut answer = self.call.answer("chat.completion.chunk", Vec::new());
        answer["usage"] = json!(self.call.job.usage(sampled));
        answer
    }
}
