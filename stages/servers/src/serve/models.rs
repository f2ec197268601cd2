//! The model, the health and the metrics of a server.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::Service;
use super::error::ApiError;
use crate::vllm::protocol::{ModelCard, ModelList};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) async fn models(State(service): State<Arc<Service>>) -> Json<ModelList> {
    let data = service.options.names.iter().map(|name| service.card(name)).collect();
    Json(ModelList { object: "list".to_owned(), data })
}

pub(super) async fn model(
    State(service): State<Arc<Service>>,
    Path(name): Path<String>,
) -> Result<Json<ModelCard>, ApiError> {
    service.check_model(Some(&name))?;
    Ok(Json(service.card(&name)))
}

impl Service {
    fn card(&self, name: &str) -> ModelCard {
        ModelCard {
            id: name.to_owned(),
            object: "model".to_owned(),
            created: self.started_at,
            owned_by: "rollpacker".to_owned(),
            root: Some(self.options.root.clone()),
            max_model_len: Some(self.engine.limits().context as u64),
        }
    }
}

pub(super) async fn health(State(service): State<Arc<Service>>) -> Response {
    match service.engine.failure() {
        None => StatusCode::OK.into_response(),
        Some(reason) => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, reason).into_response(),
    }
}

/// Answers with the version of this program.
pub(super) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION"), "server": "rollpacker" }))
}

pub(super) async fn metrics(State(service): State<Arc<Service>>) -> Result<Response, ApiError> {
    let (now, limits) = (service.engine.statistics(), service.engine.limits());
    let text = service.metrics.write(&now, limits).map_err(ApiError::internal)?;
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}
