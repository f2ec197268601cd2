//! Wire types of the calls that RL training makes to a vLLM server, as version 0.32 defines them.
//!
//! Clients and servers share these types. Fields of requests that are `None` are not sent, and unknown fields of answers are ignored.
//! [`path`] has the paths of the calls.

mod completions;
mod control;
mod generate;

pub use completions::{
    CompletionChoice, CompletionLogprobs, CompletionRequest, CompletionResponse, Prompt, Prompts,
    StreamOptions,
};
pub use control::{
    AbortRequest, AbortResponse, CollectiveRpcRequest, CollectiveRpcResponse, ErrorDetail,
    ErrorResponse, IsPausedResponse, ModelCard, ModelList, PauseMode, StatusResponse,
    SuccessResponse, UpdateWeightVersionRequest, UpdateWeightVersionResponse, WeightInfoResponse,
    metric,
};
pub use generate::{
    GenerateChoice, GenerateRequest, GenerateResponse, Logprob, Logprobs, PromptLogprob,
    PromptLogprobs, SamplingParams, Usage, WeightVersionSpan,
};

/// The prefix that a server puts before the `request_id` of a [`GenerateRequest`]. [`AbortRequest`] needs ids with this prefix.
pub const GENERATE_ID_PREFIX: &str = "generate-tokens-";

/// The log-probability that vLLM reports in place of lower values and of a missing log-probability.
pub const LOWEST_LOGPROB: f32 = -9999.0;

/// The data of the last event of a stream of server-sent events (`data: [DONE]`).
pub const STREAM_END: &str = "[DONE]";

/// Paths of the calls.
pub mod path {
    /// POST [`GenerateRequest`](super::GenerateRequest). Needs `--enable-scale-out` on vLLM; without it, the answer is 403 or 404.
    pub const GENERATE: &str = "/inference/v1/generate";
    /// POST [`CompletionRequest`](super::CompletionRequest).
    pub const COMPLETIONS: &str = "/v1/completions";
    /// POST a chat, as OpenAI defines it.
    pub const CHAT_COMPLETIONS: &str = "/v1/chat/completions";
    /// GET; answers with [`ModelList`](super::ModelList).
    pub const MODELS: &str = "/v1/models";
    /// GET; the answer is 200 without a body if the server is ready, and 503 if its engine has failed.
    pub const HEALTH: &str = "/health";
    /// GET; the version of the server, as `{"version": "0.32.0"}`.
    pub const VERSION: &str = "/version";
    /// GET; metrics in the Prometheus text format.
    pub const METRICS: &str = "/metrics";
    /// POST; answers with [`StatusResponse`](super::StatusResponse) after the pause took effect. The query has `mode`, a
    /// [`PauseMode`](super::PauseMode), and `clear_cache`, which clears the KV cache once the pause has begun; `true` by default, and
    /// ignored by [`PauseMode::Keep`](super::PauseMode::Keep).
    pub const PAUSE: &str = "/pause";
    /// POST; answers with [`StatusResponse`](super::StatusResponse).
    pub const RESUME: &str = "/resume";
    /// GET; answers with [`IsPausedResponse`](super::IsPausedResponse).
    pub const IS_PAUSED: &str = "/is_paused";
    /// POST [`AbortRequest`](super::AbortRequest).
    pub const ABORT_REQUESTS: &str = "/abort_requests";
    /// POST [`CollectiveRpcRequest`](super::CollectiveRpcRequest).
    pub const COLLECTIVE_RPC: &str = "/collective_rpc";
    /// POST [`UpdateWeightVersionRequest`](super::UpdateWeightVersionRequest).
    pub const UPDATE_WEIGHT_VERSION: &str = "/update_weight_version";
    /// GET; answers with [`WeightInfoResponse`](super::WeightInfoResponse).
    pub const WEIGHT_INFO: &str = "/weight_info";
    /// POST; answers with [`SuccessResponse`](super::SuccessResponse).
    pub const RESET_PREFIX_CACHE: &str = "/reset_prefix_cache";
}

#[cfg(test)]
mod tests;
