//! Pause, abort, weights, models and errors.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The treatment of running requests during a pause.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum PauseMode {
    /// Running requests end with the tokens that they have and `finish_reason` `abort`.
    #[default]
    Abort,
    /// Running requests continue. The call returns after all of them have ended.
    Wait,
    /// Running requests stop and continue after [`RESUME`](super::path::RESUME) from their KV cache.
    Keep,
}

impl PauseMode {
    /// Returns the name of the mode in queries and recipes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Abort => "abort",
            Self::Wait => "wait",
            Self::Keep => "keep",
        }
    }
}

impl fmt::Display for PauseMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The answer to [`PAUSE`](super::path::PAUSE) (`paused`) and [`RESUME`](super::path::RESUME) (`resumed`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusResponse {
    /// The state after the call: `paused` or `resumed`.
    pub status: String,
}

/// The answer to [`IS_PAUSED`](super::path::IS_PAUSED).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsPausedResponse {
    /// `true` between a pause and the next resume.
    pub is_paused: bool,
}

/// A request to abort other requests. Their calls return with the tokens sampled so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AbortRequest {
    /// The ids, with [`GENERATE_ID_PREFIX`](super::GENERATE_ID_PREFIX). `None` or an empty list aborts all requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_ids: Option<Vec<String>>,
}

/// The answer to an [`AbortRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbortResponse {
    /// Always `aborted`.
    pub status: String,
    /// The number of ids in the request, known or not; without ids, the number of aborted requests. `rollpacker serve` counts the calls
    /// that it aborts instead, with and without ids.
    pub aborted: u64,
}

/// A request to call a method on all workers of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveRpcRequest {
    /// The name of the method, such as `reload_weights`.
    pub method: String,
    /// Positional arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Value>,
    /// Named arguments. The method `reload_weights` takes `weights_path`, a Hugging Face folder with tensors in safetensors files, on the
    /// file system of the server.
    #[serde(default)]
    pub kwargs: Map<String, Value>,
    /// The time limit in seconds; none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
}

impl CollectiveRpcRequest {
    /// The name of the method that loads weights from a folder.
    pub const RELOAD_WEIGHTS: &'static str = "reload_weights";

    /// Creates a request to load the weights of a folder.
    #[must_use]
    pub fn reload_weights(weights_path: &str) -> Self {
        let kwargs = [("weights_path".to_owned(), weights_path.into())];
        Self {
            method: Self::RELOAD_WEIGHTS.to_owned(),
            kwargs: kwargs.into_iter().collect(),
            ..Self::default()
        }
    }
}

/// The answer to a [`CollectiveRpcRequest`]. vLLM answers with status 500 if the method fails.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CollectiveRpcResponse {
    /// The result of each worker; `null` for methods without a result. The result of a worker that failed may be an error message.
    #[serde(default)]
    pub results: Vec<Value>,
}

/// A request to label the loaded weights. vLLM does not check the label against the weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateWeightVersionRequest {
    /// The label of the loaded weights: any text that the client chooses.
    pub new_version: String,
}

/// The answer to an [`UpdateWeightVersionRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateWeightVersionResponse {
    /// Always `true`.
    pub success: bool,
    /// The label that was set.
    pub new_version: String,
}

/// The answer to [`WEIGHT_INFO`](super::path::WEIGHT_INFO).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightInfoResponse {
    /// The label of the weights; vLLM starts with `default`.
    pub weight_version: String,
}

/// The answer to [`RESET_PREFIX_CACHE`](super::path::RESET_PREFIX_CACHE).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuccessResponse {
    /// `false` while running requests hold blocks of the cache.
    pub success: bool,
}

/// The answer to [`MODELS`](super::path::MODELS).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelList {
    /// Always `list`.
    #[serde(default)]
    pub object: String,
    /// The models; the first is the base model.
    pub data: Vec<ModelCard>,
}

/// A model of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCard {
    /// The name of the model in requests.
    pub id: String,
    /// Always `model`.
    #[serde(default)]
    pub object: String,
    /// The time of the start, in seconds since 1970.
    #[serde(default)]
    pub created: u64,
    /// The software of the server, such as `vllm`.
    #[serde(default)]
    pub owned_by: String,
    /// The folder or repository that the model was loaded from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// The maximum number of tokens of prompt and response; `None` if the server does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u64>,
}

/// The body of an answer whose status is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorResponse {
    /// The message, the class and the status of the error.
    pub error: ErrorDetail,
}

/// The error of an [`ErrorResponse`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// The cause.
    pub message: String,
    /// The class, such as `BadRequestError`.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// The field of the request that is wrong; `None` if the error concerns no single field.
    #[serde(default)]
    pub param: Option<String>,
    /// The HTTP status.
    #[serde(default)]
    pub code: u16,
}

/// Names of the metrics at [`METRICS`](super::path::METRICS) that clients read.
pub mod metric {
    /// Gauge: requests that wait to run.
    pub const REQUESTS_WAITING: &str = "vllm:num_requests_waiting";
    /// Gauge: the used share of the KV cache, in [0, 1].
    pub const KV_CACHE_USAGE: &str = "vllm:kv_cache_usage_perc";
}
