//! Judges behind a server with OpenAI's chat completions API, such as vLLM, SGLang, llama.cpp or the server of a vendor.

use rollpacker_stages::catalog::CatalogError;
use rollpacker_stages::documented;
use rollpacker_stages::reward::RewardError;
use rollpacker_stages::reward::chat::{Chat, ChatError, JudgeSampling, Message};
use rollpacker_stages::secret::quote;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::endpoint::Endpoint;

/// The names of the id of a request: that of SGLang, and that of vLLM. Servers refuse or confuse requests with the same id.
const REQUEST_IDS: [&str; 2] = ["rid", "request_id"];

/// A model behind a server with OpenAI's chat completions API.
pub struct ChatServer {
    endpoint: Endpoint,
    model: String,
    extra_body: Map<String, Value>,
}

documented! {
    /// Options of a [`ChatServer`].
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct ChatServerOptions {
        /// The URL of the server, without `/chat/completions`, such as `http://127.0.0.1:8000/v1`. A query string is moved to the end of
        /// the full URL.
        pub base_url: String,
        /// The name of the model on the server.
        pub model: String,
        /// The environment variable with the key that is sent as a bearer token. Default: no key.
        #[serde(default)]
        pub api_key_env: Option<String>,
        /// Further entries of a request, such as `response_format` or `chat_template_kwargs`. They override the default entries; `null`
        /// removes an entry. `rid` and `request_id` are refused, since each request needs an id of its own. Default: none.
        #[serde(default)]
        pub extra_body: Map<String, Value>,
    }
}

impl ChatServer {
    /// Creates a client for a model.
    ///
    /// # Errors
    /// If the URL is invalid or has redacted credentials, `extra_body` sets the id of a request, the key is missing, or the HTTP client
    /// cannot start.
    pub fn new(options: ChatServerOptions) -> Result<Self, CatalogError> {
        if let Some((key, found)) =
            REQUEST_IDS.iter().find_map(|key| options.extra_body.get_key_value(*key))
            && !found.is_null()
        {
            let key = format!("extra_body.{key}");
            let expected = "no such entry, since each request needs an id of its own";
            return Err(CatalogError::out_of_range(&key, expected, found));
        }
        let (base, query) = match options.base_url.split_once('?') {
            Some((base, query)) => (base, format!("?{query}")),
            None => (options.base_url.as_str(), String::new()),
        };
        let url = format!("{}/chat/completions{query}", base.trim_end_matches('/'));
        Ok(Self {
            endpoint: Endpoint::new(&url, options.api_key_env.as_deref())?,
            model: options.model,
            extra_body: options.extra_body,
        })
    }

    fn body(&self, messages: &[Message], sampling: &JudgeSampling) -> Value {
        let JudgeSampling { temperature, max_tokens, seed } = sampling;
        let mut body = json!({
            "model": self.model,
            "messages": messages,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "seed": seed,
        });
        if let Some(body) = body.as_object_mut() {
            let extra = self.extra_body.iter();
            body.extend(extra.map(|(key, value)| (key.clone(), value.clone())));
            // A null in `extra_body` removes an entry, for servers that reject unknown entries.
            body.retain(|_, value| !value.is_null());
        }
        body
    }
}

impl Chat for ChatServer {
    async fn complete(
        &self,
        messages: &[Message],
        sampling: &JudgeSampling,
    ) -> Result<String, ChatError> {
        let answer = self.endpoint.post(&self.body(messages, sampling)).await?;
        let choice = &answer["choices"][0];
        if choice["finish_reason"] == "length" {
            return Err(ChatError::CutOff { tokens: sampling.max_tokens as usize });
        }
        let content = choice["message"]["content"].as_str();
        content.map(str::to_owned).ok_or_else(|| {
            let answer = quote(&answer.to_string(), 500);
            let expected = "expected `choices[0].message.content`";
            let reason = format_args!("the judge's server: {expected}, found {answer}");
            RewardError::fatal(reason).into()
        })
    }
}
