//! Pause, abort and weights.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use rollpacker_stages::serving::Pause;
use serde_json::Value;

use super::Service;
use super::body::Body;
use super::error::ApiError;
use crate::vllm::protocol::{
    AbortRequest, AbortResponse, CollectiveRpcRequest, CollectiveRpcResponse, IsPausedResponse,
    PauseMode, StatusResponse, SuccessResponse, UpdateWeightVersionRequest,
    UpdateWeightVersionResponse, WeightInfoResponse,
};

type ApiResult<T> = Result<Json<T>, ApiError>;

pub(super) async fn pause(
    State(service): State<Arc<Service>>,
    RawQuery(query): RawQuery,
) -> ApiResult<StatusResponse> {
    let mode = match pause_mode(query.as_deref().unwrap_or_default())? {
        PauseMode::Abort => Pause::Abort,
        PauseMode::Wait => Pause::Wait,
        PauseMode::Keep => Pause::Keep,
    };
    service.engine.pause(mode).await?;
    Ok(status("paused"))
}

/// Returns the mode in the query of a pause, or the default mode if the query has none. The parameter `clear_cache` has no effect, because
/// the engine keeps no KV cache after a response has ended. Fails if a parameter or its value is unknown.
fn pause_mode(query: &str) -> Result<PauseMode, ApiError> {
    let mut mode = PauseMode::default();
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "mode" => {
                let modes = [PauseMode::Abort, PauseMode::Wait, PauseMode::Keep];
                let named = modes.into_iter().find(|mode| mode.as_str() == value);
                mode = named
                    .ok_or_else(|| ApiError::parameter("mode", "abort, wait or keep", &value))?;
            }
            "clear_cache" => check_flag(&name, &value, &["true", "false"])?,
            _ => return Err(ApiError::parameter(&name, "mode or clear_cache", &value)),
        }
    }
    Ok(mode)
}

/// Returns an error unless the flag of a query has one of the `expected` values, in lower or upper case.
fn check_flag(name: &str, value: &str, expected: &[&str]) -> Result<(), ApiError> {
    if expected.iter().any(|expected| value.eq_ignore_ascii_case(expected)) {
        return Ok(());
    }
    Err(ApiError::parameter(name, expected.join(" or "), value))
}

pub(super) async fn resume(State(service): State<Arc<Service>>) -> ApiResult<StatusResponse> {
    service.engine.resume().await?;
    Ok(status("resumed"))
}

pub(super) async fn is_paused(State(service): State<Arc<Service>>) -> Json<IsPausedResponse> {
    Json(IsPausedResponse { is_paused: service.engine.is_paused() })
}

pub(super) async fn abort_requests(
    State(service): State<Arc<Service>>,
    Body(request): Body<AbortRequest>,
) -> Json<AbortResponse> {
    let ids: BTreeSet<String> = request.request_ids.unwrap_or_default().into_iter().collect();
    let aborted = if ids.is_empty() {
        service.requests.abort_all()
    } else {
        service.requests.abort(|call| ids.contains(call))
    };
    Json(AbortResponse { status: "aborted".to_owned(), aborted: aborted as u64 })
}

pub(super) async fn collective_rpc(
    State(service): State<Arc<Service>>,
    Body(request): Body<CollectiveRpcRequest>,
) -> ApiResult<CollectiveRpcResponse> {
    if request.method != CollectiveRpcRequest::RELOAD_WEIGHTS {
        let message = format_args!(
            "method `{}`: this server has only `{}`",
            request.method,
            CollectiveRpcRequest::RELOAD_WEIGHTS
        );
        return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, message));
    }
    if let Some(timeout) = request.timeout {
        let expected = "null, because a load has no time limit";
        return Err(ApiError::parameter("timeout", expected, timeout));
    }
    service.engine.load(weights_path(request)?).await?;
    Ok(Json(CollectiveRpcResponse { results: vec![Value::Null] }))
}

/// Returns the folder that `reload_weights` names; `None` for the folder that the server was started with.
fn weights_path(request: CollectiveRpcRequest) -> Result<Option<PathBuf>, ApiError> {
    if !request.args.is_empty() {
        return Err(ApiError::parameter("args", "none: use kwargs", Value::Array(request.args)));
    }
    let mut path = None;
    for (name, value) in request.kwargs {
        match (name.as_str(), &value) {
            ("weights_path", Value::String(folder)) => path = Some(PathBuf::from(folder)),
            ("weights_path", Value::Null) | ("is_checkpoint_format", Value::Bool(true)) => {}
            _ => {
                let expected = "weights_path, the path of a folder";
                return Err(ApiError::parameter(&format!("kwargs.{name}"), expected, value));
            }
        }
    }
    Ok(path)
}

pub(super) async fn update_weight_version(
    State(service): State<Arc<Service>>,
    Body(request): Body<UpdateWeightVersionRequest>,
) -> ApiResult<UpdateWeightVersionResponse> {
    let new_version = request.new_version;
    service.engine.set_label(new_version.as_str().into()).await?;
    Ok(Json(UpdateWeightVersionResponse { success: true, new_version }))
}

pub(super) async fn weight_info(State(service): State<Arc<Service>>) -> Json<WeightInfoResponse> {
    Json(WeightInfoResponse { weight_version: service.engine.label().to_string() })
}

/// Reports success and does nothing: there is no prefix cache, because the engine keeps no KV cache after a response has ended. Refuses to
/// reset the KV cache of running responses.
pub(super) async fn reset_prefix_cache(RawQuery(query): RawQuery) -> ApiResult<SuccessResponse> {
    let query = query.unwrap_or_default();
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "reset_running_requests" => check_flag(&name, &value, &["false"])?,
            "reset_external" => check_flag(&name, &value, &["true", "false"])?,
            _ => {
                let expected = "reset_running_requests or reset_external";
                return Err(ApiError::parameter(&name, expected, &value));
            }
        }
    }
    Ok(Json(SuccessResponse { success: true }))
}

fn status(status: &str) -> Json<StatusResponse> {
    Json(StatusResponse { status: status.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_that_is_unknown_is_refused() {
        assert_eq!(pause_mode("").unwrap(), PauseMode::Abort);
        assert_eq!(pause_mode("clear_cache=true&mode=keep").unwrap(), PauseMode::Keep);
        for query in ["mode=later", "wait=1", "clear_cache=maybe"] {
            assert!(pause_mode(query).is_err(), "{query}");
        }
    }

    #[test]
    fn only_a_folder_is_loaded() {
        let request = CollectiveRpcRequest::reload_weights("/w/v1");
        assert_eq!(weights_path(request).unwrap(), Some(PathBuf::from("/w/v1")));
        let mut request = CollectiveRpcRequest::reload_weights("/w/v1");
        request.kwargs.insert("shard".to_owned(), 1.into());
        let message = weights_path(request).unwrap_err().body().error.message;
        assert!(message.contains("`kwargs.shard`"), "{message}");
    }
}
